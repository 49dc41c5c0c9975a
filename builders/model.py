"""Builders that need jax: the objective, the program, the evaluators."""

import dataclasses
import pathlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax.sharding import AbstractMesh, Mesh
from ml_collections import ConfigDict

from builders.data import Folders, data_settings, evaluation_settings, settings
from evaluation.masked_lm import ExactMaskedLM
from evaluation.retrieval import Retrieval
from evaluation.sampled_loss import SampledLoss
from input_pipeline import dataset
from input_pipeline.bitext import BitextSettings, pair_streams
from input_pipeline.row_store import RowStore
from input_pipeline.stream import (
    MixedStream,
    PhasedStream,
    ScheduledStream,
    Stream,
    TrainingStream,
)
from interop import xlm_roberta
from knn_sampling.noise import cumulative_thresholds
from knn_sampling.output_layer import OutputLayer, WordStatistics
from models.encoder import Encoder, EncoderSettings
from objectives.contrastive import ContrastSettings
from objectives.masked_lm import MaskedLM
from objectives.masking import MaskSettings
from training.optimizer import OptimizerSettings
from training.settings import TrainSettings
from training.sharding import (
    MeshSettings,
    host_part,
    make_mesh,
    num_batch_shards,
    padded_vocab_size,
)
from training.step import Program, make_program
from vocap.allocation import language_probabilities


def train_settings(config: ConfigDict) -> TrainSettings:
    return settings(TrainSettings, config.train, "train", read_elsewhere=("init_from",))


def initial_params(
    config: ConfigDict, masked_lm: MaskedLM, folders: Folders
) -> Callable[[], Any] | None:
    """What reads the parameters that the run starts from, `train.init_from`; None for random ones.

    Raises:
      ValueError: the run has not begun, and cannot start from that folder.
    """
    if not config.train.init_from:
        return None
    args = (
        pathlib.Path(config.train.init_from),
        dataclasses.asdict(masked_lm.encoder.settings),
        folders.read_tokenizer(),
    )
    if not (folders.train / "checkpoints").exists():
        xlm_roberta.check_initial(*args)  # now, before the folder of training is claimed
    return lambda: xlm_roberta.initial_params(*args)


def objective(
    config: ConfigDict, store: RowStore, mesh: Mesh | AbstractMesh | None = None
) -> MaskedLM:
    """Masked language modelling on the rows of `store`.

    Args:
      config: the whole config.
      store: its rows and counts.
      mesh: what the objective will run on, if on several devices.

    Raises:
      ValueError: settings that do not fit the rows, each with its key.
    """
    mesh_settings = settings(MeshSettings, config.mesh, "mesh")
    encoder = settings(
        EncoderSettings,
        config.model,
        "model",
        vocab_size=padded_vocab_size(store.vocab_size, mesh_settings.vocab_multiple),
    )
    if encoder.max_length < store.length:
        raise ValueError(
            f"model.max_length is {encoder.max_length}, but rows have {store.length} tokens "
            "(store.length)"
        )
    mask = settings(MaskSettings, config.mask, "mask")
    return MaskedLM(
        encoder=Encoder(encoder),
        output_layer=_output_layer(config, store, mesh_settings, mesh),
        mask=mask,
        bos=store.special.bos,
        pad=store.special.pad,
        mask_id=store.special.mask,
        never_masked=store.special.never_masked(),
        across_documents=data_settings(config).across_documents,
        words=word_statistics(store, _language_shares(config, store), encoder.vocab_size),
        languages=store.languages,
        contrast=settings(ContrastSettings, config.contrast, "contrast"),
    )


def _output_layer(
    config: ConfigDict,
    store: RowStore,
    mesh_settings: MeshSettings,
    mesh: Mesh | AbstractMesh | None,
) -> OutputLayer:
    """The output layer, checked against the batch.

    Raises:
      ValueError: a batch can have more distinct targets than fit.
    """
    layer = settings(
        OutputLayer,
        config.output_layer,
        "output_layer",
        num_valid=store.vocab_size,
        mesh=mesh,
        vocab_axes=mesh_settings.axes_of("vocab") if mesh is not None else (),
    )
    batch_size = config.train.batch_size // config.train.accumulation_steps  # prepared at once
    sequences = batch_size // layer.num_groups(batch_size)
    mask = settings(MaskSettings, config.mask, "mask")
    targets = sequences * mask.slots(store.length)
    if layer.uses_neighbours and layer.capacity < min(targets, store.vocab_size):
        raise ValueError(
            f"output_layer.capacity is {layer.capacity}, but a group of {sequences} sequences can "
            f"have {targets} distinct targets, all of which must fit; raise the capacity or lower "
            "output_layer.group_size or train.batch_size"
        )
    return layer


def _language_shares(
    config: ConfigDict, store: RowStore, alpha: float | None = None
) -> dict[str, float]:
    """Share of each language in the training stream (Eq. 3), by `data.alpha` or another one."""
    tokens = {lang: store.statistics[lang]["train"]["tokens"] for lang in store.languages}
    return language_probabilities(tokens, data_settings(config).alpha if alpha is None else alpha)


def word_statistics(
    store: RowStore, shares: Mapping[str, float], vocab_size: int
) -> WordStatistics:
    """What the rows say about the words, for a table of `vocab_size` rows.

    A word's probability as a target is that of its counts (add one) in each language, mixed by the
    languages' shares of the stream.
    """
    never_masked = np.array(store.special.never_masked())
    by_language = np.zeros((len(shares), vocab_size))
    seen = np.zeros(vocab_size, bool)
    for row, (language, share) in zip(by_language, shares.items(), strict=True):
        counts = np.zeros(vocab_size)
        counts[: store.vocab_size] = store.token_counts(language)
        counts[never_masked] = 0
        seen |= counts > 0
        counts[: store.vocab_size] += 1
        counts[never_masked] = 0
        row[:] = share * counts / counts.sum()
    mixed = by_language.sum(axis=0)
    return WordStatistics(
        jnp.asarray(mixed, jnp.float32),
        cumulative_thresholds(mixed),
        jnp.asarray(np.where(seen, by_language.argmax(axis=0), -1), jnp.int32),
    )


def mesh(config: ConfigDict) -> Mesh:
    """The mesh of the config over all devices.

    Raises:
      ValueError: mesh, devices and batch do not fit.
    """
    mesh = make_mesh(settings(MeshSettings, config.mesh, "mesh"))
    check_batch(config.train.batch_size, mesh)
    return mesh


def program(
    config: ConfigDict, masked_lm: MaskedLM, store: RowStore, mesh: Mesh | AbstractMesh
) -> Program:
    """The compiled functions of the run on `mesh`."""
    return make_program(
        masked_lm,
        settings(OptimizerSettings, config.optimizer, "optimizer", frozen=()),
        settings(MeshSettings, config.mesh, "mesh"),
        mesh,
        num_steps=config.train.num_steps,
        length=store.length,
        accumulation=train_settings(config).accumulation,
    )


def check_batch(batch_size: int, mesh: Mesh | AbstractMesh) -> None:
    """Raises ValueError unless the rows of a batch divide evenly over the devices."""
    shards = num_batch_shards(mesh)
    if batch_size % shards:
        raise ValueError(
            f"train.batch_size is {batch_size}, must be a multiple of {shards}, over which the "
            "mesh's data and fsdp axes split a batch"
        )


def batches(
    config: ConfigDict, store: RowStore, mesh: Mesh
) -> Callable[[range], Iterator[dict[str, np.ndarray]]]:
    """This host's part of the training batches of any range of steps, for `mesh`."""
    data = data_settings(config)
    part, num_parts = host_part(mesh)
    stream = _training_stream(config, store)
    return lambda steps: dataset.batches(
        stream,
        steps,
        loader=data.loader,
        part=part,
        num_parts=num_parts,
        prefetch=data.prefetch,
    )


def batch_contents(config: ConfigDict, store: RowStore) -> Callable[[int], list[tuple[str, int]]]:
    """Step -> the language and the number in it of each training row of the whole batch."""
    return _training_stream(config, store).contents


def _training_stream(config: ConfigDict, store: RowStore) -> Stream:
    """Rows of all languages and, if wanted, pairs of translations among them."""
    data, train = data_settings(config), config.train
    mask = settings(MaskSettings, config.mask, "mask")
    phases: dict[int, Stream] = {
        first: TrainingStream(store, _language_shares(config, store, alpha), train.batch_size, seed)
        for seed, (first, alpha) in enumerate(((0, data.alpha), *data.alpha_phases), train.seed)
    }
    stream: Stream = phases[0]
    if data.alpha_phases:
        alphas = {0: data.alpha, **dict(data.alpha_phases)}
        stream = ScheduledStream(
            PhasedStream(phases), "alpha", lambda step: alphas[max(s for s in alphas if s <= step)]
        )
    if data.pair_share or data.contrast_share:
        streams, shares = [stream], [1 - data.pair_share - data.contrast_share]
        for share, apart in ((data.pair_share, False), (data.contrast_share, True)):
            if share:
                bitext = _bitext_settings(config, store, apart)
                pairs, of_pairs = pair_streams(store, bitext, train.seed + apart)
                streams += pairs
                shares += [share * one for one in of_pairs]
        stream = MixedStream(streams, np.array(shares), train.seed)
    if mask.final_rate:
        ends, rates = (0, train.num_steps - 1), (mask.rate, mask.final_rate)
        stream = ScheduledStream(
            stream, "mask_rate", lambda step: float(np.interp(step, ends, rates))
        )
    return stream


def _bitext_settings(config: ConfigDict, store: RowStore, apart: bool) -> BitextSettings:
    data = data_settings(config)
    return BitextSettings(
        buckets=data.pair_buckets,
        positions=data.pair_positions,
        alpha=data.pair_alpha,
        tokens=config.train.batch_size * store.length,
        apart=apart,
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
        mesh=masked_lm.mesh,
    )


def sampled_loss(config: ConfigDict, masked_lm: MaskedLM, store: RowStore) -> SampledLoss:
    """Sampled against exact loss on held-out rows, in batches like those of training."""
    options = evaluation_settings(config)
    return SampledLoss(
        masked_lm,
        store,
        batch_size=config.train.batch_size,
        max_rows=options.max_rows_in_training,
        seed=options.seed,
        mesh=masked_lm.mesh,
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
        mesh=masked_lm.mesh,
    )
