"""Worker processes of this machine, which end with the process that started them."""

import concurrent.futures
import concurrent.futures.process
import ctypes
import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Self, TypeVar

T = TypeVar("T")

_SIGNALS = (signal.SIGINT, signal.SIGTERM)
_PR_SET_PDEATHSIG = 1  # of Linux's prctl


class Workers:
    """Pool of worker processes, started when they are first needed.

    A context manager, at whose exit they have ended: at once where Ctrl-C or a signal ends the
    block, and otherwise after the jobs that they are at.
    """

    def __init__(self, number: int, key: str):
        """Start no process yet.

        Args:
          number: most processes; with fewer than two, jobs run in this process.
          key: of the config that sets `number`, for messages.
        """
        self._number, self._key = number, key
        self._pool: concurrent.futures.ProcessPoolExecutor | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_) -> None:
        self._stop(at_once=kind is not None and not issubclass(kind, Exception))

    def run(self, function: Callable[..., T], jobs: Sequence[tuple]) -> Iterator[T]:
        """Call a function with the arguments of each job; yield the results as they come.

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
        except (concurrent.futures.process.BrokenProcessPool, MemoryError) as error:
            self._stop()
            is_told = isinstance(error, MemoryError)
            fault = "is out of memory" if is_told else "was killed, most likely for lack of memory"
            raise ValueError(
                f"a worker process {fault}; lower {self._key}, and run the same command again: "
                "what is finished is kept"
            ) from error
        except Exception:
            self._stop()  # who handles the error may remove the folder that jobs write to
            raise

    def _submit(
        self, function: Callable[..., T], jobs: Sequence[tuple]
    ) -> list[concurrent.futures.Future[T]]:
        if self._pool is None:
            # Spawned, not forked: this process may hold threads of its libraries.
            context = multiprocessing.get_context("spawn")
            self._pool = concurrent.futures.ProcessPoolExecutor(
                self._number, context, _begin, (os.getpid(),)
            )
        # Workers inherit the mask: Ctrl-C, which reaches all processes of a terminal, is for this
        # one alone, also while they import their modules.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
        try:
            return [self._pool.submit(function, *job) for job in jobs]
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)

    def _stop(self, *, at_once: bool = False) -> None:
        pool, self._pool = self._pool, None
        if pool is None:
            return
        for process in list((pool._processes or {}).values()) if at_once else ():
            process.kill()
        pool.shutdown(cancel_futures=True)


def _begin(parent: int) -> None:
    """Let this worker end when its parent has ended, however that was."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    else:
        threading.Thread(target=_outlive, daemon=True).start()
    if os.getppid() != parent:  # it has ended before
        os._exit(1)


def _outlive() -> None:
    """Wait for the end of the parent process, and end this one."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)
