"""The order of a stream: language and sequence of each of its examples, by arithmetic alone.

The stream is divided into cycles of M examples. Every cycle has exactly c_l examples of language l,
M q_l rounded so that they sum to M, in a seeded random order or spread evenly. So the number of
draws of a language before a cycle has a closed form; within a cycle they are counted. The sequences
of a language are visited epoch by epoch, each epoch in another random order.
"""

import dataclasses

import numpy as np
from numpy.typing import ArrayLike

_CYCLE = 1 << 16  # M; language shares are exact to 1 / M
# With four rounds a permutation of a thousand looks random, but one of ten does not.
_FEISTEL_ROUNDS = 8


def largest_remainder(shares: np.ndarray, total: int) -> np.ndarray:
    """Round `total * shares` [N] to positive int64 that sum to `total`; ValueError if N is more."""
    if len(shares) > total:
        raise ValueError(
            f"{len(shares)} languages, or pairs of languages in sets of parallel text, are to be "
            f"drawn, but at most {total} can be; name fewer in corpus.languages or corpus.parallel "
            "and run prepare_data.py again, or join sets of parallel text"
        )
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
    """Evaluate a pseudo-random permutation of [0, size), selected by `key`, at `index`: [N] int64.

    A Feistel network over the next even power of two, with cycle walking into the range: a
    bijection for every key, without a table. `size` and the uint64 `key` are [N] or scalar.
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
      rows: [N] int64 number of sequences of each language.
      counts: [N] int64 c_l, examples of each language in a cycle.
      in_turns: whether each language is spread evenly, so that equal shares take turns.
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
        """Return languages of examples [B], and indices in them since the stream's start, int64."""
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
        """Return [M] int64 language, and [M] int64 index in it, of the examples of a cycle."""
        found = self._cycles.get(cycle)
        if found is None:
            ends = np.cumsum(self.counts)
            if self.in_turns:
                languages = self._turns()
            else:
                slots = permute(np.arange(_CYCLE), _CYCLE, self.key(0, np.array(cycle)))
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

    def sequence(self, language: np.ndarray, occurrence: np.ndarray) -> np.ndarray:
        """Return the sequence, [B] int64, of draw number `occurrence` of each language [B]."""
        epoch, visit = np.divmod(occurrence, self.rows[language])
        return permute(visit, self.rows[language], self.key(1 + language, epoch))

    def key(self, purpose: np.ndarray | int, number: np.ndarray) -> np.ndarray:
        """Return uint64 keys of permutations, by seed, purpose (0 or 1 + language) and number."""
        key = hashed(np.full(np.shape(number), self.seed, np.uint64), np.uint64(0))
        key = hashed(key, np.asarray(purpose, np.uint64))
        return hashed(key, np.asarray(number, np.uint64))
