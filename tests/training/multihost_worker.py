"""One host of `multihost_test`: joins the others, trains, keeps a copy half-way, trains on.

    python multihost_worker.py ADDRESS NUM_HOSTS HOST FOLDER DATA,FSDP,MODEL

Trains to `HALF` in FOLDER/whole, copies that to FOLDER/half, and goes on to the end.
"""

import dataclasses
import pathlib
import shutil
import sys

import jax

if __name__ == "__main__":
    sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2]))

from builders import model as builders
from tests.training import program_test
from training.loop import train
from training.step import Program

VARIANT, HALF, WHOLE = "plain", 4, 8


def train_to(num_steps: int, program: Program, folder: pathlib.Path, batches=None) -> None:
    """Trains as train.py does, with a checkpoint and an evaluation half-way and at the end."""
    config, store = program_test.config(VARIANT), program_test.store()
    settings = dataclasses.replace(
        builders.train_settings(config),
        num_steps=num_steps,
        checkpoint_every=HALF,
        evaluate_every=HALF,
    )
    objective = builders.objective(config, store, program.mesh)
    evaluator = builders.exact_masked_lm(config, objective, store, in_training=True)
    batches = batches or builders.batches(config, store, program.mesh)
    train(program, settings, folder, batches, evaluators=[evaluator])


def main(address: str, num_hosts: str, host: str, folder: str, axes: str) -> None:
    jax.config.update("jax_numpy_rank_promotion", "raise")
    jax.config.update("jax_disable_most_optimizations", True)
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.distributed.initialize(address, int(num_hosts), int(host), initialization_timeout=60)
    program = program_test.program(VARIANT, tuple(int(size) for size in axes.split(",")))
    assert len(program.mesh.local_devices) < program.mesh.size == jax.device_count()

    whole, half = (pathlib.Path(folder) / name for name in ("whole", "half"))
    train_to(HALF, program, whole)
    if host == "0":
        shutil.copytree(whole, half)
    train_to(WHOLE, program, whole)  # resumes, on the same hosts
    jax.distributed.shutdown()


if __name__ == "__main__":
    main(*sys.argv[1:])
