"""Examples of the tasks from tensorflow-datasets, the same as from the datasets' own files.

A pattern "tfds:NAME:SPLIT" names a dataset with its config and a split; `{language}` stands for the
language in both. Only reading imports TensorFlow.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from input_pipeline import tfds_text
from input_pipeline.tasks import files, questions, translation
from input_pipeline.tasks.examples import (
    Answer,
    QuestionExample,
    SentencePairs,
    TaggedExample,
    TextExample,
)
from input_pipeline.tasks.files import Source
from input_pipeline.tasks.tasks import Task

_PREFIX = "tfds:"
Rows = Iterable[dict[str, Any]]
# (rows, their features, task, language, where) -> languages, None unless rows tell, and examples
Convert = Callable[[Rows, Any, Task, str, str], Iterable[tuple[str | None, Any]]]


def is_tfds(pattern: str) -> bool:
    return pattern.startswith(_PREFIX)


def read_examples(
    convert: Convert, pattern: str, source: Source, looked_for: list[str]
) -> Iterator[tuple[str | None, Any]]:
    """Yield (language, example) of a split; the language is None unless the example names it.

    Raise ValueError if labels are numbered in another way, or answers are misplaced.
    """
    found = _load(pattern, source, looked_for)
    if found is not None:
        yield from convert(*found, source.task, source.language, pattern)


def text_examples(
    rows: Rows, features: Any, task: Task, language: str, where: str
) -> Iterator[tuple[str | None, TextExample]]:
    _check_labels(features[task.tfds_label], task, where)
    for number, row in enumerate(rows):
        yield from _text_example(row, task, language, f"{where}, example {number}")


def tagged_examples(
    rows: Rows, features: Any, task: Task, language: str, where: str
) -> Iterator[tuple[None, TaggedExample]]:
    _check_labels(features[task.tfds_label].feature, task, where)
    for row in rows:
        words = tuple(word.decode("utf-8") for word in row["tokens"])
        yield None, TaggedExample("", words, tuple(int(tag) for tag in row[task.tfds_label]))


def question_examples(
    rows: Rows, features: Any, task: Task, language: str, where: str
) -> Iterator[tuple[str | None, QuestionExample]]:
    """Yield questions, after a check of all their answers."""
    examples = [_question(row) for row in rows]
    questions.check_answers(examples, where)
    for example in examples:
        yield questions.language_of_id(example.id, task), example


def translation_pairs(
    rows: Rows, features: Any, task: Task, language: str, where: str
) -> Iterator[tuple[None, tuple[str, str]]]:
    """Yield pairs of a direction such as "en-de"; ValueError if it lacks one of the languages."""
    one, two = translation.direction(language)
    if missing := {one, two} - set(features):
        raise ValueError(
            f"{where}: no {', '.join(sorted(missing))} for the direction {language!r}; the dataset "
            f"has {', '.join(features)}"
        )
    texts = ((_text(row[one]), _text(row[two])) for row in rows)
    yield from ((None, pair) for pair in translation.without_empty(texts, where, "example"))


def read_pairs(pattern: str, source: Source, looked_for: list[str]) -> SentencePairs | None:
    """Return the two sides of a search for translations, or None if there are none."""
    found = _load(pattern, source, looked_for)
    if found is None:
        return None
    rows = [(_text(row["source_sentence"]), _text(row["target_sentence"])) for row in found[0]]
    return translation.aligned_pairs(rows)


def _load(pattern: str, source: Source, looked_for: list[str]) -> tuple[Any, Any] | None:
    """Return the rows of a split and their features, or None if it does not exist."""
    code = source.task.tfds_codes.get(source.language, source.language)
    looked_for.append(pattern.replace(files.PLACEHOLDER, code))
    name, _, split = looked_for[-1].removeprefix(_PREFIX).rpartition(":")
    try:
        rows, info = tfds_text.load_split(name, split, source.data_dir)
    except tfds_text.NoSplitError as error:
        looked_for[-1] += f" ({error})"
        return None
    return rows.as_numpy_iterator(), info.features


def _check_labels(feature: Any, task: Task, where: str) -> None:
    """Check that labels with names are numbered as in the task."""
    if not task.labels or task.labels[0].isdecimal():
        return
    names = tuple(feature.names[: len(task.labels)])
    if names != task.labels:
        raise ValueError(f"{where}: labels are {names}, expected {task.labels}; use files instead")


def _text(value: bytes) -> str:
    return value.decode("utf-8").strip()


def _text_example(
    row: dict[str, Any], task: Task, language: str, where: str
) -> Iterator[tuple[str | None, TextExample]]:
    one, two = task.tfds_texts
    texts, found = [row[name] for name in (one, two) if name], None
    if isinstance(texts[0], dict):  # XNLI: all languages in one row, the second text as two lists
        names, values = texts[1]["language"], texts[1]["translation"]
        translations = dict(zip(map(_text, names), values, strict=True))
        if language not in translations:
            return
        texts, found = [texts[0][language], translations[language]], language
    label = task.label(str(row[task.tfds_label]).removesuffix(".0"), where)
    pair = _text(texts[1]) if two else None
    yield found, TextExample("", _text(texts[0]), pair, label)


def _question(row: dict[str, Any]) -> QuestionExample:
    answers = row["answers"]
    texts = [text.decode("utf-8") for text in answers["text"]]
    starts = [int(start) for start in answers["answer_start"]]
    # Impossible questions (SQuAD 2.0) have their answers under another name.
    found = [Answer(*one) for one in zip(texts, starts, strict=True) if one[0]]
    name, question, context = (row[key].decode("utf-8") for key in ("id", "question", "context"))
    return QuestionExample(name, question, context, tuple(dict.fromkeys(found)))
