"""Texts and pairs of texts with a label, as the datasets' authors distribute them: TSV.

One reader serves all: the task lists possible names of its columns, and the columns of files
without a header. Cells are never quoted: in these datasets a quotation mark is text.
"""

import pathlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from input_pipeline.tasks import files
from input_pipeline.tasks.examples import BadRow, TextExample
from input_pipeline.tasks.tasks import Task

_LANGUAGE = "language"
# Label of SNLI and MNLI if the annotators did not agree.
_NO_AGREEMENT = "-"


def read_text_pairs(path: pathlib.Path, task: Task) -> Iterator[tuple[str | None, Any]]:
    """Yield (language, example) of a file, with the id ""; language None unless a column names it.

    Rows labelled "-" are left out. A `BadRow` stands for a row of another width, or with an unknown
    label. Raise ValueError for a header without the task's columns.
    """
    lines = [(where, line) for where, line in files.numbered_lines(path) if line.strip()]
    width, places, has_header = _columns(*lines[0], task)
    for where, line in lines[has_header:]:
        try:
            if found := _example(line.split("\t"), width, places, task, where):
                yield found
        except ValueError as error:
            yield None, BadRow("", str(error), {"line": line})


def _columns(where: str, line: str, task: Task) -> tuple[int, dict[str, int], bool]:
    """Return the number of columns, places of the task's, and whether the line is a header."""
    cells: Sequence[str] = [cell.strip() for cell in line.split("\t")]
    assert task.columns is not None, f"{task.name} is not read from columns"
    has_header = any(name in cells for name in task.columns.text)
    if not has_header:
        cells = _headerless(cells, task)
    names = {**task.columns._asdict(), "language": (_LANGUAGE,) if has_header else ()}
    there = {key: [one for one in known if one in cells] for key, known in names.items()}
    places = {key: cells.index(known[0]) for key, known in there.items() if known}
    texts = [key for key in ("text", "pair") if names[key]]
    if not places.keys() >= set(texts):
        *wanted, last = (" or ".join(names[key]) for key in (*texts, "label"))
        raise ValueError(
            f"{where}: no header of {task.name}; the first line must name the columns "
            f"{', '.join(wanted)} and {last} between tabs, but is {line[:80]!r}"
        )
    return len(cells), places, has_header


def _headerless(cells: Sequence[str], task: Task) -> Sequence[str]:
    """Return the column names of a file that begins with a row; () if they are unknown."""
    names = next((names for names in task.headerless if len(names) == len(cells)), ())
    if len(names) == 3:  # a header of unknown names may have as many, but no label
        try:
            task.label(cells[-1], "")
        except ValueError:
            return ()
    return names


def _example(
    cells: list[str], width: int, places: Mapping[str, int], task: Task, where: str
) -> tuple[str | None, TextExample] | None:
    """Return the example of a row, or None if the annotators did not agree."""
    if len(cells) != width:
        raise ValueError(
            f"{where}: {len(cells)} columns, expected {width} as in the first line; a text may "
            "hold no tab: correct or remove the row"
        )
    found = {key: cells[place].strip() for key, place in places.items()}
    if found.get("label") == _NO_AGREEMENT:
        return None
    label = task.label(found["label"], where) if "label" in found else None
    return found.get("language"), TextExample("", found["text"], found.get("pair"), label)
