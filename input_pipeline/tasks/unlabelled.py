"""A user's own text to predict on: lines of plain text, or questions as JSON of SQuAD.

The id of an example is the number of its line, from 1. A `BadRow` stands for a line that is empty
or has too few or too many tabs.
"""

import pathlib
from collections.abc import Callable, Iterator
from typing import Any

from input_pipeline.tasks import examples, files, questions
from input_pipeline.tasks.examples import QuestionExample, Sentences, TaggedExample, TextExample
from input_pipeline.tasks.tasks import Task


def read_texts(path: pathlib.Path, task: Task) -> list[TextExample | examples.BadRow]:
    """Read a text per line, or for a task on pairs two with a tab between them.

    A tab in a single text is a blank, but ends a column in a file called *.tsv. Raise ValueError if
    there is no file.
    """
    wanted = "two texts with one tab between them" if task.is_of_pairs else "one text without tab"
    return _cells(
        path, task, 1 + task.is_of_pairs, wanted,
        lambda name, text, pair=None: TextExample(name, text, pair, None),
    )  # fmt: skip


def read_words(path: pathlib.Path, task: Task) -> list[TaggedExample | examples.BadRow]:
    """Read a sentence per line, as words separated by blanks; see `read_texts`."""
    return _cells(
        path, task, 1, "words", lambda name, text: TaggedExample(name, tuple(text.split()), ())
    )


def read_questions(path: pathlib.Path, task: Task) -> list[QuestionExample | examples.BadRow]:
    """Read a question, a tab and its context per line, or JSON of SQuAD from *.json(.gz, ...)."""
    if ".json" in path.suffixes:
        return [example for _, example in questions.read_questions(_existing(path), task)]
    wanted = "question and context with one tab between them"
    return _cells(
        path, task, 2, wanted,
        lambda name, question, context: QuestionExample(name, question, context, ()),
    )  # fmt: skip


def read_sentences(path: pathlib.Path) -> Sentences:
    """Read sentences, one per line; raise ValueError if there is no file."""
    rows = [(name, line.strip()) for name, _, line in _lines(path) if line.strip()]
    return Sentences(tuple(name for name, _ in rows), tuple(text for _, text in rows))


def _cells(
    path: pathlib.Path, task: Task, count: int, wanted: str, make: Callable[..., Any]
) -> list[Any]:
    """Return the results of `make` on the number of each line and its `count` cells."""
    found: list[Any] = []
    has_columns = count == 2 or (".tsv" in path.suffixes and wanted != "words")
    for name, where, line in _lines(path):
        cells = [cell.strip() for cell in (line.split("\t") if has_columns else [line])]
        if not any(cells):
            found.append(examples.BadRow(name, f"{where}: the line is empty"))
        elif len(cells) == count:
            found.append(make(name, *cells))
        else:
            error = f"{len(cells)} columns, but {task.name} takes {wanted}; correct the line"
            found.append(examples.BadRow(name, f"{where}: {error}"))
    return found


def _lines(path: pathlib.Path) -> Iterator[tuple[str, str, str]]:
    """Yield the number of each line, its place for messages, and the line."""
    for number, (where, line) in enumerate(files.numbered_lines(_existing(path)), start=1):
        yield str(number), where, line


def _existing(path: pathlib.Path) -> pathlib.Path:
    if not path.is_file():
        raise ValueError(f"{path}: no such file; correct --input")
    return path
