"""One host of `multihost_test`: joins the others, trains, and keeps a copy half-way.

    python multihost_worker.py ADDRESS NUM_HOSTS HOST FOLDER DATA,FSDP,MODEL

Trains to `HALF` in FOLDER/whole, copies that to FOLDER/half, and continues to the end. Then
commands evaluate the run, fine-tune from it, and predict with the tuned model. Resumes FOLDER/half
for some steps, and waits to be killed in the middle of the next.
"""

import contextlib
import dataclasses
import pathlib
import shutil
import sys
import time
from collections.abc import Iterator
from unittest import mock

import jax

if __name__ == "__main__":
    sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2]))

from input_pipeline.dataset import StreamedData
from tests import commands
from tests.training import program_test
from xlm.common import artifacts, entry_point
from xlm.evaluation import examples
from xlm.experiment import evaluators, streams
from xlm.experiment import model as builders
from xlm.experiment.masked_lm import masked_lm_of
from xlm.training.checkpoint import Checkpoints
from xlm.training.loop import train
from xlm.training.step import TrainFunctions

VARIANT, HALF, WHOLE = "hosts", 4, 7


def train_to(num_steps: int, functions: TrainFunctions, folder: pathlib.Path, data=None) -> None:
    """Train as train.py does, with a checkpoint and an evaluation half-way and at the end."""
    config, dataset = program_test.config(VARIANT), program_test.small_dataset()
    settings = dataclasses.replace(
        builders.train_settings(config),
        num_steps=num_steps,
        checkpoint_every=HALF,
        evaluate_every=HALF,
    )
    masked_lm = masked_lm_of(functions.objective)
    mesh = functions.mesh
    evaluator = evaluators.exact_masked_lm(config, masked_lm, dataset, mesh, in_training=True)
    data = data or streams.training_data(config, dataset, functions.mesh)
    train(functions, settings, folder, data, evaluators=[evaluator])


def stuck_marker(folder: pathlib.Path, host: int) -> pathlib.Path:
    return folder / f"stuck_{host}"


@dataclasses.dataclass(frozen=True)
class Stuck:
    """Data of a run that takes two steps after `HALF`, then waits forever."""

    data: StreamedData
    marker: pathlib.Path

    def batches(self, steps: range) -> Iterator:
        yield from self.data.batches(range(steps.start, HALF + 2))
        self.marker.touch()
        time.sleep(1e6)

    def describe_batch(self, step: int):
        return self.data.describe_batch(step)

    def step_values(self, step: int):
        return self.data.step_values(step)


def run_commands(folder: pathlib.Path) -> None:
    """Evaluate FOLDER/whole, fine-tune from it, predict, and retrieve.

    FOLDER/configs has the configs of these commands, FOLDER/text.txt the text to predict on.
    """
    tuned, text = folder / "tuned", folder / "text.txt"
    # Only parameters are needed of an up-to-date checkpoint.
    whole = mock.patch.object(Checkpoints, "restore", side_effect=AssertionError("whole state"))
    unread = mock.patch.object(Checkpoints, "_could_read_back", return_value=True)
    with whole, unread, mock.patch.object(examples, "MIN_COUNT", 1):
        for command, flags in (
            ("evaluate", {"config": _config(folder, "evaluate"), "workdir": folder / "whole"}),
            ("finetune", {"config": _config(folder, "finetune"), "workdir": tuned}),
            ("predict", {"workdir": tuned, "input": text, "output": folder / "predicted.jsonl"}),
            ("finetune", {"config": _config(folder, "retrieve"), "workdir": folder / "retrieved"}),
        ):
            given = [f"--{name}={value}" for name, value in flags.items()]
            done = commands.execute(command, *given)
            assert done.returncode == 0, f"{command}: {done.returncode}\n{done.stderr}"


def _config(folder: pathlib.Path, name: str) -> pathlib.Path:
    return folder / "configs" / f"{name}.py"


@contextlib.contextmanager
def no_files():
    """Fail on any write of results, which only the first host may do."""
    error = AssertionError("another host than the first has written a file")
    with (
        mock.patch.object(artifacts, "atomic_path", side_effect=error),
        mock.patch.object(artifacts.Stage, "locked", side_effect=error),
    ):
        yield


def main(address: str, num_hosts: str, host: str, folder: str, axes: str) -> None:
    entry_point.collect_seldom()
    jax.config.update("jax_numpy_rank_promotion", "raise")
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.distributed.initialize(address, int(num_hosts), int(host), initialization_timeout=60)
    functions = program_test.functions(VARIANT, tuple(int(size) for size in axes.split(",")))
    assert len(functions.mesh.local_devices) < functions.mesh.size == jax.device_count()

    whole, half = (pathlib.Path(folder) / name / "train" for name in ("whole", "half"))
    train_to(HALF, functions, whole)
    if host == "0":
        shutil.copytree(whole, half)
    train_to(WHOLE, functions, whole)  # resumes, on the same hosts
    with contextlib.nullcontext() if host == "0" else no_files():
        run_commands(pathlib.Path(folder))
    data = streams.training_data(
        program_test.config(VARIANT), program_test.small_dataset(), functions.mesh
    )
    train_to(WHOLE, functions, half, Stuck(data, stuck_marker(pathlib.Path(folder), int(host))))


if __name__ == "__main__":
    main(*sys.argv[1:])
