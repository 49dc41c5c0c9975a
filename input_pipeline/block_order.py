"""The order of a stream by blocks, so that a batch is read with few large reads.

The sequences of a language form blocks of consecutive numbers, of which a window is open at a time.
In every epoch blocks come in random order, and the sequences of a window's blocks in random order.
A language that fits into one window has the random order of `StreamOrder`, as all languages have if
`BlockSettings.block_bytes` is 0.

A batch has S equal lanes of consecutive examples. Each has its own draws, windows, and range of
every large language. The order depends on S, not on the hosts. A host that feeds whole lanes reads
only their ranges of large languages. The lanes take turns in the draws of a small language.
Everything is arithmetic on (seed, step), so random access takes constant time and memory.
"""

import dataclasses
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

from input_pipeline.order import StreamOrder, hashed, permute


@dataclasses.dataclass(frozen=True)
class BlockSettings:
    """Settings of the order by blocks; part of the `data` section of a config.

    `block_bytes` of consecutive sequences are read at once, 0 for a random order of sequences. A
    lane, one of S = `lanes` equal parts of a batch, draws from `window_blocks` blocks a language.
    """

    block_bytes: int = 0
    window_blocks: int = 16
    lanes: int = 1

    def __post_init__(self):
        if self.lanes > 1 and not self.block_bytes:
            raise ValueError(
                f"data.lanes is {self.lanes}, but data.block_bytes is 0; lanes are of an order by "
                "blocks: set data.block_bytes, such as 1048576, or data.lanes to 1"
            )

    def block_rows(self, row_bytes: float) -> int:
        """Return the number of sequences of `row_bytes` in a block; 0 without blocks."""
        return max(int(self.block_bytes / row_bytes), 1) if self.block_bytes else 0


NO_BLOCKS = BlockSettings()


class Places(NamedTuple):
    """Sequences of examples and the blocks that hold them; [B] int64 each.

    `row` is the sequence's number in its language, first <= row < stop its block, and `lane` the
    lane that draws from the block, -1 if all do.
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

    The floor(size / block) blocks are in random order. Windows of up to `window_blocks` blocks, as
    equal as possible, follow one another, each with its numbers in random order. The remaining size
    mod block numbers form a short block anywhere between the others, in the last window.

    `visit` < `size`, `block` >= 1 (numbers in a block) and the uint64 `key` are [B]. Return the
    number at each position, and the first number and end of its block, [B] int64 each.
    """
    num_blocks, rest = np.divmod(size, block)
    counted = np.maximum(num_blocks, 1)  # a short block alone is a window
    num_windows = -(-counted // window_blocks)
    slot = np.minimum(visit // block, counted - 1)
    window = ((slot + 1) * num_windows - 1) // counted
    start = counted * window // num_windows * block
    end = np.where(window + 1 == num_windows, size, counted * (window + 1) // num_windows * block)
    place = start + permute(visit - start, end - start, hashed(window, hashed(1, key)))
    slot, within = np.divmod(place, block)
    is_short = slot == num_blocks
    number = permute(np.where(is_short, 0, slot), counted, hashed(2, key))
    # Its place depends on the epoch's key, since the last window always comes last.
    short = (hashed(3, key) % (num_blocks + 1).astype(np.uint64)).astype(np.int64)
    first = np.where(is_short, short * block, number * block + np.where(number < short, 0, rest))
    return first + within, first, first + np.where(is_short, rest, block)


class BatchOrder:
    """Order of the examples of batches of one size, over languages drawn by `shares` (Eq. 3).

    `rows` [N] are the sequences of each language, `row_bytes` the mean bytes that a block reads for
    one. Raise ValueError if the batch does not divide into the lanes.
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
                f"data.lanes is {settings.lanes}, must divide a batch of {batch_size} examples"
            )
        whole = StreamOrder.create(seed, np.array(rows), shares / shares.sum())
        # The first lane draws as a batch without lanes.
        seeds = [seed, *hashed(np.arange(1, settings.lanes), hashed(4, seed)).tolist()]
        self._draws = [dataclasses.replace(whole, seed=one, _cycles={}) for one in seeds]
        self.batch_size, self._settings = batch_size, settings
        self._block_rows = np.array([*map(settings.block_rows, row_bytes)], np.int64)
        large = np.maximum(settings.window_blocks * self._block_rows, settings.lanes - 1)
        self._is_large = (self._block_rows > 0) & (whole.rows > large)

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
