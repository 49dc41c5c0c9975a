"""A user's own texts with a class or a number: rows of `tables` as examples."""

import dataclasses
import pathlib
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from input_pipeline import text_files
from input_pipeline.tasks import tables, unlabelled
from input_pipeline.tasks.examples import BadRow, TextExample
from input_pipeline.tasks.tasks import Task, canonical_label

# Names of a column of languages, the best first.
_LANGUAGES = ("language", "lang", "locale")
_TABLES = (".csv", ".tsv", ".json", ".jsonl")
# Names of label columns. In a first row they are not labels.
_NAMES = ("label", "labels", "class", "category", "target", "sentiment", "score", "rating", "stars")
_MISSING = "nan"  # pandas writes a missing label so
_INVISIBLE = "\u200b\u200c\u200d\u200e\u200f\u2060\ufeff"  # characters of no width
_NO_CHARACTER = re.compile("[\0\ud800-\udfff]")  # which JSON can escape

Found = Iterator[tuple[str | None, Any]]  # languages, None unless a column names it, and examples


def read_texts(path: pathlib.Path, task: Task) -> Found:
    """Yield (language, example) of a file; the language is None unless a column names it.

    A `BadRow` stands for a row of another width, with an empty cell, or with an unknown label.
    Raise ValueError, naming file and line, if columns or rows are missing.
    """
    return _rows(path, task, lambda *row: _example(task, *row))


def read_labels(path: pathlib.Path, task: Task) -> Found:
    """Yield (language, label) of a file as `read_texts`, with any label that is not missing."""

    def checked(row: tables.Record, texts: list[str], label: str | list[str]) -> Any:
        if isinstance(label, list):
            return [checked(row, texts, one) for one in label]
        if label == _MISSING:
            raise ValueError(
                f"{row.where}: the label is {_MISSING!r}, as pandas writes a missing label; "
                "fill it in, remove the row, or list all labels in task.labels"
            )
        return canonical_label(label)

    for language, found in _rows(path, task, checked):
        for one in found if isinstance(found, list) else [found]:
            yield language, one


def read_unlabelled(path: pathlib.Path, task: Task) -> list[TextExample | BadRow]:
    """Read texts to predict on: a file with the task's columns except labels, or plain lines.

    An example's id comes from the task's column. Otherwise it is the number of its line, from 1, or
    of its object if a JSON line has several. `unlabelled.read_texts` reads plain lines: a file
    whose first line neither names the columns nor begins with a brace, and that is not called
    *.csv, *.tsv, *.json or *.jsonl. A *.tsv may have two texts a line. The first line of a *.txt
    with columns must name at least two, or be JSON. With columns by number, labels may be there or
    not. Raise ValueError if there is no file, as `read_texts` and as `unlabelled.read_texts`.
    """
    if not path.is_file() or not _is_table(path, task):
        return unlabelled.read_texts(path, task)
    try:
        rows = _rows(path, task, lambda *row: _example(task, *row), has_labels=False)
        return numbered([row for _, row in rows], task)
    except ValueError as error:
        if is_called(path, ".txt"):
            raise
        raise ValueError(f"{error}; a file of plain lines must be called *.txt") from error


def numbered(rows: list[Any], task: Task) -> list[Any]:
    """Number the rows if their ids, which number lines, repeat since a line has several rows."""
    if len({row.id for row in rows}) == len(rows) or (task.columns and task.columns.id):
        return rows
    return [dataclasses.replace(row, id=str(number)) for number, row in enumerate(rows, start=1)]


def _is_table(path: pathlib.Path, task: Task) -> bool:
    wanted = _wanted(task, has_labels=False)
    if tables.has_names(tables.content(path), wanted, may_be_lines=is_called(path, ".txt")):
        return True
    if is_called(path, ".tsv") and task.is_of_pairs and not tables.is_numbered(wanted):
        return False
    return is_called(path, *_TABLES)


def is_called(path: pathlib.Path, *suffixes: str) -> bool:
    """Return whether a file's name has one of these suffixes, also before a compression's."""
    return any(suffix.lower() in suffixes for suffix in path.suffixes[-2:])


def _example(
    task: Task, row: tables.Record, texts: list[str], label: str | list[str]
) -> TextExample:
    text, second = texts[0], texts[1] if task.is_of_pairs else None
    name = identity(task, row.cells)
    if label == "":
        return TextExample(name or str(row.line), text, second, None, cells=row.cells)
    group = identity(task, row.cells, is_group=True)
    return TextExample(name, text, second, task.label(label, row.where), group)


def identity(task: Task, cells: Mapping[str, Any], *, is_group: bool = False) -> str:
    """Return the id of a row, or its group, by default the id; "" without such a column."""
    if task.columns is None:
        return ""
    columns = (is_group and task.columns.group) or task.columns.id
    return next((str(cells[one]).strip() for one in columns if cells.get(one) is not None), "")


def _wanted(task: Task, has_labels: bool = True) -> list[str]:
    """Return the columns of a task's texts, and of its label."""
    assert task.columns is not None, f"{task.name} is not read from columns"
    texts = [*task.columns.text, *task.columns.pair]
    return [*texts, *task.columns.label] if has_labels else texts


def _rows(
    path: pathlib.Path, task: Task, make: Callable[..., Any], *, has_labels: bool = True
) -> Found:
    """Yield (language, result of `make`) of each row; unless `has_labels`, labels are ""."""
    text, wanted = tables.content(path), _wanted(task, has_labels)
    if len(set(wanted)) < len(wanted):
        raise ValueError(
            f"task.text_column, task.pair_column and task.label_column are {', '.join(wanted)}, "
            "must be different; correct them"
        )
    with_label = _wanted(task)
    is_numbered, needed = tables.is_numbered(with_label), wanted
    if is_numbered and not has_labels and text is not None and _shows_labels(path, text, task):
        needed = with_label  # a single first column would fit any line
    if has_labels and task.columns is not None:
        needed = list(dict.fromkeys([*needed, *task.columns.id, *task.columns.group]))
    number = 0
    for number, row in enumerate(tables.read_records(path, text, needed), start=1):
        if isinstance(row, BadRow):
            yield None, row
            continue
        line, where, cells = row
        if has_labels and all(cell is None or not str(cell).strip() for cell in cells.values()):
            continue
        if number == 1 and is_numbered:
            _check_is_row(str(cells.get(with_label[-1], "")), task, where)
        try:
            columns = wanted[:-1] if has_labels else wanted
            texts = [_cell(cells[column], column, where) for column in columns]
            label = _label(cells[wanted[-1]], task, wanted[-1], where) if has_labels else ""
            yield language_of(cells, where), make(row, texts, label)
        except ValueError as error:
            yield None, BadRow(identity(task, cells) or str(line), str(error), cells)
    if not number:
        raise ValueError(f"{path}: has no rows below the names of its columns; add some")


def _shows_labels(path: pathlib.Path, text: str, task: Task) -> bool:
    """Return whether, by some separator, most rows have a label in its column."""
    number = int(_wanted(task)[-1])
    return any(
        2 * sum(cell is not None and _may_be_label(cell, task) for cell in cells) > len(cells)
        for cells in tables.numbered_column(path, text, number)
    )


def _may_be_label(cell: str, task: Task) -> bool:
    """Return whether a cell is a label, the name of its column, or a mark such as "?" for none."""
    if cell.casefold() in _NAMES or not any(map(str.isalnum, cell)):
        return True
    try:
        task.label(_label(cell, task, "", ""), "")
    except ValueError:
        return False
    return True


def _check_is_row(label: str, task: Task, where: str) -> None:
    """Raise ValueError if a first line names columns, but the config numbers them."""
    if label.casefold() in _NAMES and label not in task.labels:
        raise ValueError(
            f"{where}: {label!r} seems to be the name of a column, but the config numbers columns; "
            "set task.text_column, task.pair_column and task.label_column to the names of this "
            "line, remove it, or list all labels in task.labels"
        )


def language_of(cells: Mapping[str, Any], where: str) -> str | None:
    """Return the language in a row's column of languages, or None; ValueError for another value."""
    names = list(cells)
    column = next((names[i] for one in _LANGUAGES for i in tables.places(one, names)), None)
    if column is None or cells[column] is None:
        return None
    if not text_files.is_language(value := str(cells[column])):
        raise ValueError(
            f"{where}: {value!r} in the column {column!r} is not a language code such as en, ceb "
            "or zh_Hant; correct it, or rename the column"
        )
    return value


def _label(value: Any, task: Task, column: str, where: str) -> str | list[str]:
    """Return a label as text or, for a task with label sets, the labels of a list or text.

    `Task.label_separator` separates those of a text. Errors are those of `_cell`.
    """
    if not task.has_label_sets:
        return _cell(value, column, where)
    if isinstance(value, str):
        parts = value.split(task.label_separator) if task.label_separator else [value]
        value = [part for part in parts if part.strip()]
    return [_cell(one, column, where) for one in (value if isinstance(value, list) else [value])]


def _cell(value: Any, column: str, where: str) -> str:
    """Return a cell as text; ValueError if it is empty, a list or object, or has bad characters."""
    if isinstance(value, bool):
        value = str(value).lower()
    is_missing = value is None or value != value  # NaN, which pandas writes
    text = "" if is_missing else str(value).strip()
    if not text.strip(_INVISIBLE):
        raise ValueError(f"{where}: column {column!r} is empty; fill it in, or remove the row")
    if not isinstance(value, str | int | float):
        raise ValueError(
            f"{where}: column {column!r} holds {text[:40]}, not a text or number; write one value, "
            "and an object for each row (in pandas: orient='records', lines=True)"
        )
    if wrong := _NO_CHARACTER.search(text):
        raise ValueError(
            f"{where}: column {column!r} holds {wrong[0]!r}, which is not a character; remove it"
        )
    return text
