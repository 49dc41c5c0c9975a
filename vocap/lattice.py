"""Segmentations of a text into pieces: expected counts, best paths, second-best paths.

A text's lattice has a node between any two characters and an arc for every match of a piece. Arcs
follow the order of the text, so each pass reads memory sequentially. Every position has an arc of
one character, possibly unknown, so every text has a path.
"""

import dataclasses
from collections.abc import Sequence

import numba
import numpy as np

from vocap.pretokens import Text, pack
from vocap.settings import LENGTH_BITS, MAX_PIECE_LENGTH

_LENGTH_MASK = (1 << LENGTH_BITS) - 1
_CHARACTER_BITS = 21  # code points stop at 0x10FFFF
_EMPTY = np.int64(-1)
# Range of path probabilities; runs outside it need logarithms.
_TINY, _HUGE = 1e-250, 1e250


@dataclasses.dataclass(frozen=True)
class Lattice:
    """All matches of pieces in a text of N runs and C characters.

    `offsets` [N + 1] int64 are the starts of the runs, `begins` [C + 1] int64 the starts of the
    arcs of each position. `arcs` [M] uint32 are piece << LENGTH_BITS | length - 1, shorter ones
    first.
    """

    offsets: np.ndarray
    begins: np.ndarray
    arcs: np.ndarray

    def expected_counts(
        self, log_probs: np.ndarray, lengths: np.ndarray, weights: np.ndarray, nats: float
    ) -> tuple[np.ndarray, float]:
        """Compute expected counts [V] float64 of pieces (E-step), and the log-likelihood in nats.

        `log_probs` [V] are natural logs; -inf excludes a piece, provided that every run still has a
        path. `lengths` [V] count characters, `weights` [N] float64 the occurrences of each run.
        `nats`, an approximate negative log-likelihood per character, keeps numbers in range.
        """
        with np.errstate(over="ignore"):  # overflowing runs fall back to logarithms
            scaled = np.exp(log_probs + nats * lengths)
        return _expected_counts(
            self.offsets, self.begins, self.arcs, weights, log_probs, scaled, nats
        )

    def best_paths(self, scores: np.ndarray) -> "Paths":
        """Find the best segmentation of every run; ties go to the longest last piece."""
        return Paths(*_best_paths(self.offsets, self.begins, self.arcs, scores))

    def keep(self, new_ids: np.ndarray) -> "Lattice":
        """Return the lattice with pieces renumbered by `new_ids` [V]; -1 drops a piece."""
        begins, arcs = _keep(self.begins, self.arcs, new_ids)
        return Lattice(self.offsets, begins, arcs)


@dataclasses.dataclass(frozen=True)
class Paths:
    """One segmentation of every run: pieces [T] int32, and the start of each run's [N + 1]."""

    pieces: np.ndarray
    offsets: np.ndarray

    def counts(self, weights: np.ndarray, num_pieces: int) -> np.ndarray:
        """Return [V] float64, the occurrences of each piece, runs weighted by `weights` [N]."""
        return np.bincount(self.pieces, np.repeat(weights, np.diff(self.offsets)), num_pieces)


@dataclasses.dataclass(frozen=True)
class Trie:
    """A set of V = `num_pieces` pieces as an open-addressing hash of (node, character) -> node.

    `keys` [H] int64 are node << 21 | character, or -1 in a free slot; H is a power of two.
    `children` [H] int32 are the child nodes, `piece_of_node` [N] int32 the piece that ends at each
    node, or -1.
    """

    keys: np.ndarray
    children: np.ndarray
    piece_of_node: np.ndarray
    num_pieces: int

    def match(self, text: Text) -> Lattice:
        """Find all matches in a text; a character without a piece gets an arc of `num_pieces`."""
        begins, arcs = _match(
            text.characters, text.offsets,
            self.keys, self.children, self.piece_of_node, self.num_pieces,
        )  # fmt: skip
        return Lattice(text.offsets, begins, arcs)


def build_trie(pieces: Sequence[str]) -> Trie:
    """Build the trie of distinct pieces of 1 to `MAX_PIECE_LENGTH` characters; piece i keeps i."""
    longest = max(pieces, key=len, default="")
    if len(longest) > MAX_PIECE_LENGTH:
        raise ValueError(
            f"piece {longest!r} has {len(longest)} characters; at most {MAX_PIECE_LENGTH} fit"
        )
    spelled = pack(pieces)
    slots = 1 << max(4, int(2 * len(spelled.characters)).bit_length())
    keys, children = np.full(slots, _EMPTY), np.zeros(slots, np.int32)
    piece_of_node = np.full(len(spelled.characters) + 1, -1, np.int32)
    num_nodes = _fill_trie(spelled.characters, spelled.offsets, keys, children, piece_of_node)
    return Trie(keys, children, piece_of_node[:num_nodes].copy(), len(pieces))


@numba.njit(cache=True)
def _slot(keys, key):
    """Return the slot of `key` in the hash, or the free slot where it belongs."""
    mask = np.uint64(len(keys) - 1)
    spread = np.uint64(key) * np.uint64(0x9E3779B97F4A7C15)
    slot = (spread >> np.uint64(32)) & mask
    while keys[slot] != key and keys[slot] != -1:
        slot = (slot + np.uint64(1)) & mask
    return slot


@numba.njit(cache=True)
def _fill_trie(characters, offsets, keys, children, piece_of_node):
    """Enter pieces into an empty trie; return its number of nodes."""
    num_nodes = 1
    for piece in range(len(offsets) - 1):
        node = 0
        for i in range(offsets[piece], offsets[piece + 1]):
            key = (np.int64(node) << _CHARACTER_BITS) | characters[i]
            slot = _slot(keys, key)
            if keys[slot] == -1:
                keys[slot] = key
                children[slot] = num_nodes
                num_nodes += 1
            node = children[slot]
        piece_of_node[node] = piece
    return num_nodes


@numba.njit(cache=True)
def _match(characters, offsets, keys, children, piece_of_node, unknown):
    """Compute begins and arcs of a lattice: the first pass counts, the second fills."""
    begins = np.zeros(len(characters) + 1, np.int64)
    arcs = np.empty(0, np.uint32)
    for filling in (False, True):
        if filling:
            arcs = np.empty(begins[-1], np.uint32)
        found = 0
        for run in range(len(offsets) - 1):
            for start in range(offsets[run], offsets[run + 1]):
                node = 0
                for end in range(start, offsets[run + 1]):
                    key = (np.int64(node) << _CHARACTER_BITS) | characters[end]
                    slot = _slot(keys, key)
                    known = keys[slot] != -1
                    piece = np.int64(-1)
                    if known:
                        node = children[slot]
                        piece = np.int64(piece_of_node[node])
                    if piece < 0 and end == start:
                        piece = np.int64(unknown)
                    if piece >= 0:
                        if filling:
                            arcs[found] = piece << LENGTH_BITS | (end - start)
                        found += 1
                    if not known:
                        break
                begins[start + 1] = found
    return begins, arcs


@numba.njit(cache=True)
def _keep(begins, arcs, new_ids):
    new_begins = np.empty_like(begins)
    kept = np.empty_like(arcs)
    size = 0
    for i in range(len(begins) - 1):
        new_begins[i] = size
        for a in range(begins[i], begins[i + 1]):
            arc = arcs[a]
            new_id = new_ids[arc >> LENGTH_BITS]
            if new_id >= 0:
                kept[size] = np.uint32(new_id) << np.uint32(LENGTH_BITS) | (arc & _LENGTH_MASK)
                size += 1
    new_begins[-1] = size
    return new_begins, kept[:size].copy()


@numba.njit(cache=True)
def _longest(offsets):
    longest = 0
    for run in range(len(offsets) - 1):
        longest = max(longest, offsets[run + 1] - offsets[run])
    return longest


@numba.njit(cache=True)
def _log_add(a, b):
    if a < b:
        a, b = b, a
    return a if b == -np.inf else a + np.log1p(np.exp(b - a))


@numba.njit(cache=True)
def _add_expected_in_logs(
    first, last, begins, arcs, weight, log_probs, forward, backward, counts
):  # fmt: skip
    """Run forward-backward on one run in logarithms; return its log-likelihood."""
    length = last - first
    for i in range(length + 1):
        forward[i] = -np.inf
        backward[i] = -np.inf
    forward[0] = 0.0
    backward[length] = 0.0
    for i in range(length - 1, -1, -1):
        for a in range(begins[first + i], begins[first + i + 1]):
            piece, end = arcs[a] >> LENGTH_BITS, i + 1 + (arcs[a] & _LENGTH_MASK)
            backward[i] = _log_add(backward[i], log_probs[piece] + backward[end])
    for i in range(length):
        for a in range(begins[first + i], begins[first + i + 1]):
            piece, end = arcs[a] >> LENGTH_BITS, i + 1 + (arcs[a] & _LENGTH_MASK)
            arc = forward[i] + log_probs[piece]
            counts[piece] += weight * np.exp(arc + backward[end] - backward[0])
            forward[end] = _log_add(forward[end], arc)
    return backward[0]


@numba.njit(cache=True)
def _expected_counts(offsets, begins, arcs, weights, log_probs, scaled, nats):
    """Run forward-backward with probabilities scaled by exp(nats) per character.

    Ten times faster than logarithms, to which only runs outside the range of floats fall back.
    """
    counts = np.zeros(len(log_probs))
    longest = _longest(offsets)
    # forward[i]: probability of the first i characters; backward[i]: of those from i on.
    forward = np.empty(longest + 1)
    backward = np.empty(longest + 1)
    log_likelihood = 0.0
    for run in range(len(offsets) - 1):
        first, last = offsets[run], offsets[run + 1]
        length = last - first
        backward[length] = 1.0
        low = high = 1.0
        for i in range(length - 1, -1, -1):
            total = 0.0
            for a in range(begins[first + i], begins[first + i + 1]):
                arc = arcs[a]
                total += scaled[arc >> LENGTH_BITS] * backward[i + 1 + (arc & _LENGTH_MASK)]
            backward[i] = total
            forward[i + 1] = 0.0
            low, high = min(low, total), max(high, total)
        if not (low > _TINY and high < _HUGE):
            log_likelihood += weights[run] * _add_expected_in_logs(
                first, last, begins, arcs, weights[run], log_probs, forward, backward, counts
            )
            continue
        log_likelihood += weights[run] * (np.log(backward[0]) - nats * length)
        forward[0] = weights[run] / backward[0]
        for i in range(length):
            here = forward[i]
            for a in range(begins[first + i], begins[first + i + 1]):
                arc = arcs[a]
                piece, end = arc >> LENGTH_BITS, i + 1 + (arc & _LENGTH_MASK)
                flow = here * scaled[piece]
                counts[piece] += flow * backward[end]
                forward[end] += flow
    return counts, log_likelihood


@numba.njit(cache=True)
def _best_path(first, last, begins, arcs, scores, best, back, out, size):
    """Append the best path of one run to `out` at `size`; return the new size."""
    length = last - first
    for i in range(1, length + 1):
        best[i] = -np.inf
        # If only excluded pieces lead here, the path continues by one character.
        back[i] = arcs[begins[first + i - 1]]
    best[0] = 0.0
    for i in range(length):
        here = best[i]
        for a in range(begins[first + i], begins[first + i + 1]):
            arc = arcs[a]
            end = i + 1 + (arc & _LENGTH_MASK)
            score = here + scores[arc >> LENGTH_BITS]
            if score > best[end]:
                best[end] = score
                back[end] = arc
    i, num_pieces = length, 0
    while i > 0:
        num_pieces += 1
        i -= 1 + (back[i] & _LENGTH_MASK)
    i, at = length, size + num_pieces
    while i > 0:
        at -= 1
        out[at] = back[i] >> LENGTH_BITS
        i -= 1 + (back[i] & _LENGTH_MASK)
    return size + num_pieces


@numba.njit(cache=True)
def _best_paths(offsets, begins, arcs, scores):
    longest = _longest(offsets)
    best = np.empty(longest + 1)
    back = np.empty(longest + 1, np.uint32)
    pieces = np.empty(len(begins) - 1, np.int32)
    path_offsets = np.empty(len(offsets), np.int64)
    size = 0
    for run in range(len(offsets) - 1):
        path_offsets[run] = size
        size = _best_path(
            offsets[run], offsets[run + 1], begins, arcs, scores, best, back, pieces, size
        )
    path_offsets[-1] = size
    return pieces[:size].copy(), path_offsets


@numba.njit(cache=True)
def changed_counts(
    offsets, begins, arcs, weights, scores, paths, path_offsets, affected, counts
):  # fmt: skip
    """Segment the `affected` runs again under other `scores` and correct `counts` in place.

    Removing a piece changes only the best paths that hold it, so most runs keep theirs.
    """
    longest = _longest(offsets)
    best = np.empty(longest + 1)
    back = np.empty(longest + 1, np.uint32)
    path = np.empty(longest, np.int32)
    for run in range(len(offsets) - 1):
        if not affected[run]:
            continue
        for i in range(path_offsets[run], path_offsets[run + 1]):
            counts[paths[i]] -= weights[run]
        size = _best_path(offsets[run], offsets[run + 1], begins, arcs, scores, best, back, path, 0)
        for i in range(size):
            counts[path[i]] += weights[run]


@numba.njit(cache=True)
def second_best(begins, arcs, scores, piece_begins, piece_lengths, counts, unknown_as):
    """Segment the string of each piece without the piece itself (second-best path).

    Args:
      scores: [V], -inf for excluded pieces.
      piece_begins, piece_lengths: [V] position and length of one occurrence of each piece.
      counts: [V] occurrences of each piece in the best segmentation of the text.
      unknown_as: [V] piece whose count stands for each piece's.

    Returns:
      Score of the best other path [V], its number of pieces [V] int32, and the sum over them of
        log(count + the count of the piece itself) [V]. Characters have no other path: -inf, 0, 0.
    """
    best = np.empty(MAX_PIECE_LENGTH + 1)
    back = np.empty(MAX_PIECE_LENGTH + 1, np.uint32)
    other = np.full(len(scores), -np.inf)
    num_pieces = np.zeros(len(scores), np.int32)
    log_counts = np.zeros(len(scores))
    for piece in range(len(scores)):
        length, first = piece_lengths[piece], piece_begins[piece]
        if length == 1:
            continue
        best[0] = 0.0
        for i in range(1, length + 1):
            best[i] = -np.inf
        for i in range(length):
            for a in range(begins[first + i], begins[first + i + 1]):
                arc = arcs[a]
                end = i + 1 + (arc & _LENGTH_MASK)
                if end > length:
                    break
                if end - i == length:
                    continue
                score = best[i] + scores[arc >> LENGTH_BITS]
                if score > best[end]:
                    best[end] = score
                    back[end] = arc
        other[piece] = best[length]
        i = length
        while i > 0:
            count = counts[unknown_as[back[i] >> LENGTH_BITS]]
            log_counts[piece] += np.log(count + counts[piece])
            num_pieces[piece] += 1
            i -= 1 + (back[i] & _LENGTH_MASK)
    return other, num_pieces, log_counts
