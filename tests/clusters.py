"""A Dask cluster of local processes whose workers are killed."""

import contextlib
import itertools
import logging
import os
import pathlib
import signal
import unittest
from collections.abc import Iterator

from xlm.common import artifacts

try:
    import distributed
except ImportError as error:
    raise unittest.SkipTest(f"no Dask: {error} (extra [dask])") from error


@contextlib.contextmanager
def dask(num_workers: int = 2) -> Iterator[str]:
    """Run a scheduler and workers, which restart after their end; yield its address."""
    with distributed.LocalCluster(
        n_workers=num_workers, threads_per_worker=1, processes=True, dashboard_address=None,
        silence_logs=logging.CRITICAL,
    ) as cluster:  # fmt: skip
        yield cluster.scheduler_address


class Killing(distributed.WorkerPlugin):
    """Kills a worker between writing and renaming the files of some `numbers`.

    Files in `folder` number the files of all workers, from 0 on.
    """

    name = "killing"

    def __init__(self, folder: pathlib.Path, *numbers: int):
        self.folder, self.numbers = folder, numbers
        folder.mkdir()

    def setup(self, worker: distributed.Worker) -> None:
        self.publish = artifacts.publish
        artifacts.publish = self.killed

    def teardown(self, worker: distributed.Worker) -> None:
        artifacts.publish = self.publish

    def killed(self, aside: pathlib.Path, path: pathlib.Path) -> None:
        for number in itertools.count():
            with contextlib.suppress(FileExistsError):
                (self.folder / str(number)).touch(exist_ok=False)
                break
        if number in self.numbers:
            os.kill(os.getpid(), signal.SIGKILL)
        self.publish(aside, path)


@contextlib.contextmanager
def killing(address: str, folder: pathlib.Path, *numbers: int) -> Iterator[None]:
    """Kill workers of the cluster, see `Killing`; fail if they write too few files."""
    with distributed.Client(address, set_as_default=False) as client:
        plugin = Killing(folder, *numbers)
        client.register_plugin(plugin)
        yield
        client.unregister_worker_plugin(plugin.name)
    if not (folder / str(numbers[-1])).exists():
        raise AssertionError(f"{len(os.listdir(folder))} files, none killed at {numbers}")
