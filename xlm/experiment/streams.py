"""Builder of the training stream: packed sequences and, optionally, pairs of translations."""

from collections.abc import Mapping, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor

import numpy as np
from absl import logging
from jax.sharding import AbstractMesh, Mesh
from ml_collections import ConfigDict

from input_pipeline.bitext import SEPARATE_PAIRS, BitextSettings, pair_stream
from input_pipeline.dataset import StreamedData
from input_pipeline.packed_dataset import PackedDataset
from input_pipeline.pair_sampling import Pair
from input_pipeline.stream import (
    JointStream,
    MixedStream,
    PhasedStream,
    Stream,
    TrainingStream,
    block_cache,
    training_rows,
)
from xlm.experiment.data import (
    data_settings,
    kind_of_pairs,
    pair_sampling,
    pair_shares,
    rows_of_tasks,
)
from xlm.experiment.data_settings import DataSettings
from xlm.experiment.masked_lm import language_shares
from xlm.training.sharding import host_parts, num_batch_shards


def training_data(
    config: ConfigDict,
    dataset: PackedDataset,
    mesh: Mesh,
    weights: Mapping[int, Mapping[Pair, float]] | None = None,
) -> StreamedData:
    """Build the stream of this host's part of the training batches on `mesh`.

    `weights` are the shares of language pairs by their first step, among them 0; None for the
    config's shares throughout. Raises ValueError if a batch does not divide over the devices.
    """
    data = data_settings(config)
    check_batches(config, dataset, mesh)
    parts, num_parts = host_parts(mesh)
    if data.block_bytes and data.lanes % num_parts:
        logging.warning(
            "data.lanes is %d, no multiple of the %d parts of a batch that hosts feed: several "
            "hosts read the same blocks, up to %d times as many as with a multiple; set data.lanes "
            "to a multiple in a new run, or start as many processes",
            data.lanes, num_parts, num_parts,
        )  # fmt: skip
    if weights is None:
        if data.pair_share or data.contrast_share:
            log_pair_sampling(config, dataset)
        stream = training_stream(config, dataset)
    else:
        stream = _reweighted_stream(config, dataset, weights)
    return StreamedData(stream, data.loader, parts, num_parts, data.prefetch, data.read_ahead)


def check_batches(config: ConfigDict, dataset: PackedDataset, mesh: Mesh | AbstractMesh) -> None:
    """Raise ValueError unless batches of every kind divide into parts, and parts over devices."""
    data, train = data_settings(config), config.train
    shards = num_batch_shards(mesh)
    parts, keys = train.accumulation_steps, "train.batch_size"
    if data.is_joint:
        keys = "train.batch_size and data.pair_share, rows of each task"
    for size in rows_of_tasks(config):
        if not size or size % (shards * parts):
            raise ValueError(
                f"{keys}: {size} must be a multiple of {shards * parts}: the mesh's data and fsdp "
                f"axes split each of the {parts} parts (train.accumulation_steps) of a batch over "
                f"{shards} devices"
            )
        if size % data.lanes:
            raise ValueError(f"{keys}: {size} must be a multiple of data.lanes, {data.lanes}")


def _reading_threads(data: DataSettings) -> Executor | None:
    """Create the threads that read blocks; None without blocks or threads."""
    if not (data.block_bytes and data.read_threads):
        return None
    return ThreadPoolExecutor(data.read_threads, "read_blocks")


def _packed_stream(config: ConfigDict, dataset: PackedDataset, pool: Executor | None) -> Stream:
    data, train = data_settings(config), config.train
    size = rows_of_tasks(config)[0]
    cache = block_cache(training_rows(dataset), pool, data) if pool else None
    alphas, phases = {0: data.alpha, **dict(data.alpha_phases)}, dict[int, Stream]()
    for seed, (first, alpha) in enumerate(alphas.items(), train.seed):
        shares = language_shares(config, dataset, alpha)
        phases[first] = TrainingStream(dataset, shares, size, seed, data, cache)
    return PhasedStream(phases, alphas) if data.alpha_phases else phases[0]


def _reweighted_stream(
    config: ConfigDict, dataset: PackedDataset, weights: Mapping[int, Mapping[Pair, float]]
) -> Stream:
    """Build a stream whose pairs change with `weights`; its text does not change."""
    data, seed = data_settings(config), config.train.seed
    pool = _reading_threads(data)
    packed = _packed_stream(config, dataset, pool)
    bitext = bitext_settings(config, is_separate=False)
    by_step: dict[int, Stream] = {
        first: pair_stream(dataset, bitext, seed + number, of_pairs, pool)
        for number, (first, of_pairs) in enumerate(sorted(weights.items()))
    }
    order = _of_kinds(config, [packed, by_step[0]], [data.pair_share])
    if isinstance(order, MixedStream):
        # Phases count steps on pairs only. Weights do not change which steps these are.
        by_step = {order.steps_before(first, 1): pairs for first, pairs in by_step.items()}
    return _of_kinds(config, [packed, PhasedStream(by_step)], [data.pair_share])


def training_stream(config: ConfigDict, dataset: PackedDataset) -> Stream:
    """Build the stream of whole batches, with the shares of pairs of the config throughout."""
    data, train = data_settings(config), config.train
    pool = _reading_threads(data)
    stream = _packed_stream(config, dataset, pool)
    if not (data.pair_share or data.contrast_share):
        return stream
    of_languages = pair_shares(config, dataset)
    streams: list[Stream] = [stream]
    shares: list[float] = []
    kinds = ((kind_of_pairs(config), data.pair_share), (SEPARATE_PAIRS, data.contrast_share))
    for number, (kind, share) in enumerate(kinds):
        if share:
            bitext = bitext_settings(config, is_separate=kind == SEPARATE_PAIRS)
            streams.append(pair_stream(dataset, bitext, train.seed + number, of_languages, pool))
            shares.append(share)
    return _of_kinds(config, streams, shares)


def _of_kinds(
    config: ConfigDict, streams: Sequence[Stream], shares: Sequence[float]
) -> JointStream | MixedStream:
    """Combine the streams of text and of pairs, which have `shares`, as `data.kinds` says."""
    data, train = data_settings(config), config.train
    if data.is_joint:
        text, pairs = streams
        return JointStream(text, pairs, train.accumulation_steps)
    of_kinds = np.array([1 - sum(shares), *shares])
    return MixedStream(streams, of_kinds, train.seed, data.kinds == "turns")


def bitext_settings(config: ConfigDict, is_separate: bool) -> BitextSettings:
    """Build the settings of batches of sentence pairs."""
    data, (_, size) = data_settings(config), rows_of_tasks(config)
    return BitextSettings(
        positions=data.pair_positions, alpha=data.pair_alpha, batch_size=size,
        separate_segments=is_separate, blocks=data,
    )  # fmt: skip


def pairs_per_step(
    config: ConfigDict, dataset: PackedDataset, shares: Mapping[Pair, float] | None
) -> float:
    """Mean number of sentence pairs in a step of any kind; several short ones share a row."""
    data, settings = data_settings(config), bitext_settings(config, is_separate=False)
    found = pair_stream(dataset, settings, config.train.seed, shares).pairs_per_step()
    return found if data.is_joint else found * (data.pair_share + data.contrast_share)


def log_pair_sampling(config: ConfigDict, dataset: PackedDataset) -> None:
    """Log how language pairs are sampled; warn if languages cannot have their shares."""
    if sampling := pair_sampling(config, dataset):
        logging.log(
            logging.DEBUG if sampling.is_met else logging.WARNING, "%s", sampling.certificate()
        )
