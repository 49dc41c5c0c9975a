"""Execution of the rounds of a preparation in processes of this machine."""

import logging
import time
from collections.abc import Callable, Sequence
from typing import Any

from tqdm import tqdm

from input_pipeline.preparation import Job
from xlm.common import processes

# A process takes a second to start; meanwhile another one handles about so much text.
_BYTES_A_PROCESS = 4 << 20


class LocalProcesses(processes.Workers):
    """Runner of tasks in up to `num_workers` processes, or in this one if there is little text."""

    def __init__(self, num_workers: int, bytes_a_process: int = _BYTES_A_PROCESS):
        super().__init__(num_workers, "store.num_workers")
        self._bytes_a_process = bytes_a_process

    def __call__(
        self, function: Callable[[Job, Any], None], job: Job, tasks: Sequence[Any], name: str
    ) -> None:
        """Run `function` on the job and each task; raise as `Workers.run`."""
        if not tasks:
            return
        total = sum(task.text_bytes for task in tasks)
        start, busy = time.perf_counter(), 0.0
        jobs = [(function, job, task) for task in tasks]
        is_little = total < self._bytes_a_process
        times = (_timed(*one) for one in jobs) if is_little else self.run(_timed, jobs)
        for seconds in tqdm(times, total=len(tasks), desc=name, unit="task", delay=1):
            busy += seconds
        took = time.perf_counter() - start
        message = "%s: %d tasks, %.1f MB of text, %.1f s, %.1f s of CPU time"
        logging.info(message, name, len(tasks), total / 1e6, took, busy)


def _timed(function: Callable[[Job, Any], None], job: Job, task: Any) -> float:
    start = time.process_time()
    function(job, task)
    return time.process_time() - start
