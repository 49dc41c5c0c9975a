"""Executors of tasks: processes of this machine, workers of Dask, runners of Apache Beam.

An executor is a context manager. `run(function, jobs)` calls a function with the arguments of each
job. A task reads and writes files, which workers of other machines see at the same paths. After the
end of a worker a task may run twice. It then writes the same bytes.
"""

import concurrent.futures
import contextlib
import pathlib
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

from absl import flags

from xlm.common import console, packages, places
from xlm.common.processes import Workers

T = TypeVar("T")

flags.disclaim_key_flags()  # the flags below are those of the calling command

_WAIT = 60  # seconds, for a scheduler and its first worker
_ONE = threading.Lock()


class Dask(contextlib.AbstractContextManager["Dask"]):
    """Workers of a Dask cluster, by the address or the scheduler file of its scheduler.

    Raises ValueError if Dask is not installed, or no scheduler with workers answers.
    """

    is_local = False

    def __init__(self, scheduler: str):
        with packages.needed("--dask", "dask"):
            import distributed
        kind = "scheduler_file" if pathlib.Path(scheduler).is_file() else "address"
        try:
            self._client = distributed.Client(
                **{kind: scheduler}, timeout=_WAIT, set_as_default=False
            )
            self._client.wait_for_workers(1, timeout=_WAIT)
        except (OSError, ValueError) as error:
            raise ValueError(
                f"--dask is {scheduler}: {error}; start 'dask scheduler' and a 'dask worker', and "
                "give the scheduler's address, tcp://HOST:8786, or its --scheduler-file"
            ) from error

    def __exit__(self, *_: object) -> None:
        self._client.close()

    def run(self, function: Callable[..., T], jobs: Sequence[tuple]) -> Iterator[T]:
        """Yield the results of jobs as they come; run tasks of an ended worker again.

        Raises the error of a job, MemoryError if workers end again and again, and OSError if the
        scheduler ends. Then no other job begins.
        """
        import distributed

        futures = [self._client.submit(_call, function, *job, pure=False) for job in jobs]
        try:
            for _, result in distributed.as_completed(
                futures, loop=self._client.loop, with_results=True
            ):
                yield result
        except distributed.KilledWorker as error:
            raise MemoryError(
                "a task has ended several workers of Dask, perhaps for want of memory; give them "
                "more and run the same command again: it resumes"
            ) from error
        except concurrent.futures.CancelledError as error:
            raise OSError(
                f"the scheduler of Dask has lost the tasks ({error}); start it again and run the "
                "same command again: it resumes"
            ) from error
        finally:
            self._client.cancel(futures)


class Beam(contextlib.AbstractContextManager["Beam"]):
    """A runner of Apache Beam with its `options`, which runs a pipeline for each round.

    Raises ValueError if Beam is not installed.
    """

    is_local = False

    def __init__(self, options: Sequence[str]):
        with packages.needed("--beam", "beam"):
            import apache_beam  # noqa: F401
        self._options = list(options)

    def __exit__(self, *_: object) -> None:
        pass

    def run(self, function: Callable[..., Any], jobs: Sequence[tuple]) -> Iterator[None]:
        """Yield None for each job when all have ended: Beam brings no results back."""
        import apache_beam as beam
        from apache_beam.options.pipeline_options import PipelineOptions

        if jobs:
            with beam.Pipeline(options=PipelineOptions(self._options)) as pipeline:
                _ = (
                    pipeline
                    | "tasks" >> beam.Create(list(jobs))
                    # Without it, the worker that creates the jobs would get them all.
                    | "to workers" >> beam.Reshuffle()
                    | function.__name__ >> beam.Map(lambda one: _call(function, *one))
                )
        yield from [None] * len(jobs)


Executor = Workers | Dask | Beam


def _call(function: Callable[..., T], *job: Any) -> T:
    """Call a function under a lock: the tasks of a process share its caches and their counts."""
    with _ONE:
        return function(*job)


def complete(
    executor: Executor, function: Callable[..., T], jobs: Sequence[tuple],
    is_done: Callable[..., bool], name: str, folder: Any,
) -> list[T]:  # fmt: skip
    """Run all jobs of a round called `name`, which write to `folder`; return their results.

    `is_done` tells whether the files of a job exist. Raises ValueError if some are missing: a
    runner has lost the job, or a worker writes to another disk.
    """
    results = executor.run(function, jobs)
    found = list(console.bar(results, name, len(jobs), "tasks"))
    if lost := sum(not is_done(*job) for job in jobs):
        raise ValueError(
            f"{name}: {lost} of {len(jobs)} tasks have left no results in {folder}; let all "
            "workers see this folder, and run the same command again, on Beam with another --runner"
        )
    return found


def define_flags() -> None:
    flags.DEFINE_string("dask", None, "Scheduler of a Dask cluster that does the work: its "
                        "address, tcp://HOST:8786, or its file.")  # fmt: skip
    flags.DEFINE_list("beam", None, "Flags of Apache Beam to do the work with: --runner=...")


def chosen(number: int, key: str, folder: str | None = None) -> Executor:
    """Return the executor that the flags choose, by default `number` processes (see `Workers`)."""
    return remote(folder) or Workers(number, key)


def remote(folder: str | None) -> Dask | Beam | None:
    """Return the executor of other machines that the flags choose.

    Raises ValueError if they choose two, or the workers would not see `folder`.
    """
    scheduler, options = flags.FLAGS.dask, flags.FLAGS.beam
    if scheduler and options:
        raise ValueError("--dask and --beam are both given; leave one out")
    if not scheduler and not options:
        return None
    if folder and places.is_url(folder):
        raise ValueError(
            f"{folder} has a local copy, which workers of other machines do not see; give a folder "
            "that all of them mount, or leave out --dask and --beam"
        )
    return Dask(scheduler) if scheduler else Beam(options)
