"""A user's own texts with a class or a number: CSV, TSV or JSON lines, told apart by content.

A file that begins with a brace has a JSON object a line. Any other is separated by tabs, commas or
semicolons: by whichever its first line has the task's columns. Columns go by the names of the first
line, or by numbers from 1 in a file without such a line. Commas and semicolons are read as CSV
(RFC 4180), with quoted cells that may hold separators and line ends; between tabs a quotation mark
is text, but for a cell that is quoted as CSV does it.
"""

import csv
import io
import json
import pathlib
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from input_pipeline import text_files
from input_pipeline.tasks import files, unlabelled
from input_pipeline.tasks.examples import TextExample
from input_pipeline.tasks.tasks import Task

_LANGUAGE = "language"
_SEPARATORS = {"\t": "tabs", ",": "commas", ";": "semicolons"}
_QUOTED = re.compile(r'"(?:[^"]|"")*"')

Record = tuple[int, Mapping[str, Any]]  # number of the line, cells by column


class _Row(NamedTuple):
    """Row of a file: its line, its language where a column tells it, and its cells."""

    line: int
    where: str
    language: str | None
    texts: tuple[str, ...]
    label: str


def read_texts(path: pathlib.Path, task: Task) -> Iterator[tuple[str | None, TextExample]]:
    """Yields (language, example) of a file; the language is None unless a column tells it.

    Raises:
      ValueError: a file without the task's columns, a row of another width, an empty cell, or a
        label that is none of the task's; the message names file and line.
    """
    for row in _rows(path, task):
        yield row.language, _example("", row, task.label(row.label, row.where))


def read_labels(path: pathlib.Path, task: Task) -> Iterator[tuple[str | None, str]]:
    """Yields (language, label) of a file; as `read_texts`, of any label."""
    for row in _rows(path, task):
        yield row.language, row.label


def read_unlabelled(path: pathlib.Path, task: Task) -> list[TextExample]:
    """Reads texts to predict on: a file with the task's columns but for labels, or plain lines.

    The id of an example is the number of its line, from 1. A file whose first line neither names
    the columns nor begins with a brace is read by `unlabelled.read_texts`.

    Raises:
      ValueError: no such file; as `read_texts`; as `unlabelled.read_texts`.
    """
    if not path.is_file() or not _has_names(files.read_text(path), task):
        return unlabelled.read_texts(path, task)
    rows = _rows(path, task, has_labels=False)
    return [_example(str(row.line), row, None) for row in rows]


def _example(name: str, row: _Row, label: int | float | None) -> TextExample:
    text, *pair = row.texts
    return TextExample(name, text, pair[0] if pair else None, label)


def _wanted(task: Task, has_labels: bool = True) -> list[str]:
    """Columns of a task: of its texts, and of its label."""
    assert task.columns is not None, f"{task.name} is not read from columns"
    texts = [*task.columns.text, *task.columns.pair]
    return [*texts, *task.columns.label] if has_labels else texts


def _is_numbered(columns: Sequence[str]) -> bool:
    """Whether columns are given by number, in files whose first line is a row as all others."""
    return all(column.isdecimal() for column in columns)


def _has_names(text: str, task: Task) -> bool:
    """Whether a file names the columns of the texts: JSON, or a first line that does."""
    if text.lstrip().startswith("{"):
        return True
    wanted = _wanted(task, has_labels=False)
    first = text.lstrip("\n").partition("\n")[0]
    return not _is_numbered(wanted) and any(
        set(wanted) <= set(_first(first, separator)) for separator in _SEPARATORS
    )


def _rows(path: pathlib.Path, task: Task, *, has_labels: bool = True) -> Iterator[_Row]:
    """Yields the rows of a file; a label that is not wanted is ""."""
    wanted, text = _wanted(task, has_labels), files.read_text(path)
    is_json = text.lstrip().startswith("{")
    records = _json_records(path, text, wanted) if is_json else _records(path, text, wanted)
    for line, cells in records:
        where = f"{path}, line {line}"
        found = [_cell(cells[column], column, where) for column in wanted]
        language = cells.get(_LANGUAGE)
        if language is not None and not text_files.is_language(str(language)):
            raise ValueError(
                f"{where}: {language!r} in the column {_LANGUAGE!r} is no code of a language, such "
                "as en, ceb or zh_Hant; correct it, or rename the column"
            )
        texts = found[:-1] if has_labels else found
        yield _Row(line, where, language, tuple(texts), found[-1] if has_labels else "")


def _cell(value: Any, column: str, where: str) -> str:
    """A cell as text.

    Raises:
      ValueError: it is empty, or no text, number or truth value.
    """
    if isinstance(value, bool):
        value = str(value).lower()
    text = "" if value is None else str(value).strip()
    if not text or not isinstance(value, str | int | float):
        what = "is empty" if not text else f"holds {text[:40]}, no text or number"
        raise ValueError(f"{where}: column {column!r} {what}; fill it in, or remove the row")
    return text


def _json_records(path: pathlib.Path, text: str, wanted: Sequence[str]) -> Iterator[Record]:
    for number, line in enumerate(text.split("\n"), start=1):
        if not line.strip():
            continue
        where = f"{path}, line {number}"
        try:
            found = json.loads(line)
        except json.JSONDecodeError as error:
            raise ValueError(
                f"{where}: not JSON ({error}); a file that begins with a brace has an object a line"
            ) from None
        if not isinstance(found, dict):
            raise ValueError(f"{where}: {line[:40]!r} is no JSON object; one is expected a line")
        _check_columns(wanted, list(found), where)
        yield number, found


def _records(path: pathlib.Path, text: str, wanted: Sequence[str]) -> Iterator[Record]:
    """Yields the rows of a file of columns, each as wide as the first one."""
    separator = _separator(path, text, wanted)
    names: list[str] | None = None
    for number, cells in _split(path, text, separator):
        where = f"{path}, line {number}"
        cells = [cell.strip() for cell in cells]
        if names is None:
            places = [str(place) for place in range(1, len(cells) + 1)]
            names = places if _is_numbered(wanted) else cells
            _check_columns(wanted, names, where)
            if not _is_numbered(wanted):
                continue
        if len(cells) != len(names):
            raise ValueError(
                f"{where}: {len(cells)} columns, expected {len(names)} as in the first line, "
                f"separated by {_SEPARATORS[separator]}; correct or remove the row"
                + ("" if separator == "\t" else ", and quote cells that hold a separator")
            )
        yield number, dict(zip(names, cells, strict=True))


def _check_columns(wanted: Sequence[str], there: Sequence[str], where: str) -> None:
    for column in wanted:
        if there.count(column) != 1:
            problem = "no column" if column not in there else "several columns"
            raise ValueError(
                f"{where}: {problem} {column!r}; the columns there are "
                f"{', '.join(map(repr, there[:20]))}: set task.text_column, task.pair_column and "
                "task.label_column to the names of the first line, or all to numbers from 1 for a "
                "file without one"
            )


def _separator(path: pathlib.Path, text: str, wanted: Sequence[str]) -> str:
    """The separator of a file: tab, comma or semicolon."""
    first = text.lstrip("\n").partition("\n")[0]
    if first.lstrip().startswith("["):
        raise ValueError(
            f"{path}: begins as a JSON array; write one object a line (jq -c '.[]' FILE), or CSV"
        )
    if not _is_numbered(wanted):
        # Where none has all columns, the one with the most cells is told what it lacks.
        cells = {one: _first(first, one) for one in _SEPARATORS if one in first}
        fitting = [one for one, found in cells.items() if set(wanted) <= set(found)]
        return (fitting or sorted(cells, key=lambda one: -len(cells[one])) or [","])[0]
    least = max(map(int, wanted))
    fitting = [one for one in _SEPARATORS if _width(path, text, one) >= least]
    if fitting and fitting[0] == "\t":
        return fitting[0]
    if len(fitting) > 1:
        raise ValueError(
            f"{path}: {' and '.join(_SEPARATORS[one] for one in fitting)} both cut all lines into "
            "equally many columns; give the file a first line with names, and set the columns to "
            "these"
        )
    # So that the first row of another width is named.
    return fitting[0] if fitting else max(_SEPARATORS, key=lambda one: len(_first(first, one)))


def _width(path: pathlib.Path, text: str, separator: str) -> int:
    """Number of columns of all rows; 0 if it differs or the file is no CSV of this separator."""
    try:
        widths = {len(cells) for _, cells in _split(path, text, separator)}
    except ValueError:
        return 0
    return widths.pop() if len(widths) == 1 else 0


def _first(line: str, separator: str) -> list[str]:
    """Cells of a first line; those of a broken one as they are."""
    try:
        ((_, cells),) = _split(pathlib.Path(), line, separator)
    except ValueError:
        cells = line.split(separator)
    return [cell.strip() for cell in cells]


def _split(path: pathlib.Path, text: str, separator: str) -> Iterator[tuple[int, list[str]]]:
    """Yields the first line's number and the cells of each row that is not empty.

    Raises:
      ValueError: quotes are at fault.
    """
    if separator == "\t":
        for number, line in enumerate(text.split("\n"), start=1):
            if line.strip():
                yield number, [_unquoted(cell) for cell in line.split("\t")]
        return
    reader = csv.reader(
        io.StringIO(text, newline=""), delimiter=separator, strict=True, skipinitialspace=True
    )
    number = 1
    while True:
        try:
            cells = next(reader, None)
        except csv.Error as error:
            raise ValueError(
                f"{path}, line {number}: not CSV of {_SEPARATORS[separator]} ({error}); put a cell "
                "with a separator, a line end or a quotation mark in quotation marks, and double "
                "those within"
            ) from None
        if cells is None:
            return
        if any(cells):
            yield number, cells
        number = reader.line_num + 1


def _unquoted(cell: str) -> str:
    return cell[1:-1].replace('""', '"') if _QUOTED.fullmatch(cell) else cell
