"""Worker processes of this machine, which end with the process that started them."""

import contextlib
import ctypes
import multiprocessing
import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Iterator, Sequence
from multiprocessing import connection, resource_tracker
from typing import Any, TypeVar

T = TypeVar("T")

_PR_SET_PDEATHSIG = 1  # of Linux's prctl


class Workers(contextlib.AbstractContextManager["Workers"]):
    """Pool of up to `number` worker processes, started on first use; `key` is their config key.

    A context manager. Ctrl-C or a signal in its block ends the workers at once; otherwise they
    finish their current jobs. It starts no thread, unlike `concurrent.futures`, which waits for
    ever if its thread is missing.
    """

    is_local = True

    def __init__(self, number: int, key: str):
        self.number, self._key = number, key
        self._workers: dict[Any, Any] = {}  # connection -> process

    def __exit__(self, kind: type[BaseException] | None, *_) -> None:
        self._stop(at_once=kind is not None and not issubclass(kind, Exception))

    def run(self, function: Callable[..., T], jobs: Sequence[tuple]) -> Iterator[T]:
        """Call a function with the arguments of each job; yield the results as they come.

        This process does the work itself for one job or one worker. Raises MemoryError if a worker
        is out of memory, or was killed, as the system does when memory is short. After any other
        exception of a job, no other job begins and all workers end.
        """
        if min(self.number, len(jobs)) < 2:
            yield from (function(*job) for job in jobs)
            return
        try:
            yield from self._run(function, jobs)
        except Exception as error:
            # All end: the handler of the error may remove the folder that jobs write to.
            self._stop(at_once=isinstance(error, MemoryError))
            raise

    def _run(self, function: Callable[..., T], jobs: Sequence[tuple]) -> Iterator[T]:
        self._start(min(self.number, len(jobs)))
        waiting, idle, busy = list(jobs), list(self._workers), set[Any]()
        while waiting or busy:
            try:
                while waiting and idle:
                    busy.add(idle[-1])
                    idle.pop().send((function, waiting.pop(0)))
                ready: list[Any] = connection.wait(busy)
                received = [one.recv() for one in ready]
            except (EOFError, OSError):  # a worker has ended
                ready, received = [], [(None, MemoryError())]
            busy.difference_update(ready)
            idle += ready
            for found, fault in received:
                if isinstance(fault, MemoryError):
                    raise MemoryError(
                        f"a worker process has none left, or was killed; lower {self._key} and run "
                        "the same command again: it resumes"
                    ) from fault
                if fault is not None:
                    raise fault
                yield found

    def _start(self, count: int) -> None:
        # Spawned, not forked: this process may hold threads of its libraries.
        context = multiprocessing.get_context("spawn")
        resource_tracker.ensure_running()  # or the first start would, and change the mask
        # Workers inherit the mask. Ctrl-C reaches all processes of a terminal, but only this one
        # acts on it, even while they import their modules. No signal cuts a start short.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})
        try:
            while len(self._workers) < count:
                ours, theirs = context.Pipe()
                with theirs:
                    process = context.Process(target=_work, args=(theirs, os.getpid()))
                    process.start()
                self._workers[ours] = process
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)

    def _stop(self, *, at_once: bool = False) -> None:
        workers, self._workers = self._workers, {}
        for one, process in workers.items():
            if at_once:
                process.kill()
            one.close()
        for process in workers.values():
            process.join()


def _work(jobs: Any, parent: int) -> None:
    """Do jobs until there are no more, or the parent has ended."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    else:
        threading.Thread(target=_watch, daemon=True).start()
    with contextlib.suppress(EOFError, OSError):  # of the pipe
        while os.getppid() == parent:
            jobs.send(_outcome(*jobs.recv()))


def _outcome(function: Callable, arguments: tuple) -> tuple[Any, Exception | None]:
    try:
        return function(*arguments), None
    except Exception as error:
        error.add_note(traceback.format_exc())
        return None, error


def _watch() -> None:
    if parent := multiprocessing.parent_process():
        parent.join()
        os._exit(1)
