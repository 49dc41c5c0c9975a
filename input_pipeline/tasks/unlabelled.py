"""A user's own text to predict on: lines of plain text, or questions as JSON of SQuAD."""

import pathlib
from collections.abc import Iterator

from input_pipeline.tasks import files
from input_pipeline.tasks.examples import (
    Example,
    QuestionExample,
    Sentences,
    TaggedExample,
    TextExample,
)
from input_pipeline.tasks.questions import read_questions
from input_pipeline.tasks.tasks import Task


def read_unlabelled(path: pathlib.Path, task: Task) -> list[Example]:
    """Reads examples without labels, or ignores their answers.

    A line is a text, or two with a tab between them where the task is on pairs; a sentence of
    words separated by blanks (tagging); or a question and its context with a tab between them. Of
    questions a file called *.json, or *.json with .gz, .xz or .bz2, has the form of SQuAD instead.
    The id of an example is the number of its line, from 1; empty lines are left out.

    Args:
      path: a UTF-8 file, plain, `.gz`, `.xz` or `.bz2`.
      task: of the kinds "classification", "regression", "tagging" and "extractive_qa".

    Raises:
      ValueError: no such file, or a line with too few or too many tabs.
    """
    if not path.is_file():
        raise ValueError(f"{path}: no such file; correct --input")
    if task.kind == "extractive_qa" and ".json" in path.suffixes:
        return [example for _, example in read_questions(path, task)]
    if task.kind == "tagging":
        return [TaggedExample(name, tuple(line.split()), ()) for name, _, line in _lines(path)]
    has_pair = task.columns is not None and bool(task.columns.pair)
    columns = 2 if task.kind == "extractive_qa" or has_pair else 1
    found: list[Example] = []
    for name, where, line in _lines(path):
        cells = [cell.strip() for cell in line.split("\t")]
        if len(cells) != columns:
            what = "question and context" if task.kind == "extractive_qa" else "two texts"
            raise ValueError(
                f"{where}: {len(cells)} columns, but {task.name} takes "
                + (f"{what} with one tab between them" if columns == 2 else "one text without tab")
            )
        if task.kind == "extractive_qa":
            found.append(QuestionExample(name, cells[0], cells[1], ()))
        else:
            found.append(TextExample(name, cells[0], cells[1] if columns == 2 else None, None))
    return found


def read_sentences(path: pathlib.Path) -> Sentences:
    """Reads sentences, one a line; ids are the numbers of the lines, from 1.

    Raises:
      ValueError: no such file.
    """
    if not path.is_file():
        raise ValueError(f"{path}: no such file; correct --input")
    rows = [(name, line.strip()) for name, _, line in _lines(path)]
    return Sentences(tuple(name for name, _ in rows), tuple(text for _, text in rows))


def _lines(path: pathlib.Path) -> Iterator[tuple[str, str, str]]:
    """Yields the number of each line that is not empty, its place for messages, and the line."""
    for number, (where, line) in enumerate(files.numbered_lines(path), start=1):
        if line.strip():
            yield str(number), where, line
