"""Graceful stop after a signal: the run finishes its step."""

import contextlib
import logging
import signal
import sys
from collections.abc import Iterator
from types import FrameType

import jax
from jax.experimental import multihost_utils

from xlm.common.interruption import Watch

# Exit status of a run that stopped on request, saved its state and waits for a restart. In
# sysexits.h it is a temporary failure, distinct from an error or a kill.
EXIT_STOPPED = 75


class Stopped(Exception):
    """Graceful stop of a run after `step` steps, with its state saved."""

    def __init__(self, step: int):
        super().__init__(f"stopped after step {step} and saved; rerun the command to resume")
        self.step = step


@contextlib.contextmanager
def exit_if_stopped() -> Iterator[None]:
    """End the process with `EXIT_STOPPED` if the block raises `Stopped`."""
    try:
        yield
    except Stopped as stopped:
        logging.warning("%s", stopped)
        sys.exit(EXIT_STOPPED)


class StopRequest:
    """Flag that SIGTERM or Ctrl-C sets; a context manager.

    A second Ctrl-C ends the program at once, a second SIGTERM has no effect. On several hosts JAX
    handles SIGTERM, so that all stop after the same step, and a Ctrl-C ends the program at once.
    """

    def __init__(self) -> None:
        self._requested = False
        self._before: dict[int, object] = {}

    def __call__(self, step: int) -> bool:
        """Return whether to stop now, after `step` steps; call it after every step."""
        if jax.process_count() > 1:
            return multihost_utils.reached_preemption_sync_point(step)
        return self._requested

    def __enter__(self) -> "StopRequest":
        if jax.process_count() == 1:
            for number in (signal.SIGTERM, signal.SIGINT):
                self._before[number] = signal.signal(number, self._receive)
            self._watch = Watch(_tell, self._receive)
        return self

    def __exit__(self, *exception) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)  # type: ignore[arg-type]
        if self._before:
            self._watch.close()

    def _receive(self, number: int, frame: FrameType | None) -> None:
        del frame
        self._watch.taken += 1
        if self._requested and number == signal.SIGINT:
            raise KeyboardInterrupt
        self._requested = True


def _tell(number: int) -> None:
    again = ". A second Ctrl-C stops it hard, unsaved" if number == signal.SIGINT else ""
    logging.warning("%s: the run finishes its step or evaluation, saves and stops%s",
                    signal.Signals(number).name, again)  # fmt: skip
