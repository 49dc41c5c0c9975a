"""Where the time of a run goes, over all its starts; and the end of a run that hangs."""

import collections
import contextlib
import faulthandler
import logging
import os
import pathlib
import queue
import statistics
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, TypeVar

import jax

from xlm.common import tables
from xlm.training.metrics import MetricsWriter, read_metrics

_T = TypeVar("_T")

# Exit status of a run that hung: job scripts start it again. Beyond the statuses of sysexits.h.
EXIT_HUNG = 79
GOODPUT = "goodput.jsonl"
PARTS = {
    "steps": "the device at work on a step, or the host dispatching one",
    "evaluation": "evaluators during training",
    "saving": "checks of the state, checkpoints",
    "compiling": "tracing and compiling, of whatever part",
    "data": "the device idle, the host waiting for a batch",
    "refresh": "neighbour index and other learned parts",
    "starting": "initialising or restoring the state",
    "lost": "steps that a restart repeated",
    "other": "records, placing of batches",
}
_MEDIANS = 50  # median steps that a hang lasts at least
_SLOW = 24  # so many times as long may other parts take
_WAITS = ("steps", "data", "other")
_COMPILES = "/jax/core/compile/"  # events of JAX
_LONGEST_TICK = 10.0  # seconds


class Clock:
    """Seconds that a run has spent in each of `PARTS`; a context manager from first to last.

    JAX runs programs asynchronously. While one that was given to `dispatched` is in flight, time is
    of its part, whatever the host does. Other time is of the host's part (`turn`), or of compiling.
    So the parts sum to the wall clock.

    A watchdog ends the process with `EXIT_HUNG` if nothing changes for `hang_minutes` and
    `_MEDIANS` median steps. Before the first step, and in parts that are no waiting for steps or
    data, that is `_SLOW` times `hang_minutes`. 0 is for no watchdog.
    """

    def __init__(self, folder: pathlib.Path, hang_minutes: float = 0.0):
        """Start the clock; stacks of a hung run go to `folder`."""
        self._folder, self._floor = folder, 60 * hang_minutes
        self._lock, self._ends = threading.Lock(), threading.Event()
        self._part, self._compiles, self._thread = "starting", 0, threading.get_ident()
        self._in_flight: collections.deque[str] = collections.deque()  # parts of programs
        self._results: queue.SimpleQueue[Any] = queue.SimpleQueue()  # theirs, awaited in order
        self._steps: collections.deque[float] = collections.deque(maxlen=101)  # seconds
        self._begun = self._last = time.monotonic()
        self._silent = 0.0
        self._here, self._before = dict.fromkeys(PARTS, 0.0), dict.fromkeys(PARTS, 0.0)
        self._writer: MetricsWriter | None = None
        self._step = self._first_step = 0

    def resume(self, step: int, path: pathlib.Path | None) -> None:
        """Add to the times at `path` of earlier starts; steps after `step` there are lost."""
        self._step = self._first_step = step
        if path is None:
            return
        records = read_metrics(path)
        kept = [one["steps"] for one in records if one["step"] <= step]
        if records:
            self._before |= {part: records[-1][part] for part in PARTS}
            lost = self._before["steps"] - (kept[-1] if kept else 0.0)
            self._before["steps"] -= lost
            self._before["lost"] += lost
        self._writer = MetricsWriter(path, step)
        if records and records[-1]["step"] > step:  # or another crash would forget them
            self._writer.write(step, self._before)

    def turn(self, part: str) -> None:
        """Count the host's time from now on as of `part`."""
        with self._lock:
            self._advance()
            self._part = part

    def waiting(self, batches: Iterable[_T]) -> Iterator[_T]:
        """Yield from `batches`, and count the time that each takes as of data."""
        self.turn("data")
        for batch in batches:
            self.turn("other")
            yield batch
            self.turn("data")

    def dispatched(self, part: str, results: Any, step: int | None = None) -> None:
        """Count time as of `part` until `results` of a program in flight are there."""
        with self._lock:
            self._advance()
            self._in_flight.append(part)
            self._step = self._step if step is None else step
        self._results.put(results)

    def now(self) -> dict[str, float]:
        """Return the seconds of each part since this start."""
        with self._lock:
            self._advance()
            return dict(self._here)

    def record(self) -> dict[str, float]:
        """Append the seconds of the whole run to its file; return each part's share."""
        here = self.now()
        found = {part: self._before[part] + here[part] for part in PARTS}
        if self._writer:
            self._writer.write(self._step, {part: round(found[part], 3) for part in PARTS})
        return _shares(found)

    def log(self) -> None:
        """Log each part's share of the time since this start, and of the whole run."""
        for name, found in (("this start", _shares(self.now())), ("the whole run", self.record())):
            listed = sorted(found.items(), key=lambda one: -one[1])
            shown = ", ".join(f"{part} {share:.1%}" for part, share in listed if share >= 0.001)
            logging.info("time of %s: %s", name, shown)

    def __enter__(self) -> "Clock":
        jax.monitoring.register_scalar_listener(self._on_compile)
        jax.monitoring.register_event_duration_secs_listener(self._on_compiled)
        threading.Thread(target=self._await, daemon=True).start()
        if self._floor:
            threading.Thread(target=self._watch, daemon=True).start()
        return self

    def __exit__(self, *exception) -> None:
        self._ends.set()
        self._results.put(None)
        jax.monitoring.unregister_scalar_listener(self._on_compile)
        jax.monitoring.unregister_event_duration_listener(self._on_compiled)
        if self._step > self._first_step:
            with contextlib.suppress(OSError):  # which the loop has raised
                self.log()

    def _advance(self) -> None:
        """Add the time since the last call to its part; the caller holds the lock."""
        now = time.monotonic()
        self._here[self._current()] += now - self._last
        self._last, self._silent = now, 0.0

    def _current(self) -> str:
        if self._in_flight:
            return self._in_flight[0]
        return "compiling" if self._compiles else self._part

    def _on_compile(self, event: str, value: float, **_) -> None:
        del value
        self._count_compiles(event, 1)

    def _on_compiled(self, event: str, duration_secs: float, **_) -> None:
        del duration_secs
        self._count_compiles(event, -1)

    def _count_compiles(self, event: str, more: int) -> None:
        """Count the compilations under way, which nest; the data's threads may have others."""
        if event.startswith(_COMPILES) and threading.get_ident() == self._thread:
            with self._lock:
                self._advance()
                self._compiles = max(self._compiles + more, 0)

    def _await(self) -> None:
        """Wait for the results of each program in turn."""
        while (results := self._results.get()) is not None:
            begun = time.monotonic()
            with contextlib.suppress(Exception):  # which the loop meets, too
                jax.block_until_ready(results)
            del results
            with self._lock:
                self._advance()
                if self._in_flight.popleft() == "steps":
                    self._steps.append(self._last - begun)

    def _watch(self) -> None:
        """End the process once it is silent for too long."""
        tick = min(self._floor / 10, _LONGEST_TICK)
        # Ticks are counted, not time: a process that was stopped meanwhile is not hung.
        while not self._ends.wait(tick):
            with self._lock:
                self._silent += tick
                is_hung = self._silent > self.limit()
            if is_hung:
                teller = threading.Thread(target=self._tell, daemon=True)
                teller.start()
                teller.join(30)  # a disk that hangs must not keep the process
                os._exit(EXIT_HUNG)

    def limit(self) -> float:
        """Return the seconds of silence after which the run counts as hung."""
        if self._current() in _WAITS and self._steps:
            return max(self._floor, _MEDIANS * statistics.median(self._steps))
        return _SLOW * self._floor

    def _tell(self) -> None:
        path = self._folder / f"hung_{self._step}_{jax.process_index()}.txt"
        logging.error(
            "the run hangs: nothing has happened for %.0f s, after step %d, in %s (%s). Its stacks "
            "follow, and are in %s. Rerun the command to resume; train.hang_minutes is the limit",
            self._silent, self._step, self._current(), PARTS[self._current()], path,
        )  # fmt: skip
        faulthandler.dump_traceback(2)
        with open(path, "w", encoding="utf-8") as file:
            faulthandler.dump_traceback(file)


def section(folder: pathlib.Path) -> list[str]:
    """Return the parts of a report on the time of a run in `folder`; none without records."""
    if not (records := read_metrics(folder / GOODPUT)):
        return []
    last, rows = records[-1], []
    for part, share in _shares(last).items():
        rows.append({"part": part, "what": PARTS[part], "minutes": last[part] / 60, "share": share})
    formats = {"minutes": ",.1f", "share": ".1%"}
    return ["## Time of training", tables.markdown(rows, formats, left=2)]


def _shares(seconds: Mapping[str, float]) -> dict[str, float]:
    total = sum(seconds[part] for part in PARTS)
    return {part: seconds[part] / max(total, 1e-9) for part in PARTS}
