"""The data of a fine-tuning run: the `task` section of a config, its examples and features."""

import dataclasses
import pathlib
from collections.abc import Sequence
from typing import Any

import sentencepiece as spm
from ml_collections import ConfigDict

from builders.data import settings
from evaluation.tasks import Answering, TaskData
from input_pipeline.packed_dataset import SpecialIds
from input_pipeline.tasks import features, loading
from input_pipeline.tasks.examples import SentencePairs
from input_pipeline.tasks.question_features import question_features
from input_pipeline.tasks.tasks import TASKS, Task
from input_pipeline.tokenization import special_ids

SPLITS = ("train", "validation", "test")


@dataclasses.dataclass(frozen=True)
class TaskSettings:
    """A task and its data; the `task` section of a config.

    Attributes:
      name: a key of `input_pipeline.tasks.tasks.TASKS`.
      root: folder that the patterns start from.
      train, validation, test: patterns of files, see `input_pipeline.tasks.files`, or
        "tfds:NAME:SPLIT" for tensorflow-datasets; "tfds" for what it has of the task and split.
      train_languages, validation_languages: what is trained on, and what the checkpoint is
        selected on.
      test_languages: what is reported; empty for all that there are files for.
      language_codes: other names of a language in files, such as {"deu": "de"}.
      data_dir: where tensorflow-datasets keeps its data; "" for its own default.
      max_length: tokens of a row.
      buckets: lengths that batches are padded to, below `max_length`, which is one more.
      stride, max_query_length: of questions, see `question_features`.
      max_answer_length, n_best: of questions, see `evaluation.tasks.Answering`.
      pooling: of tagging, see `models.heads.TaggingHead`.
      layer: of retrieval and mining, whose states make a sentence's vector.
      margin: of mining, see `evaluation.metrics.retrieval.mine`.
      threshold: of mining, least margin of a pair; None for the best one for the gold pairs of the
        validation data, or of the data at hand where there is none.
    """

    name: str
    root: str
    train: tuple[str, ...]
    validation: tuple[str, ...]
    test: tuple[str, ...]
    train_languages: tuple[str, ...]
    validation_languages: tuple[str, ...]
    test_languages: tuple[str, ...]
    language_codes: dict[str, str]
    data_dir: str
    max_length: int
    buckets: tuple[int, ...]
    stride: int
    max_query_length: int
    max_answer_length: int
    n_best: int
    pooling: str
    layer: int
    margin: str
    threshold: float | None

    def __post_init__(self):
        if self.name not in TASKS:
            raise ValueError(f"task.name is {self.name!r}, must be one of {', '.join(TASKS)}")

    @property
    def task(self) -> Task:
        return TASKS[self.name]

    @property
    def lengths(self) -> tuple[int, ...]:
        """All lengths that rows are padded to."""
        return (*(one for one in self.buckets if one < self.max_length), self.max_length)

    @property
    def answering(self) -> Answering:
        return Answering(self.max_answer_length, self.n_best)

    def patterns(self, split: str, language: str = "en") -> tuple[str, ...]:
        """Source of a split of a language.

        Raises:
          ValueError: tensorflow-datasets, which is asked for, does not have it.
        """
        named = getattr(self, split)
        if tuple(named) != ("tfds",):
            return tuple(named)
        known = self.task.tfds or {}
        if split == "train" and language != "en" and "translate_train" in known:
            return (known["translate_train"],)
        if split not in known:
            raise ValueError(
                f"task.{split} is 'tfds', but tensorflow-datasets has no {split} split of "
                f"{self.name}; name files"
            )
        return (known[split],)

    def source(self, split: str, language: str) -> tuple[Any, ...]:
        """A split in a language, as `loading.load_examples` and `load_pairs` want it."""
        root, data_dir = pathlib.Path(self.root), self.data_dir or None
        patterns = self.patterns(split, language)
        return self.task, root, patterns, language, self.language_codes, data_dir

    def languages(self, split: str) -> tuple[str, ...]:
        """The languages of a split.

        Raises:
          ValueError: there are none.
        """
        named = getattr(self, f"{split}_languages")
        if named:
            return tuple(named)
        patterns = self.patterns(split)
        found = loading.available_languages(
            self.task, pathlib.Path(self.root), patterns, self.language_codes
        )
        if any(pattern.startswith("tfds:") for pattern in patterns):
            found |= set(self.task.languages)
        if not found:
            raise ValueError(
                f"task.{split}: there are no files {list(patterns)} below {self.root}; correct "
                "task.root or the patterns"
            )
        return tuple(sorted(found))


def task_settings(config: ConfigDict) -> TaskSettings:
    return settings(TaskSettings, config.task, "task")


class Tokenizer:
    """A SentencePiece model and what of it features need."""

    def __init__(self, model: bytes):
        self.processor = spm.SentencePieceProcessor(model_proto=model)
        self.special: SpecialIds = special_ids(self.processor)


def featured(
    options: TaskSettings, tokenizer: Tokenizer, language: str, examples: Sequence[Any]
) -> TaskData:
    """Examples with their features."""
    args = (examples, tokenizer.processor, tokenizer.special, options.max_length)
    if options.task.kind == "extractive_qa":
        rows: list[Any] = list(question_features(*args, options.max_query_length, options.stride))
    elif options.task.kind == "tagging":
        rows = list(features.tagging_features(*args))
    else:
        rows = list(features.text_features(*args))
    return TaskData(language, examples, rows)


def read_split(options: TaskSettings, tokenizer: Tokenizer, split: str) -> list[TaskData]:
    """A split of the task in each of its languages.

    Raises:
      ValueError: an example has no label; and see `loading.load_examples`.
    """
    found = []
    for language in options.languages(split):
        patterns = options.patterns(split, language)
        examples = loading.load_examples(*options.source(split, language))
        _check_labels(options.task, split, language, examples, patterns)
        found.append(featured(options, tokenizer, language, examples))
    return found


def _check_labels(
    task: Task, split: str, language: str, examples: Sequence[Any], patterns: Sequence[str]
) -> None:
    """Checks that every example can be trained or scored on, before any time is spent on it."""
    if task.kind == "extractive_qa":
        without = [not one.answers and not task.has_unanswerable for one in examples]
    elif task.kind == "tagging":
        without = [not one.tags for one in examples]
    else:
        without = [one.label is None for one in examples]
    if any(without):
        what = "answer" if task.kind == "extractive_qa" else "label"
        first = examples[without.index(True)].id
        raise ValueError(
            f"{task.name}, {language}: {sum(without)} of {len(examples)} examples of "
            f"{', '.join(patterns)} have no {what}, the first one is {first!r}; name labelled "
            f"files in task.{split} (predict.py is for those without)"
        )


def read_pairs(options: TaskSettings, split: str, language: str) -> SentencePairs:
    """The two sides of a search, with their gold pairs.

    Raises:
      ValueError: there are no gold pairs; and see `loading.load_pairs`.
    """
    patterns = options.patterns(split, language)
    pairs = loading.load_pairs(*options.source(split, language))
    if not pairs.gold:
        raise ValueError(
            f"{options.name}, {language}: {', '.join(patterns)} have no gold pairs; name their "
            f"file third in task.{split} (predict.py is for texts without)"
        )
    return pairs
