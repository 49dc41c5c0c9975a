"""The training stream: language and sequence of example i of the batch of step s.

The stream is a pure function of (seed, step). Resuming means asking for the next step; there is no
iterator state, the order does not depend on the number of hosts or threads, and random access takes
constant time.

The stream is divided into cycles of M examples. In every cycle language l has exactly c_l examples,
M q_l rounded so that they sum to M, in a seeded random order or spread evenly. So the number of
draws of a language before any cycle has a closed form, within a cycle they are counted, and the
sequences of a language are visited epoch by epoch, each epoch in a different random order.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Protocol

import numpy as np
from numpy.typing import ArrayLike

from input_pipeline.packed_dataset import PackedDataset

# Kind of the batches of `TrainingStream`.
PACKED = "packed"
_CYCLE = 1 << 16  # M; language shares are exact to 1 / M
# With four rounds a permutation of a thousand looks random, but one of ten does not.
_FEISTEL_ROUNDS = 8


def largest_remainder(shares: np.ndarray, total: int) -> np.ndarray:
    """Round `total * shares` to positive integers that sum to `total`.

    Args:
      shares: [N] positive floats that sum to one.
      total: at least N.

    Returns:
      [N] int64.
    """
    exact = shares * total
    counts = np.maximum(np.floor(exact).astype(np.int64), 1)
    while counts.sum() != total:
        behind = exact - counts
        step = 1 if counts.sum() < total else -1
        # Decrease only counts above one, so that none becomes zero.
        open_to_change = behind if step > 0 else np.where(counts > 1, -behind, -np.inf)
        counts[np.argmax(open_to_change)] += step
    return counts


def permute(index: ArrayLike, size: ArrayLike, key: ArrayLike) -> np.ndarray:
    """Evaluate a pseudo-random permutation of [0, size), selected by `key`, at `index`.

    A Feistel network over the next even power of two with cycle walking into the range; it is a
    bijection for every key and needs no table.

    Args:
      index: [N] positions, 0 <= index < size.
      size: [N] or scalar, size of each position's permutation.
      key: [N] or scalar uint64, key of each position's permutation.

    Returns:
      [N] int64 permuted positions.
    """
    index, size, key = np.broadcast_arrays(
        np.asarray(index, np.uint64), np.asarray(size, np.uint64), np.asarray(key, np.uint64)
    )
    bits = np.maximum(np.ceil(np.log2(np.maximum(size, 2).astype(np.float64))), 1)
    half = np.ceil(bits / 2).astype(np.uint64)
    mask = (np.uint64(1) << half) - np.uint64(1)
    result = index.copy()
    outside = np.ones(index.shape, bool)
    while outside.any():
        left, right = result[outside] >> half[outside], result[outside] & mask[outside]
        for round_number in range(_FEISTEL_ROUNDS):
            mixed = hashed(right, key[outside] + np.uint64(round_number))
            left, right = right, left ^ (mixed & mask[outside])
        result[outside] = (left << half[outside]) | right
        outside &= result >= size
    return result.astype(np.int64)


def hashed(value: ArrayLike, key: ArrayLike) -> np.ndarray:
    """Return a 64-bit hash of `value` under `key` (the finaliser of splitmix64)."""
    value, key = np.asarray(value, np.uint64), np.asarray(key, np.uint64)
    with np.errstate(over="ignore"):  # arithmetic modulo 2^64 is intended
        x = (value + np.uint64(0x9E3779B97F4A7C15)) ^ (key * np.uint64(0xD1342543DE82EF95))
        x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return x ^ (x >> np.uint64(31))


@dataclasses.dataclass(frozen=True)
class StreamOrder:
    """Order of a stream over the sequences of several languages.

    Attributes:
      seed: of the order.
      rows: [N] int64 number of sequences of each language.
      counts: [N] int64 c_l, examples of each language in a cycle.
      in_turns: whether the examples of each language are spread evenly, so that two languages of
        equal shares take turns; otherwise their order is random.
    """

    seed: int
    rows: np.ndarray
    counts: np.ndarray
    in_turns: bool = False
    _cycles: dict = dataclasses.field(default_factory=dict, repr=False, compare=False)

    @classmethod
    def create(
        cls, seed: int, rows: np.ndarray, shares: np.ndarray, in_turns: bool = False
    ) -> "StreamOrder":
        """Create the order over languages of `rows` sequences, drawn by `shares` (Eq. 3)."""
        counts = largest_remainder(shares, _CYCLE)
        return cls(seed, np.asarray(rows, np.int64), counts, in_turns)

    def draw(self, examples: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the language of examples of the stream, and the index of each in its language.

        Args:
          examples: [B] int64 positions in the stream, from zero.

        Returns:
          Language [B] and index in the language [B], int64, counted from the start of the stream.
        """
        cycle, within = np.divmod(np.asarray(examples, np.int64), _CYCLE)
        language, number = np.empty_like(within), np.empty_like(within)
        for one in np.unique(cycle):
            here = cycle == one
            languages, numbers = self._cycle(int(one))
            language[here], number[here] = languages[within[here]], numbers[within[here]]
        return language, cycle * self.counts[language] + number

    def count_before(self, example: int, language: int) -> int:
        """Return the number of examples of a language before position `example` of the stream."""
        cycle, within = divmod(example, _CYCLE)
        languages, _ = self._cycle(cycle)
        return cycle * int(self.counts[language]) + int((languages[:within] == language).sum())

    def _cycle(self, cycle: int) -> tuple[np.ndarray, np.ndarray]:
        """Return [M] int64 language and [M] int64 index in it for every example of a cycle."""
        found = self._cycles.get(cycle)
        if found is None:
            ends = np.cumsum(self.counts)
            if self.in_turns:
                languages = self._turns()
            else:
                slots = permute(np.arange(_CYCLE), _CYCLE, self._key(0, np.array(cycle)))
                languages = np.searchsorted(ends, slots, side="right")
            order = np.argsort(languages, kind="stable")
            numbers = np.empty_like(languages)
            numbers[order] = np.arange(_CYCLE) - (ends - self.counts)[languages[order]]
            found = languages, numbers
            self._cycles.clear()  # steps are sequential, so one cached cycle suffices
            self._cycles[cycle] = found
        return found

    def _turns(self) -> np.ndarray:
        """Return [M] int64 languages of a cycle, the c_l of each in the middle of M / c_l slots."""
        languages = np.repeat(np.arange(len(self.counts)), self.counts)
        slots = np.concatenate([(np.arange(count) + 0.5) / count for count in self.counts])
        return languages[np.argsort(slots, kind="stable")]

    def locate(self, examples: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return language and sequence of examples of the stream, [B] int64 each."""
        language, occurrence = self.draw(examples)
        epoch, visit = np.divmod(occurrence, self.rows[language])
        return language, permute(visit, self.rows[language], self._key(1 + language, epoch))

    def _key(self, purpose: np.ndarray | int, number: np.ndarray) -> np.ndarray:
        """Return uint64 keys of the permutations, by seed, purpose and number."""
        key = hashed(np.full(np.shape(number), self.seed, np.uint64), np.uint64(0))
        key = hashed(key, np.asarray(purpose, np.uint64))
        return hashed(key, np.asarray(number, np.uint64))


class Stream(Protocol):
    """Batches addressed by step.

    Attributes:
      types: names and types of the arrays that a batch may hold.
    """

    @property
    def types(self) -> Mapping[str, np.dtype]: ...

    def kind(self, step: int) -> str:
        """Return the kind of the examples of a step, which determines the arrays of its batch."""

    def batch(self, step: int, part: int = 0, num_parts: int = 1) -> dict[str, np.ndarray]:
        """Return the batch of `step`, or part `part` of its `num_parts` equal parts."""

    def describe_batch(self, step: int) -> list[tuple[str, int]]:
        """Return a readable description of the batch of `step`: a name and an index per example."""

    def step_values(self, step: int) -> dict[str, float]:
        """Return the settings of the stream that change with the step, by name."""


def part_size(batch_size: int, num_parts: int) -> int:
    """Return the number of sequences in each of `num_parts` equal parts of a batch.

    Raises:
      ValueError: the batch does not divide into equal parts.
    """
    if batch_size % num_parts:
        raise ValueError(
            f"a batch of {batch_size} rows does not divide into {num_parts} equal parts; choose a "
            "batch size that is a multiple"
        )
    return batch_size // num_parts


class _ChosenStream:
    """Base of streams that delegate each step to a step of another stream."""

    def kind(self, step: int) -> str:
        stream, number = self._of(step)
        return stream.kind(number)

    def batch(self, step: int, part: int = 0, num_parts: int = 1) -> dict[str, np.ndarray]:
        stream, number = self._of(step)
        return stream.batch(number, part, num_parts)

    def describe_batch(self, step: int) -> list[tuple[str, int]]:
        stream, number = self._of(step)
        return stream.describe_batch(number)

    def step_values(self, step: int) -> dict[str, float]:
        stream, number = self._of(step)
        return stream.step_values(number)

    def _of(self, step: int) -> tuple[Stream, int]:
        """Return the stream of a step, and the step's number in that stream."""
        raise NotImplementedError


class MixedStream(_ChosenStream):
    """Mixture of streams: each step's batch comes from one of them."""

    def __init__(
        self, streams: Sequence[Stream], shares: np.ndarray, seed: int, in_turns: bool = False
    ):
        """Initialise a mixture of `streams`, each in order, by their `shares` of the steps.

        They come in random order, or with `in_turns` as evenly spread as can be.
        """
        self._streams = list(streams)
        self.types = {name: kind for one in streams for name, kind in one.types.items()}
        self._order = StreamOrder.create(
            seed, np.ones(len(streams)), shares / shares.sum(), in_turns
        )

    def steps_before(self, step: int, number: int) -> int:
        """Return how many steps before `step` have batches of the stream of index `number`."""
        return self._order.count_before(step, number)

    def _of(self, step: int) -> tuple[Stream, int]:
        which, number = self._order.draw(np.array([step]))
        return self._streams[which[0]], int(number[0])


class PhasedStream(_ChosenStream):
    """Schedule of streams; each starts at its own step with its first batch."""

    def __init__(self, phases: Mapping[int, Stream]):
        """Initialise a schedule of streams by first step; one of the steps must be 0."""
        self._phases = dict(sorted(phases.items()))
        self.types = {
            name: kind for stream in phases.values() for name, kind in stream.types.items()
        }

    def _of(self, step: int) -> tuple[Stream, int]:
        first = self._first(step)
        return self._phases[first], step - first

    def _first(self, step: int) -> int:
        return max(first for first in self._phases if first <= step)


class AlphaPhases(PhasedStream):
    """Schedule of streams of different alpha."""

    def __init__(self, phases: Mapping[int, tuple[float, Stream]]):
        """Initialise a schedule of (alpha, stream) by first step; one of the steps must be 0."""
        super().__init__({first: stream for first, (_, stream) in phases.items()})
        self._alphas = {first: alpha for first, (alpha, _) in phases.items()}

    def step_values(self, step: int) -> dict[str, float]:
        return {"alpha": self._alphas[self._first(step)]}


class TrainingStream:
    """Batches of packed sequences of all languages, addressed by step."""

    types: Mapping[str, np.dtype] = dict.fromkeys(("tokens", "language"), np.dtype(np.int32))

    def __init__(
        self, store: PackedDataset, probabilities: Mapping[str, float], batch_size: int, seed: int
    ):
        """Initialise a stream over the languages of `store`, drawn by `probabilities` (Eq. 3)."""
        self.languages = store.languages
        self._rows = [store.rows(language, "train") for language in self.languages]
        shares = np.array([probabilities[language] for language in self.languages])
        rows = np.array([len(r) for r in self._rows])
        self._order = StreamOrder.create(seed, rows, shares / shares.sum())
        self._batch_size = batch_size

    def batch(self, step: int, part: int = 0, num_parts: int = 1) -> dict[str, np.ndarray]:
        """Return the batch of `step`, or part `part` of its `num_parts` equal parts.

        Returns:
          `tokens` [B / num_parts, L] int32 and `language` [B / num_parts] int32, an index into
          `self.languages`.

        Raises:
          ValueError: the batch cannot be cut into `num_parts`.
        """
        size = part_size(self._batch_size, num_parts)
        first = step * self._batch_size + part * size
        language, row = self._order.locate(np.arange(first, first + size))
        tokens = np.stack([self._rows[lang][r] for lang, r in zip(language, row, strict=True)])
        return {"tokens": tokens.astype(np.int32), "language": language.astype(np.int32)}

    def kind(self, step: int) -> str:
        return PACKED

    def step_values(self, step: int) -> dict[str, float]:
        return {}

    def describe_batch(self, step: int) -> list[tuple[str, int]]:
        """Return language, and index in its training sequences, of each example of a batch."""
        first = step * self._batch_size
        language, row = self._order.locate(np.arange(first, first + self._batch_size))
        return [(self.languages[one], int(r)) for one, r in zip(language, row, strict=True)]
