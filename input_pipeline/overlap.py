"""Overlap of held-out with training text: the share of held-out n-grams that training rows have.

It finds copied pages and boilerplate, which comparisons of whole blocks miss. N-grams have 13
tokens, or as many as hold 40 characters: 13 tokens of one character often agree by chance.
"""

import math
import pathlib
from collections.abc import Sequence
from typing import TypedDict

import numpy as np

from input_pipeline.array_files import MappedArrays
from xlm.common.declarations import Count

LEAKED = 0.1  # share beyond which a language's loss says little; Bibles have up to 0.05
_LEAST_TOKENS, _LEAST_CHARACTERS = 13, 40
_MOST_ROWS = 1 << 14  # held-out sequences of a language, spread over it
_TOKENS_AT_ONCE = 1 << 16  # so that the arrays stay in a processor's cache
_FACTOR = np.uint64(0x9E3779B97F4A7C15)


class Overlap(TypedDict):
    """Held-out n-grams of a language, the share that training rows have, and its commonest one."""

    ngrams: Count
    share: float
    length: Count
    example: list[Count]


def measure(
    heldout: Sequence[pathlib.Path], train: Sequence[pathlib.Path], left_out: Sequence[int],
    tokens_per_character: float,
) -> Overlap:  # fmt: skip
    """Compare files of sequences [N, L] in one pass over the training files, see `ngrams`.

    Memory: some 60 bytes for each token of up to `_MOST_ROWS` held-out sequences.
    """
    length = max(_LEAST_TOKENS, math.ceil(_LEAST_CHARACTERS * tokens_per_character))
    files = MappedArrays(heldout)
    step = -(-sum(map(len, files)) // _MOST_ROWS) or 1
    rows = np.concatenate([np.array(one[::step]) for one in files])  # copied: files close
    places, hashes = ngrams(rows, left_out, length)
    known, first, counts = np.unique(hashes, return_index=True, return_counts=True)
    # A table of the hashes' first bits rules out most others.
    shift = np.uint64(64 - min(max(len(known).bit_length() + 4, 8), 27))
    may_be = np.zeros(1 << (64 - int(shift)), bool)
    may_be[known >> shift] = True
    seen = np.zeros(len(known), np.int64)
    at_once = max(_TOKENS_AT_ONCE // rows.shape[1], 1)
    for one in MappedArrays(train) if len(known) else ():
        for start in range(0, len(one), at_once):
            _, found = ngrams(one[start : start + at_once], left_out, length)
            found = found[may_be[found >> shift]]
            place = np.minimum(np.searchsorted(known, found), len(known) - 1)
            seen[place[known[place] == found]] = 1
    seen *= counts
    start = places[first[seen.argmax()]] if seen.any() else 0
    example = rows.reshape(-1)[start : start + length].tolist() if seen.any() else []
    share = float(seen.sum() / max(len(hashes), 1))
    return Overlap(ngrams=len(hashes), share=share, length=length, example=example)


def ngrams(rows: np.ndarray, left_out: Sequence[int], length: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the beginnings, in the flat array, and hashes of n-grams of sequences [N, L].

    None has a token of `left_out` (special or unknown), so none crosses the end of a segment.
    """
    tokens = rows.reshape(-1)
    count = max(len(tokens) - length + 1, 0)
    ends = np.append(0, np.cumsum(np.isin(tokens, left_out)))
    mixed = (tokens.astype(np.uint64) + np.uint64(1)) * _FACTOR
    mixed ^= mixed >> np.uint64(29)
    hashes = np.zeros(count, np.uint64)
    for place in range(length):
        hashes *= _FACTOR
        hashes += mixed[place : place + count]
    hashes ^= hashes >> np.uint64(32)
    hashes *= _FACTOR
    places = np.flatnonzero(ends[length:] == ends[:count])
    return places, hashes[places]
