"""Execution of the rounds of a preparation in processes of this machine."""

import concurrent.futures
import concurrent.futures.process
import logging
import multiprocessing
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from tqdm import tqdm

from input_pipeline.preparation import Job

# A process takes a second to start, in which another one gets through about so much text.
_BYTES_A_PROCESS = 4 << 20


class LocalProcesses:
    """Runner of tasks in up to `num_workers` processes, in this one where there is little to do.

    A context manager, at whose exit the processes end.
    """

    def __init__(self, num_workers: int, bytes_a_process: int = _BYTES_A_PROCESS):
        """Start no process yet.

        Args:
          num_workers: number of processes.
          bytes_a_process: text of tasks for whose sake another process is used.
        """
        self._num_workers, self._bytes_a_process = num_workers, bytes_a_process
        self._pool: concurrent.futures.ProcessPoolExecutor | None = None

    def __enter__(self) -> "LocalProcesses":
        return self

    def __exit__(self, *_) -> None:
        self._stop()

    def _stop(self) -> None:
        """End the processes, after the tasks that they are at."""
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)
            self._pool = None

    def __call__(
        self, function: Callable[[Job, Any], None], job: Job, tasks: Sequence[Any], name: str
    ) -> None:
        """Run `function` on the job and each task.

        Raises:
          ValueError: a task does, after which no other is begun and all have ended; or a process
            was killed.
        """
        if not tasks:
            return
        total = sum(task.text_bytes for task in tasks)
        is_little = min(self._num_workers, len(tasks), 1 + total // self._bytes_a_process) < 2
        start, busy = time.perf_counter(), 0.0
        times = self._here(function, job, tasks) if is_little else self._there(function, job, tasks)
        try:
            for seconds in tqdm(times, total=len(tasks), desc=name, unit="task", delay=1):
                busy += seconds
        except BaseException:
            self._stop()  # who handles the error may remove the folder that tasks write to
            raise
        logging.info(
            "%s: %d tasks, %.1f MB of text, %.1f s, %.1f s of CPU time",
            name,
            len(tasks),
            total / 1e6,
            time.perf_counter() - start,
            busy,
        )

    def _here(
        self, function: Callable[[Job, Any], None], job: Job, tasks: Sequence[Any]
    ) -> Iterator[float]:
        """Run tasks in this process; yield the CPU seconds of each."""
        return (_timed(function, job, task) for task in tasks)

    def _there(
        self, function: Callable[[Job, Any], None], job: Job, tasks: Sequence[Any]
    ) -> Iterator[float]:
        """Run tasks in other processes; yield the CPU seconds of each."""
        try:
            futures = [self._processes().submit(_timed, function, job, task) for task in tasks]
            for future in concurrent.futures.as_completed(futures):
                yield future.result()
        except concurrent.futures.process.BrokenProcessPool as error:
            raise ValueError(
                f"{job.folder}: a process was killed, perhaps for lack of memory; lower "
                "store.num_workers, and run the same command again: what is finished is kept"
            ) from error

    def _processes(self) -> concurrent.futures.ProcessPoolExecutor:
        if self._pool is None:
            context = multiprocessing.get_context("spawn")
            self._pool = concurrent.futures.ProcessPoolExecutor(
                self._num_workers, mp_context=context
            )
        return self._pool


def _timed(function: Callable[[Job, Any], None], job: Job, task: Any) -> float:
    start = time.process_time()
    function(job, task)
    return time.process_time() - start
