"""The training loop. It knows no objective by name and reads top to bottom in stages."""

import dataclasses
import logging
import pathlib
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import jax
import numpy as np

from training import sharding
from training.checkpoint import Checkpoints
from training.parameters import parameter_table
from training.progress import Evaluator, Progress
from training.settings import TrainSettings
from training.signals import Stopped
from training.state import TrainState
from training.step import Program


def train(
    program: Program,
    settings: TrainSettings,
    folder: pathlib.Path,
    batches: Callable[[range], Iterator[dict[str, np.ndarray]]],
    evaluators: Iterable[Evaluator] = (),
    *,
    initial_params: Callable[[], Any] | None = None,
    should_stop: Callable[[int], bool] = lambda step: False,
    batch_contents: Callable[[int], Any] | None = None,
) -> TrainState:
    """Trains, or goes on training, until `settings.num_steps`.

    Args:
      program: the compiled functions.
      settings: lengths and intervals.
      folder: where checkpoints and metrics are, and are looked for.
      batches: range of steps -> this host's part of each step's batch.
      evaluators: run now and then on the state.
      should_stop: steps taken -> whether the run is to save its state and end here.
      batch_contents: step, counted from zero -> JSON-able, what its batch is made of; written down
        where the loss is not finite.

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
        logging.info("parameters:\n%s", parameter_table(program.abstract_state.params))
        step, state = _first_state(program, settings, checkpoints, initial_params)

        # 2. Steps. Data, keys and schedule depend on the step alone, so this is all of resuming.
        stops = False
        layout = sharding.batch_sharding(program.mesh)
        with Progress(program, settings, folder, step, batch_contents) as progress:
            for batch in batches(range(step, settings.num_steps)):
                exact = step >= program.exact_from
                if not exact:
                    state = _refreshed(program, state, step, progress)
                placed = {
                    name: jax.make_array_from_process_local_data(layout, array)
                    for name, array in batch.items()
                }
                progress.before_step(step, state, placed, exact)
                state, sums = program.train_step(state, placed, exact)
                step += 1
                progress.after_step(step, sums)

                is_last = step == settings.num_steps
                evaluates = is_last or step % settings.evaluate_every == 0
                saves = is_last or step % settings.checkpoint_every == 0
                stops = should_stop(step) and not is_last
                # Not for a stop: the run that goes on is to be the one that was never stopped, and
                # bringing rows up to date in one step more or less changes their last bits.
                if evaluates or saves:
                    state = program.flush(state)
                # Evaluate before saving: a checkpoint promises that all metrics up to it are on
                # disk.
                if evaluates:
                    progress.evaluate(step, state, evaluators)
                if saves or stops:
                    progress.flush()  # raises if the loss is not finite, before that is saved
                    checkpoints.save(step, state)
                if stops:
                    break
                checkpoints.check()
    if stops:  # and the state is whole on disk, now that `checkpoints` is closed
        raise Stopped(step)
    return state


def _first_state(
    program: Program,
    settings: TrainSettings,
    checkpoints: Checkpoints,
    initial_params: Callable[[], Any] | None,
) -> tuple[int, TrainState]:
    """Steps taken, and the state after them."""
    found = checkpoints.restore_latest(program.abstract_state)
    if found is None:
        state = program.init(np.int32(settings.seed))
        if initial_params is not None:
            params = sharding.placed(initial_params(), program.abstract_state.params)
            state = dataclasses.replace(state, params=params)
        return 0, state
    logging.info("resumed after step %d", found[0])
    return found


def _refreshed(program: Program, state: TrainState, step: int, progress: Progress) -> TrainState:
    """The state with the neighbour index as step `step` wants it, made anew if it is time.

    That is before the step, after a resume as well: a checkpoint between two steps holds the state
    before the refresh.
    """
    if not program.refresh_every:
        return state
    whole = step == 0 if program.rolling_refresh else step % program.refresh_every == 0
    if whole or program.rolling_refresh:
        state, sums = program.refresh(state, whole)
        progress.after_refresh(step, sums, whole)
    return state
