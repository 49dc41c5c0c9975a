"""Two hosts with four devices each against one host with eight: the same run, on either."""

import contextlib
import math
import pathlib
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from unittest import mock

import numpy as np
from absl.testing import absltest

from tests import processes
from tests.training import program_test
from tests.training.multihost_worker import HALF, VARIANT, WHOLE, train_to
from training.metrics import read_metrics

WORKER = pathlib.Path(__file__).with_name("multihost_worker.py")
NUM_HOSTS, TIMEOUT = 2, 120.0
# fsdp goes across the hosts, so that each of them holds a part of the parameters.
AXES = (1, 4, 2)


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("localhost", 0))
        return found.getsockname()[1]


@contextlib.contextmanager
def hosts(folder: pathlib.Path) -> Iterator[None]:
    """Runs the worker on all hosts meanwhile; where one fails or hangs, shows what all said."""
    environment = processes.environment(math.prod(AXES) // NUM_HOSTS)
    address, axes = f"localhost:{free_port()}", ",".join(map(str, AXES))
    logs = [folder / f"host_{host}.log" for host in range(NUM_HOSTS)]
    with contextlib.ExitStack() as stack:
        running = []
        for number, log in enumerate(logs):
            command = [sys.executable, WORKER, address, str(NUM_HOSTS), str(number), folder, axes]
            output = stack.enter_context(open(log, "wb"))
            process = subprocess.Popen(command, env=environment, stdout=output, stderr=output)
            stack.callback(process.wait)
            stack.callback(process.kill)
            running.append(process)
        yield
        deadline = time.monotonic() + TIMEOUT
        while any(process.poll() is None for process in running) and time.monotonic() < deadline:
            if any(process.returncode for process in running):
                break  # the others would wait for it
            time.sleep(0.1)
        codes = [process.poll() for process in running]
    if any(code != 0 for code in codes):
        output = "\n".join(f"--- {log.name}\n{log.read_text()}" for log in logs)
        raise AssertionError(f"hosts ended with {codes}, None if killed here\n{output}")


class MultihostTest(absltest.TestCase):
    def test_hosts_do_not_change_the_run(self):
        folder = pathlib.Path(self.enter_context(tempfile.TemporaryDirectory()))
        functions = program_test.functions(VARIANT, AXES)
        with hosts(folder):
            train_to(WHOLE, functions, folder / "alone")
        expected = read_metrics(folder / "alone" / "metrics.jsonl")
        self.assertEqual(sum("train/loss" in record for record in expected), WHOLE)
        self.assertEqual(sum("eval/loss/aa" in record for record in expected), 2)

        with self.subTest("two hosts, stopped half-way and resumed"):
            self.assert_same_records(read_metrics(folder / "whole" / "metrics.jsonl"), expected)
        with self.subTest("two hosts, then one"):
            half = folder / "half"
            self.assertEqual(read_metrics(half / "metrics.jsonl")[-1]["step"], HALF)
            # Each host wrote its part of the checkpoint: what one of them has would not do.
            (checkpoint,) = half.glob(f"checkpoints/{HALF}/state")
            self.assertLen(list(checkpoint.glob("ocdbt.process_*")), NUM_HOSTS)
            data = program_test.data_of(VARIANT, functions)
            with mock.patch.object(
                type(data), "batches", autospec=True, side_effect=type(data).batches
            ) as batches:
                train_to(WHOLE, functions, half, data)
            batches.assert_called_once_with(data, range(HALF, WHOLE))
            self.assert_same_records(read_metrics(half / "metrics.jsonl"), expected)

    def assert_same_records(self, found: list[dict], expected: list[dict]) -> None:
        self.assertEqual([set(record) for record in found], [set(record) for record in expected])
        for mine, other in zip(found, expected, strict=True):
            for name, value in other.items():
                np.testing.assert_allclose(mine[name], value, rtol=1e-5, err_msg=name)


if __name__ == "__main__":
    absltest.main()
