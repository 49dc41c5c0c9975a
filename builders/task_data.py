"""The data of a fine-tuning run: the examples of a task and their features, by language."""

import pathlib
from collections.abc import Sequence
from typing import Any

from builders.task_kinds import KINDS, SEARCHES
from builders.task_settings import TaskSettings, Tokenizer
from evaluation.tasks import TaskData
from input_pipeline.tasks import loading
from input_pipeline.tasks.examples import SentencePairs

SPLITS = ("train", "validation", "test")


def languages(options: TaskSettings, split: str) -> tuple[str, ...]:
    """The languages of a split.

    Raises:
      ValueError: there are none.
    """
    named = getattr(options, f"{split}_languages")
    if named:
        return tuple(named)
    task, patterns = options.task, options.patterns(split)
    readers = KINDS[task.kind].readers if task.kind in KINDS else None
    found = loading.available_languages(
        readers, task, pathlib.Path(options.root), patterns, options.language_codes
    )
    if any(pattern.startswith("tfds:") for pattern in patterns):
        found |= set(task.languages)
    if not found:
        raise ValueError(
            f"task.{split}: there are no files {list(patterns)} below {options.root}; correct "
            "task.root or the patterns"
        )
    return tuple(sorted(found))


def featured(
    options: TaskSettings, tokenizer: Tokenizer, language: str, examples: Sequence[Any]
) -> TaskData:
    """Examples with their features."""
    args = (examples, tokenizer.processor, tokenizer.special, options.max_length)
    return TaskData(language, examples, KINDS[options.task.kind].features(options, *args))


def read_split(options: TaskSettings, tokenizer: Tokenizer, split: str) -> list[TaskData]:
    """A split of the task in each of its languages.

    Raises:
      ValueError: an example has no label; and see `loading.load_examples`.
    """
    found = []
    readers = KINDS[options.task.kind].readers
    for language in languages(options, split):
        examples = loading.load_examples(readers, *options.source(split, language))
        _check_labels(options, split, language, examples)
        found.append(featured(options, tokenizer, language, examples))
    return found


def _check_labels(
    options: TaskSettings, split: str, language: str, examples: Sequence[Any]
) -> None:
    """Checks that every example can be trained or scored on, before any time is spent on it."""
    task, kind = options.task, KINDS[options.task.kind]
    without = [one.id for one in examples if not kind.is_labelled(task, one)]
    if without:
        raise ValueError(
            f"{task.name}, {language}: {len(without)} of {len(examples)} examples of "
            f"{', '.join(options.patterns(split, language))} have no {kind.target}, the first one "
            f"is {without[0]!r}; name labelled files in task.{split} (predict.py is for those "
            "without)"
        )


def read_pairs(options: TaskSettings, split: str, language: str) -> SentencePairs:
    """The two sides of a search, with their gold pairs.

    Raises:
      ValueError: there are no gold pairs; and see `loading.load_pairs`.
    """
    patterns = options.patterns(split, language)
    reader = SEARCHES[options.task.kind].reader
    pairs = loading.load_pairs(reader, *options.source(split, language))
    if not pairs.gold:
        raise ValueError(
            f"{options.name}, {language}: {', '.join(patterns)} have no gold pairs; name their "
            f"file third in task.{split} (predict.py is for texts without)"
        )
    return pairs
