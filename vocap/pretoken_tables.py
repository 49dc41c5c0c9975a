"""Files of run counts: sorted, mergeable, written with bounded memory.

A table `<lang>.runs.gz` is gzip'ed UTF-8 text. Its first line names the format, the rules of text
and the number of sentences. Then comes one line per distinct run, `run TAB count TAB follow` (see
`pretokens.PretokenTable`), in code point order. No rules leave tabs or line feeds in a run.

Tables of parts of a text merge into the table of the whole text, byte for byte, in any order and
grouping: counts add up, and `follow` becomes `MIXED` if the parts differ.
"""

import array
import contextlib
import gzip
import hashlib
import heapq
import io
import itertools
import math
import os
import pathlib
import re
import shutil
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import BinaryIO, NamedTuple

import numpy as np

from vocap import pretokens
from vocap.text_rules import TextRules
from xlm.common import artifacts, places

Path = str | os.PathLike[str]
Entry = tuple[bytes, int]  # a run in UTF-8, and its packed count; see `pretokens.pack_count`

DEFAULT_MAX_RUNS = 5_000_000

_HEADER = "vocap-runs=1\tnormalizer={}\tsentences={}\n"
_HEADER_PATTERN = re.compile(rb"vocap-runs=1\tnormalizer=([a-z_0-9-]+)\tsentences=([0-9]{1,15})\n")
# A count must fit into 64 bits when packed; follow is at most `pretokens.MIXED`.
_LINE = re.compile(
    rb"([^\t\n]+)\t([1-9][0-9]{0,15})\t(0|[1-9][0-9]?|1[0-9][0-9]|2[0-4][0-9]|25[0-6])\n"
)
# Every writer compresses lines in groups of this size. So equal tables give equal bytes, even with
# a zlib whose output depends on the sizes of the writes.
_LINES_AT_ONCE = 10_000
_DEFAULT_RULES = TextRules().name
_MAX_OPEN_FILES = 64
_PART_COMPRESSION, _COMPRESSION = 1, 6  # of temporary and of final tables
# Runs are short, and text compresses to a fifth. Other files could exhaust memory.
_MAX_LINE_BYTES, _MAX_RATIO, _UNCHECKED_BYTES = 1 << 26, 100, 1 << 26
_BATCH_SENTENCES = 20_000
_BATCH_CHARACTERS = 4_000_000
# Name of a numbered part, with the separators of `input_pipeline.text_files`.
PART = re.compile(r"(.*[-_.])([0-9]+)-of-([0-9]+)\b(.*)")
_HELDOUT = ".heldout.runs.gz"  # end of the name of a table of held-out text
_AGAIN = "copy the file again, or count the text again"


class Header(NamedTuple):
    """First line of a table: number of sentences, and name of the rules (`TextRules.name`)."""

    num_sentences: int
    rules: str = _DEFAULT_RULES


class Size(NamedTuple):
    """Size of a table: sentences and distinct runs."""

    num_sentences: int
    num_runs: int


def write_table(path: Path, table: pretokens.PretokenTable) -> None:
    packed = map(pretokens.pack_count, table.counts.tolist(), table.follow.tolist())
    entries = zip(map(str.encode, table.text.strings()), packed, strict=True)
    with artifacts.atomic_path(path) as aside, aside.open("wb") as file:
        write_entries(file, Header(table.num_sentences, table.rules), entries)


def read_table(path: Path) -> pretokens.PretokenTable:
    """Read a table; raise ValueError, with the line, if it is damaged or of another version."""
    # Growing buffers: lists of Python objects would take several times the table's memory.
    characters, lengths = bytearray(), array.array("q")
    counts, follow = array.array("q"), array.array("h")
    with open(path, "rb") as file:
        header, entries = read_entries(file, str(path))
        while batch := list(itertools.islice(entries, _LINES_AT_ONCE)):
            batch_runs = [run.decode() for run, _ in batch]
            characters += "".join(batch_runs).encode("utf-32-le")
            lengths.extend(map(len, batch_runs))
            for _, value in batch:
                count, following = pretokens.unpack_count(value)
                counts.append(count)
                follow.append(following)
    return pretokens.PretokenTable(
        text=pretokens.Text(
            np.frombuffer(characters, np.int32), np.concatenate([[0], np.cumsum(lengths)])
        ),
        counts=np.frombuffer(counts, np.int64),
        follow=np.frombuffer(follow, np.int16),
        num_sentences=header.num_sentences,
        rules=header.rules,
    )


def merge_tables(paths: Iterable[Path], out: Path) -> Size:
    """Merge tables into one in constant memory; many tables are merged in rounds.

    Files called `NAME-00003-of-00032.runs.gz`, also with `_` or `.` behind NAME, are parts of one
    table. `NAME.heldout.runs.gz` is a table of held-out text. Raise ValueError if there is no
    table, parts are missing, only some tables have held-out text, their rules differ, or one is
    malformed (see `read_table`).
    """
    tables = [places.path(path) for path in paths]
    if not tables:
        raise ValueError("there are no tables to merge")
    _check_parts(tables)
    _check_kinds(tables)
    return _merge_in_rounds(tables, pathlib.Path(out))


def _merge_in_rounds(tables: Sequence[pathlib.Path], out: pathlib.Path) -> Size:
    with _temporary_folder(out) as folder:
        merged = 0
        while len(tables) > _MAX_OPEN_FILES:
            part = folder / f"merged-{merged}"
            _merge(tables[:_MAX_OPEN_FILES], part, _PART_COMPRESSION)
            # Appended, so that each round passes over all tables first.
            tables, merged = [*tables[_MAX_OPEN_FILES:], part], merged + 1
        with artifacts.atomic_path(out) as aside:
            return _merge(tables, aside, _COMPRESSION)


def count_to_table(
    sentences: Iterable[str],
    out: Path,
    max_runs: int = DEFAULT_MAX_RUNS,
    rules: TextRules | None = None,
) -> Size:
    """Count text larger than memory into a table, with about `max_runs` runs in memory at once."""
    with BoundedCounter(out, max_runs, rules) as counter:
        for batch in batches(sentences):
            counter.add(batch)
        return counter.write()


def count_split(
    sentences: Iterable[str],
    heldout: "HeldOut",
    out: Path,
    heldout_out: Path,
    max_runs: int = DEFAULT_MAX_RUNS,
    rules: TextRules | None = None,
) -> tuple[Size, Size]:
    """Count text and its held-out part into separate tables, each with `max_runs` in memory."""
    sides = (enumerate(heldout.split(batch)) for batch in batches(sentences))
    groups = ((part, bool(side)) for split in sides for side, part in split)
    return count_groups(groups, out, heldout_out, max_runs, rules)


def count_groups(
    groups: Iterable[tuple[Sequence[str], bool]],
    out: Path,
    heldout_out: Path,
    max_runs: int = DEFAULT_MAX_RUNS,
    rules: TextRules | None = None,
) -> tuple[Size, Size]:
    """Count groups of sentences, each with whether it is held out, as `count_split` does."""
    waiting: tuple[list[str], list[str]] = ([], [])
    characters = [0, 0]
    with contextlib.ExitStack() as stack:
        kept, aside = (
            stack.enter_context(BoundedCounter(one, max_runs, rules)) for one in (out, heldout_out)
        )
        counters = (kept, aside)
        for sentences, side in groups:
            waiting[side].extend(sentences)
            characters[side] += sum(map(len, sentences))
            if len(waiting[side]) >= _BATCH_SENTENCES or characters[side] >= _BATCH_CHARACTERS:
                counters[side].add(waiting[side])
                waiting[side].clear()
                characters[side] = 0
        for counter, sentences in zip(counters, waiting, strict=True):
            counter.add(sentences)
        heldout_size = aside.write()
        return kept.write(), heldout_size


class BoundedCounter(contextlib.ExitStack):
    """Counter of runs with bounded memory: a context manager with temporary tables beside `out`."""

    def __init__(self, out: Path, max_runs: int, rules: TextRules | None = None) -> None:
        super().__init__()
        if max_runs < 1:
            raise ValueError(f"max_runs is {max_runs}, must be at least 1")
        self._out = pathlib.Path(out)
        self._max_runs = max_runs
        self._rules = rules or TextRules()
        self._counter = pretokens.PretokenCounter(self._rules)
        self._parts: list[pathlib.Path] = []
        self._folder: pathlib.Path | None = None

    def add(self, sentences: Sequence[str]) -> None:
        self._counter.add(sentences)
        if len(self._counter) <= self._max_runs:
            return
        # The counter holds mostly words, many of which may split into the same runs.
        packed = self._counter.packed()
        if len(packed) > self._max_runs // 2:
            self._spill(packed)

    def write(self) -> Size:
        packed = self._counter.packed()
        if self._parts:
            self._spill(packed)
            return _merge_in_rounds(self._parts, self._out)
        with artifacts.atomic_path(self._out) as aside:
            return _write_packed(aside, self._header, packed, _COMPRESSION)

    @property
    def _header(self) -> Header:
        return Header(self._counter.num_sentences, self._rules.name)

    def _spill(self, packed: Mapping[str, int]) -> None:
        if self._folder is None:
            self._folder = self.enter_context(_temporary_folder(self._out))
        part = self._folder / f"counted-{len(self._parts)}"
        _write_packed(part, self._header, packed, _PART_COMPRESSION)
        self._parts.append(part)
        self._counter = pretokens.PretokenCounter(self._rules)


class HeldOut:
    """Choice of the sentences to hold out: a `fraction` in [0, 1) of the distinct normalised ones.

    A hash of the text decides, whatever its position or file, so repetitions share the choice. A
    larger fraction adds to the sentences of a smaller one.
    """

    def __init__(self, fraction: float, seed: int = 0) -> None:
        if not 0 <= fraction < 1:
            raise ValueError(f"heldout_fraction is {fraction}, must be at least 0 and below 1")
        self._limit = math.floor(fraction * 2**64).to_bytes(8, "big")
        self._key = str(seed).encode()
        self._normalize = TextRules().processor().normalize

    def split(self, sentences: Sequence[str]) -> tuple[list[str], list[str]]:
        sides: tuple[list[str], list[str]] = ([], [])
        for sentence, normalized in zip(sentences, self._normalize(list(sentences)), strict=True):
            digest = hashlib.blake2b(normalized.encode(), digest_size=8, key=self._key).digest()
            sides[digest < self._limit].append(sentence)
        return sides


def batches(sentences: Iterable[str]) -> Iterator[list[str]]:
    """Yield batches of a text, large enough for speed and bounded in memory."""
    batch: list[str] = []
    characters = 0
    for sentence in sentences:
        batch.append(sentence)
        characters += len(sentence)
        if len(batch) == _BATCH_SENTENCES or characters >= _BATCH_CHARACTERS:
            yield batch
            batch, characters = [], 0
    if batch:
        yield batch


def write_entries(
    file: BinaryIO, header: Header, entries: Iterable[Entry], compression: int = _COMPRESSION
) -> Size:
    """Write a table's bytes from distinct, ascending `entries`; `compression` is gzip's level."""
    num_runs, remaining = 0, iter(entries)
    # No name and time in the gzip header, so that equal tables give equal bytes.
    with gzip.GzipFile("", "wb", compression, file, mtime=0) as compressed:
        compressed.write(_HEADER.format(header.rules, header.num_sentences).encode())
        while batch := list(itertools.islice(remaining, _LINES_AT_ONCE)):
            lines = [
                b"%b\t%d\t%d\n" % (run, *pretokens.unpack_count(value)) for run, value in batch
            ]
            compressed.write(b"".join(lines))
            num_runs += len(batch)
    return Size(header.num_sentences, num_runs)


def read_entries(file: BinaryIO, name: str) -> tuple[Header, Iterator[Entry]]:
    """Return the header of a table, and an iterator over its entries in order.

    `file` must stay open until the last entry. The function and the iterator raise as `read_table`.
    """
    lines = _lines(file, name)
    first = next(lines, b"")
    if not (match := _HEADER_PATTERN.fullmatch(first)):
        expected = _HEADER.format(_DEFAULT_RULES, "N")
        raise ValueError(
            f"{name}, line 1: expected {expected!r}, found {first[:80]!r}; this is not a table of "
            "run counts, or it has another version: count the text again"
        )
    return Header(int(match[2]), match[1].decode()), _parsed(lines, name)


def _lines(file: BinaryIO, name: str) -> Iterator[bytes]:
    number = size = 0
    try:
        # Buffered, since a gzip file iterates over its lines in pure Python.
        with io.BufferedReader(gzip.GzipFile("", "rb", fileobj=file), 1 << 16) as lines:
            while line := lines.readline(_MAX_LINE_BYTES):
                size += len(line)
                if size > _UNCHECKED_BYTES and size > _MAX_RATIO * file.tell():
                    raise gzip.BadGzipFile(f"more than {_MAX_RATIO} times its size")
                number += 1
                yield line
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise ValueError(
            f"{name}, after line {number}: cannot be read ({error}); the file may be cut off, "
            f"damaged, or not a table of run counts: {_AGAIN}"
        ) from error


def _parsed(lines: Iterator[bytes], name: str) -> Iterator[Entry]:
    last = b""
    for number, line in enumerate(lines, start=2):
        match = _LINE.fullmatch(line)
        try:
            run, count, follow = match.groups()  # type: ignore[union-attr]
            run.decode()
        except (AttributeError, UnicodeDecodeError) as error:
            raise ValueError(
                f"{name}, line {number}: expected a run, a tab, its count, a tab and the next "
                f"byte, found {line[:80]!r}; {_AGAIN}"
            ) from error
        if run <= last:
            raise ValueError(
                f"{name}, line {number}: {run.decode()!r} after {last.decode()!r}; runs must be "
                f"distinct and in code point order: {_AGAIN}"
            )
        yield run, pretokens.pack_count(int(count), int(follow))
        last = run


def _merge(paths: Sequence[pathlib.Path], out: pathlib.Path, compression: int) -> Size:
    with contextlib.ExitStack() as stack:
        files = [stack.enter_context(places.opened(path)) for path in paths]
        tables = [read_entries(file, str(path)) for file, path in zip(files, paths, strict=True)]
        rules = {header.rules: path for (header, _), path in zip(tables, paths, strict=True)}
        if len(rules) > 1:
            (a, path_a), (b, path_b) = sorted(rules.items())[:2]
            raise ValueError(
                f"{path_a} was counted by the rules {a}, {path_b} by {b}; count both with the same "
                "--normalizer, --whitespace, --pattern and so on"
            )
        header = Header(sum(header.num_sentences for header, _ in tables), *rules)
        merged = _sum_of_equals(heapq.merge(*(entries for _, entries in tables)))
        return write_entries(stack.enter_context(out.open("wb")), header, merged, compression)


def _sum_of_equals(entries: Iterator[Entry]) -> Iterator[Entry]:
    # A plain loop: groupby makes merges a sixth slower.
    run, value = next(entries, (b"", 0))
    for next_run, next_value in entries:
        if next_run == run:
            value = pretokens.merge_counts(value, next_value)
        else:
            yield run, value
            run, value = next_run, next_value
    if run:
        yield run, value


def _write_packed(
    path: pathlib.Path, header: Header, packed: Mapping[str, int], compression: int
) -> Size:
    with path.open("wb") as file:
        entries = ((run.encode(), packed[run]) for run in sorted(packed))
        return write_entries(file, header, entries, compression)


def _check_parts(paths: Sequence[pathlib.Path]) -> None:
    """Check that each set of numbered parts is complete."""
    found: dict[tuple[pathlib.Path, str, str, int], set[int]] = {}
    for path in paths:
        # Not the whole path: a folder may be called job-3-of-8.
        if match := PART.fullmatch(path.name):
            name, number, total, suffix = match.groups()
            found.setdefault((path.parent, name, suffix, int(total)), set()).add(int(number))
    for (folder, name, suffix, total), numbers in found.items():
        if missing := sorted(set(range(total)) - numbers):
            raise ValueError(
                f"{folder / name}NNNNN-of-{total:05d}{suffix}: parts {missing[:5]} are missing, "
                f"{len(missing)} in all; copy all parts, or let the count finish"
            )


def _check_kinds(paths: Sequence[pathlib.Path]) -> None:
    """Check that all tables or none have held-out text: a pattern easily matches both."""
    heldout = [path for path in paths if path.name.endswith(_HELDOUT)]
    if heldout and len(heldout) < len(paths):
        other = next(path for path in paths if path not in heldout)
        raise ValueError(
            f"{heldout[0]} is a table of held-out text, {other} is not; together, held-out text "
            f"would be trained on: merge each kind separately, into <lang>.runs.gz and "
            f"<lang>{_HELDOUT}, and keep them in separate folders"
        )


@contextlib.contextmanager
def _temporary_folder(out: pathlib.Path) -> Iterator[pathlib.Path]:
    folder = artifacts.aside_of(out)
    with artifacts.made_parents(out):
        folder.mkdir()
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)
