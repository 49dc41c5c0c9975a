"""Two hosts with four devices each against one host with eight: the same run, on another mesh.

Two hosts train, evaluate and fine-tune, and are killed. One host resumes their run.
"""

import contextlib
import dataclasses
import json
import math
import pathlib
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from unittest import mock

import jax
import numpy as np
from absl.testing import absltest

from input_pipeline.packed_dataset import tokenizer_hash
from tests import processes, tiny_tasks
from tests.training import program_test
from tests.training.multihost_worker import (
    HALF,
    VARIANT,
    WHOLE,
    run_commands,
    stuck_marker,
    train_to,
)
from vocap import merge
from xlm.common import artifacts
from xlm.experiment import data as data_builders
from xlm.training.metrics import read_metrics
from xlm.training.settings import AXES as AXIS_NAMES

WORKER = pathlib.Path(__file__).with_name("multihost_worker.py")
NUM_HOSTS, TIMEOUT = 2, 300.0
# fsdp spans the hosts, so each of them has a part of the parameters.
AXES = (1, 4, 2)
# Mesh of the one host; its programs serve its own run and the resumed one.
ALONE_AXES = (2, 2, 2)


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("localhost", 0))
        return found.getsockname()[1]


@contextlib.contextmanager
def hosts(folder: pathlib.Path) -> Iterator[None]:
    """Run the worker on all hosts during the block, then kill them in the middle of a step.

    If one fails or hangs earlier, show the output of all.
    """
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
        waiting = [stuck_marker(folder, number) for number in range(NUM_HOSTS)]
        while not all(marker.exists() for marker in waiting) and time.monotonic() < deadline:
            if any(process.poll() is not None for process in running):
                break  # the others would wait for it
            time.sleep(0.1)
        codes = [process.poll() for process in running]
    if any(code is not None for code in codes) or not all(marker.exists() for marker in waiting):
        output = "\n".join(f"--- {log.name}\n{log.read_text()}" for log in logs)
        raise AssertionError(f"hosts ended with {codes}, None if killed here\n{output}")


def write_given(folder: pathlib.Path, axes: tuple[int, int, int]) -> None:
    """Write the inputs of `run_commands`, except the checkpoints of the run.

    They are the vocabulary and rows of `program_test.small_dataset`, parallel text, and configs.
    """
    letters = [*tiny_tasks.PIECES, *(f"▁w{i}" for i in range(program_test.VOCAB))]
    pieces = letters[: program_test.VOCAB - len(merge.SPECIALS)]
    folders = data_builders.Folders(folder / "whole")
    model = merge.write_model(pieces, -np.arange(1.0, len(pieces) + 1))
    artifacts.write_bytes(folders.tokenizer, model)
    folders.rows.mkdir()
    dataset = program_test.write_dataset(folders.rows)
    for language in dataset.languages:
        rows = dataset.rows(language, "train")[:10]
        np.save(folders.rows / f"set.{language}.parallel.npy", rows)
    parallel = {"set": tuple(dataset.languages)}
    for splits in dataset.statistics.values():
        for one in splits.values():
            one["unknown"] = 0
    dataclasses.replace(dataset, tokenizer=tokenizer_hash(model), parallel=parallel).write_meta()
    artifacts.open_stage(folders.rows, {"made": "up"}).finish()
    (folder / "text.txt").write_text("the cat\ncat the dog\n" * 5, encoding="utf-8")

    config = program_test.config(VARIANT)
    config.mesh.update(dict(zip(AXIS_NAMES, axes, strict=True)))
    config.evaluation.retrieval_layer = 1
    data_builders.open_train_stage(config, folders).claim()
    tasks = {
        "finetune": tiny_tasks.config("glue", "cola,", train__epochs=1.0),
        "retrieve": tiny_tasks.config("tatoeba"),
    }
    for task in tasks.values():
        task.init_from = str(folders.workdir)
        task.task.max_length = program_test.L
    for name, one in {"evaluate": config, **tasks}.items():
        text = f"import ml_collections as m\nget_config = lambda: m.ConfigDict({one.to_dict()!r})\n"
        artifacts.write_text(folder / "configs" / f"{name}.py", text)


# Outputs of the commands. Their numbers are equal up to the order of addition.
WRITTEN = (
    "whole/report/results.json", "tuned/results.json", "tuned/predictions/test.en.jsonl",
    "predicted.jsonl", "retrieved/results.json", "retrieved/predictions/test.sw.jsonl",
)  # fmt: skip


def values(path: pathlib.Path) -> dict[str, float | str]:
    """Values of a file of JSON or JSON lines, by their paths."""
    text = path.read_text(encoding="utf-8")
    whole = json.loads(text if path.suffix == ".json" else f"[{','.join(text.splitlines())}]")
    return {jax.tree_util.keystr(at): one for at, one in jax.tree.leaves_with_path(whole)}


class MultihostTest(absltest.TestCase):
    def test_hosts_do_not_change_the_run(self):
        folder = pathlib.Path(self.enter_context(tempfile.TemporaryDirectory()))
        functions = program_test.functions(VARIANT, ALONE_AXES)
        alone = pathlib.Path(self.enter_context(tempfile.TemporaryDirectory()))
        write_given(folder, AXES)
        write_given(alone, ALONE_AXES)
        with hosts(folder):
            train_to(WHOLE, functions, alone / "whole" / "train")
            run_commands(alone)
        expected = read_metrics(alone / "whole" / "train" / "metrics.jsonl")
        self.assertEqual(sum("train/loss" in record for record in expected), WHOLE)
        self.assertEqual(sum("eval/loss/aa" in record for record in expected), 2)

        with self.subTest("two hosts, stopped half-way and resumed"):
            self.assert_same_records(
                read_metrics(folder / "whole" / "train" / "metrics.jsonl"), expected
            )
        with self.subTest("two hosts, killed, then one with another mesh"):
            half = folder / "half" / "train"
            # Steps after the checkpoint will be repeated.
            self.assertGreater(read_metrics(half / "metrics.jsonl")[-1]["step"], HALF)
            # Each host wrote its part of the checkpoint, so one part is not enough.
            (checkpoint,) = half.glob(f"checkpoints/{HALF}/state")
            self.assertLen(list(checkpoint.glob("ocdbt.process_*")), NUM_HOSTS)
            data = program_test.data_of(VARIANT, functions)
            of = type(data)
            with mock.patch.object(of, "batches", autospec=True, side_effect=of.batches) as batches:
                train_to(WHOLE, functions, half, data)
            batches.assert_called_once_with(data, range(HALF, WHOLE))
            self.assert_same_records(read_metrics(half / "metrics.jsonl"), expected)
        for name in WRITTEN:
            with self.subTest(name):
                self.assert_same_records([values(folder / name)], [values(alone / name)])

    def assert_same_records(self, found: list[dict], expected: list[dict]) -> None:
        self.assertEqual(list(map(set, found)), list(map(set, expected)))
        for mine, other in zip(found, expected, strict=True):
            for name, value in other.items():
                if isinstance(value, str):
                    self.assertEqual(mine[name], value, name)
                else:
                    # An error is the spread of nearly equal differences of float32 losses.
                    atol = 1e-6 if name.endswith("['error']") else 0.0
                    np.testing.assert_allclose(
                        mine[name], value, rtol=1e-5, atol=atol, err_msg=name
                    )
