"""Blocks that threads read ahead of need. A block that is no longer cached is read again."""

import collections
import concurrent.futures
import threading
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from input_pipeline.block_order import Places

# Blocks that are kept beyond a window: a short one, and one for threads that overtake each other.
_SLACK = 2


class Wanted(NamedTuple):
    """Block of a batch, which holds its examples of indices `examples`, [n] int64.

    `first` is the number of its first sequence, `block` the future of what `BlockCache` loads.
    """

    examples: np.ndarray
    first: int
    block: concurrent.futures.Future[Any]


class BlockCache:
    """Blocks that threads read; the last requested ones of each language and lane are kept.

    Requests in the order of the steps read every block of a window once. A request keeps all of its
    own blocks. `load` reads a block from the index of its language, its first number and its end.
    """

    def __init__(
        self,
        load: Callable[[int, int, int], Any],
        pool: concurrent.futures.Executor,
        window_blocks: int,
    ):
        self._load, self._pool, self._limit = load, pool, window_blocks + _SLACK
        self._lock = threading.Lock()
        # By language and lane, then by first number and end, those last requested at the end.
        self._kept: dict[tuple[int, int], collections.OrderedDict] = collections.defaultdict(
            collections.OrderedDict
        )

    def request(self, places: Places) -> list[Wanted]:
        """Return the blocks of a batch, and begin to read those that are not there."""
        with self._lock:
            found = [
                Wanted(index, first, self._block(self._kept[language, lane], language, first, stop))
                for index, language, lane, first, stop in _blocks_of(places)
            ]
            for kept in self._kept.values():
                while len(kept) > self._limit:
                    kept.popitem(last=False)
        return found

    def _block(
        self, kept: collections.OrderedDict, language: int, first: int, stop: int
    ) -> concurrent.futures.Future[Any]:
        """Return a block that is kept, as the last requested one, or begin to read it."""
        found = kept.get((first, stop))
        # A block that could not be read is read again.
        if found is None or (found.done() and found.exception()):
            found = kept[first, stop] = self._pool.submit(self._load, language, first, stop)
        kept.move_to_end((first, stop))
        return found


def _blocks_of(places: Places) -> list[tuple[np.ndarray, int, int, int, int]]:
    """Return the indices of the places in each block, its language, lane, first number and end."""
    keys = np.stack([places.language, places.lane, places.first, places.stop])
    order = np.lexsort(keys[::-1])
    keys = keys[:, order]
    starts = np.flatnonzero((keys[:, 1:] != keys[:, :-1]).any(axis=0)) + 1
    return [
        (index, *key)
        for index, key in zip(
            np.split(order, starts), keys[:, np.append(0, starts)].T.tolist(), strict=True
        )
    ]
