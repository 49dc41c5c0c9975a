"""Training loop, independent of the objective."""

import dataclasses
import logging
import pathlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Protocol, runtime_checkable

import jax
import numpy as np

from xlm.objectives.objective import AuxState, Batch
from xlm.training import sharding
from xlm.training.checkpoint import Checkpoints, restore_latest
from xlm.training.clock import Clock
from xlm.training.progress import Evaluator, Progress
from xlm.training.settings import TrainSettings
from xlm.training.signals import Stopped
from xlm.training.state import TrainState, num_parameters, parameter_table
from xlm.training.step import TrainFunctions


class TrainingData(Protocol):
    """Source of batches for the loop, such as `input_pipeline.dataset.StreamedData`."""

    def batches(self, steps: range) -> Iterator[tuple[str, dict[str, np.ndarray]]]:
        """Yield the kind and this host's part of the arrays of each step's batch."""

    def describe_batch(self, step: int) -> Any:
        """Return a JSON-able description of a batch, recorded if the loss is not finite."""

    def step_values(self, step: int) -> Mapping[str, float]:
        """Return the step-dependent settings of the data, recorded as metrics."""


@runtime_checkable
class LearnedData(TrainingData, Protocol):
    """Data whose later batches depend on the run's auxiliary state."""

    def known_until(self, step: int) -> int:
        """Return the first step after `step` whose batch needs another `renew`."""

    def renew(self, step: int, learned: Callable[[], AuxState]) -> None:
        """Decide the batches from `step` on; `learned` reads the auxiliary state before it."""


def train(
    functions: TrainFunctions, settings: TrainSettings, folder: pathlib.Path, data: TrainingData,
    evaluators: Iterable[Evaluator] = (), *, initial_params: Callable[[], Any] | None = None,
    continued_from: pathlib.Path | None = None,
    should_stop: Callable[[int], bool] = lambda step: False,
    is_over: Callable[[int], bool] = lambda step: False,
) -> TrainState:  # fmt: skip
    """Train until `settings.num_steps`, from the latest checkpoint if there is one.

    Returns the last state. `functions` are those of the first stage. `folder` holds checkpoints and
    metrics. `initial_params` reads parameters to start from; others keep their random values.
    `continued_from` is the folder of another run's checkpoints: the run starts from the parameters
    and the optimizer's state of the latest. After each step, `should_stop(steps taken)` returns
    whether to save and stop. After an evaluation and on resuming, `is_over(steps taken)` returns
    whether the run ends early.

    Raises:
      Stopped: `should_stop` returned True, and the state is saved.
      FloatingPointError: the loss or the state is not finite. The last good checkpoint stays.
      SaveError: a save failed. Earlier checkpoints stay.
      DamagedError: all checkpoints are damaged.
    """
    with Clock(folder, settings.hang_minutes) as clock, Checkpoints(
        folder / "checkpoints", settings.keep_checkpoints, settings.keep_every,
        settings.max_multiples, verify=settings.verify_checkpoints,
    ) as checkpoints:  # fmt: skip
        logging.debug("parameters:\n%s", parameter_table(functions.abstract_state.params))
        step, state = _first_state(functions, settings, checkpoints, initial_params, continued_from)
        current, phase = functions.after(step), functions.objective.at_step(step)
        _log_stage(current)

        # Data, keys and schedule depend only on the step, so resuming needs nothing else.
        stops = False
        layout = sharding.batch_sharding(functions.mesh)
        with Progress(functions, settings, folder, step, data, clock) as progress:

            def learned() -> AuxState:
                progress.flush_metrics()  # raises if the loss is not finite
                return state.aux_state

            # A run that ended early, but died after its last save, takes no more steps.
            end = step if is_over(step) else settings.num_steps
            batches = _batches(data, range(step, end), learned)
            for kind, arrays in clock.waiting(batches):
                objective = functions.objective.at_step(step)
                if objective is not phase:  # the only change is to an exact softmax
                    phase = objective
                    logging.info("step %s: from now on the loss is over the whole vocabulary, not "
                                 "over sampled classes, and jumps", f"{step + 1:,}")  # fmt: skip
                # Before the step, also after a resume: a checkpoint precedes the next stage and
                # the refresh.
                if functions.at_step(step) is not current:
                    state = current.apply_pending_updates(state)
                    current = functions.at_step(step)
                    state = current.begin(state)
                    _log_stage(current)
                if names := objective.due(step):
                    clock.turn("refresh")
                    state, report = current.refresh(names, state)
                    progress.after_refresh(step, report)
                placed = {
                    name: jax.make_array_from_process_local_data(layout, array)
                    for name, array in arrays.items()
                }
                batch = Batch(placed, kind)
                progress.before_step(step, objective, current, state, batch)
                state, metrics = current.train_step(objective, state, batch)
                step += 1
                progress.after_step(step, metrics)

                is_last = step == settings.num_steps
                evaluates = is_last or step % settings.evaluate_every == 0
                saves = is_last or step % settings.checkpoint_every == 0
                stops = should_stop(step) and not is_last
                clock.turn("saving")
                # Not for a stop: applying pending updates at other steps changes the last bits of
                # the rows, and a resumed run must equal an uninterrupted one bit for bit.
                is_up_to_date = evaluates or saves
                if is_up_to_date:
                    state = current.apply_pending_updates(state)
                if is_up_to_date or stops:
                    inspection = progress.inspect(step, state)  # raises if it is not finite
                # Before saving: a checkpoint guarantees that all metrics up to it are on disk.
                if evaluates:
                    read = state if current.averaged is None else current.averaged(state)
                    read = dataclasses.replace(read, params=current.gathered(read.params))
                    progress.evaluate(step, read, evaluators)
                ends = evaluates and is_over(step)
                if saves or stops or ends:
                    progress.sync_metrics()
                    checkpoints.save(
                        step, state, is_up_to_date=is_up_to_date, inspection=inspection
                    )
                if stops or ends:
                    break
                checkpoints.check()
        clock.turn("saving")  # until `checkpoints` closes
    if stops:  # the state is complete on disk after `checkpoints` closes
        raise Stopped(step)
    return state


def _log_stage(functions: TrainFunctions) -> None:
    stage, params = functions.stage, functions.abstract_state.params
    trained = num_parameters(stage.trained_part(params))
    total = num_parameters(params)
    logging.info(
        "training %s: %s of %s parameters; compiling the first step may take minutes",
        stage, f"{trained:,}", f"{total:,}",
    )  # fmt: skip


def _batches(
    data: TrainingData, steps: range, learned: Callable[[], AuxState]
) -> Iterator[tuple[str, dict[str, np.ndarray]]]:
    """Yield the batches of `steps`, each after the steps on which it depends."""
    if not isinstance(data, LearnedData):
        yield from data.batches(steps)
        return
    step = steps.start
    while step < steps.stop:
        data.renew(step, learned)
        until = min(data.known_until(step), steps.stop)
        yield from data.batches(range(step, until))
        step = until


def _first_state(
    functions: TrainFunctions,
    settings: TrainSettings,
    checkpoints: Checkpoints,
    initial_params: Callable[[], Any] | None,
    continued_from: pathlib.Path | None,
) -> tuple[int, TrainState]:
    """Restore or initialise the state; return the steps taken, and the state after them."""
    found = checkpoints.restore_latest(functions.abstract_after)
    if found is None:
        given = None
        if initial_params is not None:
            given = sharding.placed(initial_params(), functions.abstract_state.params)
        state = functions.init(np.int32(settings.seed), given)
        if continued_from is None:
            return 0, state
        step, before = restore_latest(continued_from, functions.abstract_after)
        logging.info("continuing the optimizer of step %d in %s", step, continued_from)
        return 0, dataclasses.replace(state, params=before.params, opt_state=before.opt_state)
    logging.info("resumed after step %d", found[0])
    return found
