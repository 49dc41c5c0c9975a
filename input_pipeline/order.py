"""The order of a stream: language and sequence of each of its examples, by arithmetic.

The stream is divided into cycles of M examples. K cycles, one unless a share is small, have n_l
examples of language l, K M q_l rounded. Each cycle has floor(n_l / K) or one more, in a seeded
random order or spread evenly. So the number of draws of a language before a cycle is known. Within
a cycle they are counted. The stream visits the sequences of a language epoch by epoch, in another
random order each.

The order by blocks needs few large reads for a batch. The sequences of a language form blocks of
consecutive numbers. A window of blocks is open at a time. In every epoch blocks come in random
order, and so do the sequences of a window. A language that fits into one window has the random
order of `StreamOrder`. So do all languages if `BlockSettings.block_bytes` is 0.

A batch has S equal lanes of consecutive examples. Each has its own draws, windows, and range of
every large language. The order depends on S, not on the hosts. A host that feeds whole lanes reads
only their ranges of large languages. The lanes take turns in the draws of a small language.
Everything is arithmetic on (seed, step), so random access takes constant time and memory.
"""

import copy
import dataclasses
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from xlm.common import schema

_CYCLE = 1 << 16  # M
# Smaller shares, of fewer draws in a cycle, are exact to half a draw in so many cycles.
_LEAST_DRAWS, _CYCLES = 64, 256
# With four rounds a permutation of a thousand looks random, but one of ten does not.
_FEISTEL_ROUNDS = 8


def largest_remainder(shares: np.ndarray, total: int) -> np.ndarray:
    """Round `total * shares` [N], shares that sum to one, to int64 that sum to `total`."""
    exact = shares * total
    counts = np.floor(exact).astype(np.int64)
    # Equal remainders are rounded up from the first on.
    behind = np.argsort(counts - exact, kind="stable")
    counts[behind[: total - counts.sum()]] += 1
    return counts


def drawn_shares(shares: np.ndarray) -> np.ndarray:
    """Return the shares [N] float64 that a stream draws for wanted `shares` [N] of sum 1.

    Shares of at least 64 draws in a cycle differ by one draw in M, smaller ones by one in M K. A
    share below half of that, 2^-25, becomes 0.
    """
    counts = StreamOrder(0, np.ones(len(shares)), shares).before[-1]
    return counts / counts.sum()


def permute(index: ArrayLike, size: ArrayLike, key: ArrayLike) -> np.ndarray:
    """Evaluate a pseudo-random permutation of [0, size), selected by `key`, at `index`: [N] int64.

    A Feistel network over the next even power of two walks cycles into the range. It is a bijection
    for every key, without a table. `size` and the uint64 `key` are [N] or scalar.
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


class StreamOrder:
    """Order of a stream over languages of `rows` [N] sequences each, drawn by `shares` [N] (Eq. 3).

    With `in_turns` each language is spread evenly, so that equal shares take turns. `before`
    [K + 1, N] int64 are the draws before each of K cycles, and of all.
    """

    def __init__(self, seed: int, rows: ArrayLike, shares: np.ndarray, in_turns: bool = False):
        self.seed, self.rows, self.in_turns = seed, np.asarray(rows, np.int64), in_turns
        smallest = min(shares[shares > 0], default=1.0) * _CYCLE
        self.before = _draws_before(shares, 1 if smallest >= _LEAST_DRAWS else _CYCLES)
        self._known: tuple[int, np.ndarray, np.ndarray] | None = None

    def with_seed(self, seed: int) -> "StreamOrder":
        found = copy.copy(self)
        found.seed, found._known = seed, None
        return found

    def draw(self, examples: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return languages of examples [B], and their draws of it since the start, [B] int64."""
        cycle, within = np.divmod(np.asarray(examples, np.int64), _CYCLE)
        language, number = np.empty_like(within), np.empty_like(within)
        for one in np.unique(cycle):
            here = cycle == one
            languages, numbers = self._cycle(int(one))
            language[here], number[here] = languages[within[here]], numbers[within[here]]
        return language, number

    def counts_before(self, example: int) -> np.ndarray:
        """Return the number of examples of each language before a position of the stream, [N]."""
        cycle, within = divmod(example, _CYCLE)
        languages, _ = self._cycle(cycle)
        return self._before(cycle) + np.bincount(languages[:within], minlength=len(self.rows))

    def _before(self, cycle: int) -> np.ndarray:
        """Return the number of examples of each language before a cycle, [N] int64."""
        rounds, one = divmod(cycle, len(self.before) - 1)
        return rounds * self.before[-1] + self.before[one]

    def _cycle(self, cycle: int) -> tuple[np.ndarray, np.ndarray]:
        """Return [M] int64 language, and [M] int64 draw of it, of the examples of a cycle."""
        known = self._known  # read once: several threads load
        if known is None or known[0] != cycle:
            before = self._before(cycle)
            counts = self._before(cycle + 1) - before
            ends = np.cumsum(counts)
            if self.in_turns:
                languages = self._turns(counts)
            else:
                slots = permute(np.arange(_CYCLE), _CYCLE, self.key(0, np.array(cycle)))
                languages = np.searchsorted(ends, slots, side="right")
            order = np.argsort(languages, kind="stable")
            numbers = np.empty_like(languages)
            numbers[order] = np.arange(_CYCLE) + (before - ends + counts)[languages[order]]
            # Steps are sequential, so one cached cycle suffices.
            known = self._known = cycle, languages, numbers
        return known[1:]

    def _turns(self, counts: np.ndarray) -> np.ndarray:
        """Return [M] int64 languages of a cycle, one of a language's c draws in each c-th part."""
        languages = np.repeat(np.arange(len(counts)), counts)
        slots = np.concatenate([(np.arange(count) + 0.5) / count for count in counts])
        return languages[np.argsort(slots, kind="stable")]

    def sequence(self, language: np.ndarray, occurrence: np.ndarray) -> np.ndarray:
        """Return the sequence, [B] int64, of draw number `occurrence` [B] of each language [B]."""
        epoch, visit = np.divmod(occurrence, self.rows[language])
        return permute(visit, self.rows[language], self.key(1 + language, epoch))

    def key(self, purpose: np.ndarray | int, number: np.ndarray) -> np.ndarray:
        """Return uint64 keys of permutations, by seed, purpose (0 or 1 + language) and number."""
        key = hashed(np.full(np.shape(number), self.seed, np.uint64), np.uint64(0))
        key = hashed(key, np.asarray(purpose, np.uint64))
        return hashed(key, np.asarray(number, np.uint64))


def _draws_before(shares: np.ndarray, num_cycles: int) -> np.ndarray:
    """Spread `num_cycles * M` draws over as many cycles; return [K + 1, N] int64 draws before each.

    A language with n draws has n // K in every cycle, and one more in n % K distant cycles. All
    these are dealt out to the cycles in turn, so that each cycle has M draws.
    """
    whole, rest = np.divmod(largest_remainder(shares, num_cycles * _CYCLE), num_cycles)
    languages = np.repeat(np.arange(len(shares)), rest)
    # A step of the golden section, odd and so prime to K, a power of two.
    cycles = np.arange(len(languages)) * (int(0.618 * num_cycles) | 1) % num_cycles
    counts = np.tile(whole, (num_cycles, 1))
    np.add.at(counts, (cycles, languages), 1)
    return np.concatenate([np.zeros_like(whole)[None], np.cumsum(counts, axis=0)])


@dataclasses.dataclass(frozen=True)
class BlockSettings:
    """Settings of the order by blocks; part of the `data` section of a config.

    Attributes:
      block_bytes: bytes of consecutive sequences to read at once; 0 for a random order of
        sequences.
      window_blocks: blocks of a language that a lane draws from at a time.
      lanes: S, equal parts of a batch with draws of their own.
      window_bytes: most bytes of the windows of a lane, for text and for each kind of pairs; 0 for
        no limit. It makes the blocks of many languages or pairs smaller.
    """

    block_bytes: int = schema.key(0, at_least=0)
    window_blocks: int = schema.key(16, at_least=1)
    lanes: int = schema.key(1, at_least=1)
    window_bytes: int = schema.key(0, at_least=0)

    def __post_init__(self):
        if self.lanes > 1 and not self.block_bytes:
            raise ValueError(
                f"data.lanes is {self.lanes}, but data.block_bytes is 0; lanes need an order by "
                "blocks: set data.block_bytes, such as 1048576, or data.lanes to 1"
            )

    def block_rows(self, row_bytes: float, num_languages: int) -> int:
        """Return the number of sequences of `row_bytes` in a block; 0 without blocks."""
        size = self.block_bytes
        if self.window_bytes:
            size = min(size, self.window_bytes // (num_languages * self.window_blocks))
        return max(int(size / row_bytes), 1) if self.block_bytes else 0


NO_BLOCKS = BlockSettings()


class Places(NamedTuple):
    """Sequences of examples and the blocks that hold them; [B] int64 each.

    `row` is the sequence's number in its language, and first <= row < stop its block. `lane` draws
    from the block; -1 if all lanes do.
    """

    language: np.ndarray
    row: np.ndarray
    first: np.ndarray
    stop: np.ndarray
    lane: np.ndarray


def visit_blocks(
    visit: np.ndarray, size: np.ndarray, block: np.ndarray, window_blocks: int, key: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Evaluate a pseudo-random order of [0, size) by blocks, a bijection, at positions `visit`.

    The floor(size / block) blocks are in random order, in windows of up to `window_blocks`, as
    equal as possible. The numbers of a window are in random order. The other size mod block numbers
    form a short block somewhere between the others, in the last window.

    `visit` < `size`, `block` >= 1 (numbers in a block) and the uint64 `key` are [B]. Return the
    number at each position, and the first number and end of its block, [B] int64 each.
    """
    num_blocks, rest = np.divmod(size, block)
    counted = np.maximum(num_blocks, 1)  # a single short block is a window
    num_windows = -(-counted // window_blocks)
    slot = np.minimum(visit // block, counted - 1)
    window = ((slot + 1) * num_windows - 1) // counted
    start = counted * window // num_windows * block
    end = np.where(window + 1 == num_windows, size, counted * (window + 1) // num_windows * block)
    place = start + permute(visit - start, end - start, hashed(window, hashed(1, key)))
    slot, within = np.divmod(place, block)
    is_short = slot == num_blocks
    number = permute(np.where(is_short, 0, slot), counted, hashed(2, key))
    # The epoch's key places the short block, since the last window always comes last.
    short = (hashed(3, key) % (num_blocks + 1).astype(np.uint64)).astype(np.int64)
    first = np.where(is_short, short * block, number * block + np.where(number < short, 0, rest))
    return first + within, first, first + np.where(is_short, rest, block)


class BatchOrder:
    """Order of the examples of batches of one size, over languages drawn by `shares` (Eq. 3).

    `rows` [N] are the sequences of each language, `row_bytes` their mean bytes in a block. Raise
    ValueError if the batch does not divide into the lanes.
    """

    def __init__(
        self,
        seed: int,
        rows: Sequence[int],
        shares: np.ndarray,
        batch_size: int,
        row_bytes: Iterable[float],
        settings: BlockSettings,
    ):
        if batch_size % settings.lanes:
            raise ValueError(
                f"data.lanes is {settings.lanes}, must divide a batch of {batch_size} examples; "
                "choose a divisor"
            )
        self.shares = shares / shares.sum()
        whole = StreamOrder(seed, np.array(rows), self.shares)
        # The first lane draws as a batch without lanes.
        seeds = [seed, *hashed(np.arange(1, settings.lanes), hashed(4, seed)).tolist()]
        self._draws = [whole.with_seed(one) for one in seeds]
        self.batch_size, self._settings = batch_size, settings
        of_rows = [settings.block_rows(size, len(rows)) for size in row_bytes]
        self._block_rows = np.array(of_rows, np.int64)
        large = np.maximum(settings.window_blocks * self._block_rows, settings.lanes - 1)
        self._is_large = (self._block_rows > 0) & (whole.rows > large)

    def counts_before(self, step: int) -> np.ndarray:
        """Return the number of examples of each language in the batches before `step`, [N]."""
        examples = step * (self.batch_size // self._settings.lanes)
        return np.sum([draws.counts_before(examples) for draws in self._draws], axis=0)

    def places(self, step: int, first: int, size: int) -> Places:
        """Return the places of examples [first, first + size) of the batch of `step`."""
        lane_size = self.batch_size // self._settings.lanes
        lanes = range(first // lane_size, -(-(first + size) // lane_size))
        found = []
        for lane in lanes:
            start = max(first - lane * lane_size, 0)
            stop = min(first + size - lane * lane_size, lane_size)
            examples = step * lane_size + np.arange(start, stop)
            found.append(self._of_lane(lane, *self._draws[lane].draw(examples)))
        return Places(*map(np.concatenate, zip(*found, strict=True)))

    def _of_lane(self, lane: int, language: np.ndarray, occurrence: np.ndarray) -> Places:
        """Return the places of draws of a lane, counted by language within the lane."""
        many = self._is_large[language]
        found = np.empty((3, len(language)), np.int64)
        for is_large, locate in ((False, self._in_whole), (True, self._in_lane)):
            here = many == is_large
            if here.any():
                found[:, here] = locate(lane, language[here], occurrence[here])
        row, first, stop = found
        return Places(language, row, first, stop, np.where(many, lane, -1))

    def _in_whole(self, lane: int, language: np.ndarray, occurrence: np.ndarray) -> list:
        """Return row, first and stop of draws of languages that fit into a window."""
        draw = occurrence * self._settings.lanes + lane  # number among the draws of all lanes
        row, rows = self._draws[0].sequence(language, draw), self._draws[0].rows[language]
        block = np.where(self._block_rows[language] > 0, self._block_rows[language], rows)
        first = row // block * block
        return [row, first, np.minimum(first + block, rows)]

    def _in_lane(self, lane: int, language: np.ndarray, occurrence: np.ndarray) -> list:
        """Return row, first and stop of draws of large languages, from the lane's range of each."""
        whole, lanes = self._draws[0], self._settings.lanes
        begin, end = (whole.rows[language] * one // lanes for one in (lane, lane + 1))
        epoch, visit = np.divmod(occurrence, end - begin)
        key = hashed(lane, whole.key(1 + language, epoch))
        block = self._block_rows[language]
        found = visit_blocks(visit, end - begin, block, self._settings.window_blocks, key)
        return [begin + one for one in found]
