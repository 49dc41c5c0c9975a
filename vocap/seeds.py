"""Seed pieces of unigram training, and their occurrences in the text.

SentencePiece's seeds are the substrings that occur at least twice, before at least two different
bytes. A suffix array over the UTF-8 bytes of the sentences finds them. The sort here takes the
suffixes of distinct script runs, weighted by their counts. A seed is a range of sorted suffixes, so
its occurrences are known without a trie.

SentencePiece 0.2.3 differs in three details. It counts the suffixes of the last sentence twice if
they end a sentence, so its seeds depend on sentence order. After a run before an uncovered
character, it sees the first byte of the replacement, a block character. It compares coverage in
single precision, so at a coverage of 1 it loses the rarest characters of a larger text.
"""

import dataclasses
from collections.abc import Iterable

import numba
import numpy as np

from vocap.lattice import Lattice, build_trie
from vocap.pretokens import MIXED, PretokenTable, Text, first_byte, pack
from vocap.settings import LENGTH_BITS
from vocap.text_rules import SPACE

_SMALL = 12  # largest range of suffixes for insertion sort
_MAX_CHARACTERS = 2**31 - 1  # positions are int32
_CHARACTERS_AT_ONCE = 1 << 20
_MAX_OPEN_RANGES = 512  # stack size of the sort; see `_sort_suffixes`


@dataclasses.dataclass(frozen=True)
class TrainingText:
    """Runs over the alphabet that a vocabulary must cover; other characters end a run.

    Attributes:
      characters: [C] int32 indices into `alphabet`.
      offsets: [N + 1] int64 start of each run.
      weights: [N] float64 occurrences of each run.
      follow: [N] int16, see `PretokenTable`.
      alphabet: [A] int32 required code points, ascending.
      frequency: [A] float64 occurrences of each required character.
      num_unknown: occurrences of characters outside the alphabet.
    """

    characters: np.ndarray
    offsets: np.ndarray
    weights: np.ndarray
    follow: np.ndarray
    alphabet: np.ndarray
    frequency: np.ndarray
    num_unknown: float


@dataclasses.dataclass(frozen=True)
class Seeds:
    """Candidates for pieces: the alphabet first, then substrings by descending count x length.

    `scores` [P] float64 are occurrences x length. `begins` [P] int64 is one occurrence of each in
    `TrainingText.characters`, `lengths` [P] int32 its characters. `lattice` has all occurrences.
    """

    scores: np.ndarray
    begins: np.ndarray
    lengths: np.ndarray
    lattice: Lattice


def cover(table: PretokenTable, character_coverage: float) -> TrainingText:
    """Require the most frequent characters up to `character_coverage`; cut runs at all others."""
    characters = _Characters(table)
    return characters.cut(characters.required(character_coverage))


def cover_each(
    mixture: PretokenTable, tables: Iterable[PretokenTable], character_coverage: float
) -> TrainingText:
    """Cut a mixture's runs at characters that no language's own text requires, see `cover`."""
    needed: set[int] = set()
    for table in tables:
        own = _Characters(table)
        needed.update(own.alphabet[own.required(character_coverage)].tolist())
    characters = _Characters(mixture)
    return characters.cut(np.flatnonzero(np.isin(characters.alphabet, list(needed))))


class _Characters:
    """The distinct characters of a table: `alphabet` [A], ascending, and their `frequency` [A]."""

    def __init__(self, table: PretokenTable):
        self._table = table = _with_required(table)
        counts = np.repeat(table.counts, np.diff(table.text.offsets))
        self.alphabet, self._inverse = np.unique(table.text.characters, return_inverse=True)
        self.frequency = np.bincount(self._inverse, counts, len(self.alphabet))

    def required(self, character_coverage: float) -> np.ndarray:
        """Return indices, ascending, of the most frequent characters up to the coverage."""
        by_frequency = np.argsort(-self.frequency, kind="stable")
        before = np.concatenate([[0], np.cumsum(self.frequency[by_frequency])])[:-1]
        # In single precision, as SentencePiece compares them.
        reached = (before / max(self.frequency.sum(), 1)).astype(np.float32) >= np.float32(
            character_coverage
        )
        reached &= character_coverage < 1
        always = np.array([ord(one) for one in self._table.required], np.int32)
        reached &= ~np.isin(self.alphabet, always)[by_frequency]
        return np.sort(by_frequency[~reached])

    def cut(self, required: np.ndarray) -> TrainingText:
        table = self._table
        dense = np.full(len(self.alphabet), -1, np.int32)
        dense[required] = np.arange(len(required))
        characters, offsets, run_of_part, follow = _cut(
            dense[self._inverse], table.text.offsets, table.follow, first_byte(ord(SPACE))
        )
        return TrainingText(
            characters=characters,
            offsets=offsets,
            weights=table.counts[run_of_part].astype(np.float64),
            follow=follow,
            alphabet=self.alphabet[required],
            frequency=self.frequency[required],
            num_unknown=self.frequency.sum() - self.frequency[required].sum(),
        )


def _with_required(table: PretokenTable) -> PretokenTable:
    """Add the required characters that the text lacks, as runs that occur once."""
    there = np.unique(table.text.characters)
    missing = sorted(table.required - set(there.astype(np.int32).tobytes().decode("utf-32-le")))
    if not missing:
        return table
    added = pack(missing)
    return dataclasses.replace(
        table,
        text=Text(
            np.concatenate([table.text.characters, added.characters]),
            np.concatenate([table.text.offsets, table.text.offsets[-1] + added.offsets[1:]]),
        ),
        counts=np.concatenate([table.counts, np.ones(len(missing), table.counts.dtype)]),
        follow=np.concatenate([table.follow, np.zeros(len(missing), table.follow.dtype)]),
    )


def match_seeds(text: TrainingText, pieces: Iterable[str]) -> Seeds:
    """Take the alphabet and given pieces, which occur in the text, as the seeds."""
    alphabet = text.alphabet.tobytes().decode("utf-32-le")
    longer = [piece for piece in pieces if len(piece) > 1]
    strings = Text(text.alphabet[text.characters], text.offsets)
    lattice = build_trie([*alphabet, *longer]).match(strings)
    lengths = np.fromiter(map(len, (*alphabet, *longer)), np.int32)
    weights = np.repeat(text.weights, np.diff(text.offsets))
    counts, begins = np.zeros(len(lengths)), np.zeros(len(lengths), np.int64)
    # Backwards, so that the first occurrence stays; in parts, to save memory.
    for end in range(len(weights), 0, -_CHARACTERS_AT_ONCE):
        first = max(end - _CHARACTERS_AT_ONCE, 0)
        arcs = lattice.arcs[lattice.begins[first] : lattice.begins[end]] >> LENGTH_BITS
        position = np.repeat(np.arange(first, end), np.diff(lattice.begins[first : end + 1]))
        begins[arcs[::-1]] = position[::-1]
        counts += np.bincount(arcs, weights[position], len(counts))
    scores = counts * lengths
    return Seeds(scores, begins, lengths, lattice)


def find_seeds(text: TrainingText, max_length: int, max_seeds: int) -> Seeds:
    """Find up to `max_seeds` seeds of up to `max_length` characters.

    Raise ValueError if the text has more than 2^31 - 1 characters.
    """
    if len(text.characters) > _MAX_CHARACTERS:
        raise ValueError(
            f"the distinct script runs of one training have {len(text.characters):,} characters, "
            f"must have at most {_MAX_CHARACTERS:,}; set vocab.max_characters to that or less (0 "
            "is all)"
        )
    run_of = np.repeat(np.arange(len(text.weights), dtype=np.int32), np.diff(text.offsets))
    remaining = np.minimum(text.offsets[1:][run_of] - np.arange(len(run_of)), max_length + 1)
    remaining = remaining.astype(np.int8)
    suffixes = _sort_suffixes(text.characters, remaining, len(text.alphabet), max_length + 1)
    common = _common_prefixes(text.characters, remaining, suffixes, max_length + 1)
    cumulative = np.concatenate([[0.0], np.cumsum(text.weights[run_of[suffixes]])])
    bytes_of = np.array([first_byte(c) for c in text.alphabet.tolist()], np.int16)
    first, last, depth = _branching(
        text.characters, remaining, run_of, text.follow, bytes_of,
        suffixes, common, cumulative, max_length,
    )  # fmt: skip
    scores = (cumulative[last + 1] - cumulative[first]) * depth
    sizes = np.array([len(chr(c).encode()) for c in text.alphabet.tolist()])
    byte_ends = np.concatenate([[0], np.cumsum(sizes[text.characters])])
    num_bytes = byte_ends[suffixes[first] + depth] - byte_ends[suffixes[first]]
    # Ties go to the longer piece, then to the lower in bytes, the order of the ranges.
    order = np.lexsort((-num_bytes, -scores))[:max_seeds]
    first, last, depth = first[order], last[order], depth[order]

    size = len(text.alphabet)
    begin_of_character = np.zeros(size, np.int64)
    begin_of_character[text.characters[::-1]] = np.arange(len(text.characters))[::-1]
    shortest_first = np.argsort(depth, kind="stable")
    begins, arcs = _arcs(text.characters, suffixes, first, last, depth, shortest_first, size)
    return Seeds(
        scores=np.concatenate([text.frequency, scores[order]]),
        begins=np.concatenate([begin_of_character, suffixes[first]]),
        lengths=np.concatenate([np.ones(size, np.int32), depth]),
        lattice=Lattice(text.offsets, begins, arcs),
    )


def piece_strings(text: TrainingText, begins: np.ndarray, lengths: np.ndarray) -> list[str]:
    """Return the pieces of `lengths` at `begins`, as strings."""
    decoded = text.alphabet[text.characters].tobytes().decode("utf-32-le")
    return [
        decoded[begin : begin + length]
        for begin, length in zip(begins.tolist(), lengths.tolist(), strict=True)
    ]


@numba.njit(cache=True)
def _cut(dense, offsets, follow, byte_of_unknown):
    """Cut runs at characters of index -1; return characters, offsets, run of each part, follow.

    SentencePiece replaces unknown characters by a block, whose first byte equals that of a space.
    """
    characters = np.empty(len(dense), np.int32)
    parts = np.empty(len(dense) + 1, np.int64)
    run_of_part = np.empty(len(dense), np.int64)
    follow_of_part = np.empty(len(dense), np.int16)
    size, num_parts = 0, 0
    parts[0] = 0
    for run in range(len(offsets) - 1):
        for i in range(offsets[run], offsets[run + 1]):
            if dense[i] >= 0:
                characters[size] = dense[i]
                size += 1
            at_end = i + 1 == offsets[run + 1]
            if size > parts[num_parts] and (at_end or dense[i + 1] < 0):
                run_of_part[num_parts] = run
                follow_of_part[num_parts] = follow[run] if at_end else byte_of_unknown
                num_parts += 1
                parts[num_parts] = size
    return (
        characters[:size].copy(),
        parts[: num_parts + 1].copy(),
        run_of_part[:num_parts].copy(),
        follow_of_part[:num_parts].copy(),
    )


@numba.njit(cache=True)
def _at(characters, remaining, suffix, depth):
    """Return the character of a suffix at `depth`, or -1 after the end of its run."""
    return characters[suffix + depth] if depth < remaining[suffix] else -1


@numba.njit(cache=True)
def _insertion_sort(characters, remaining, suffixes, begin, end, depth, max_depth):
    for i in range(begin + 1, end):
        suffix = suffixes[i]
        j = i
        while j > begin:
            other = suffixes[j - 1]
            d = depth
            a = b = -1
            while d < max_depth:
                a, b = _at(characters, remaining, suffix, d), _at(characters, remaining, other, d)
                if a != b or a == -1:
                    break
                d += 1
            if a >= b:
                break
            suffixes[j] = other
            j -= 1
        suffixes[j] = suffix


@numba.njit(cache=True)
def _partition(characters, remaining, suffixes, begin, end, depth):
    """Partition suffixes by a median character at `depth`, which ends up in [low, high)."""
    a = _at(characters, remaining, suffixes[begin], depth)
    b = _at(characters, remaining, suffixes[(begin + end) // 2], depth)
    c = _at(characters, remaining, suffixes[end - 1], depth)
    pivot = max(min(a, b), min(max(a, b), c))
    low, i, high = begin, begin, end
    while i < high:
        here = _at(characters, remaining, suffixes[i], depth)
        if here < pivot:
            suffixes[low], suffixes[i] = suffixes[i], suffixes[low]
            low += 1
            i += 1
        elif here > pivot:
            high -= 1
            suffixes[high], suffixes[i] = suffixes[i], suffixes[high]
        else:
            i += 1
    return low, high, pivot


@numba.njit(cache=True)
def _push(stack, size, bottom, begin, end, depth):
    """Push a range of a partition, the largest lowest on the stack; return the new size."""
    i = size
    while i > bottom and stack[i - 1, 1] - stack[i - 1, 0] < end - begin:
        stack[i, 0], stack[i, 1], stack[i, 2] = stack[i - 1, 0], stack[i - 1, 1], stack[i - 1, 2]
        i -= 1
    stack[i, 0], stack[i, 1], stack[i, 2] = begin, end, depth
    return size + 1


@numba.njit(cache=True)
def _sort_suffixes(characters, remaining, alphabet_size, max_depth):
    """Sort positions by the text from there on, up to `max_depth` characters within the run.

    Counting sort by the first character, then three-way quicksort by one character after another.
    """
    counts = np.zeros(alphabet_size + 1, np.int64)
    for c in characters:
        counts[c + 1] += 1
    bucket = np.cumsum(counts)
    fill = bucket.copy()
    suffixes = np.empty(len(characters), np.int32)
    for i in range(len(characters)):
        suffixes[fill[characters[i]]] = i
        fill[characters[i]] += 1
    # Open ranges (begin, end, depth). The largest part of a partition comes last, so that the depth
    # of the stack is logarithmic in the size of the text.
    stack = np.empty((_MAX_OPEN_RANGES, 3), np.int64)
    for c in range(alphabet_size):
        stack[0, 0], stack[0, 1], stack[0, 2] = bucket[c], bucket[c + 1], 1
        size = 1
        while size:
            size -= 1
            begin, end, depth = stack[size, 0], stack[size, 1], stack[size, 2]
            if end - begin <= 1 or depth >= max_depth:
                continue
            if end - begin <= _SMALL:
                _insertion_sort(characters, remaining, suffixes, begin, end, depth, max_depth)
                continue
            low, high, pivot = _partition(characters, remaining, suffixes, begin, end, depth)
            bottom = size
            size = _push(stack, size, bottom, begin, low, depth)
            size = _push(stack, size, bottom, high, end, depth)
            if pivot >= 0:
                size = _push(stack, size, bottom, low, high, depth + 1)
    return suffixes


@numba.njit(cache=True)
def _common_prefixes(characters, remaining, suffixes, max_depth):
    """Return [C + 1], the common characters of adjacent suffixes; 0 at both ends."""
    common = np.zeros(len(suffixes) + 1, np.int8)
    for i in range(1, len(suffixes)):
        a, b = suffixes[i - 1], suffixes[i]
        limit = min(max_depth, remaining[a], remaining[b])
        depth = 0
        while depth < limit and characters[a + depth] == characters[b + depth]:
            depth += 1
        common[i] = depth
    return common


@numba.njit(cache=True)
def _bytes_differ(
    characters, remaining, run_of, follow, bytes_of, suffixes, first, last, depth
):  # fmt: skip
    """Return whether different bytes follow the common prefix (`depth`) of a range of suffixes."""
    low, high = 1000, -1
    i = first
    # Suffixes that end here come first.
    while i <= last and remaining[suffixes[i]] == depth:
        byte = follow[run_of[suffixes[i]]]
        if byte == MIXED:
            return True
        low, high = min(low, byte), max(high, byte)
        i += 1
    if i <= last:
        low = min(low, bytes_of[characters[suffixes[i] + depth]])
        high = max(high, bytes_of[characters[suffixes[last] + depth]])
    return low != high


@numba.njit(cache=True)
def _branching(
    characters, remaining, run_of, follow, bytes_of, suffixes, common, cumulative, max_length
):
    """Find ranges [first, last] of suffixes whose common prefix is a seed, and its length.

    The ranges of equal prefixes form a tree; a stack holds the open ones.
    """
    # Each whole suffix and each inner range may be a seed; a tree has fewer of these than leaves.
    firsts = np.empty(2 * len(suffixes), np.int32)
    lasts = np.empty(2 * len(suffixes), np.int32)
    depths = np.empty(2 * len(suffixes), np.int32)
    found = 0
    open_first = np.zeros(max_length + 3, np.int64)
    open_depth = np.zeros(max_length + 3, np.int64)
    top = 0
    for i in range(1, len(suffixes) + 1):
        first = i - 1
        # The end of a run that is no other suffix's prefix, but occurs several times.
        length = remaining[suffixes[first]]
        if (
            2 <= length <= max_length
            and max(common[first], common[i]) < length
            and follow[run_of[suffixes[first]]] == MIXED
            and cumulative[i] - cumulative[first] >= 2
        ):
            firsts[found], lasts[found], depths[found] = first, first, length
            found += 1
        while common[i] < open_depth[top]:
            first, depth = open_first[top], open_depth[top]
            top -= 1
            if (
                2 <= depth <= max_length
                and cumulative[i] - cumulative[first] >= 2
                and _bytes_differ(
                    characters, remaining, run_of, follow, bytes_of, suffixes, first, i - 1, depth
                )
            ):
                firsts[found], lasts[found], depths[found] = first, i - 1, depth
                found += 1
        if common[i] > open_depth[top]:
            top += 1
            open_first[top], open_depth[top] = first, common[i]
    return firsts[:found].copy(), lasts[:found].copy(), depths[:found].copy()


@numba.njit(cache=True)
def _arcs(characters, suffixes, first, last, depth, shortest_first, num_characters):
    """Build the lattice of single characters (arc 0 of each position) and seeds, shorter first."""
    begins = np.zeros(len(characters) + 1, np.int64)
    for seed in range(len(first)):
        for i in range(first[seed], last[seed] + 1):
            begins[suffixes[i] + 1] += 1
    for i in range(len(characters)):
        begins[i + 1] += begins[i] + 1
    arcs = np.empty(begins[-1], np.uint32)
    fill = begins[:-1].copy()
    for i in range(len(characters)):
        arcs[fill[i]] = np.uint32(characters[i]) << np.uint32(LENGTH_BITS)
        fill[i] += 1
    for seed in shortest_first:
        arc = np.uint32((num_characters + seed) << LENGTH_BITS | (depth[seed] - 1))
        for i in range(first[seed], last[seed] + 1):
            arcs[fill[suffixes[i]]] = arc
            fill[suffixes[i]] += 1
    return begins, arcs
