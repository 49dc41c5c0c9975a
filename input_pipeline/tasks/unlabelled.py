"""A user's own text to predict on: lines of plain text, or questions as JSON of SQuAD.

The id of an example is the number of its line, from 1; empty lines are left out.
"""

import pathlib
from collections.abc import Iterator

from input_pipeline.tasks import files, questions
from input_pipeline.tasks.examples import QuestionExample, Sentences, TaggedExample, TextExample
from input_pipeline.tasks.tasks import Task


def read_texts(path: pathlib.Path, task: Task) -> list[TextExample]:
    """Read a text a line, or two with a tab between them if the task is on pairs.

    A tab in a single text is a blank, but ends a column in a file called *.tsv. Raise ValueError if
    there is no file, or a line has too few or too many tabs.
    """
    wanted = "two texts with one tab between them" if task.is_of_pairs else "one text without tab"
    rows = _cells(path, task, 1 + task.is_of_pairs, wanted)
    return [
        TextExample(name, cells[0], cells[1] if task.is_of_pairs else None, None)
        for name, cells in rows
    ]


def read_words(path: pathlib.Path, task: Task) -> list[TaggedExample]:
    """Read a sentence of words separated by blanks a line; as `read_texts`."""
    return [TaggedExample(name, tuple(line.split()), ()) for name, _, line in _lines(path)]


def read_questions(path: pathlib.Path, task: Task) -> list[QuestionExample]:
    """Read a question, a tab and its context a line, or JSON of SQuAD from *.json(.gz, ...)."""
    if ".json" in path.suffixes:
        return [example for _, example in questions.read_questions(_existing(path), task)]
    rows = _cells(path, task, 2, "question and context with one tab between them")
    return [QuestionExample(name, question, context, ()) for name, (question, context) in rows]


def read_sentences(path: pathlib.Path) -> Sentences:
    """Read sentences, one a line; raise ValueError if there is no file."""
    rows = [(name, line.strip()) for name, _, line in _lines(path)]
    return Sentences(tuple(name for name, _ in rows), tuple(text for _, text in rows))


def _cells(
    path: pathlib.Path, task: Task, count: int, wanted: str
) -> Iterator[tuple[str, list[str]]]:
    """Yield the number of each line and its `count` cells, which `wanted` describes."""
    has_columns = count == 2 or ".tsv" in path.suffixes
    for name, where, line in _lines(path):
        cells = [cell.strip() for cell in (line.split("\t") if has_columns else [line])]
        if len(cells) != count:
            raise ValueError(
                f"{where}: {len(cells)} columns, but {task.name} takes {wanted}; correct the line"
            )
        yield name, cells


def _lines(path: pathlib.Path) -> Iterator[tuple[str, str, str]]:
    """Yield the number of each line that is not empty, its place for messages, and the line."""
    for number, (where, line) in enumerate(files.numbered_lines(_existing(path)), start=1):
        if line.strip():
            yield str(number), where, line


def _existing(path: pathlib.Path) -> pathlib.Path:
    if not path.is_file():
        raise ValueError(f"{path}: no such file; correct --input")
    return path
