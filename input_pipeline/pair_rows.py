"""Rows of sentence pairs, L tokens each, written once and read on demand.

A row holds pairs of one set and one language pair, each as `<s> a </s> </s> b </s>`. The pairs of a
row come from 1,024 neighbours in the set. So a batch has few sentences of one document, and reads
stay local: the stream permutes rows and blocks of them, not pairs. Per part of a set,
`<set>.pairs.npy` has the sentence numbers of all language pairs in the order of the rows,
`<set>.rows.npy` the end of each row in it. Both are uint32, or uint64 beyond 2^32 entries. The
processes of a host share the page cache of these files.
"""

import bisect
import collections
import contextlib
import functools
import itertools
import pathlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from input_pipeline import manifest
from input_pipeline.array_files import array_file, close_files
from input_pipeline.order import hashed
from input_pipeline.packed_dataset import (
    PackedDataset,
    PairCounts,
    TokenizedSentences,
    pair_paths,
    read_column,
)

NUM_SPECIALS = 4
# A row takes pairs from a window of this many tokens over L: at 512 tokens, 256 pairs.
_WINDOW_TOKENS = 1 << 17
_TOKENS_A_PAIR = 8  # at least; bounds the pairs of a row
_SENTENCES_AT_ONCE = 1 << 16
_MIXED_SENTENCES = 1 << 10


def pack(sizes: Iterable[tuple[int, int]], length: int) -> Iterator[list[int]]:
    """Yield rows, lists of pair numbers, from the (number, tokens) `sizes` of pairs in order.

    A row takes the next pairs as long as they fit, then the longest of the window that fit. No
    pair may have more than `length` tokens.
    """
    window, most = max(_WINDOW_TOKENS // length, 1), max(length // _TOKENS_A_PAIR, 1)
    source, waiting = iter(sizes), dict[int, int]()
    queues = [collections.deque[int]() for _ in range(length + 1)]
    lengths = 0  # bit n: a pair of n tokens waits

    def refill() -> None:
        nonlocal lengths
        for number, size in itertools.islice(source, window - len(waiting)):
            waiting[number] = size
            queues[size].append(number)
            lengths |= 1 << size

    refill()
    while waiting:
        row, room, in_order = list[int](), length, True
        while waiting and len(row) < most:
            size = waiting[next(iter(waiting))] if in_order else 0
            in_order = 0 < size <= room
            if not in_order:
                size = (lengths & ((2 << room) - 1)).bit_length() - 1
                if size < 0:
                    break
            # The first of equal sizes: the next pair, if it has this size.
            row.append(number := queues[size].popleft())
            if not queues[size]:
                lengths ^= 1 << size
            del waiting[number]
            room -= size
        yield row
        refill()


def write_rows(
    folder: pathlib.Path, languages: Sequence[str], length: int, name: str, part: int = 0,
    num_parts: int = 1,
) -> list[PairCounts]:  # fmt: skip
    """Write the rows of `length` tokens of a part of a set, whose columns lie in `folder`.

    Return languages a < b, pairs and rows of each language pair, in the order of the files.
    """
    columns = {one: read_column(folder, name, one, part, num_parts) for one in sorted(languages)}
    pairs = list(itertools.combinations(columns, 2))
    most = len(pairs) * max(len(one.ends) for one in columns.values())
    dtype = np.uint32 if most < 1 << 32 else np.uint64
    found: list[PairCounts] = []
    with contextlib.ExitStack() as stack:
        stack.callback(close_files)
        numbers, ends = (
            stack.enter_context(array_file(path, (), dtype))
            for path in pair_paths(folder, name, part, num_parts)
        )
        for one, two in pairs:
            before = numbers.length, ends.length
            rows = pack(_sizes(columns[one], columns[two], length), length)
            while some := list(itertools.islice(rows, _SENTENCES_AT_ONCE)):
                ends.append(numbers.length + np.cumsum([len(row) for row in some]))
                numbers.append(np.fromiter(itertools.chain.from_iterable(some), np.uint64))
            counts = numbers.length - before[0], ends.length - before[1]
            if counts[0]:
                found.append((one, two, *counts))
    return found


def _sizes(
    one: TokenizedSentences, two: TokenizedSentences, length: int
) -> Iterator[tuple[int, int]]:
    """Yield number and tokens, at most `length`, of the sentences that both columns have.

    Neighbours are mixed, so that sentences of a document do not share a row.
    """
    for first in range(0, len(one.ends), _SENTENCES_AT_ONCE):
        stop = min(first + _SENTENCES_AT_ONCE, len(one.ends))
        lengths = np.diff([column.bounds(first, stop) for column in (one, two)])
        there = np.flatnonzero(lengths.all(axis=0))
        sizes = np.minimum(lengths[:, there].sum(axis=0) + NUM_SPECIALS, length)
        order = mixed(first + there)
        yield from zip((first + there)[order].tolist(), sizes[order].tolist(), strict=True)


def mixed(numbers: np.ndarray) -> np.ndarray:
    """Return an order of sentences [n] whose neighbours lie at most 1,023 apart."""
    return np.lexsort((hashed(numbers, 0), numbers // _MIXED_SENTENCES))


@functools.lru_cache(maxsize=2)
def parts_of(
    dataset: PackedDataset,
) -> Mapping[tuple[str, tuple[str, str]], Sequence[tuple[int, int, int, int]]]:
    """Return part, first row in its file, rows and pairs, by set and language pair."""
    found = collections.defaultdict[Any, list[tuple[int, int, int, int]]](list)
    for name, parts in dataset.pairs.items():
        for number, counts in enumerate(parts):
            before = 0
            for one, two, num_pairs, num_rows in counts:
                found[name, (one, two)].append((number, before, num_rows, num_pairs))
                before += num_rows
    return dict(found)


class PairRows:
    """Rows of a language pair of a set, [rows, L] ids, read on demand."""

    def __init__(self, dataset: PackedDataset, name: str, pair: tuple[str, str]):
        self._dataset, self.name, self.pair = dataset, name, pair
        self.dtype = manifest.id_dtype(dataset.vocab_size)
        self._parts = parts_of(dataset).get((name, pair), ())
        self._ends = list(itertools.accumulate(rows for _, _, rows, _ in self._parts))
        self.num_pairs = sum(pairs for *_, pairs in self._parts)

    def __len__(self) -> int:
        return self._ends[-1] if self._ends else 0

    def read(self, first: int, stop: int) -> np.ndarray:
        """Read consecutive rows; raise ValueError if files contradict each other."""
        found = [self._of_part(*one) for one in self._ranges(first, stop)]
        return found[0] if len(found) == 1 else np.concatenate(found)

    def entry(self, number: int) -> np.ndarray:
        """Read one row."""
        return self.read(number, number + 1)[0]

    def damaged(self, number: int) -> ValueError:
        """Return the error for a row that was read without one, but has no ids now."""
        return ValueError(f"row {number} of {self.name} has changed in memory: check the memory")

    def _ranges(self, first: int, stop: int) -> Iterator[tuple[int, int, int]]:
        """Yield part, first row and end in the part's file of consecutive rows."""
        place = bisect.bisect_right(self._ends, first)
        while first < stop:
            part, shift, *_ = self._parts[place]
            shift -= self._ends[place - 1] if place else 0
            end = min(stop, self._ends[place])
            yield part, first + shift, end + shift
            first, place = end, place + 1

    def _of_part(self, part: int, first: int, stop: int) -> np.ndarray:
        dataset, length = self._dataset, self._dataset.length
        of_pairs, of_rows = dataset.pair_files(self.name, part)
        ends = of_rows.read(max(first - 1, 0), stop).astype(np.int64)
        ends = ends if first else np.append(0, ends)
        numbers = of_pairs.read(int(ends[0]), int(ends[-1])).astype(np.int64)
        columns = [dataset.bitext(self.name, language, part) for language in self.pair]
        is_whole = len(numbers) > 0 and numbers.max() < min(len(one.ends) for one in columns)
        (ids, begins, one), (others, other_begins, two) = (
            column.gather(numbers) if is_whole else (numbers, numbers, numbers)
            for column in columns
        )
        one, two = cut_lengths(one, two, length)
        sizes = one + two + NUM_SPECIALS
        places = np.cumsum(sizes) - sizes
        row = np.repeat(np.arange(stop - first), counts := np.diff(ends))
        places += row * length - np.repeat(places[ends[:-1] - ends[0]], counts)
        if not is_whole or counts.min() < 1 or (places + sizes > (row + 1) * length).any():
            raise ValueError(
                f"{dataset.folder}: rows {first} to {stop} of {self.name} {'-'.join(self.pair)} do "
                f"not fit its sentences; the files are damaged: {manifest.remedy(dataset.folder)}"
            )
        found = np.full((stop - first) * length, dataset.special.pad, self.dtype)
        found[places] = dataset.special.bos
        for end in (places + one + 1, places + one + 2, places + sizes - 1):
            found[end] = dataset.special.eos
        for start, source, begin, lengths in (
            (places + 1, ids, begins, one), (places + one + 3, others, other_begins, two),
        ):  # fmt: skip
            found[ranges(start, lengths)] = source[ranges(begin, lengths)]
        return found.reshape(-1, length)


def ranges(starts: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """Return the numbers of ranges [n] of `lengths` from `starts` on, concatenated."""
    before = np.cumsum(lengths) - lengths
    return np.repeat(starts - before, lengths) + np.arange(lengths.sum())


def cut_lengths(one: np.ndarray, two: np.ndarray, length: int) -> tuple[np.ndarray, np.ndarray]:
    """Cut lengths [n] of pairs of sentences to fit a row, the longer sentence first."""
    room = length - NUM_SPECIALS
    kept = np.minimum(one, np.maximum(room - two, room // 2))
    return kept, np.minimum(two, room - kept)
