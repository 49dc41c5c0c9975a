"""Batches of about as many tokens each, of features with two sides: as many rows as fit."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Protocol

import numpy as np

from input_pipeline.order import hashed, permute
from input_pipeline.stream import part_size
from input_pipeline.tasks.batches import EXAMPLES, check_buckets, filled, stacked
from input_pipeline.tasks.features import Feature

# Purposes of keys.
_EXAMPLES, _BATCHES = 0, 1


class SizedFeature(Feature, Protocol):
    """A feature whose arrays all fit into the length `size`."""

    @property
    def size(self) -> int: ...


class TokenStream:
    """Batches to train on, of one bucket each, addressed by step: a `stream.Stream`.

    A pure function of (seed, step). A batch has as many rows of its bucket's length as fit into
    `tokens` of one side, padding included, rounded down to a multiple of `multiple` (devices times
    parts of a batch). So there is one shape per bucket. An epoch is every feature once in a seeded
    order. Features left over from a bucket's whole batches move to the next longer one. The last
    batch of the longest bucket is filled up with repeated features, different ones each epoch.

    Raise ValueError if there are no features, buckets do not ascend, a feature is longer than the
    last one, or no row of it fits into a batch.
    """

    def __init__(
        self,
        features: Sequence[SizedFeature],
        tokens: int,
        buckets: Sequence[int],
        seed: int,
        pad: int,
        multiple: int = 1,
    ):
        self._features, self._pad, self._seed = features, pad, seed
        self._lengths = np.asarray(buckets)
        self._of_features = _buckets_of(features, buckets)
        self._sizes = batch_sizes("train.batch_tokens", tokens, buckets, multiple)
        self.steps_per_epoch = _num_batches(self._of_features, self._sizes)
        arrays = stacked(features[:1], int(buckets[-1]), pad)
        self.types: Mapping[str, np.dtype] = {name: array.dtype for name, array in arrays.items()}
        self._known: tuple[int, list[tuple[int, np.ndarray]]] = (-1, [])

    def batch(self, step: int, part: int = 0, num_parts: int = 1) -> dict[str, np.ndarray]:
        """Return the batch of `step`, or part `part` of its `num_parts` equal parts.

        The arrays of the features, [B / num_parts, ...], padded to the bucket, and `weights` [B /
        num_parts] float32. Raise ValueError if the batch does not divide.
        """
        bucket, rows = self._batch(step)
        size = part_size(len(rows), num_parts)
        mine = rows[part * size : (part + 1) * size]
        length = int(self._lengths[bucket])
        return stacked([self._features[row] for row in mine], length, self._pad)

    def kind(self, step: int) -> str:
        return EXAMPLES

    def step_values(self, step: int) -> dict[str, float]:
        return {}

    def describe_batch(self, step: int) -> list[tuple[str, int]]:
        return [("feature", int(row)) for row in self._batch(step)[1]]

    def _batch(self, step: int) -> tuple[int, np.ndarray]:
        epoch, number = divmod(step, self.steps_per_epoch)
        known, batches = self._known  # read at once: loaders ask from several threads
        if known != epoch:
            batches = self._epoch(epoch)
            self._known = epoch, batches
        return batches[number]

    def _epoch(self, epoch: int) -> list[tuple[int, np.ndarray]]:
        count = len(self._features)
        order = permute(np.arange(count), count, self._key(epoch, _EXAMPLES))
        batches = list(_cut(order, self._of_features, self._sizes))
        bucket, rows = batches[-1]
        missing = self._sizes[bucket] - len(rows)
        batches[-1] = bucket, np.append(rows, np.resize(order, missing))
        numbers = permute(np.arange(len(batches)), len(batches), self._key(epoch, _BATCHES))
        return [batches[number] for number in numbers]

    def _key(self, epoch: int, purpose: int) -> np.ndarray:
        """Return the uint64 key of a permutation: one for each seed, purpose and epoch."""
        return hashed(epoch, hashed(purpose, self._seed))


def batch_sizes(key: str, tokens: int, buckets: Sequence[int], multiple: int = 1) -> list[int]:
    """Return the rows of a batch of each bucket: the largest fitting multiple of `multiple`.

    Raise ValueError, which names the config key `key` of `tokens`, if no row of a bucket fits.
    """
    sizes = [tokens // length // multiple * multiple for length in buckets]
    if not all(sizes):
        raise ValueError(
            f"{key} is {tokens}, too few for {multiple} rows of {max(buckets)} tokens "
            "(task.max_length), one for each device and, of a batch to train on, each of "
            "train.accumulation_steps; raise it, or lower one of these"
        )
    return sizes


def token_batches(
    features: Sequence[SizedFeature], sizes: Sequence[int], buckets: Sequence[int], pad: int
) -> Iterator[tuple[dict[str, np.ndarray], np.ndarray]]:
    """Yield all features once, sorted by length within buckets, as `batches.length_batches`.

    The longest buckets come last. `sizes` are those of `batch_sizes`. Raise ValueError if the
    buckets do not ascend, or a feature is longer than the last one.
    """
    if not features:
        return
    order = np.argsort([feature.size for feature in features], kind="stable")
    for bucket, rows in _cut(order, _buckets_of(features, buckets), sizes):
        arrays = stacked([features[row] for row in rows], buckets[bucket], pad)
        empty = sizes[bucket] - len(rows)
        yield (
            {name: filled(name, array, empty, pad) for name, array in arrays.items()},
            np.pad(rows, (0, empty), constant_values=-1),
        )


def _buckets_of(features: Sequence[SizedFeature], buckets: Sequence[int]) -> np.ndarray:
    """Return the [N] int64 index of the shortest bucket that holds each feature."""
    return np.searchsorted(buckets, check_buckets([one.size for one in features], buckets))


def _cut(
    order: np.ndarray, of_features: np.ndarray, sizes: Sequence[int]
) -> Iterator[tuple[int, np.ndarray]]:
    """Yield bucket and features of whole batches; the rest moves to the next longer bucket.

    Only the last batch may not be whole.
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


def _num_batches(of_features: np.ndarray, sizes: Sequence[int]) -> int:
    total = left = 0
    for count, size in zip(np.bincount(of_features), sizes, strict=False):
        batches, left = divmod(left + int(count), size)
        total += batches
    return total + bool(left)
