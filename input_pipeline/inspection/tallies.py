"""Tables of repetitions, in bounded memory, and copies among passages."""

import numpy as np

# Digest of a line or passage, its copies, documents with one, bytes of one.
ROW = np.dtype([("digest", "i8"), ("copies", "u4"), ("documents", "u4"), ("size", "u4")])
_PENDING = 1 << 20
MOST_ROWS = 1 << 24


class Tally:
    """Counts by digest, exact up to `most` distinct ones.

    Beyond that it forgets digests met once, except for a share of all digests, `kept_share`, which
    it halves each time. Counts are then lower bounds: it may miss copies of a line that are further
    apart than some `most` / 2 distinct lines.
    """

    def __init__(self, most: int = MOST_ROWS):
        self._most, self._limit = most, 1 << 63
        self._rows = np.zeros(0, ROW)
        self._pending: list[np.ndarray] = []
        self._num_pending = 0

    @property
    def kept_share(self) -> float:
        return self._limit / (1 << 63)

    def add(self, rows: np.ndarray) -> None:
        self._pending.append(rows)
        self._num_pending += len(rows)
        if self._num_pending > max(_PENDING, len(self._rows) // 2):
            self.rows()

    def rows(self) -> np.ndarray:
        """Return the rows [n], sorted by digest."""
        if self._pending:
            self._rows = _summed(np.concatenate([self._rows, *self._pending]))
            self._pending, self._num_pending = [], 0
        while len(self._rows) > self._most:
            self._limit //= 2
            is_kept = (self._rows["copies"] > 1) | (np.abs(self._rows["digest"]) < self._limit)
            if self._limit < 1 << 40:  # all of them repeat: the rarest go
                is_kept = self._rows["copies"] > np.median(self._rows["copies"])
            self._rows = self._rows[is_kept]
        return self._rows


def _summed(rows: np.ndarray) -> np.ndarray:
    _, first, number = np.unique(rows["digest"], return_index=True, return_inverse=True)
    result = rows[first]
    for field in ("copies", "documents"):
        result[field] = np.bincount(number, rows[field])
    return result


def line_rows(digests: np.ndarray, sizes: np.ndarray, documents: np.ndarray) -> np.ndarray:
    """Return a row for each distinct line of a block, from its lines [n] in order."""
    order = np.argsort(digests, kind="stable")
    rows = np.zeros(len(order), ROW)
    rows["digest"], rows["copies"], rows["size"] = digests[order], 1, sizes[order]
    is_other = np.ones(len(order), bool)
    is_other[1:] = (np.diff(rows["digest"]) != 0) | (np.diff(documents[order]) != 0)
    rows["documents"] = is_other
    return _summed(rows)


def later_copies(digests: np.ndarray) -> np.ndarray:
    """Return whether each digest [n] has occurred before it."""
    result = np.ones(len(digests), bool)
    result[np.unique(digests, return_index=True)[1]] = False
    return result
