"""Metrics, speed, progress, profile and diagnostics of a run in progress."""

import contextlib
import functools
import logging
import math
import pathlib
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import jax
import numpy as np
import tqdm

from xlm.common import artifacts, console
from xlm.objectives.objective import Batch, LossAndMetrics, Objective, means
from xlm.training.clock import GOODPUT, Clock
from xlm.training.digests import Inspection, inspect
from xlm.training.flops import matmul_flops
from xlm.training.metrics import MetricsWriter
from xlm.training.settings import TrainSettings
from xlm.training.sinks import SINKS, Sink
from xlm.training.state import TrainState
from xlm.training.step import TrainFunctions

_REMEDY = (
    "earlier checkpoints are good, and a lower optimizer.learning_rate, a longer warm-up or "
    "optimizer.clip_norm may help"
)
# Names of the kinds of steps on the console, by the name of their loss in metrics.jsonl.
_NAMES = {
    "mlm": "masked LM", "tlm": "TLM", "mlm_and_contrast": "with contrast",
    "mrtd": "replaced tokens", "trtd": "those of pairs",
}  # fmt: skip
# Function of the state that returns metrics to record.
Evaluator = Callable[..., Mapping[str, float]]


class Progress(contextlib.AbstractContextManager["Progress"]):
    """Metrics, progress and timing of one call of `train`; a context manager."""

    def __init__(
        self, functions: TrainFunctions, settings: TrainSettings, folder: pathlib.Path, step: int,
        data: Any, clock: Clock,
    ):  # fmt: skip
        """Open the records of a run after `step` steps; see `train`."""
        self._settings = settings
        self._num_devices = functions.mesh.size
        self._folder = folder
        self._data = data
        self._is_writer = jax.process_index() == 0
        # Metrics still on the device, each with its recorder and its number of steps.
        self._pending: list[tuple[Callable, int, LossAndMetrics]] = []
        self._sinks: list[Sink] = []
        self._goodput = clock
        clock.resume(step, folder / GOODPUT if self._is_writer else None)
        if self._is_writer:
            self._metrics = MetricsWriter(folder / "metrics.jsonl", step)
            self._speed = MetricsWriter(folder / "speed.jsonl", step)
            # After the end of a run, evaluate.py may have written the page.
            chosen = [one for one in SINKS if getattr(settings, one) and step < settings.num_steps]
            self._sinks += [Sink(one, folder, step) for one in chosen]
        total = settings.num_steps if self._is_writer else 0
        self._bar = console.bar(None, "train", total, "steps", step, "{postfix}")
        self._first, self._loss_name, self._begin = step, "loss", 0.0
        self._losses: dict[str, list[float]] = {}  # by kind of step, since the last line
        self._shown: dict[str, str] = {}
        self._flops: dict[Any, float] = {}  # by kind of step
        # Tokens and operations of this process after each of the latest steps.
        self._work = {step: np.zeros(2)}
        self._clock = (step, time.monotonic(), np.zeros(2))
        self._profiling = False

    def __exit__(self, *exception) -> None:
        self._bar.close()
        for sink in self._sinks:
            sink.close()
        if self._profiling:
            jax.profiler.stop_trace()

    def before_step(
        self, step: int, objective: Objective, functions: TrainFunctions, state: TrainState,
        batch: Batch,
    ) -> None:  # fmt: skip
        """Record step `step`, counted from zero, before its dispatch to `functions`."""
        settings = self._settings
        shapes = [(name, array.shape) for name, array in batch.arrays.items()]
        program = (id(objective), functions.stage, batch.kind, *shapes)
        if program not in self._flops:
            self._flops[program] = 0.0
            if settings.peak_flops:
                traced = functions.train_step.trace(objective, state, batch)
                self._flops[program] = matmul_flops(traced.jaxpr)
        self._loss_name = objective.loss_name(batch.kind)
        # Padding counts, since the device computes it too.
        tokens = batch["tokens"].size if "tokens" in batch.arrays else 0
        self._work[step + 1] = self._work[step] + (tokens, self._flops[program])
        if settings.profile_steps and step == settings.profile_from:
            jax.profiler.start_trace(self._folder / "profile")
            self._profiling = True
        self._goodput.turn("steps")

    def after_step(self, step: int, metrics: LossAndMetrics) -> None:
        """Record the metrics of a step just dispatched, and read those of the previous one."""
        self._goodput.dispatched("steps", metrics, step)
        self._goodput.turn("other")
        # Reading waits for the device, which one step later has the next step queued.
        self.flush_metrics()
        record = functools.partial(self._record_step, loss_name=self._loss_name)
        self._pending.append((record, step, metrics))
        if self._profiling and step == self._settings.profile_from + self._settings.profile_steps:
            jax.block_until_ready(metrics)
            jax.profiler.stop_trace()
            self._profiling = False
            folder = self._folder / "profile"
            logging.info("profile of %d steps: %s", self._settings.profile_steps, folder)

    def after_refresh(self, step: int, report: LossAndMetrics) -> None:
        """Record the report of a refresh before step `step`."""
        # Under the number of steps after it: a resume repeats the refresh and the step.
        if report:
            self._goodput.dispatched("refresh", report)
            self._pending.append((self._record_refresh, step + 1, report))

    def flush_metrics(self) -> None:
        """Read, check and record the metrics that are still on the device."""
        pending, self._pending = self._pending, []
        for record, step, metrics in pending:
            record(step, metrics)

    def _record_refresh(self, step: int, report: LossAndMetrics) -> None:
        values = means(jax.device_get(report))
        self._record({f"index/{name}": value for name, value in values.items()}, step)

    def _record_step(self, step: int, metrics: LossAndMetrics, loss_name: str) -> None:
        # A finite loss can have a non-finite gradient, which corrupts the state as well. Other
        # metrics stay on the device: a hundred languages have two hundred numbers a step.
        checked = means(jax.device_get({k: metrics[k] for k in ("loss", "grad_norm", loss_name)}))
        for name in ("loss", "grad_norm"):
            if not math.isfinite(value := checked[name]):
                raise FloatingPointError(
                    f"the {name} of step {step} is {value}{self._dump(step, metrics)}; {_REMEDY}"
                )
        self._losses.setdefault(loss_name, []).append(checked[loss_name])
        if step == self._first + 1:  # it included compiling
            self._begin = self._goodput.of_steps()
        if step % self._settings.log_every == 0:
            values = means(jax.device_get(metrics))
            # NaN marks metrics without examples in the step, such as the loss of a language.
            values = {**values, **self._data.step_values(step - 1)}
            there = {name: value for name, value in values.items() if not math.isnan(value)}
            self._record({f"train/{name}": value for name, value in there.items()}, step)
            speed = self._record_speed(step)
            self._show(step, speed.get("tokens_per_second", 0.0))
        elif console.is_drawn():
            self._bar.update(step - self._bar.n)

    def _show(self, step: int, tokens_per_second: float) -> None:
        """Show steps, time left, and each kind's mean loss since the last line."""
        if self._bar.disable:
            return self._losses.clear()
        for name, found in self._losses.items():
            name = name.removesuffix("_loss")
            self._shown[name] = f"{_NAMES.get(name, name)} {sum(found) / len(found):.2f}"
        speed, left = f"{tokens_per_second:,.0f} tokens/s" if tokens_per_second else "", ""
        if timed := step - self._first - 1:
            seconds = (self._goodput.of_steps() - self._begin) / timed
            remaining = seconds * (self._settings.num_steps - step)
            left = f"{tqdm.tqdm.format_interval(remaining)} left"
        parts = *self._shown.values(), left, speed
        self._bar.set_postfix_str(", ".join(filter(None, parts)), refresh=False)
        is_last = step == self._settings.num_steps
        if self._bar.update(step - self._bar.n) or (is_last and self._bar.refresh()):
            self._losses.clear()

    def _dump(self, step: int, found: LossAndMetrics) -> str:
        """Write diagnostics of a step with a non-finite loss; return a remark with their path."""
        path = self._folder / f"not_finite_{step}.json"
        if not self._is_writer:
            return ""
        values = means(jax.device_get(found))
        metrics = {name: str(value) for name, value in values.items()}  # no NaN in JSON
        batch = self._data.describe_batch(step - 1)
        artifacts.write_json(path, {"step": step, "metrics": metrics, "batch": batch})
        return f" (the content of its batch is in {path})"

    def inspect(self, step: int, state: TrainState) -> Inspection:
        """Inspect the state after `step`; FloatingPointError if it, or a metric, is not finite."""
        self.flush_metrics()
        inspection = inspect(state)
        if inspection.fault:
            raise FloatingPointError(
                f"the state after step {step} holds {inspection.fault}; {_REMEDY}"
            )
        return inspection

    def sync_metrics(self) -> None:
        """Wait until the metrics so far are on disk."""
        self._goodput.record()
        if self._is_writer:
            self._metrics.sync()

    def evaluate(self, step: int, state: TrainState, evaluators: Iterable[Evaluator]) -> None:
        """Run all evaluators and record the metrics that they return."""
        values: dict[str, float] = {}
        for evaluator in evaluators:
            self._goodput.turn("evaluation")  # restarts the watchdog for each
            values.update(evaluator(state))
        self._goodput.turn("saving")
        if values:
            self._record(values, step)
        if "eval/loss" in values:
            logging.info("step %s: held-out loss %.3f", f"{step:,}", values["eval/loss"])
        self._goodput.record()
        self._clock = (step, time.monotonic(), self._work[step])  # evaluation is not training

    def _record(self, values: Mapping[str, float], step: int) -> None:
        if self._is_writer:
            self._metrics.write(step, values)
            self._record_events(values, step)

    def _record_events(self, values: Mapping[str, float], step: int) -> None:
        for sink in self._sinks:
            sink.write(values, step)

    def _record_speed(self, step: int) -> Mapping[str, float]:
        last_step, last_time, last_work = self._clock
        now = time.monotonic()
        self._clock = (step, now, self._work[step])
        self._work = {key: value for key, value in self._work.items() if key >= step}
        if not self._is_writer or step == last_step:
            return {}
        tokens, flops = (self._work[step] - last_work) / (now - last_time)
        values = {"steps_per_second": (step - last_step) / (now - last_time)}
        if tokens:
            values["tokens_per_second"] = tokens
        if peak := self._settings.peak_flops:
            values["flop_utilization"] = flops / (peak * self._num_devices)
        self._speed.write(step, values)
        named = {f"speed/{name}": value for name, value in values.items()}
        named |= {f"goodput/{name}": share for name, share in self._goodput.record().items()}
        self._record_events(named, step)
        return values if last_step != self._first else {}  # the first speed includes compiling
