"""Worker processes of this machine, which end with the process that started them."""

import concurrent.futures
import ctypes
import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures.process import BrokenProcessPool
from typing import Self, TypeVar

T = TypeVar("T")

_PR_SET_PDEATHSIG = 1  # of Linux's prctl


class Workers:
    """Pool of up to `number` worker processes, started when they are first needed.

    A context manager. Where Ctrl-C or a signal ends its block, the workers end at once, and
    otherwise after the jobs that they are at. `key` is that of the config with the number.
    """

    def __init__(self, number: int, key: str):
        self._number, self._key = number, key
        self._pool: concurrent.futures.ProcessPoolExecutor | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_) -> None:
        self._stop(at_once=kind is not None and not issubclass(kind, Exception))

    def run(self, function: Callable[..., T], jobs: Sequence[tuple]) -> Iterator[T]:
        """Call a function with the arguments of each job; yield the results as they come.

        If there are not two jobs and workers, this process does it.

        Raises:
          ValueError: a worker was killed, or is out of memory.
          Exception: of a job, after which no other is begun and all have ended.
        """
        if min(self._number, len(jobs)) < 2:
            yield from (function(*job) for job in jobs)
            return
        try:
            for future in concurrent.futures.as_completed(self._submit(function, jobs)):
                yield future.result()
        except Exception as error:
            self._stop()  # who handles the error may remove the folder that jobs write to
            if not isinstance(error, BrokenProcessPool | MemoryError):
                raise
            raise ValueError(
                f"a worker process is out of memory, or was killed; lower {self._key}, and run the "
                "same command again: what is finished is kept"
            ) from error

    def _submit(
        self, function: Callable[..., T], jobs: Sequence[tuple]
    ) -> list[concurrent.futures.Future[T]]:
        if self._pool is None:
            # Spawned, not forked: this process may hold threads of its libraries.
            self._pool = concurrent.futures.ProcessPoolExecutor(
                self._number, multiprocessing.get_context("spawn"), _begin, (os.getpid(),)
            )
        # Workers inherit the mask: Ctrl-C, which reaches all processes of a terminal, is for this
        # one alone, also while they import their modules. Nor is a start cut short.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})
        try:
            return [self._pool.submit(function, *job) for job in jobs]
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)

    def _stop(self, *, at_once: bool = False) -> None:
        pool, self._pool = self._pool, None
        if pool is not None:
            for process in list((pool._processes or {}).values()) if at_once else ():
                process.kill()
            pool.shutdown(cancel_futures=True)


def _begin(parent: int) -> None:
    """Let this worker end when its parent has ended, in whatever way."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    else:
        threading.Thread(target=_watch, daemon=True).start()
    if os.getppid() != parent:  # it has ended before
        os._exit(1)


def _watch() -> None:
    if parent := multiprocessing.parent_process():
        parent.join()
        os._exit(1)
