"""The training loop. It knows no objective by name and reads top to bottom in stages."""

import dataclasses
import logging
import math
import pathlib
import time
from collections.abc import Callable, Iterable, Iterator, Mapping

import jax
import numpy as np
import tqdm

from objectives.sums import Sums, means
from training import sharding
from training.checkpoint import Checkpoints
from training.metrics import MetricsWriter
from training.state import TrainState
from training.step import Program

# Called with the state; returns metrics to record.
Evaluator = Callable[..., Mapping[str, float]]


@dataclasses.dataclass(frozen=True)
class TrainSettings:
    """Lengths and intervals of a run, in steps; the `train` section of a config.

    Attributes:
      num_steps: steps of the whole run.
      batch_size: B, rows of the global batch.
      seed: of parameters, masking, dropout and data order.
      log_every: training metrics are recorded.
      evaluate_every: evaluators run, as they do at the end.
      checkpoint_every: the state is saved, as it is at the end.
      keep_checkpoints: latest checkpoints that stay on disk.
    """

    num_steps: int
    batch_size: int
    seed: int
    log_every: int
    evaluate_every: int
    checkpoint_every: int
    keep_checkpoints: int

    def __post_init__(self):
        for field in dataclasses.fields(self):
            if field.name != "seed" and getattr(self, field.name) < 1:
                raise ValueError(
                    f"train.{field.name} is {getattr(self, field.name)}, must be at least 1"
                )


def train(
    program: Program,
    settings: TrainSettings,
    folder: pathlib.Path,
    batches: Callable[[range], Iterator[dict[str, np.ndarray]]],
    evaluators: Iterable[Evaluator] = (),
) -> TrainState:
    """Trains, or goes on training, until `settings.num_steps`.

    Args:
      program: the compiled functions.
      settings: lengths and intervals.
      folder: where checkpoints and metrics are, and are looked for.
      batches: range of steps -> this host's part of each step's batch.
      evaluators: run now and then on the state.

    Returns:
      The last state.

    Raises:
      FloatingPointError: the loss is not finite; the last good checkpoint stays.
    """
    with Checkpoints(folder / "checkpoints", settings.keep_checkpoints) as checkpoints:
        # 1. State: from the latest checkpoint if there is one, else from the seed.
        step = checkpoints.latest_step()
        if step is None:
            step, state = 0, program.init(np.int32(settings.seed))
        else:
            state = checkpoints.restore(step, program.abstract_state)
            logging.info("resumed after step %d from %s", step, folder)
        run = _Run(program, settings, folder, step)

        # 2. Steps. Data, keys and schedule depend on the step alone, so this is all of resuming.
        layout = sharding.batch_sharding(program.mesh)
        for batch in batches(range(step, settings.num_steps)):
            # The index is refreshed before the step that needs it: after a resume as well, since
            # a checkpoint between the two holds the state before the refresh.
            exact = step >= program.exact_from
            whole = _whole_refresh(program, step)
            if program.refresh_every and not exact and (whole or program.rolling_refresh):
                state, sums = program.refresh(state, whole)
                run.after_refresh(step, sums, whole)
            placed = {
                name: jax.make_array_from_process_local_data(layout, array)
                for name, array in batch.items()
            }
            state, sums = program.train_step(state, placed, exact)
            step += 1
            run.after_step(step, sums)

            is_last = step == settings.num_steps
            evaluates = is_last or step % settings.evaluate_every == 0
            saves = is_last or step % settings.checkpoint_every == 0
            if evaluates or saves:
                state = program.flush(state)
            # Evaluate before saving: a checkpoint promises that all metrics up to it are on disk.
            if evaluates:
                run.evaluate(step, state, evaluators)
            if saves:
                run.flush()  # raises if the loss is not finite, before a bad state is saved
                checkpoints.save(step, state)
    run.close()
    return state


def _whole_refresh(program: Program, step: int) -> bool:
    """Whether all of the index, if there is one, is made anew before step `step`."""
    if program.rolling_refresh:
        return step == 0
    return bool(program.refresh_every) and step % program.refresh_every == 0


class _Run:
    """Metrics, progress and the clock of one call of `train`."""

    def __init__(self, program: Program, settings: TrainSettings, folder: pathlib.Path, step: int):
        self._settings = settings
        self._program = program
        self._is_writer = jax.process_index() == 0
        self._pending: tuple[int, Sums] | None = None
        self._pending_refresh: tuple[int, Sums] | None = None
        if self._is_writer:
            self._metrics = MetricsWriter(folder / "metrics.jsonl", step)
            self._speed = MetricsWriter(folder / "speed.jsonl", step)
        self._bar = tqdm.tqdm(
            total=settings.num_steps,
            initial=step,
            desc="train",
            unit="step",
            disable=not self._is_writer,
            mininterval=1.0,
        )
        self._clock = (step, time.monotonic())

    def after_step(self, step: int, sums: Sums) -> None:
        """Takes the metrics of a step just dispatched and reads those of the one before.

        Reading waits for the device; one step late, the device has the next step to work on.
        """
        self.flush()
        self._pending = (step, sums)
        self._bar.update()

    def after_refresh(self, step: int, sums: Sums, whole: bool) -> None:
        """Takes what a refresh before step `step` found; of partial ones, now and then."""
        if whole or step % self._settings.log_every == 0:
            # Under the number of the step it belongs to: a resume repeats it with that step.
            self._pending_refresh = (step + 1, sums)

    def flush(self) -> None:
        """Reads, checks and records the metrics that are still on the device."""
        if self._pending is not None:
            step, sums = self._pending
            self._pending = None
            self._record_step(step, means(jax.device_get(sums)))
        if self._pending_refresh is not None:
            step, sums = self._pending_refresh
            self._pending_refresh = None
            values = means(jax.device_get(sums))
            self._record({f"index/{name}": value for name, value in values.items()}, step)

    def _record_step(self, step: int, values: Mapping[str, float]) -> None:
        # A finite loss can have a gradient that is not, which spoils the state just the same.
        for name in ("loss", "grad_norm"):
            if not math.isfinite(values[name]):
                raise FloatingPointError(
                    f"the {name} of step {step} is {values[name]}; the checkpoints before it are "
                    "good. A lower optimizer.learning_rate, a longer warm-up or "
                    "optimizer.clip_norm may help"
                )
        if step % self._settings.log_every == 0:
            self._bar.set_postfix(loss=f"{values['loss']:.3f}")
            self._record({f"train/{name}": value for name, value in values.items()}, step)
            self._record_speed(step)

    def evaluate(self, step: int, state: TrainState, evaluators: Iterable[Evaluator]) -> None:
        """Runs all evaluators and records what they return."""
        self.flush()
        values: dict[str, float] = {}
        for evaluator in evaluators:
            values.update(evaluator(state))
        if values:
            self._record(values, step)
        self._clock = (step, time.monotonic())  # evaluation is not training time

    def close(self) -> None:
        self._bar.close()

    def _record(self, values: Mapping[str, float], step: int) -> None:
        if self._is_writer:
            self._metrics.write(step, values)

    def _record_speed(self, step: int) -> None:
        last_step, last_time = self._clock
        now = time.monotonic()
        if self._is_writer and step > last_step:
            steps_per_second = (step - last_step) / (now - last_time)
            self._speed.write(step, {"steps_per_second": steps_per_second})
        self._clock = (step, now)
