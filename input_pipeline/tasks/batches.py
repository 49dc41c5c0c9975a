"""Batches of features of similar lengths: to train on, by step, and to evaluate on, in one pass."""

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from input_pipeline.order import hashed, permute
from input_pipeline.stream import part_size
from input_pipeline.tasks.features import Feature

# Examples are sorted by length among those of so many batches: enough to pad little, few enough
# that a batch is made of other examples each epoch.
_CHUNK_BATCHES = 50
# Kind of the batches of `FeatureStream`.
EXAMPLES = "examples"
# Purposes of keys.
_EXAMPLES, _BATCHES = 0, 1


class FeatureStream:
    """Batches to train on, addressed by step: a `stream.Stream`.

    A pure function of (seed, step). An epoch is every feature once in a seeded order. Its last
    batch is filled up with repeated features, different ones each epoch; all have weight 1. Runs of
    some batches are sorted by length. Then the epoch's batches get a seeded order. They are padded
    to `buckets`, which ascend.

    Raise ValueError if there are no features, buckets do not ascend, or one is too long for them.
    """

    def __init__(
        self,
        features: Sequence[Feature],
        batch_size: int,
        buckets: Sequence[int],
        seed: int,
        pad: int,
    ):
        self._features, self._pad, self._seed = features, pad, seed
        self._lengths = _checked_lengths(features, buckets)
        self._batch_size, self._buckets = batch_size, np.asarray(buckets)
        self._order: tuple[int, np.ndarray] = (-1, np.zeros(0))
        self.steps_per_epoch = math.ceil(len(features) / batch_size)
        arrays = stacked(features[:1], int(self._buckets[-1]), pad)
        self.types: Mapping[str, np.dtype] = {name: array.dtype for name, array in arrays.items()}

    def batch(self, step: int, part: int = 0, num_parts: int = 1) -> dict[str, np.ndarray]:
        """Return the batch of `step`, or part `part` of its `num_parts` equal parts.

        The arrays of the features, [B / num_parts, ...], padded to the shortest bucket that holds
        the whole batch, and `weights` [B / num_parts] float32. Raise ValueError if parts differ.
        """
        rows = self._rows(step)
        length = _bucket(self._buckets, self._lengths[rows].max())
        size = part_size(self._batch_size, num_parts)
        mine = rows[part * size : (part + 1) * size]
        return stacked([self._features[row] for row in mine], length, self._pad)

    def kind(self, step: int) -> str:
        return EXAMPLES

    def step_values(self, step: int) -> dict[str, float]:
        return {}

    def describe_batch(self, step: int) -> list[tuple[str, int]]:
        return [("feature", int(row)) for row in self._rows(step)]

    def _rows(self, step: int) -> np.ndarray:
        """Return the features [B] of a step."""
        epoch, number = divmod(step, self.steps_per_epoch)
        known, order = self._order  # read at once: loaders ask from several threads
        if known != epoch:
            order = self._epoch(epoch)
            self._order = epoch, order
        return order[number]

    def _epoch(self, epoch: int) -> np.ndarray:
        """Return the features [steps, B] of the batches of an epoch."""
        count, size = len(self._features), self._batch_size
        place = np.arange(self.steps_per_epoch * size)
        # The first features of the permutation repeat until the last batch is full.
        rows = permute(place % count, count, self._key(epoch, _EXAMPLES))
        chunk = place // (_CHUNK_BATCHES * size)
        rows = rows[np.lexsort((self._lengths[rows], chunk))].reshape(-1, size)
        batches = np.arange(self.steps_per_epoch)
        return rows[permute(batches, len(batches), self._key(epoch, _BATCHES))]

    def _key(self, epoch: int, purpose: int) -> np.ndarray:
        """Return the uint64 key of a permutation: one for each seed, purpose and epoch."""
        return hashed(epoch, hashed(purpose, self._seed))


def length_batches(
    features: Sequence[Feature], batch_size: int, buckets: Sequence[int], pad: int
) -> Iterator[tuple[dict[str, np.ndarray], np.ndarray]]:
    """Yield all features once, in batches of similar lengths, the longest first.

    A batch has arrays [B, ...], padded to the shortest bucket that holds it, with `weights` [B]
    float32. The last one is filled up with empty rows of weight 0. With it comes [B] int64, the
    number of each row's feature, -1 for an empty row. Raise ValueError as `check_buckets`, but
    without features yield nothing.
    """
    if not features:
        return
    lengths = _checked_lengths(features, buckets)
    for rows in _sorted_batches(lengths, batch_size):
        length = _bucket(np.asarray(buckets), lengths[rows].max())
        arrays = stacked([features[row] for row in rows], length, pad)
        empty = batch_size - len(rows)
        yield (
            {name: filled(name, array, empty, pad) for name, array in arrays.items()},
            np.pad(rows, (0, empty), constant_values=-1),
        )


def padding_ratio(
    features: Sequence[Feature], batch_size: int, buckets: Sequence[int], max_length: int
) -> float:
    """Return the tokens of rows padded to `max_length` over those of `length_batches`."""
    lengths = _checked_lengths(features, buckets)
    longest = [lengths[rows].max() for rows in _sorted_batches(lengths, batch_size)]
    return len(longest) * max_length / sum(_bucket(np.asarray(buckets), one) for one in longest)


def _sorted_batches(lengths: np.ndarray, batch_size: int) -> Iterator[np.ndarray]:
    """Yield the features of each batch, the longest first, which need the most memory."""
    order = np.argsort(-lengths, kind="stable")
    for start in range(0, len(order), batch_size):
        yield order[start : start + batch_size]


def _checked_lengths(features: Sequence[Feature], buckets: Sequence[int]) -> np.ndarray:
    return check_buckets([len(feature.tokens) for feature in features], buckets)


def check_buckets(of_features: Sequence[int], buckets: Sequence[int]) -> np.ndarray:
    """Return lengths as [N] int64; ValueError if there are none or the buckets do not hold them."""
    if not of_features:
        raise ValueError("there are no examples to make batches of; name files that have some")
    if not buckets or any(one >= two for one, two in itertools.pairwise(buckets)):
        raise ValueError(f"buckets are {tuple(buckets)}, must ascend")
    lengths = np.array(of_features)
    if lengths.max() > buckets[-1]:
        raise ValueError(
            f"the longest example has {lengths.max()} tokens, the last bucket {buckets[-1]}; the "
            "last bucket must be max_length"
        )
    return lengths


def _bucket(buckets: np.ndarray, length: int) -> int:
    return int(buckets[np.searchsorted(buckets, length)])


def stacked(features: Sequence[Feature], length: int, pad: int) -> dict[str, np.ndarray]:
    """Return the arrays of some features, one row each, with a weight of 1."""
    rows = [feature.arrays(length, pad) for feature in features]
    if any(row.keys() != rows[0].keys() for row in rows):
        raise ValueError(
            "some examples have labels and some have none; train and evaluate on files that have"
        )
    arrays = {name: np.stack([row[name] for row in rows]) for name in rows[0]}
    return {**arrays, "weights": np.ones(len(rows), np.float32)}


def filled(name: str, array: np.ndarray, count: int, pad: int) -> np.ndarray:
    """Return `array` with `count` empty rows at its end."""
    # A softmax over nothing is NaN, which a weight of 0 does not remove.
    fill = {
        "tokens": pad, "target_inputs": pad, "words": -1, "tags": -1, "target_outputs": -1,
        "answerable": True,
    }.get(name, 0)  # fmt: skip
    widths = [(0, count), *[(0, 0)] * (array.ndim - 1)]
    return np.pad(array, widths, constant_values=fill)
