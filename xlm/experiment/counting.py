"""Counting of text into tables of runs, at once or in parts by an executor."""

import contextlib
import dataclasses
import itertools
import os
import pathlib
import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from input_pipeline import preparation_plan as plans
from input_pipeline import selection, text_files
from vocap import pretoken_tables
from vocap.text_rules import TextRules
from xlm.common import artifacts, console, executors, places
from xlm.common.executors import Executor, Workers
from xlm.common.long_lines import cut_line

_PART_BYTES = 64 << 20  # of text
_MERGED_AT_ONCE = 64  # tables


@dataclasses.dataclass(frozen=True)
class Counting:
    """Settings of a count, those of `xlm count`; `heldout_by` is "text" or "sentence"."""

    rules: TextRules
    max_runs: int
    block_bytes: int
    heldout_by: str
    heldout_fraction: float
    heldout_seed: int


def count(
    settings: Counting, paths: Iterable[Any], outs: Sequence[pathlib.Path], folder: Any,
    executor: Executor,
) -> Sequence[pretoken_tables.Size]:  # fmt: skip
    """Count text into a table, and held-out text, if any, into another.

    A killed count resumes with the tables of parts in `folder`. Each executor writes the same
    bytes. Raises ValueError if a file is malformed, or sentences are lost.
    """
    is_whole = isinstance(executor, Workers) and executor.number == 1
    size = sys.maxsize if is_whole else _PART_BYTES
    cut = (piece for path in paths for piece in plans.cut_file("text", path, size))
    parts = plans.group(cut, size)
    if len(parts) == 1:
        pieces = parts[0].pieces
        return _count(settings, console.bar(pieces, "count", len(pieces), "files"), outs)
    states = [part.fingerprint for part in parts]
    folder = folder / artifacts.fingerprint(dataclasses.asdict(settings), states)
    kinds = ("kept", "heldout")[: len(outs)]
    tables = [[f"{folder / kind}-{part.number:06d}" for part in parts] for kind in kinds]
    jobs = list(zip(itertools.repeat(settings), parts, *tables))
    _complete(executor, _count_part, jobs, "count")
    sizes = [_merged(of_kind, out, executor) for of_kind, out in zip(tables, outs, strict=True)]
    for of_kind, found in zip(tables, sizes, strict=True):
        if (counted := sum(map(_num_sentences, of_kind))) != found.num_sentences:
            raise ValueError(
                f"the table has {found.num_sentences} sentences, and its parts in {folder} have "
                f"{counted}; remove them, and run the same command again"
            )
    return sizes


def _complete(executor: Executor, function: Any, jobs: Iterable[tuple], name: str) -> None:
    """Run the jobs whose last arguments, the tables to write, do not exist."""

    def is_done(_: Any, __: Any, *tables: str) -> bool:
        return all(places.path(one).exists() for one in tables)

    if left := [job for job in jobs if not is_done(*job)]:
        folder = os.path.dirname(left[0][-1])
        executors.complete(executor, function, left, is_done, name, folder)


def _merged(tables: Sequence[str], out: pathlib.Path, executor: Executor) -> pretoken_tables.Size:
    """Merge tables into one; the executor first merges groups of many tables."""
    while len(tables) > _MERGED_AT_ONCE:
        groups = [tables[i : i + _MERGED_AT_ONCE] for i in range(0, len(tables), _MERGED_AT_ONCE)]
        tables = [f"{group[0]}-merged" for group in groups]
        _complete(executor, _merge_part, zip(groups, groups, tables, strict=True), "merge")
    return pretoken_tables.merge_tables(tables, out)


def _num_sentences(table: str) -> int:
    with places.opened(places.path(table)) as file:
        return pretoken_tables.read_entries(file, table)[0].num_sentences


def _merge_part(tables: Sequence[str], _: Any, out: str) -> None:
    with places.written(out) as aside:
        pretoken_tables.merge_tables(tables, aside)


def _count_part(settings: Counting, part: plans.Part, *outs: str) -> None:
    with contextlib.ExitStack() as stack:
        asides = [stack.enter_context(places.written(out)) for out in outs]
        _count(settings, part.pieces, asides)


def _count(
    settings: Counting, pieces: Iterable[plans.Piece], outs: Sequence[pathlib.Path]
) -> Sequence[pretoken_tables.Size]:
    limits = settings.max_runs, settings.rules
    if len(outs) == 1:
        return [pretoken_tables.count_to_table(_sentences(pieces), outs[0], *limits)]
    out, aside = outs
    heldout = pretoken_tables.HeldOut(settings.heldout_fraction, settings.heldout_seed)  # checks it
    if settings.heldout_by == "text":
        return pretoken_tables.count_groups(_blocks(settings, pieces), out, aside, *limits)
    return pretoken_tables.count_split(_sentences(pieces), heldout, out, aside, *limits)


def _blocks(
    settings: Counting, pieces: Iterable[plans.Piece]
) -> Iterator[tuple[Sequence[str], bool]]:
    for piece in pieces:
        for block in selection.cut_blocks(_marked(piece), settings.block_bytes):
            digest = selection.text_digest(block, settings.heldout_seed)
            yield block, selection.is_heldout(digest, settings.heldout_fraction)


def _sentences(pieces: Iterable[plans.Piece]) -> Iterator[str]:
    marked = itertools.chain.from_iterable(map(_marked, pieces))
    return itertools.chain.from_iterable(map(cut_line, filter(None, marked)))


def _marked(piece: plans.Piece) -> Iterator[str]:
    yield from text_files.read_marked(places.path(piece.path), piece.start, piece.end)
    plans.check_unchanged([piece.state])
