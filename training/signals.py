"""Being asked to stop: a run ends after the step in flight instead of in the middle of it."""

import logging
import signal
from types import FrameType

import jax
from jax.experimental import multihost_utils

# The status of a run that was asked to stop, saved its state and wants to be started again: what
# sysexits.h calls a temporary failure, and neither that of an error nor that of a kill.
EXIT_STOPPED = 75


class Stopped(Exception):
    """The run was asked to stop; its state is saved.

    Attributes:
      step: steps taken.
    """

    def __init__(self, step: int):
        super().__init__(f"stopped after step {step} and saved; the same command goes on")
        self.step = step


class StopRequest:
    """Remembers that SIGTERM or Ctrl-C asked the run to stop; a context manager.

    A second Ctrl-C ends the program at once, a second SIGTERM changes nothing. On several hosts,
    which must all stop after the same step, JAX listens for SIGTERM on each and has them agree; a
    Ctrl-C there ends the program at once.
    """

    def __init__(self) -> None:
        self._requested = False
        self._before: dict[int, object] = {}

    def __call__(self, step: int) -> bool:
        """Whether to stop now, after `step` steps; to be asked after every step."""
        if jax.process_count() > 1:
            return multihost_utils.reached_preemption_sync_point(step)
        return self._requested

    def __enter__(self) -> "StopRequest":
        if jax.process_count() == 1:
            for number in (signal.SIGTERM, signal.SIGINT):
                self._before[number] = signal.signal(number, self._receive)
        return self

    def __exit__(self, *exception) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)  # type: ignore[arg-type]

    def _receive(self, number: int, frame: FrameType | None) -> None:
        del frame
        logging.warning("%s: stopping after this step", signal.Signals(number).name)
        self._requested = True
        if number == signal.SIGINT:
            signal.signal(number, signal.default_int_handler)
