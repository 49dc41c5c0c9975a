"""Time of a run by activity, over all its starts, and a watchdog that ends a hung run."""

import collections
import contextlib
import faulthandler
import functools
import logging
import os
import pathlib
import queue
import statistics
import threading
import time
from collections.abc import Iterable, Iterator
from typing import Any, TypeVar

import jax

from xlm.training.metrics import MetricsWriter, read_metrics

_T = TypeVar("_T")

EXIT_HUNG = 79  # job scripts restart after it; sysexits.h ends at 78
GOODPUT = "goodput.jsonl"
PARTS = (
    "steps",
    "evaluation",
    "saving",
    "compiling",
    "data",
    "refresh",
    "starting",
    "lost",
    "other",
)
_MEDIANS, _SLOW = 50, 24
_LONGEST_TICK = 10.0  # seconds


class Clock:
    """Seconds that a run has spent in each of `PARTS` (docs/metrics.md); a context manager.

    JAX runs programs asynchronously. While a program of `dispatched` is in flight, time counts
    towards its part, whatever the host does. Other time counts towards compiling, or the host's
    part (`turn`). So the parts sum to the wall clock. `seconds` covers all starts of the run.

    A watchdog ends the process with `EXIT_HUNG` if nothing changes for `hang_minutes` and
    `_MEDIANS` median steps. It waits `_SLOW` times `hang_minutes` before the first step and in
    parts other than steps and data. 0 disables it.
    """

    def __init__(self, folder: pathlib.Path, hang_minutes: float = 0.0):
        """Start the clock; the watchdog writes stacks to `folder`."""
        self._folder, self._floor = folder, 60 * hang_minutes
        self._lock, self._ends = threading.Lock(), threading.Event()
        self._part, self._compiles, self._thread = "starting", 0, threading.get_ident()
        self._in_flight: collections.deque[str] = collections.deque()  # parts of programs
        self._results: queue.SimpleQueue[Any] = queue.SimpleQueue()  # their results, in order
        self._steps: collections.deque[float] = collections.deque(maxlen=101)  # seconds
        self._last, self._silent, self._step = time.monotonic(), 0.0, 0
        self.seconds = dict.fromkeys(PARTS, 0.0)
        self._before = dict(self.seconds)
        self._writer: MetricsWriter | None = None
        self._listeners = [functools.partial(self._on_compile, one) for one in (1, -1)]

    def resume(self, step: int, path: pathlib.Path | None) -> None:
        """Add the times of earlier starts at `path`; their steps after `step` count as lost."""
        if path is None:
            return
        records = read_metrics(path)
        self._writer = MetricsWriter(path, step)
        if records:
            self._before = {part: records[-1][part] for part in PARTS}
            kept = [one["steps"] for one in records if one["step"] <= step] or [0.0]
            self._before["lost"] += self._before["steps"] - kept[-1]
            self._before["steps"] = kept[-1]
            if records[-1]["step"] > step:  # another crash must not forget the lost time
                self._writer.write(step, self._before)
            self.seconds = {part: self.seconds[part] + self._before[part] for part in PARTS}

    def turn(self, part: str) -> None:
        """Count the host's time from now on towards `part`."""
        with self._lock:
            self._advance()
            self._part = part

    def waiting(self, batches: Iterable[_T]) -> Iterator[_T]:
        """Yield from `batches`, and count the time that each takes towards data."""
        self.turn("data")
        for batch in batches:
            self.turn("other")
            yield batch
            self.turn("data")

    def dispatched(self, part: str, results: Any, step: int = 0) -> None:
        """Count time towards `part` until the `results` of a program in flight are ready."""
        with self._lock:
            self._advance()
            self._in_flight.append(part)
            self._step = step or self._step
        self._results.put(results)

    def record(self) -> dict[str, float]:
        """Append the seconds of the whole run to its file; return each part's share."""
        self.turn(self._part)
        if self._writer and self._step:
            self._writer.write(self._step, self.seconds)
        return shares(self.seconds)

    def of_steps(self) -> float:
        """Return the seconds of steps so far, without compiling, evaluation and saving."""
        self.turn(self._part)
        return sum(self.seconds[one] for one in ("steps", "data", "refresh", "other"))

    def log(self) -> None:
        """Log each part's share of the time of the whole run, and since this start."""
        whole = self.record()
        here = shares({part: self.seconds[part] - self._before[part] for part in PARTS})
        resumed = [("this start", here)] if any(self._before.values()) else []
        for name, found in (*resumed, ("the whole run", whole)):
            listed = sorted(found.items(), key=lambda one: -one[1])
            shown = ", ".join(f"{part} {share:.1%}" for part, share in listed if share >= 0.001)
            logging.info("time of %s: %s", name, shown)

    def __enter__(self) -> "Clock":
        jax.monitoring.register_scalar_listener(self._listeners[0])
        jax.monitoring.register_event_duration_secs_listener(self._listeners[1])
        for work in (self._await, *([self._watch] if self._floor else [])):
            threading.Thread(target=work, daemon=True).start()
        return self

    def __exit__(self, *exception) -> None:
        self._ends.set()
        self._results.put(None)
        jax.monitoring.unregister_scalar_listener(self._listeners[0])
        jax.monitoring.unregister_event_duration_listener(self._listeners[1])
        if self._step:
            with contextlib.suppress(OSError):  # the loop has raised it
                self.log()

    def _advance(self) -> None:
        """Add the time since the last call to its part; the caller holds the lock."""
        now = time.monotonic()
        self.seconds[self._current()] += now - self._last
        self._last, self._silent = now, 0.0

    def _current(self) -> str:
        if self._in_flight:
            return self._in_flight[0]
        return "compiling" if self._compiles else self._part

    def _on_compile(self, more: int, event: str, _: float, **__: Any) -> None:
        """Count this thread's compilations under way, which nest."""
        if event.startswith("/jax/core/compile/") and threading.get_ident() == self._thread:
            with self._lock:
                self._advance()
                self._compiles = max(self._compiles + more, 0)

    def _await(self) -> None:
        while (results := self._results.get()) is not None:
            begun = time.monotonic()
            with contextlib.suppress(Exception):  # the loop meets it, too
                jax.block_until_ready(results)
            with self._lock:
                self._advance()
                if self._in_flight.popleft() == "steps":
                    self._steps.append(self._last - begun)

    def _watch(self) -> None:
        """End the process if it is silent for too long."""
        tick = min(self._floor / 10, _LONGEST_TICK)
        # Counts ticks, not time: a suspended process is not hung.
        while not self._ends.wait(tick):
            with self._lock:
                self._silent += tick
                is_hung = self._silent > self._limit()
            if is_hung:
                teller = threading.Thread(target=self._tell, daemon=True)
                teller.start()
                teller.join(30)  # a disk that hangs must not keep the process
                os._exit(EXIT_HUNG)

    def _limit(self) -> float:
        if self._steps and self._current() in ("steps", "data", "other"):
            return max(self._floor, _MEDIANS * statistics.median(self._steps))
        return _SLOW * self._floor

    def _tell(self) -> None:
        path = self._folder / f"hung_{self._step}_{jax.process_index()}.txt"
        logging.error(
            "the run hangs: nothing has happened for %.0f s, after step %d, in %s. Its stacks "
            "follow, and are in %s. Rerun the command to resume; train.hang_minutes sets the limit",
            self._silent, self._step, self._current(), path,
        )  # fmt: skip
        faulthandler.dump_traceback(2)
        with open(path, "w", encoding="utf-8") as file:
            faulthandler.dump_traceback(file)


def shares(seconds: dict[str, float]) -> dict[str, float]:
    """Return the share of each part, from 0 to 1; zeros if all seconds are zero."""
    total = max(sum(seconds.values()), 1e-9)
    return {part: one / total for part, one in seconds.items()}
