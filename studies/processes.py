"""Processes that a study starts: they are asked to stop when it is, and it waits until they have.

A stage saves its state on SIGTERM (`training.signals`). If the study ended alone, the stage would
go on, and that of the next sitting would find its folder taken.
"""

import contextlib
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from types import FrameType
from typing import Any

from absl import logging

from training.signals import EXIT_STOPPED

_SIGNALS = (signal.SIGTERM, signal.SIGINT)
# Of this process, as signals are: sets and lists, which a handler may change at any time.
_running: set[subprocess.Popen] = set()
_asked: list[int] = []
_before: dict[int, Any] = {}


@contextlib.contextmanager
def stopped_together() -> Iterator[None]:
    """On SIGTERM or Ctrl-C ask the running processes to stop, and stop where the block ends.

    The outermost block of the main thread does so; those in it, and in other threads, do nothing.

    Raises:
      SystemExit: with `EXIT_STOPPED`, since a signal came during the block.
    """
    if _before or threading.current_thread() is not threading.main_thread():
        yield
        return
    _asked.clear()
    _before.update({number: signal.signal(number, _stop) for number in _SIGNALS})
    try:
        yield
    finally:
        for number, handler in _before.items():
            signal.signal(number, handler)
        _before.clear()
    if _asked:
        sys.exit(EXIT_STOPPED)


def _stop(number: int, frame: FrameType | None) -> None:
    del frame
    logging.warning("%s: stopping what runs", signal.Signals(number).name)
    _asked.append(number)
    for process in tuple(_running):
        # For Ctrl-C, too: a terminal has sent it to them already, and a second one would end them
        # before they have saved.
        process.terminate()
    if number == signal.SIGINT:
        signal.signal(number, signal.default_int_handler)


@contextlib.contextmanager
def started(command: Sequence[str], **options: Any) -> Iterator[subprocess.Popen]:
    """Start a process, and wait for it where the block ends.

    Args:
      command: and its arguments.
      options: of `subprocess.Popen`.

    Raises:
      SystemExit: with `EXIT_STOPPED`, since it was asked to stop, or this process was.
    """
    with stopped_together():
        if _asked:
            sys.exit(EXIT_STOPPED)
        with subprocess.Popen(command, **options) as process:
            _running.add(process)
            try:
                if _asked:  # before it was among those running
                    process.terminate()
                yield process
                process.wait()
            finally:
                _running.discard(process)
        # Of most stages another one: they have no state to save, and are done anew.
        if process.returncode == EXIT_STOPPED or (_asked and process.returncode):
            sys.exit(EXIT_STOPPED)
