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

from builders import evaluators, streams
from builders import model as builders
from builders.masked_lm import masked_lm_of
from tests.training import program_test
from training.checkpoint import restore_latest_params
from training.loop import train
from training.step import TrainFunctions

VARIANT, HALF, WHOLE = "plain", 4, 8


def train_to(num_steps: int, functions: TrainFunctions, folder: pathlib.Path, data=None) -> None:
    """Trains as train.py does, with a checkpoint and an evaluation half-way and at the end."""
    config, store = program_test.config(VARIANT), program_test.store()
    settings = dataclasses.replace(
        builders.train_settings(config),
        num_steps=num_steps,
        checkpoint_every=HALF,
        evaluate_every=HALF,
    )
    masked_lm = masked_lm_of(functions.objective)
    mesh = functions.mesh
    evaluator = evaluators.exact_masked_lm(config, masked_lm, store, mesh, in_training=True)
    data = data or streams.training_data(config, store, functions.mesh)
    train(functions, settings, folder, data, evaluators=[evaluator])


def main(address: str, num_hosts: str, host: str, folder: str, axes: str) -> None:
    jax.config.update("jax_numpy_rank_promotion", "raise")
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.distributed.initialize(address, int(num_hosts), int(host), initialization_timeout=60)
    functions = program_test.functions(VARIANT, tuple(int(size) for size in axes.split(",")))
    assert len(functions.mesh.local_devices) < functions.mesh.size == jax.device_count()

    whole, half = (pathlib.Path(folder) / name for name in ("whole", "half"))
    train_to(HALF, functions, whole)
    if host == "0":
        shutil.copytree(whole, half)
    train_to(WHOLE, functions, whole)  # resumes, on the same hosts
    step, params = restore_latest_params(whole / "checkpoints", functions)
    assert step == WHOLE and jax.tree.structure(params) == jax.tree.structure(
        functions.abstract_state.params
    )
    jax.distributed.shutdown()


if __name__ == "__main__":
    main(*sys.argv[1:])
