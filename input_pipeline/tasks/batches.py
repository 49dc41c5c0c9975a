"""Batches of features: by step for training, and in one pass for evaluation.

They have equally many rows, of similar lengths. Batches of features with two sides have about
equally many tokens.
"""

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from concurrent import futures
from typing import Protocol

import numpy as np

from input_pipeline.order import hashed, largest_remainder, permute
from input_pipeline.stream import Stream, part_size
from input_pipeline.tasks.features import Feature
from input_pipeline.tasks.pair_columns import StoredPairs

# Examples are sorted by length within so many batches: enough to pad little, few enough that a
# batch has other examples each epoch.
_CHUNK_BATCHES = 50
_AT_ONCE, _THREADS = 1 << 16, 4  # numbers permuted together, so that they fit into a cache
# Kind of the batches to train on.
EXAMPLES = "examples"
# Purposes of keys.
_EXAMPLES, _BATCHES, _TEXTS = 0, 1, 2

_Batch = tuple[int, np.ndarray]  # length of the rows, and the number of each row's feature


class SizedFeature(Feature, Protocol):
    """A feature whose arrays all fit into the length `size`."""

    @property
    def size(self) -> int: ...


class _EpochStream(Stream):
    """Base of batches to train on: a pure function of (seed, step).

    An epoch has every feature once, and its batches, in a seeded order. Repeated features, others
    each epoch, fill up one batch. All have weight 1.
    """

    def __init__(
        self, take: Callable[[np.ndarray], Sequence[Feature]], count: int, steps_per_epoch: int,
        longest: int, seed: int, pad: int,
    ):  # fmt: skip
        self._take, self._count, self._seed, self._pad = take, count, seed, pad
        self.steps_per_epoch = steps_per_epoch
        arrays = _stacked(self._take(np.zeros(1, np.int64)), longest, pad)
        self.types = {name: array.dtype for name, array in arrays.items()}
        self._known: tuple[int, list[_Batch]] = (-1, [])

    def batch(self, step: int, part: int = 0, num_parts: int = 1) -> dict[str, np.ndarray]:
        """Return the batch of `step`, or part `part` of its `num_parts` equal parts.

        The arrays of the features, [B / num_parts, ...], padded to the bucket of the whole batch,
        and `weights` [B / num_parts] float32. Raise ValueError if the batch does not divide.
        """
        length, rows = self._batch(step)
        size = part_size(len(rows), num_parts)
        mine = rows[part * size : (part + 1) * size]
        return _stacked(self._take(mine), length, self._pad)

    def kind(self, step: int) -> str:
        return EXAMPLES

    def describe_batch(self, step: int) -> list[tuple[str, int]]:
        return [("feature", int(row)) for row in self._batch(step)[1]]

    def _batch(self, step: int) -> _Batch:
        epoch, number = divmod(step, self.steps_per_epoch)
        known, batches = self._known  # read at once: loaders ask from several threads
        if known != epoch:
            found = self._cut(self._order(epoch))
            order = self._permuted(len(found), epoch, _BATCHES)
            batches = [found[place] for place in np.resize(order, self.steps_per_epoch)]
            self._known = epoch, batches
        return batches[number]

    def _order(self, epoch: int) -> np.ndarray:
        return self._permuted(self._count, epoch, _EXAMPLES)

    def _cut(self, order: np.ndarray) -> list[_Batch]:
        """Cut the features of an epoch, in a seeded order, into full batches."""
        raise NotImplementedError

    def _permuted(self, count: int, epoch: int, purpose: int) -> np.ndarray:
        """Return a permutation of range(count): one for each seed, purpose and epoch."""
        found = np.arange(count, dtype=np.min_scalar_type(-max(count, 1)))  # of tens of millions
        key, ends = hashed(epoch, hashed(purpose, self._seed)), range(_AT_ONCE, count, _AT_ONCE)
        with futures.ThreadPoolExecutor(_THREADS) as pool:
            list(pool.map(lambda x: np.copyto(x, permute(x, count, key)), np.split(found, ends)))
        return found


class FeatureStream(_EpochStream):
    """Batches to train on of `batch_size` features, padded to the shortest bucket that holds them.

    It sorts runs of some batches by length. Raise ValueError if there are no features, the buckets
    do not ascend, or a feature is too long for them.
    """

    def __init__(
        self, features: Sequence[Feature], batch_size: int, buckets: Sequence[int], seed: int,
        pad: int,
    ):  # fmt: skip
        self._lengths = _checked_lengths(features, buckets)
        self._batch_size, self._buckets = batch_size, buckets
        count = len(features)
        super().__init__(
            lambda rows: [features[row] for row in rows], count, math.ceil(count / batch_size),
            buckets[-1], seed, pad,
        )  # fmt: skip

    def _cut(self, order: np.ndarray) -> list[_Batch]:
        rows = np.resize(order, self.steps_per_epoch * self._batch_size)
        chunk = np.arange(len(rows)) // (_CHUNK_BATCHES * self._batch_size)
        rows = rows[np.lexsort((self._lengths[rows], chunk))].reshape(-1, self._batch_size)
        return [(_bucket(self._buckets, self._lengths[one].max()), one) for one in rows]


class TokenStream(_EpochStream):
    """Batches to train on, of one bucket each.

    A batch has as many rows of its bucket's length as fit into `tokens` of one side with padding,
    rounded down to a multiple of `multiple` (devices times parts of a batch). So there is one shape
    per bucket. Features left over from a bucket's whole batches move to the next longer bucket.
    Repeated features fill the last batch of the longest one.

    If `alpha` is not 1, an epoch has as many features, but a text of n pairs has a share of
    n^alpha: whole passes over it, each in another order, and a part of the next pass.

    Raise ValueError if there are no features, the buckets do not ascend, a feature is longer than
    the last bucket, or no row of that fits into a batch.
    """

    def __init__(
        self, pairs: StoredPairs, tokens: int, buckets: Sequence[int], seed: int, pad: int,
        multiple: int = 1, alpha: float = 1.0,
    ):  # fmt: skip
        self._pairs, self._buckets = pairs, buckets
        self._of_features = _buckets_of(pairs.sizes, buckets)
        self._sizes = batch_sizes("train.batch_tokens", tokens, buckets, multiple)
        count = len(pairs.sizes)
        weights = np.array([max(size, 1) ** alpha for size in pairs.texts])
        self._draws = largest_remainder(weights / weights.sum(), count) if alpha != 1 else ()
        super().__init__(pairs.take, count, 0, buckets[-1], seed, pad)
        order = np.arange(count, dtype=np.min_scalar_type(-count))
        self.steps_per_epoch = len(self._cut(self._order(0) if alpha != 1 else order))

    def _order(self, epoch: int) -> np.ndarray:
        found = super()._order(epoch)
        if not len(self._draws):
            return found
        drawn, first = list[np.ndarray](), 0
        for text, (size, draws) in enumerate(zip(self._pairs.texts, self._draws, strict=True)):
            key = hashed(text, hashed(_TEXTS, self._seed))
            numbers = epoch * draws + np.arange(draws)
            for some in np.split(numbers, range(_AT_ONCE, draws, _AT_ONCE)):
                places = permute(some % size, size, hashed(some // size, key))
                drawn.append((first + places).astype(found.dtype))
            first += size
        return np.concatenate(drawn)[found]

    def _cut(self, order: np.ndarray) -> list[_Batch]:
        batches = list(_by_bucket(order, self._of_features, self._sizes))
        bucket, rows = batches[-1]
        missing = self._sizes[bucket] - len(rows)
        batches[-1] = bucket, np.append(rows, np.resize(order, missing))
        return [(self._buckets[bucket], rows) for bucket, rows in batches]


def length_batches(
    features: Sequence[Feature], batch_size: int, buckets: Sequence[int], pad: int
) -> Iterator[tuple[dict[str, np.ndarray], np.ndarray]]:
    """Yield all features once, in batches of similar lengths, the longest first.

    A batch has arrays [B, ...], padded to the shortest bucket that holds it, with `weights` [B]
    float32, and [B] int64, the number of each row's feature. Empty rows of weight 0 and number -1
    fill the last batch. Raise ValueError if the buckets do not hold the features.
    """
    if not features:
        return
    lengths = _checked_lengths(features, buckets)
    for rows in _sorted_batches(lengths, batch_size):
        yield _filled(features, rows, _bucket(buckets, lengths[rows].max()), batch_size, pad)


def token_batches(
    features: Sequence[SizedFeature], sizes: Sequence[int], buckets: Sequence[int], pad: int
) -> Iterator[tuple[dict[str, np.ndarray], np.ndarray]]:
    """Yield all features once, sorted by length within buckets, as `length_batches`.

    The longest buckets come last. `sizes` are those of `batch_sizes`. Raise ValueError if the
    buckets do not ascend, or a feature is longer than the last one.
    """
    if not features:
        return
    order = np.argsort([feature.size for feature in features], kind="stable")
    of_features = _buckets_of([one.size for one in features], buckets)
    for bucket, rows in _by_bucket(order, of_features, sizes):
        yield _filled(features, rows, buckets[bucket], sizes[bucket], pad)


def batch_sizes(key: str, tokens: int, buckets: Sequence[int], multiple: int = 1) -> list[int]:
    """Return the rows of a batch of each bucket: the largest fitting multiple of `multiple`.

    Raise ValueError, which names the config key `key` of `tokens`, if no row of a bucket fits.
    """
    sizes = [tokens // length // multiple * multiple for length in buckets]
    if not all(sizes):
        raise ValueError(
            f"{key} is {tokens}, too few for {multiple} rows of {max(buckets)} tokens "
            "(task.max_length): a batch needs a row for each device and, in training, for each of "
            "train.accumulation_steps; raise it, or lower one of these"
        )
    return sizes


def padding_ratio(
    features: Sequence[Feature], batch_size: int, buckets: Sequence[int], max_length: int
) -> float:
    """Return the tokens of rows padded to `max_length` over the tokens of `length_batches`."""
    lengths = _checked_lengths(features, buckets)
    longest = [lengths[rows].max() for rows in _sorted_batches(lengths, batch_size)]
    return len(longest) * max_length / sum(_bucket(buckets, one) for one in longest)


def _sorted_batches(lengths: np.ndarray, batch_size: int) -> Iterator[np.ndarray]:
    """Yield the features of each batch; the longest, which need the most memory, come first."""
    order = np.argsort(-lengths, kind="stable")
    for start in range(0, len(order), batch_size):
        yield order[start : start + batch_size]


def _checked_lengths(features: Sequence[Feature], buckets: Sequence[int]) -> np.ndarray:
    return _check_buckets([len(feature.tokens) for feature in features], buckets)


def _check_buckets(of_features: Sequence[int] | np.ndarray, buckets: Sequence[int]) -> np.ndarray:
    """Return lengths [N]; ValueError if there are none, or the buckets do not hold them."""
    if not len(of_features):
        raise ValueError("there are no examples for batches; name files that have some")
    if not buckets or any(one >= two for one, two in itertools.pairwise(buckets)):
        raise ValueError(f"buckets are {tuple(buckets)}, must ascend")
    lengths = np.asarray(of_features)
    if lengths.max() > buckets[-1]:
        raise ValueError(
            f"the longest example has {lengths.max()} tokens, the last bucket {buckets[-1]}; make "
            "max_length the last bucket"
        )
    return lengths


def _bucket(buckets: Sequence[int], length: int) -> int:
    return buckets[int(np.searchsorted(buckets, length))]


def _buckets_of(sizes: Sequence[int] | np.ndarray, buckets: Sequence[int]) -> np.ndarray:
    """Return the [N] index of the shortest bucket that holds each feature of these sizes."""
    found = np.searchsorted(buckets, _check_buckets(sizes, buckets))
    return found.astype(np.min_scalar_type(len(buckets)))


def _by_bucket(
    order: np.ndarray, of_features: np.ndarray, sizes: Sequence[int]
) -> Iterator[tuple[int, np.ndarray]]:
    """Yield bucket and features of whole batches, and of a last one that may not be whole.

    Features left over in a bucket move to the next longer one.
    """
    left = order[:0]
    last = int(of_features.max())
    for bucket, size in enumerate(sizes[: last + 1]):
        rows = np.concatenate([left, order[of_features[order] == bucket]])
        whole = len(rows) // size * size
        yield from ((bucket, one) for one in rows[:whole].reshape(-1, size))
        left = rows[whole:]
    if len(left):
        yield last, left


def _stacked(features: Sequence[Feature], length: int, pad: int) -> dict[str, np.ndarray]:
    """Return the arrays of some features, one row each, with a weight of 1."""
    rows = [feature.arrays(length, pad) for feature in features]
    if any(row.keys() != rows[0].keys() for row in rows):
        raise ValueError(
            "some examples have labels and some have none; use files in which all have labels"
        )
    arrays = {name: np.stack([row[name] for row in rows]) for name in rows[0]}
    return {**arrays, "weights": np.ones(len(rows), np.float32)}


def _filled(
    features: Sequence[Feature], rows: np.ndarray, length: int, size: int, pad: int
) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """Return the arrays of a batch of `size` rows, empty ones at its end, and their features."""
    arrays = _stacked([features[row] for row in rows], length, pad)
    empty = size - len(rows)
    # A softmax over nothing is NaN, which a weight of 0 does not remove.
    fills = {
        "tokens": pad, "target_inputs": pad, "words": -1, "tags": -1, "target_outputs": -1,
        "answerable": True,
    }  # fmt: skip
    for name, array in arrays.items():
        widths = [(0, empty), *[(0, 0)] * (array.ndim - 1)]
        arrays[name] = np.pad(array, widths, constant_values=fills.get(name, 0))
    return arrays, np.pad(rows, (0, empty), constant_values=-1)
