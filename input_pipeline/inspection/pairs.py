"""Rules for parallel text: `xlm inspect` counts the pairs that `corpus.clean_pairs` takes.

Rules compare each cell with the pivot's cell of its row: English, else the first column. All rules
see the whole text, so each takes the same pairs with and without others. The text is read once, and
again for examples. Memory holds some numbers for each of `_MOST_CELLS` cells at a time. Repeated
rows, hubs and usual lengths are those of so many cells.
"""

import dataclasses
import functools
import itertools
import unicodedata
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from input_pipeline.inspection import characters as ch
from input_pipeline.inspection import files, scanning, tallies
from input_pipeline.inspection import language_identification as identification
from input_pipeline.inspection.scanning import jit
from input_pipeline.sources import PAIR_RULES, ParallelSource, Row

KINDS = (*PAIR_RULES, "end_marks", "misaligned")  # the last two drop nothing
_BITS = {name: 1 << i for i, name in enumerate((*KINDS, "is_own"))}
_ROWS = 4096  # of a block
_MOST_CELLS = 1 << 23
_SAMPLE_CHARACTERS = 1 << 20  # of a language, for the language identification
_LEAST_LETTERS = 12  # of a copy: shorter ones are names and greetings
_EDITS = 0.2  # of a near copy, per letter of the longer cell, among the first 64 letters
# A length is untypical beyond so many robust standard deviations, and a factor.
_DEVIATIONS, _FACTOR, _SMOOTHING = 4.5, 2.2, 5.0
_HUB = 10  # distinct translations, at least
_MARKS = {"?？؟⸮፧": 1, ".。।։۔።…": 2}
_WINDOW, _SHIFTS = 40, (-2, -1, 1, 2)  # rows of a run that is compared by its lengths
_MIX = np.int64(0x2127599BF4325C37)
_SHOWN = 120  # characters

# A cell: digest of its text, 0 if it is empty; characters; bytes; `_BITS`.
_CELL = np.dtype([("digest", "i8"), ("length", "i4"), ("size", "i4"), ("bits", "u2")])


class Column(NamedTuple):
    """The cells of a column in a block of rows, [n] each.

    `line` is the number of a cell among the cells that are not empty. `normal` is a digest of
    lower-case letters and digits. `numbers` has seven bits for the count of each digit 1 to 9,
    `mark` is a class of `_MARKS`.
    """

    codes: np.ndarray
    lines: np.ndarray
    there: np.ndarray
    line: np.ndarray
    normal: np.ndarray
    numbers: np.ndarray
    mark: np.ndarray

    def of(self, field: str) -> np.ndarray:
        return np.where(self.there, np.append(self.lines[field], 0)[self.line], 0)


@functools.cache
def _tables() -> tuple[np.ndarray, np.ndarray]:
    """Value of each digit plus one, and class of each sign that ends a sentence."""
    digits, marks = np.zeros(ch.NUM_CODES, np.uint8), np.zeros(ch.NUM_CODES, np.uint8)
    for code in np.flatnonzero(ch.tables().kinds & ch.DIGIT):
        digits[code] = unicodedata.digit(chr(code)) + 1
    for signs, number in _MARKS.items():
        marks[[ord(one) for one in signs]] = number
    return digits, marks


@jit
def _describe(codes, lines, lower, digits, marks, normal, numbers, mark):
    for n in range(len(lines)):
        one = hashed = np.int64(0)
        bag = np.int64(0)
        for i in range(lines[n]["start"], lines[n]["end"]):
            digit = digits[codes[i]]
            one = np.int64(digit if digit else abs(lower[codes[i]]))
            if one:
                hashed = (hashed ^ one) * _MIX
                hashed ^= hashed >> 29 & 0x7FFFFFFFF
            if digit > 1:
                bag += np.int64(1) << 7 * (digit - 2)
        normal[n], numbers[n] = hashed, bag
        for i in range(lines[n]["end"] - 1, max(lines[n]["end"] - 4, lines[n]["start"] - 1), -1):
            if marks[codes[i]] or lower[codes[i]] or digits[codes[i]]:
                is_ka = marks[codes[i]] == 2 and i > lines[n]["start"] and codes[i - 1] == 0x304B
                mark[n] = 1 if is_ka else marks[codes[i]]
                break


def column_of(cells: Sequence[str]) -> Column:
    tables, there = ch.tables(), np.array([*map(bool, cells)])
    codes = scanning.code_points("\n".join(filter(None, cells)))
    lines = np.zeros(int(there.sum()) + 1, scanning.LINE)
    count, _ = scanning.find_lines(
        codes, tables.kinds, tables.scripts, lines, np.zeros(256, np.int64),
        np.zeros(8, np.int64), True,
    )  # fmt: skip
    found = np.zeros((3, count + 1), np.int64)
    _describe(codes, lines[:count], tables.lower, *_tables(), *found)
    line = np.where(there, np.cumsum(there) - 1, count)
    return Column(codes, lines[:count], there, line, *found[:, line])


class Languages(NamedTuple):
    """Language identification of all columns; `is_told` [own, other]: it can distinguish them."""

    identifier: identification.Identifier
    is_told: np.ndarray


def learn_languages(found: Sequence[ParallelSource]) -> Languages:
    """Fit to the first rows of all sources."""
    cells: dict[str, list[str]] = {one: [] for s in found for one in s.languages}
    count = {one: sum(one in s.languages for s in found) for one in cells}
    for source in found:
        room = {one: _SAMPLE_CHARACTERS // count[one] for one in source.languages}
        for row in filter(None, source.rows()):
            for language, cell in zip(source.languages, row, strict=True):
                if room[language] > 0:
                    room[language] -= len(cell)
                    cells[language].append(cell)
            if max(room.values()) <= 0:
                break
    samples = {one: column_of(cells[one])[:2] for one in sorted(cells)}
    fitted = identification.fit(samples)
    is_told = np.zeros((len(samples),) * 2, bool)
    for own, (codes, lines) in enumerate(samples.values()):
        judged, foreign = fitted.judge(codes, lines, own)
        number = np.bincount(foreign[foreign >= 0], minlength=len(samples))
        is_told[own] = number > 3 * fitted.expected[own] * judged.sum()
    return Languages(fitted, is_told)


@jit
def _letters(codes, start, end, lower, found):
    size = 0
    for i in range(start, end):
        if lower[codes[i]] and size < len(found):
            found[size] = abs(lower[codes[i]]) & 1023
            size += 1
    return size


@jit
def _near_copies(codes, starts, ends, others, other_starts, other_ends, lower, rows, is_near):
    """Find pairs of cells with few edits, 64 rows of the table at once (Myers 1999)."""
    one, two = np.empty(64, np.int64), np.empty(64, np.int64)
    places = np.zeros(1024, np.uint64)
    bit = np.uint64(1)
    for n in rows:
        size = _letters(codes, starts[n], ends[n], lower, one)
        other_size = _letters(others, other_starts[n], other_ends[n], lower, two)
        for i in range(size):
            places[one[i]] |= bit << np.uint64(i)
        more, less, edits, last = ~np.uint64(0), np.uint64(0), size, bit << np.uint64(size - 1)
        most = np.int64(_EDITS * max(size, other_size))
        for j in range(other_size):
            if edits - (other_size - j) > most:  # a letter saves one edit at most
                break
            same = places[two[j]]
            across = (((same & more) + more) ^ more) | same
            rises, falls = less | ~(across | more), more & across
            edits += (rises & last != 0) - (falls & last != 0)
            rises, falls = rises << bit | bit, falls << bit
            less, more = rises & (same | less), falls | ~(same | less | rises)
        is_near[n] = edits <= most
        for i in range(size):
            places[one[i]] = 0


@dataclasses.dataclass
class Examined:
    """Defects of a source, by column: pairs of it and the pivot.

    Attributes:
      pivot: column that the others are compared with; it has no pairs of its own.
      pairs: [columns]; the chosen rules take `taken` of them.
      kinds: defects, in pairs and their bytes.
      is_kept: a bit for each cell, row by row.
      sample: texts of some pairs, the pivot's first.
    """

    pivot: int
    pairs: np.ndarray
    taken: np.ndarray
    kinds: list[dict[str, files.Kind]]
    sample: list[list[tuple[str, str]]]
    is_kept: np.ndarray
    num_rows: int = 0


def examine(
    source: ParallelSource, languages: Languages, rules: Sequence[str], num_sampled: int = 0
) -> Examined:
    """Find the cells that the `rules` take; a row with fewer than two others loses all cells."""
    width = len(source.languages)
    pivot = source.languages.index("en") if "en" in source.languages else 0
    kinds: list[dict[str, files.Kind]] = [{} for _ in source.languages]
    pairs, taken = np.zeros((2, width), np.int64)
    found = Examined(pivot, pairs, taken, kinds, [[] for _ in kinds], np.zeros(0, np.uint8))
    shown: dict[int, list[tuple[list, int]]] = {}  # by row: where its pairs go, and their columns
    own = [languages.identifier.languages.index(one) for one in source.languages]
    rows, kept = filter(None, source.rows()), []
    num_blocks = max(_MOST_CELLS // width // _ROWS, 1)
    while True:
        blocks = (list(itertools.islice(rows, _ROWS)) for _ in range(num_blocks))
        cells = [_cells(some, pivot, own, languages) for some in itertools.takewhile(len, blocks)]
        if not cells:
            break
        table = np.concatenate(cells)
        _mark_rows(table, pivot)
        is_kept = (table["digest"] != 0) & (table["bits"] & sum(_BITS[one] for one in rules) == 0)
        is_kept &= is_kept.sum(1, keepdims=True) > 1
        kept.append(is_kept)
        for number in range(width):
            if number != pivot:
                pair, sides = table[:, [pivot, number]], is_kept[:, [pivot, number]]
                is_pair = (pair["digest"] != 0).all(1)
                found.pairs[number] += is_pair.sum()
                found.taken[number] += (is_pair & ~sides.all(1)).sum()
                _count(found, number, pair, is_pair, shown, num_sampled)
        found.num_rows += len(table)
    found.is_kept = np.packbits(np.concatenate(kept)) if kept else found.is_kept
    for number, row in enumerate(filter(None, source.rows()) if shown else ()):
        for place, column in shown.pop(number, ()):
            place.append((row[pivot], row[column]))
        if not shown:
            break
    for one in kinds:
        for kind in one.values():
            kind.examples = [" ||| ".join(side[:_SHOWN] for side in pair) for pair in kind.examples]
    return found


def _count(
    found: Examined, number: int, pair: np.ndarray, is_pair: np.ndarray,
    shown: dict[int, list[tuple[list, int]]], num_sampled: int,
) -> None:  # fmt: skip
    bits, sizes = pair["bits"][:, 0] | pair["bits"][:, 1], pair["size"].sum(1)
    wanted: list[tuple[int, list[Any]]] = []
    for name in KINDS:
        bit = _BITS[name]
        if len(hits := np.flatnonzero(is_pair & (bits & bit > 0))):
            kind = found.kinds[number].setdefault(name, files.Kind())
            size = int(sizes[hits].sum())
            kind.lines += len(hits)
            kind.bytes = kind.taken = kind.bytes + size
            wanted += [(row, kind.examples) for row in hits[: files.EXAMPLES]]
    if num_sampled and not found.num_rows:
        rows = np.flatnonzero(is_pair)
        _, first = np.unique(_row_digests(pair[rows]), return_index=True)
        wanted += [(row, found.sample[number]) for row in rows[first[:num_sampled]]]
    for row, place in wanted:
        shown.setdefault(found.num_rows + int(row), []).append((place, number))


def _cells(rows: Sequence[Row], pivot: int, own: Sequence[int], languages: Languages) -> np.ndarray:
    """Return `_CELL` [n, columns] with the bits that depend on a single row."""
    columns = [column_of(cells) for cells in zip(*rows, strict=True)]
    table, first = np.zeros((len(rows), len(columns)), _CELL), columns[pivot]
    for number, one in enumerate(columns):
        cells = table[:, number]
        cells["digest"] = one.of("digest") | one.there
        cells["length"], cells["size"] = one.of("end") - one.of("start"), one.of("size")
        marks: dict[str, np.ndarray] = {}
        if (is_told := languages.is_told[own[number]]).any():
            _, foreign = languages.identifier.judge(one.codes, one.lines, own[number])
            is_foreign = (foreign >= 0) & is_told[foreign]
            marks["language"] = one.there & np.append(is_foreign, False)[one.line]
        if number != pivot:
            both = one.there & first.there
            is_long = np.minimum(one.of("letters"), first.of("letters")) >= _LEAST_LETTERS
            marks["copies"] = is_long & (one.normal == first.normal)
            maybe = is_long & ~marks["copies"] & (one.of("script") == first.of("script"))
            near = marks["near_copies"] = np.zeros(len(rows), bool)
            spans = [(c.codes, c.of("start"), c.of("end")) for c in (first, one)]
            _near_copies(*spans[0], *spans[1], ch.tables().lower, np.flatnonzero(maybe), near)
            marks["is_own"] = np.zeros(len(rows), bool)
            if len(copies := np.flatnonzero(near | marks["copies"])):
                lines, models = one.lines[one.line[copies]], languages.identifier.models
                scores, _ = identification.score(one.codes, lines, models, models.shape[2])
                marks["is_own"][copies] = scores[:, own[number]] > scores[:, own[pivot]]
            marks["numbers"] = both & _disagree(first.numbers, one.numbers)
            marks["end_marks"] = both & (one.mark + first.mark == 3)
        for name, chosen in marks.items():
            cells["bits"] |= np.where(chosen, _BITS[name], 0).astype("u2")
    return table


def _disagree(one: np.ndarray, two: np.ndarray) -> np.ndarray:
    """Return whether each side has more of some digit than the other, [n]."""
    counts = [side[:, None] >> np.arange(0, 63, 7) & 127 for side in (one, two)]
    return (counts[0] > counts[1]).max(1) & (counts[0] < counts[1]).max(1)


def _row_digests(table: np.ndarray) -> np.ndarray:
    mixed = (table["digest"] + np.arange(table.shape[1])) * _MIX
    return ((mixed ^ mixed >> 31) * _MIX).sum(1)


def _mark_rows(table: np.ndarray, pivot: int) -> None:
    """Add the bits that depend on all rows together."""
    there = table["digest"] != 0
    table["bits"][tallies.later_copies(_row_digests(table))] |= _BITS["duplicates"]
    for number in range(table.shape[1]):
        # With more than two columns, a pivot has several translations.
        other = pivot if number != pivot else 1 - pivot if table.shape[1] == 2 else number
        if other == number:
            continue
        rows = np.flatnonzero(there[:, number] & there[:, other])
        pair = table[rows][:, [number, other]]
        _, first = np.unique(_row_digests(pair), return_index=True)
        digests, count = np.unique(pair["digest"][first, 0], return_counts=True)
        is_hub = np.isin(pair["digest"][:, 0], digests[count >= _HUB])
        table["bits"][rows[is_hub], number] |= _BITS["hubs"]
        if number == pivot or not len(rows):
            continue
        copies = _BITS["copies"] | _BITS["near_copies"]
        bits = table["bits"][:, number]
        if 2 * np.count_nonzero(bits & copies) < len(rows):  # such as Galician and Portuguese
            bits[bits & _BITS["is_own"] > 0] &= ~np.uint16(copies)
        own, length = pair["length"].T.astype(float)
        root = np.sqrt(np.median(own / length))
        # The ratio of a few characters says little.
        logs = np.log((own / root + _SMOOTHING) / (length * root + _SMOOTHING))
        logs = np.abs(logs - np.median(logs))
        limit = max(_DEVIATIONS * 1.4826 * np.median(logs), np.log(_FACTOR))
        table["bits"][rows[logs > limit], number] |= _BITS["length"]
        table["bits"][rows[_misaligned(np.log(own), np.log(length))], number] |= _BITS["misaligned"]


def _misaligned(one: np.ndarray, two: np.ndarray) -> np.ndarray:
    """Find runs of rows whose lengths agree with those of rows nearby, but not with their own."""
    is_wrong, edge = np.zeros(len(one), bool), max(_SHIFTS)
    padded = np.pad(two, edge, mode="edge")

    def agreement(rows: slice, shift: int) -> np.ndarray:
        sides = one[rows], padded[edge + shift : edge + shift + len(one)][rows]
        windows = [side.reshape(-1, _WINDOW) for side in sides]
        a, b = (side - side.mean(1, keepdims=True) for side in windows)
        return (a * b).sum(1) / np.sqrt(np.maximum((a * a).sum(1) * (b * b).sum(1), 1e-9))

    for start in (0, _WINDOW // 2):
        count = max(len(one) - start, 0) // _WINDOW
        rows = slice(start, start + count * _WINDOW)
        shifted = np.max([agreement(rows, shift) for shift in _SHIFTS], axis=0)
        is_wrong[rows] |= np.repeat((shifted > 0.6) & (agreement(rows, 0) < 0.3), _WINDOW)
    return np.flatnonzero(is_wrong)


_found: dict[tuple, Any] = {}  # of this process: languages, and a bit for each cell of a source


def cleaned(found: Sequence[ParallelSource], rules: tuple[str, ...]) -> list[ParallelSource]:
    """Return the sources; those of `parallel` lose the pairs that the rules take."""
    trained = [one for one in found if one.key == "parallel"]
    # All sources teach the languages.
    states = [
        (one.languages, path, path.stat().st_mtime_ns) for one in trained for path in one.files
    ]

    def known(make: Callable[..., Any], *key: Any) -> Any:
        if (key := (*states, *key)) not in _found:
            _found[key] = make()
        return _found[key]

    def examined(source: ParallelSource) -> Examined:
        languages = known(lambda: learn_languages(trained))
        return known(lambda: examine(source, languages, rules), source.files, rules)

    def rows(source: ParallelSource) -> Iterator[Row]:
        width, bits, place = len(source.languages), examined(source).is_kept, 0
        for row in source.rows():
            if row:
                if not place % _ROWS:
                    first = place * width // 8
                    is_kept = np.unpackbits(bits[first : first + _ROWS * width // 8]).tolist()
                    wanted = zip(*[iter(is_kept)] * width, strict=False)
                row, place = tuple(map(str.__mul__, row, next(wanted))), place + 1
                if not any(row):
                    continue
            yield row

    def taken(source: ParallelSource) -> dict[str, Any]:
        by_language = zip(source.languages, examined(source).kinds, strict=True)
        return {
            language: {name: dataclasses.asdict(kinds[name]) for name in rules if name in kinds}
            for language, kinds in by_language
            if kinds
        }

    return [
        dataclasses.replace(
            one, rows=functools.partial(rows, one), taken=functools.partial(taken, one)
        )
        if one in trained
        else one
        for one in found
    ]
