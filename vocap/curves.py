"""Curves of ALP against vocabulary size, and their concave envelopes."""

import dataclasses
from collections.abc import Sequence

import numpy as np


@dataclasses.dataclass(frozen=True, eq=False)
class Curve:
    """A language's vocabularies at growing sizes; each holds the language's required characters.

    Attributes:
      sizes: [S] numbers of pieces, strictly ascending.
      alp: [S] average log probability (Eq. 1) at each size, nats per sentence.
      pieces: [P] all distinct pieces, kept once since vocabularies have most in common.
      members: [S] int32 arrays of sizes[s] distinct indices into `pieces`, highest probability
        first.
    """

    sizes: tuple[int, ...]
    alp: tuple[float, ...]
    pieces: tuple[str, ...]
    members: tuple[np.ndarray, ...]

    def vocabulary(self, s: int) -> tuple[str, ...]:
        """Return the pieces of the vocabulary of size `sizes[s]`, highest probability first."""
        return tuple(self.pieces[i] for i in self.members[s])


def concave_envelope(sizes: Sequence[int], alp: Sequence[float]) -> list[int]:
    """Return the indices of the vertices of the upper concave envelope of the points (size, ALP).

    Measured curves are not everywhere concave: a greedy step that looks one size ahead stalls at a
    small gain before a large one. On the envelope the gain per piece never increases, which makes
    the greedy choice optimal.
    """
    kept: list[int] = []
    for i in range(len(sizes)):
        while len(kept) >= 2:
            a, b = kept[-2], kept[-1]
            rise_ab = (alp[b] - alp[a]) * (sizes[i] - sizes[b])
            rise_bi = (alp[i] - alp[b]) * (sizes[b] - sizes[a])
            if rise_ab > rise_bi:
                break
            kept.pop()
        kept.append(i)
    return kept
