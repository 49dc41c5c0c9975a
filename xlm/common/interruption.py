"""Signals that end a command at any time: in imports, compiled code and destructors."""

import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from typing import Any, NoReturn

_received = 0
_PATIENCE = 2.0  # seconds


class Terminated(BaseException):
    """SIGTERM, as an exception that removes temporary files and ends workers."""


def listen() -> None:
    """Raise KeyboardInterrupt on SIGINT and `Terminated` on SIGTERM, and remember the signal.

    A background job of a shell still ignores SIGINT.
    """
    global _received, _watch
    _received = 0
    _watch = _watch or Watch(_tell, _receive)
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
        signal.signal(signal.SIGINT, _receive)
    signal.signal(signal.SIGTERM, _receive)
    if not isinstance(sys.unraisablehook, _Hook):
        sys.unraisablehook = _Hook(sys.unraisablehook)


class Watch:
    """Calls `tell` with a signal at once; Python's handlers wait for compiled code to return.

    A second Ctrl-C ends a command whose handler waits for longer than `_PATIENCE`. The watch
    ignores signals while another handler than `handler` is in place.
    """

    def __init__(self, tell: Callable[[int], None], handler: Callable[..., None]):
        """Start to watch, in the main thread."""
        self._handler, self.taken = handler, 0  # by the handler
        read, self._write = os.pipe()
        os.set_blocking(self._write, False)
        self._before = signal.set_wakeup_fd(self._write, warn_on_full_buffer=False)
        threading.Thread(target=self._run, args=(read, tell), daemon=True).start()

    def close(self) -> None:
        signal.set_wakeup_fd(self._before)
        os.close(self._write)  # which ends the thread

    def _run(self, read: int, tell: Callable[[int], None]) -> None:
        came = 0
        with open(read, "rb", buffering=0) as file:
            while found := file.read(1):
                number = found[0]
                if number not in (signal.SIGINT, signal.SIGTERM) or (
                    signal.getsignal(number) != self._handler
                ):
                    continue
                came += 1
                if came == 1:
                    tell(number)
                elif number == signal.SIGINT:
                    time.sleep(_PATIENCE)
                    if _watch and self.taken < came:
                        os._exit(128 + signal.SIGINT)


_watch: Watch | None = None  # of a command
# Otherwise, the signals of a forked worker would count as this process's.
os.register_at_fork(after_in_child=lambda: signal.set_wakeup_fd(-1))


def _tell(number: int) -> None:
    time.sleep(_PATIENCE / 2)
    if _watch and not _watch.taken:
        text = "stops when compiled code returns; a second Ctrl-C stops it hard"
        print(f"{signal.Signals(number).name}: {text}", file=sys.__stderr__, flush=True)


def received() -> int:
    """Return the number of the signal that came, or 0.

    Ask before blaming a file: libraries wrap the signal's exception in their own errors, and report
    a read that it cut short as damage.
    """
    return _received


def _receive(number: int, *_) -> NoReturn:
    global _received
    _received = number
    if _watch:
        _watch.taken += 1
    raise KeyboardInterrupt if number == signal.SIGINT else Terminated


class _Hook:
    """Sends a signal again if a destructor or a callback has swallowed its exception."""

    def __init__(self, otherwise: Callable[[Any], None]):
        self._otherwise = otherwise

    def __call__(self, found: Any) -> None:
        if issubclass(found.exc_type, KeyboardInterrupt | Terminated):
            # A moment later, when the callback has ended.
            threading.Timer(0.01, os.kill, (os.getpid(), _received or signal.SIGINT)).start()
        else:
            self._otherwise(found)
