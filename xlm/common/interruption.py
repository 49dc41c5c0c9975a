"""Signals that end a command, wherever they come: in imports, compiled code and destructors."""

import os
import signal
import sys
import threading
from collections.abc import Callable
from typing import Any, NoReturn

_received = 0


class Terminated(BaseException):
    """SIGTERM, raised so that temporary files are removed and workers end."""


def listen() -> None:
    """Raise KeyboardInterrupt on SIGINT and `Terminated` on SIGTERM, and remember that they came.

    A shell ignores SIGINT for what it starts in the background. That stays so.
    """
    global _received
    _received = 0
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
        signal.signal(signal.SIGINT, _receive)
    signal.signal(signal.SIGTERM, _receive)
    if not isinstance(sys.unraisablehook, _Hook):
        sys.unraisablehook = _Hook(sys.unraisablehook)


def received() -> int:
    """Return the number of the signal that came, 0 if none did.

    Libraries wrap its exception in errors of their own, and report a read that it cut short as
    damage.
    """
    return _received


def _receive(number: int, *_) -> NoReturn:
    global _received
    _received = number
    raise KeyboardInterrupt if number == signal.SIGINT else Terminated


class _Hook:
    """Sends a signal again whose exception a destructor or a callback has swallowed."""

    def __init__(self, otherwise: Callable[[Any], None]):
        self._otherwise = otherwise

    def __call__(self, found: Any) -> None:
        if issubclass(found.exc_type, KeyboardInterrupt | Terminated):
            # A moment later, when the callback has ended.
            threading.Timer(0.01, os.kill, (os.getpid(), _received or signal.SIGINT)).start()
        else:
            self._otherwise(found)
