"""Builders of the mesh, the compiled functions, and the state of a finished run."""

import logging
from typing import Any, NamedTuple

import jax
from jax.sharding import AbstractMesh, Mesh
from ml_collections import ConfigDict

from input_pipeline.packed_dataset import PackedDataset
from xlm.common import places
from xlm.common.schema import settings
from xlm.experiment import objectives
from xlm.experiment.data import Folders
from xlm.experiment.masked_lm import has_masked_lm, masked_lm_of, warn_of_refreshes
from xlm.models.settings import EncoderSettings
from xlm.objectives.objective import Objective
from xlm.training import compilation
from xlm.training.checkpoint import restore_latest_params
from xlm.training.settings import MeshSettings, OptimizerSettings, TrainSettings
from xlm.training.sharding import make_mesh, num_batch_shards
from xlm.training.step import TrainFunctions, make_train_functions


def set_up_compilation(config: ConfigDict) -> None:
    """Set the options that a backend reads at its start, before anything asks for devices."""
    if config.train.deterministic:
        compilation.use_deterministic_operations()
    compilation.use_cache()


def train_settings(config: ConfigDict) -> TrainSettings:
    return settings(TrainSettings, config.train)


def mesh(config: ConfigDict) -> Mesh:
    """Create the mesh of the config over all devices.

    Raises ValueError if mesh, devices and batch do not fit.
    """
    mesh = make_mesh(settings(MeshSettings, config.mesh))
    check_batch(config.train.batch_size, mesh)
    return mesh


def check_one_host(workdir: str) -> None:
    """Raise ValueError if several hosts would each work on a copy of a bucket's folder."""
    if places.is_url(workdir) and jax.process_count() > 1:
        raise ValueError(
            f"--workdir is {workdir}, and this is one of {jax.process_count()} hosts, which write "
            "checkpoints together: give a folder that all mount (for example with gcsfuse)"
        )


def train_functions(
    config: ConfigDict, objective: Objective, mesh: Mesh | AbstractMesh
) -> TrainFunctions:
    """Build the compiled functions of the run on `mesh`."""
    train = train_settings(config)
    return make_train_functions(
        objective, settings(OptimizerSettings, config.optimizer, frozen=()),
        settings(MeshSettings, config.mesh), mesh, num_steps=train.num_steps,
        accumulation=train.accumulation, prng=train.prng,
    )  # fmt: skip


def log_choices(config: ConfigDict, objective: Objective, dataset: PackedDataset) -> None:
    """Log the kernels and the table rows that a step reads; warn of costly refreshes."""
    sizes = settings(EncoderSettings, config.model, vocab_size=dataset.vocab_size)
    logging.debug(
        "layers: attention by %s, model.remat is %s, %d an iteration of the loop",
        sizes.kernel, sizes.remat, sizes.layers_at_once,
    )  # fmt: skip
    if not has_masked_lm(objective):
        return
    warn_of_refreshes(config, dataset)
    if config.train.accumulation_steps > 1:
        reads = "all rows in every step: each of train.accumulation_steps parts touches others"
    else:
        size = config.train.batch_size
        reads = masked_lm_of(objective).describe_table_reads(size, dataset.length)
    update = config.optimizer.embedding_update
    logging.debug("embedding table: %s; optimizer.embedding_update is %s", reads, update)


def check_batch(batch_size: int, mesh: Mesh | AbstractMesh) -> None:
    """Raise ValueError unless a batch divides evenly over the devices."""
    shards = num_batch_shards(mesh)
    if batch_size % shards:
        raise ValueError(
            f"train.batch_size is {batch_size}, must be a multiple of {shards}, over which the "
            "mesh's data and fsdp axes split a batch"
        )


class Trained(NamedTuple):
    """Latest checkpoint of a run: its objective, steps taken, and parameters, all up to date."""

    objective: Objective
    step: int
    params: Any


def restore(
    config: ConfigDict, dataset: PackedDataset, folders: Folders, mesh: Mesh | None = None
) -> Trained:
    """Read the latest checkpoint of the run in a working directory.

    The parameters are placed on `mesh`, by default the config's. Raises ValueError if there is no
    checkpoint, or all are damaged.
    """
    mesh = make_mesh(settings(MeshSettings, config.mesh)) if mesh is None else mesh
    objective = objectives.objective(config, dataset, mesh)
    functions = train_functions(config, objective, mesh)
    return Trained(objective, *restore_latest_params(folders.train / "checkpoints", functions))
