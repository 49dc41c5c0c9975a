"""Builders that need jax: mesh, compiled functions, evaluators."""

import dataclasses
import logging
import pathlib
from collections.abc import Callable
from typing import Any, NamedTuple

import sentencepiece as spm
from jax.sharding import AbstractMesh, Mesh
from ml_collections import ConfigDict

from builders import objectives
from builders.data import Folders, evaluation_settings, settings
from builders.masked_lm import has_masked_lm, masked_lm_of
from evaluation.examples import Examples
from evaluation.masked_lm import ExactMaskedLM
from evaluation.retrieval import Retrieval
from evaluation.sampled_loss import SampledLoss
from input_pipeline.packed_dataset import PackedDataset
from interop import model_folder
from objectives.masked_lm import MaskedLM
from objectives.objective import Objective
from training.checkpoint import restore_latest_params
from training.optimizer import OptimizerSettings
from training.progress import Evaluator
from training.settings import TrainSettings
from training.sharding import MeshSettings, make_mesh, num_batch_shards
from training.step import TrainFunctions, make_train_functions


def train_settings(config: ConfigDict) -> TrainSettings:
    return settings(TrainSettings, config.train, "train", read_elsewhere=("init_from",))


def initial_params(
    config: ConfigDict, objective: Objective, folders: Folders
) -> Callable[[], Any] | None:
    """Build a reader of the initial parameters in `train.init_from`; None for random ones.

    Raises:
      ValueError: the run has not started and cannot start from that folder, or the objective has
        no masked LM.
    """
    if not config.train.init_from:
        return None
    args = (
        pathlib.Path(config.train.init_from),
        dataclasses.asdict(masked_lm_of(objective).encoder.settings),
        folders.read_tokenizer(),
    )
    if not (folders.train / "checkpoints").exists():
        model_folder.check_initial(*args)  # before the folder of training is claimed
    return lambda: model_folder.initial_params(*args)


def mesh(config: ConfigDict) -> Mesh:
    """Create the mesh of the config over all devices.

    Raises:
      ValueError: mesh, devices and batch do not fit.
    """
    mesh = make_mesh(settings(MeshSettings, config.mesh, "mesh"))
    check_batch(config.train.batch_size, mesh)
    return mesh


def train_functions(
    config: ConfigDict, objective: Objective, mesh: Mesh | AbstractMesh
) -> TrainFunctions:
    """Build the compiled functions of the run on `mesh`."""
    train = train_settings(config)
    return make_train_functions(
        objective,
        settings(OptimizerSettings, config.optimizer, "optimizer", frozen=()),
        settings(MeshSettings, config.mesh, "mesh"),
        mesh,
        num_steps=train.num_steps,
        accumulation=train.accumulation,
        prng=train.prng,
    )


def log_table_reads(config: ConfigDict, objective: Objective, store: PackedDataset) -> None:
    """Log which table rows a step reads and updates, for an objective with masked LM."""
    if not has_masked_lm(objective):
        return
    if config.train.accumulation_steps > 1:
        reads = "all rows in every step: each part (train.accumulation_steps) touches others"
    else:
        size = config.train.batch_size
        reads = masked_lm_of(objective).describe_table_reads(size, store.length)
    update = config.optimizer.embedding_update
    logging.info("embedding table: %s; optimizer.embedding_update is %s", reads, update)


def check_batch(batch_size: int, mesh: Mesh | AbstractMesh) -> None:
    """Raise ValueError unless a batch divides evenly over the devices."""
    shards = num_batch_shards(mesh)
    if batch_size % shards:
        raise ValueError(
            f"train.batch_size is {batch_size}, must be a multiple of {shards}, over which the "
            "mesh's data and fsdp axes split a batch"
        )


class Trained(NamedTuple):
    """Latest checkpoint of a run.

    Attributes:
      objective: of its config.
      step: steps taken.
      params: parameters, all up to date.
    """

    objective: Objective
    step: int
    params: Any


def restore(
    config: ConfigDict, store: PackedDataset, folders: Folders, mesh: Mesh | None = None
) -> Trained:
    """Read the latest checkpoint of the run in a working directory.

    Args:
      config: of the run.
      store: its packed dataset.
      folders: the working directory.
      mesh: mesh to place the parameters on; by default that of the config.

    Raises:
      ValueError: there is no checkpoint, or all are damaged.
    """
    mesh = make_mesh(settings(MeshSettings, config.mesh, "mesh")) if mesh is None else mesh
    objective = objectives.objective(config, store, mesh)
    functions = train_functions(config, objective, mesh)
    return Trained(objective, *restore_latest_params(folders.train / "checkpoints", functions))


def evaluators(
    config: ConfigDict, objective: Objective, store: PackedDataset, mesh: Mesh
) -> list[Evaluator]:
    """Build the evaluators during training: the exact loss, for objectives with masked LM."""
    if not has_masked_lm(objective):
        return []
    masked_lm = masked_lm_of(objective)
    return [
        exact_masked_lm(config, masked_lm, store, mesh, in_training=True),
        sampled_loss(config, masked_lm, store, mesh),
    ]


def exact_masked_lm(
    config: ConfigDict, masked_lm: MaskedLM, store: PackedDataset, mesh: Mesh, *, in_training: bool
) -> ExactMaskedLM:
    """Build the exact evaluation, on fewer sequences if it is run during training."""
    options = evaluation_settings(config)
    return ExactMaskedLM(
        masked_lm,
        store,
        num_folds=options.num_folds,
        batch_size=options.batch_size,
        max_sequences=options.max_sequences_in_training if in_training else options.max_sequences,
        seed=options.seed,
        mesh=mesh,
    )


def sampled_loss(
    config: ConfigDict, masked_lm: MaskedLM, store: PackedDataset, mesh: Mesh
) -> SampledLoss:
    """Build the comparison of sampled and exact loss on held-out batches like in training."""
    options = evaluation_settings(config)
    return SampledLoss(
        masked_lm,
        store,
        # As many sequences as are planned together in training: more could exceed the capacity.
        batch_size=config.train.batch_size // config.train.accumulation_steps,
        max_sequences=options.max_sequences_in_training,
        seed=options.seed,
        mesh=mesh,
    )


def retrieval(
    config: ConfigDict, masked_lm: MaskedLM, store: PackedDataset, mesh: Mesh
) -> Retrieval:
    """Build retrieval on the parallel sets of the packed dataset."""
    options = evaluation_settings(config)
    return Retrieval(
        masked_lm,
        store,
        layer=options.retrieval_layer,
        pivot=options.retrieval_pivot,
        batch_size=options.batch_size,
        max_sentences=options.retrieval_max_sentences,
        mesh=mesh,
    )


def examples(
    config: ConfigDict, masked_lm: MaskedLM, store: PackedDataset, folders: Folders, mesh: Mesh
) -> Examples:
    """Build example predictions of masked pieces in held-out sentences."""
    processor = spm.SentencePieceProcessor(model_proto=folders.read_tokenizer())
    pieces = [processor.id_to_piece(i) for i in range(store.vocab_size)]
    return Examples(masked_lm, store, pieces, seed=evaluation_settings(config).seed, mesh=mesh)
