"""The training loop. It knows no objective by name and reads top to bottom in stages."""

import dataclasses
import logging
import pathlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Protocol

import jax
import numpy as np

from objectives.batch import Batch
from training import sharding
from training.checkpoint import Checkpoints
from training.parameters import parameter_table
from training.progress import Evaluator, Progress
from training.settings import TrainSettings
from training.signals import Stopped
from training.state import TrainState
from training.step import TrainFunctions


class TrainingData(Protocol):
    """Where the loop has its batches from; `input_pipeline.dataset.StreamedData` is one."""

    def batches(self, steps: range) -> Iterator[tuple[str, dict[str, np.ndarray]]]:
        """Yields the kind and this host's part of the arrays of each step's batch."""

    def describe_batch(self, step: int) -> Any:
        """JSON-able, what a batch is made of; written down where the loss is not finite."""

    def step_values(self, step: int) -> Mapping[str, float]:
        """Settings of the data that depend on the step, for its metrics."""


def train(
    functions: TrainFunctions,
    settings: TrainSettings,
    folder: pathlib.Path,
    data: TrainingData,
    evaluators: Iterable[Evaluator] = (),
    *,
    initial_params: Callable[[], Any] | None = None,
    should_stop: Callable[[int], bool] = lambda step: False,
) -> TrainState:
    """Trains, or goes on training, until `settings.num_steps`.

    Args:
      functions: the compiled functions.
      settings: lengths and intervals.
      folder: where checkpoints and metrics are, and are looked for.
      data: batches by step, counted from zero.
      evaluators: run now and then on the state.
      should_stop: steps taken -> whether the run is to save its state and end here.

    Returns:
      The last state.

    Raises:
      Stopped: `should_stop` said so; the state is saved.
      FloatingPointError: the loss is not finite; the last good checkpoint stays.
      SaveError: a checkpoint could not be written; those before it stay.
      DamagedError: there are checkpoints, but none is whole.
    """
    with Checkpoints(
        folder / "checkpoints", settings.keep_checkpoints, settings.keep_every
    ) as checkpoints:
        # 1. State: from the latest checkpoint if there is one, else from the seed.
        logging.info("parameters:\n%s", parameter_table(functions.abstract_state.params))
        step, state = _first_state(functions, settings, checkpoints, initial_params)

        # 2. Steps. Data, keys and schedule depend on the step alone, so this is all of resuming.
        stops = False
        layout = sharding.batch_sharding(functions.mesh)
        with Progress(functions, settings, folder, step, data) as progress:
            for kind, arrays in data.batches(range(step, settings.num_steps)):
                objective = functions.objective.at_step(step)
                # Before the step, after a resume as well: a checkpoint between two steps holds the
                # state before the refresh.
                if names := objective.due(step):
                    state, report = functions.refresh(names, state)
                    progress.after_refresh(step, report)
                placed = {
                    name: jax.make_array_from_process_local_data(layout, array)
                    for name, array in arrays.items()
                }
                batch = Batch(placed, kind)
                progress.before_step(step, objective, state, batch)
                state, metrics = functions.train_step(objective, state, batch)
                step += 1
                progress.after_step(step, metrics)

                is_last = step == settings.num_steps
                evaluates = is_last or step % settings.evaluate_every == 0
                saves = is_last or step % settings.checkpoint_every == 0
                stops = should_stop(step) and not is_last
                # Not for a stop: the run that goes on is to be the one that was never stopped, and
                # bringing rows up to date in one step more or less changes their last bits.
                is_up_to_date = evaluates or saves
                if is_up_to_date:
                    state = functions.apply_pending_updates(state)
                # Evaluate before saving: a checkpoint promises that all metrics up to it are on
                # disk.
                if evaluates:
                    progress.evaluate(step, state, evaluators)
                if saves or stops:
                    progress.flush_metrics()  # raises if the loss is not finite, before it is saved
                    checkpoints.save(step, state, is_up_to_date=is_up_to_date)
                if stops:
                    break
                checkpoints.check()
    if stops:  # and the state is whole on disk, now that `checkpoints` is closed
        raise Stopped(step)
    return state


def _first_state(
    functions: TrainFunctions,
    settings: TrainSettings,
    checkpoints: Checkpoints,
    initial_params: Callable[[], Any] | None,
) -> tuple[int, TrainState]:
    """Steps taken, and the state after them."""
    found = checkpoints.restore_latest(functions.abstract_state)
    if found is None:
        state = functions.init(np.int32(settings.seed))
        if initial_params is not None:
            params = sharding.placed(initial_params(), functions.abstract_state.params)
            state = dataclasses.replace(state, params=params)
        return 0, state
    logging.info("resumed after step %d", found[0])
    return found
