"""Runs of a study: stages as processes, some at a time, one core each."""

import concurrent.futures
import os
import pathlib
import queue
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from absl import logging

from training.signals import EXIT_STOPPED

ROOT = pathlib.Path(__file__).resolve().parent.parent
# Without these glibc maps large blocks afresh in each step, which slows some programs only.
_ALLOCATOR = {
    "MALLOC_MMAP_THRESHOLD_": "4294967296",
    "MALLOC_TRIM_THRESHOLD_": "4294967296",
    "MALLOC_TOP_PAD_": "268435456",
}
_ONE_THREAD = "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"


def own_config() -> list[str]:
    """Returns the flags of this command that make its config."""
    return [flag for flag in sys.argv if flag.startswith(("--config=", "--config."))]


def call(
    script: Sequence[str],
    config: Sequence[str],
    change: Mapping[str, Any],
    workdir: pathlib.Path,
    *,
    log: pathlib.Path,
    compiled: pathlib.Path | None = None,
    one_thread: bool = False,
) -> None:
    """Runs a command under a config, changed.

    Args:
      script: the command, and flags of it.
      config: flags that make the config.
      change: keys of the config.
      workdir: of the command.
      log: file that its output is added to.
      compiled: folder of compiled programs, which the runs of a study share; None for that of the
        environment.
      one_thread: whether XLA has a single thread.

    Raises:
      ValueError: it failed.
      SystemExit: it was asked to stop.
    """
    changed = [f"--config.{key}={value}" for key, value in change.items()]
    command = [sys.executable, *script, *config, *changed, f"--workdir={workdir.absolute()}"]
    environment = {**_ALLOCATOR, "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0", **os.environ}
    if compiled is not None:
        environment.setdefault("JAX_COMPILATION_CACHE_DIR", str(compiled.absolute()))
    if one_thread:
        environment["XLA_FLAGS"] = f"{environment.get('XLA_FLAGS', '')} {_ONE_THREAD}".strip()
    log.parent.mkdir(parents=True, exist_ok=True)
    with open(log, "a", encoding="utf-8") as file:
        done = subprocess.run(command, cwd=ROOT, env=environment, stdout=file, stderr=file)
    if done.returncode == EXIT_STOPPED:
        sys.exit(EXIT_STOPPED)
    if done.returncode:
        last = log.read_text(encoding="utf-8").rstrip().rpartition("\n")[2]
        raise ValueError(f"{' '.join(script)} failed; {log} ends with: {last}")


class Job(NamedTuple):
    """A piece of work: its name, and what does it and says whether there was anything to do."""

    name: str
    work: Callable[[], bool]


def do_all(jobs: Sequence[Job], *, workers: int, pin: bool) -> list[str]:
    """Does jobs, some at a time.

    Args:
      jobs: in the order in which they are begun.
      workers: how many at a time.
      pin: whether each worker keeps to a core of its own.

    Returns:
      What went wrong with those that failed.
    """
    available = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
    cores: queue.SimpleQueue[int] = queue.SimpleQueue()
    for worker in range(workers):
        cores.put(available[worker % len(available)] if available else 0)

    def keep_to_a_core() -> None:
        if pin and available:
            # The calling thread alone, and the processes that it starts.
            os.sched_setaffinity(0, {cores.get()})

    def do(job: Job) -> str:
        begin = time.monotonic()
        try:
            done = job.work()
        except ValueError as error:
            logging.error("%s: %s", job.name, error)
            return str(error)
        took = f"{time.monotonic() - begin:.0f} s" if done else "done before"
        logging.info("%s: %s", job.name, took)
        return ""

    with concurrent.futures.ThreadPoolExecutor(workers, initializer=keep_to_a_core) as pool:
        return [error for error in pool.map(do, jobs) if error]
