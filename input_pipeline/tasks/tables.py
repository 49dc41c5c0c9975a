"""Rows of a user's own tables: CSV, TSV, JSON lines or array, Parquet, recognised by content.

A file that begins with a brace has JSON objects, on one line each or several. One that begins with
a bracket has an array of them. Any other file has columns, possibly after Excel's line `sep=;`.
Their separator is the tab, comma or semicolon that cuts the first line into the wanted columns.
Columns have the names of the first line, in any case, or numbers from 1 without such a line. Commas
and semicolons make CSV (RFC 4180): quoted cells may hold separators and line ends. Between tabs a
quotation mark is text, except around a whole cell. A tab-separated file with lines of different
widths is CSV if that makes the widths equal.
"""

import contextlib
import csv
import io
import json
import pathlib
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from input_pipeline.tasks import arrow, files
from input_pipeline.tasks.examples import BadRow

_SEPARATORS = {"\t": "tabs", ",": "commas", ";": "semicolons"}
_QUOTED = re.compile(r'"(?:[^"]|"")*"')
_JSON = re.compile(r"\s*(\{|\[\s*[{\]])")  # an object, or an array of them
_BLANKS, _COMMA = re.compile(r"\s*"), re.compile(r"\s*,?\s*")
_EXCEL = re.compile(r"\Asep=.(?=\n)", re.I)

csv.field_size_limit(2**31 - 1)  # a cell may be a whole document

_Record = tuple[int, Mapping[str, Any] | ValueError]  # number of the line; cells or their fault


class Record(NamedTuple):
    """Row of a table, its number (of the line, in Parquet of the row), and place for messages."""

    line: int
    where: str
    cells: Mapping[str, Any]


def content(path: pathlib.Path) -> str | None:
    """Return the text of a table, None for Parquet and Arrow; ValueError as `files.read_text`."""
    return None if path.is_file() and arrow.is_arrow(path) else files.read_text(path)


def is_numbered(columns: Sequence[str]) -> bool:
    """Return whether columns are numbers, for files whose first line is a row."""
    return all(column.isdecimal() for column in columns)


def has_names(text: str | None, columns: Sequence[str], *, may_be_lines: bool) -> bool:
    """Return whether a file names columns: by JSON objects, or by its first line.

    With `may_be_lines`, a first line that is not JSON, or only one name, is a text.
    """
    if text is None:
        return True
    if text.lstrip().startswith("{"):
        return not may_be_lines or _is_json(text.lstrip().partition("\n")[0])
    cells = [_first(_first_line(text), separator) for separator in _SEPARATORS]
    least = 2 if may_be_lines else 1
    return not is_numbered(columns) and any(
        _has_all(columns, one) for one in cells if len(one) >= least
    )


def _is_json(line: str) -> bool:
    try:
        json.loads(line)
    except (json.JSONDecodeError, RecursionError):
        return False
    return True


def places(column: str, names: Sequence[str]) -> list[int]:
    """Return the places of a column among names: exact matches, or else matches in another case."""
    alike = [i for i, name in enumerate(names) if name == column]
    return alike or [i for i, name in enumerate(names) if name.casefold() == column.casefold()]


def read_records(
    path: pathlib.Path, text: str | None, wanted: Sequence[str]
) -> Iterator[Record | BadRow]:
    """Yield the rows of a file, with cells by column; the names in `wanted` replace the file's.

    `text` is the file's `content`. A `BadRow` stands for a faulty row. Cells may all be empty.
    Raise ValueError, naming file and line, if the first line lacks a wanted column, or the file is
    neither JSON nor CSV.
    """
    if text is None:
        records: Iterator[_Record] = enumerate(arrow.read_rows(path), start=1)
    elif _JSON.match(text):
        records = _json_objects(path, text)
    else:
        records = _rows(path, _EXCEL.sub("", text, count=1), wanted)
    renamed: dict[str, str] = {}
    names, lines = list[str](), list[str]()
    for number, cells in records:
        where = f"{path}, {'row' if text is None else 'line'} {number}"
        try:
            if isinstance(cells, ValueError):
                raise cells
            if (found := list(cells)) != names:
                renamed = {found[_place(one, found, where)]: one for one in wanted}
                names = found
            yield Record(number, where, {renamed.get(key, key): v for key, v in cells.items()})
        except ValueError as error:
            lines = lines or (text or "").split("\n")
            row = dict(cells) if isinstance(cells, Mapping) else {"line": lines[number - 1]}
            yield BadRow(str(number), str(error), row)


def numbered_column(path: pathlib.Path, text: str, number: int) -> Iterator[list[str | None]]:
    """Yield the cells of a column by each separator, None if missing, up to broken quotes."""
    for separator in _SEPARATORS:
        found: list[str | None] = []
        with contextlib.suppress(ValueError):
            for _, cells in _split(path, _EXCEL.sub("", text, count=1), separator):
                found.append(cells[number - 1].strip() if number <= len(cells) else None)
        yield found


def _place(column: str, names: Sequence[str], where: str) -> int:
    """Return the place of a wanted column; ValueError if there are none or several."""
    found = places(column, names)
    if len(found) != 1:
        raise ValueError(
            f"{where}: {'several columns' if found else 'no column'} {column!r}; the columns there "
            f"are {', '.join(map(repr, names[:20]))}: set task.text_column, task.pair_column and "
            "task.label_column to the names of the first line, or all to numbers from 1 for a file "
            "without one; columns are separated by tabs, commas or semicolons"
        )
    return found[0]


def _json_objects(path: pathlib.Path, text: str) -> Iterator[_Record]:
    """Yield the JSON objects of an array or a sequence, and the numbers of their first lines."""
    decoder, number, last = json.JSONDecoder(), 1, 0
    is_array = text.lstrip().startswith("[")
    start = text.index("[") + 1 if is_array else 0
    while True:
        start = next((_COMMA if is_array else _BLANKS).finditer(text, start)).end()
        number, last = number + text.count("\n", last, start), start
        if start == len(text) or (is_array and text[start] == "]"):
            return
        try:
            found, start = decoder.raw_decode(text, start)
        except (json.JSONDecodeError, RecursionError) as error:
            fault = ValueError(
                f"{path}, line {number}: not JSON ({error}); a file that begins with a brace must "
                "be a sequence of objects, one that begins with a bracket an array of them"
            )
            if is_array:
                raise fault from None
            yield number, fault
            start = (text.find("\n", start) + 1) or len(text)
            continue
        if not isinstance(found, dict):
            words = f"{str(found)[:40]!r} is not a JSON object; each row must be one"
            found = ValueError(f"{path}, line {number}: {words}")
        yield number, found


def _rows(path: pathlib.Path, text: str, wanted: Sequence[str]) -> Iterator[_Record]:
    """Yield the rows of a file of columns, each as wide as the first one."""
    separator = _separator(path, text, wanted)
    names: list[str] | None = None
    for number, cells in _split(path, text, separator, keeps_faults=True):
        if isinstance(cells, ValueError):
            yield number, cells
            continue
        where = f"{path}, line {number}"
        cells = [cell.strip() for cell in cells]
        if not any(cells) and len(cells) != len(names or ()):
            continue
        if names is None:
            numbers = [str(place) for place in range(1, len(cells) + 1)]
            names = numbers if is_numbered(wanted) else cells
            for column in wanted:
                _place(column, names, where)
            if not is_numbered(wanted):
                continue
        if len(cells) == len(names):
            yield number, dict(zip(names, cells, strict=True))
            continue
        yield number, ValueError(
            f"{where}: {len(cells)} columns, expected {len(names)} as in the first line, "
            f"separated by {_SEPARATORS[separator]}; correct or remove the row, and quote "
            "cells that hold a separator or a line end"
        )  # fmt: skip


def _first_line(text: str) -> str:
    return _EXCEL.sub("", text.lstrip("\n"), count=1).lstrip("\n").partition("\n")[0]


def _has_all(wanted: Sequence[str], names: Sequence[str]) -> bool:
    return all(places(column, names) for column in wanted)


def _separator(path: pathlib.Path, text: str, wanted: Sequence[str]) -> str:
    first = _first_line(text)
    if not is_numbered(wanted):
        # If no separator gives all columns, the error is about the one with the most cells.
        cells = {one: _first(first, one) for one in _SEPARATORS if one in first}
        fitting = [one for one, found in cells.items() if _has_all(wanted, found)]
        return (fitting or sorted(cells, key=lambda one: -len(cells[one])) or [","])[0]
    least = max(map(int, wanted))
    fitting = [one for one in _SEPARATORS if _width(path, text, one) >= least]
    if fitting and fitting[0] == "\t":
        return fitting[0]
    if len(fitting) > 1:
        raise ValueError(
            f"{path}: {' and '.join(_SEPARATORS[one] for one in fitting)} both cut all lines into "
            "equally many columns; add a first line of names, and set the columns to them"
        )
    # If none fits, the error names the first row of another width.
    return fitting[0] if fitting else max(_SEPARATORS, key=lambda one: len(_first(first, one)))


def _width(path: pathlib.Path, text: str, separator: str) -> int:
    """Return the number of columns of all rows; 0 if it differs or this is not CSV."""
    try:
        widths = {len(cells) for _, cells in _split(path, text, separator) if _has_text(cells)}
    except ValueError:
        return 0
    return widths.pop() if len(widths) == 1 else 0


def _has_text(cells: Sequence[str]) -> bool:
    return any(map(str.strip, cells))


def _first(line: str, separator: str) -> list[str]:
    try:
        ((_, cells),) = _split(pathlib.Path(), line, separator)
    except ValueError:
        cells = line.split(separator)
    return [cell.strip() for cell in cells]


def _split(
    path: pathlib.Path, text: str, separator: str, *, keeps_faults: bool = False
) -> Iterator[tuple[int, Any]]:
    """Yield first line number and cells of each row, also empty ones; ValueError for broken quotes.

    With `keeps_faults`, yield that in place of the row, unless its quotes never end.
    """
    if separator != "\t":
        yield from _split_csv(path, text, separator, keeps_faults)
        return
    lines = [
        (number, [_unquoted(cell) for cell in line.split("\t")])
        for number, line in enumerate(text.split("\n"), start=1)
        if line.strip(" ")
    ]
    if len({len(cells) for _, cells in lines if _has_text(cells)}) > 1 and '"' in text:
        try:
            rows = list(_split_csv(path, text, separator))
        except ValueError:
            rows = []
        if len({len(cells) for _, cells in rows if _has_text(cells)}) == 1:
            lines = rows
    yield from lines


def _split_csv(
    path: pathlib.Path, text: str, separator: str, keeps_faults: bool = False
) -> Iterator[tuple[int, Any]]:
    reader = csv.reader(
        io.StringIO(text, newline=""), delimiter=separator, strict=True, skipinitialspace=True
    )
    number = 1
    while True:
        try:
            cells = next(reader, None)
        except csv.Error as error:
            fault = ValueError(
                f"{path}, line {number}: not CSV with {_SEPARATORS[separator]} ({error}); quote a "
                "cell with a separator, line end or quotation mark, and double the marks in it"
            )
            if not keeps_faults or number == 1 or "end of data" in str(error):
                raise fault from None
            yield number, fault
            number = reader.line_num + 1
            continue
        if cells is None:
            return
        if cells:
            yield number, cells
        number = reader.line_num + 1


def _unquoted(cell: str) -> str:
    return cell[1:-1].replace('""', '"') if _QUOTED.fullmatch(cell) else cell
