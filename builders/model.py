"""Builders that need jax: the objective, the program, the evaluators."""

import math
from collections.abc import Callable, Iterator, Mapping

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh
from ml_collections import ConfigDict

from builders.data import data_settings, evaluation_settings, settings
from evaluation.masked_lm import ExactMaskedLM
from evaluation.retrieval import Retrieval
from input_pipeline import dataset
from input_pipeline.row_store import RowStore
from input_pipeline.stream import TrainingStream
from knn_sampling.output_layer import OutputLayer
from models.encoder import Encoder, EncoderSettings
from objectives.masked_lm import MaskedLM
from objectives.masking import MaskSettings
from training.loop import TrainSettings
from training.optimizer import OptimizerSettings
from training.sharding import MeshSettings, make_mesh, padded_vocab_size
from training.step import Program, make_program
from vocap.allocation import language_probabilities


def train_settings(config: ConfigDict) -> TrainSettings:
    return settings(TrainSettings, config.train, "train")


def objective(config: ConfigDict, store: RowStore) -> MaskedLM:
    """Masked language modelling on the rows of `store`.

    Raises:
      ValueError: settings that do not fit the rows, each with its key.
    """
    mesh = settings(MeshSettings, config.mesh, "mesh")
    encoder = settings(
        EncoderSettings,
        config.model,
        "model",
        vocab_size=padded_vocab_size(store.vocab_size, mesh.vocab_multiple),
    )
    if encoder.max_length < store.length:
        raise ValueError(
            f"model.max_length is {encoder.max_length}, but rows have {store.length} tokens "
            "(store.length)"
        )
    mask = settings(MaskSettings, config.mask, "mask")
    layer = settings(OutputLayer, config.output_layer, "output_layer", num_valid=store.vocab_size)
    targets = config.train.batch_size * mask.slots(store.length)
    if layer.uses_neighbours and layer.capacity < min(targets, encoder.vocab_size):
        raise ValueError(
            f"output_layer.capacity is {layer.capacity}, but a batch of {config.train.batch_size} "
            f"rows can have {targets} distinct targets, all of which must fit; raise the capacity "
            "or lower train.batch_size"
        )
    return MaskedLM(
        encoder=Encoder(encoder),
        output_layer=layer,
        mask=mask,
        bos=store.special.bos,
        pad=store.special.pad,
        mask_id=store.special.mask,
        never_masked=store.special.never_masked(),
        across_documents=data_settings(config).across_documents,
        target_probabilities=jnp.asarray(
            _target_probabilities(store, _language_shares(config, store), encoder.vocab_size)
        ),
        num_targets=targets,
    )


def _language_shares(config: ConfigDict, store: RowStore) -> dict[str, float]:
    """Share of each language in the training stream (Eq. 3)."""
    tokens = {lang: store.statistics[lang]["train"]["tokens"] for lang in store.languages}
    return language_probabilities(tokens, data_settings(config).alpha)


def _target_probabilities(
    store: RowStore, shares: Mapping[str, float], vocab_size: int
) -> np.ndarray:
    """[vocab_size] float32, how often each piece is a target: counts (add one), mixed."""
    mixed = np.zeros(vocab_size)
    for language, share in shares.items():
        counts = store.token_counts(language) + 1.0
        counts[np.array(store.special.never_masked())] = 0
        mixed[: len(counts)] += share * counts / counts.sum()
    return mixed.astype(np.float32)


def program(config: ConfigDict, masked_lm: MaskedLM, store: RowStore) -> Program:
    """The compiled functions of the run, on the mesh of the config.

    Raises:
      ValueError: mesh and batch do not fit.
    """
    mesh_settings = settings(MeshSettings, config.mesh, "mesh")
    mesh = make_mesh(mesh_settings)
    _check_batch(config.train.batch_size, mesh)
    return make_program(
        masked_lm,
        settings(OptimizerSettings, config.optimizer, "optimizer"),
        mesh_settings,
        mesh,
        num_steps=config.train.num_steps,
        length=store.length,
    )


def _check_batch(batch_size: int, mesh: Mesh) -> None:
    shards = math.lcm(mesh.shape["data"] * mesh.shape["fsdp"], jax.process_count())
    if batch_size % shards:
        raise ValueError(
            f"train.batch_size is {batch_size}, must be a multiple of {shards}, over which the "
            "mesh's data and fsdp axes and the hosts split a batch"
        )


def batches(
    config: ConfigDict, store: RowStore
) -> Callable[[range], Iterator[dict[str, np.ndarray]]]:
    """This host's part of the training batches of any range of steps."""
    data = data_settings(config)
    stream = TrainingStream(
        store,
        _language_shares(config, store),
        batch_size=config.train.batch_size,
        seed=config.train.seed,
    )
    return lambda steps: dataset.batches(
        stream,
        steps,
        loader=data.loader,
        part=jax.process_index(),
        num_parts=jax.process_count(),
        prefetch=data.prefetch,
    )


def exact_masked_lm(
    config: ConfigDict, masked_lm: MaskedLM, store: RowStore, *, in_training: bool
) -> ExactMaskedLM:
    """The exact evaluation, on fewer rows if it is run in training."""
    options = evaluation_settings(config)
    return ExactMaskedLM(
        masked_lm,
        store,
        num_folds=options.num_folds,
        batch_size=options.batch_size,
        max_rows=options.max_rows_in_training if in_training else options.max_rows,
        seed=options.seed,
    )


def retrieval(config: ConfigDict, masked_lm: MaskedLM, store: RowStore) -> Retrieval:
    """Retrieval on the parallel sets of the row store."""
    options = evaluation_settings(config)
    return Retrieval(
        masked_lm,
        store,
        layer=options.retrieval_layer,
        pivot=options.retrieval_pivot,
        batch_size=options.batch_size,
        max_sentences=options.retrieval_max_sentences,
    )
