"""Expected piece counts under a unigram model: the E-step of EM, in numba.

The lattice of a word has a node between any two characters and an arc for every piece that
matches there. Pieces are found by walking a trie from each position, so no list of matches is
held and memory is that of the trie and the text.
"""

import dataclasses
from collections.abc import Sequence

import numba
import numpy as np

_CHARACTER_BITS = 21  # code points stop at 0x10FFFF
_EMPTY = np.int64(-1)


@dataclasses.dataclass(frozen=True)
class Trie:
    """A set of pieces as an open-addressing hash of (node, character) -> node.

    Attributes:
      keys: [H] int64, node << 21 | character, or -1 in a free slot; H is a power of two.
      children: [H] int32 child node of each key.
      piece_of_node: [N] int32 index of the piece that ends at a node, or -1.
    """

    keys: np.ndarray
    children: np.ndarray
    piece_of_node: np.ndarray


@dataclasses.dataclass(frozen=True)
class Text:
    """Words end to end: code points [C] int32, and where each word begins [N + 1] int64."""

    characters: np.ndarray
    offsets: np.ndarray


def pack_words(words: Sequence[str]) -> Text:
    """Lays words out end to end for the kernels of this module."""
    joined = "".join(words).encode("utf-32-le")
    lengths = np.fromiter((len(w) for w in words), np.int64, len(words))
    return Text(np.frombuffer(joined, np.int32), np.concatenate([[0], np.cumsum(lengths)]))


def build_trie(pieces: Sequence[str]) -> Trie:
    """Builds the trie of distinct, non-empty `pieces`; piece i keeps the index i."""
    text = pack_words(pieces)
    slots = 1 << max(4, int(2 * len(text.characters)).bit_length())
    keys = np.full(slots, _EMPTY)
    children = np.zeros(slots, np.int32)
    piece_of_node = np.full(len(text.characters) + 1, -1, np.int32)
    num_nodes = _fill_trie(text.characters, text.offsets, keys, children, piece_of_node)
    return Trie(keys, children, piece_of_node[:num_nodes].copy())


def expected_counts(
    trie: Trie, log_probs: np.ndarray, text: Text, weights: np.ndarray, unknown_log_prob: float
) -> tuple[np.ndarray, float]:
    """E-step: how often each piece is expected in `text` under the unigram model.

    Args:
      trie: the pieces.
      log_probs: [V] natural-log probability of each piece.
      text: the words.
      weights: [N] float64 count of each word.
      unknown_log_prob: price of a single character that is no piece.

    Returns:
      The expected counts [V] float64, and the log-likelihood of the weighted words in nats.
    """
    return _forward_backward(
        trie.keys,
        trie.children,
        trie.piece_of_node,
        np.asarray(log_probs, np.float64),
        text.characters,
        text.offsets,
        np.asarray(weights, np.float64),
        unknown_log_prob,
    )


@numba.njit(cache=True)
def _slot(keys, key):
    """Slot of `key` in the hash, or the free slot where it belongs."""
    mask = np.uint64(len(keys) - 1)
    spread = np.uint64(key) * np.uint64(0x9E3779B97F4A7C15)
    slot = (spread >> np.uint64(32)) & mask
    while keys[slot] != key and keys[slot] != -1:
        slot = (slot + np.uint64(1)) & mask
    return slot


@numba.njit(cache=True)
def _fill_trie(characters, offsets, keys, children, piece_of_node):
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
def _log_add(a, b):
    if a < b:
        a, b = b, a
    return a if b == -np.inf else a + np.log1p(np.exp(b - a))


@numba.njit(cache=True)
def _forward_backward(
    keys, children, piece_of_node, log_probs, characters, offsets, weights, unknown_log_prob
):
    counts = np.zeros(len(log_probs))
    longest = 0
    for word in range(len(offsets) - 1):
        longest = max(longest, offsets[word + 1] - offsets[word])
    # forward[i]: log probability of the first i characters; backward[i]: of those from i on.
    forward = np.empty(longest + 1)
    backward = np.empty(longest + 1)
    log_likelihood = 0.0
    for word in range(len(offsets) - 1):
        begin, length = offsets[word], offsets[word + 1] - offsets[word]
        for i in range(length + 1):
            forward[i] = -np.inf
            backward[i] = -np.inf
        forward[0] = 0.0
        backward[length] = 0.0
        for start in range(length - 1, -1, -1):
            node, single = 0, False
            for end in range(start, length):
                key = (np.int64(node) << _CHARACTER_BITS) | characters[begin + end]
                slot = _slot(keys, key)
                if keys[slot] == -1:
                    break
                node = children[slot]
                piece = piece_of_node[node]
                if piece >= 0:
                    single = single or end == start
                    arc = log_probs[piece] + backward[end + 1]
                    backward[start] = _log_add(backward[start], arc)
            if not single:
                arc = unknown_log_prob + backward[start + 1]
                backward[start] = _log_add(backward[start], arc)
        total = backward[0]
        log_likelihood += weights[word] * total
        for start in range(length):
            node, single = 0, False
            for end in range(start, length):
                key = (np.int64(node) << _CHARACTER_BITS) | characters[begin + end]
                slot = _slot(keys, key)
                if keys[slot] == -1:
                    break
                node = children[slot]
                piece = piece_of_node[node]
                if piece >= 0:
                    single = single or end == start
                    arc = forward[start] + log_probs[piece]
                    counts[piece] += weights[word] * np.exp(arc + backward[end + 1] - total)
                    forward[end + 1] = _log_add(forward[end + 1], arc)
            if not single:
                arc = forward[start] + unknown_log_prob
                forward[start + 1] = _log_add(forward[start + 1], arc)
    return counts, log_likelihood
