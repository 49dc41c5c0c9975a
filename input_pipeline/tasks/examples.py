"""Examples of the downstream tasks: text and labels, before tokenisation."""

import dataclasses
from collections.abc import Mapping
from typing import Any


@dataclasses.dataclass(frozen=True)
class BadRow:
    """A faulty row of a user's file; `error` begins with its file and line."""

    id: str
    error: str
    cells: Mapping[str, Any] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class TextExample:
    """A text or a pair of texts to classify or to score.

    `id` counts the examples of a language and split, from "0". `label` is an index into
    `Task.labels`, several of these, a score of a regression, or None. A hold-out keeps a `group`,
    such as translations, on one side. `cells` are the other columns of a row to predict on.
    """

    id: str
    text: str
    text_pair: str | None
    label: int | float | tuple[int, ...] | None
    group: str = dataclasses.field(default="", compare=False)
    cells: Mapping[str, Any] = dataclasses.field(default_factory=dict, compare=False)

    @property
    def content(self) -> tuple[str, ...]:
        return (self.text,) if self.text_pair is None else (self.text, self.text_pair)


@dataclasses.dataclass(frozen=True)
class TaggedExample:
    """A sentence with a tag for each word, an index into `Task.labels`, or with empty `tags`.

    `group` and `cells` are those of `TextExample`.
    """

    id: str
    words: tuple[str, ...]
    tags: tuple[int, ...]
    group: str = dataclasses.field(default="", compare=False)
    cells: Mapping[str, Any] = dataclasses.field(default_factory=dict, compare=False)

    @property
    def content(self) -> tuple[str, ...]:
        return self.words


@dataclasses.dataclass(frozen=True)
class Answer:
    """A part of a context: `context[start : start + len(text)] == text`."""

    text: str
    start: int


@dataclasses.dataclass(frozen=True)
class QuestionExample:
    """A question about a context; no `answers` if the context has none (SQuAD 2.0)."""

    id: str
    question: str
    context: str
    answers: tuple[Answer, ...]

    @property
    def content(self) -> tuple[str, ...]:
        return self.question, self.context


@dataclasses.dataclass(frozen=True)
class TranslationExample:
    """A text to translate into the language with code `target_language`."""

    id: str
    source: str
    target: str | None
    target_language: str


@dataclasses.dataclass(frozen=True)
class Sentences:
    ids: tuple[str, ...]
    texts: tuple[str, ...]


@dataclasses.dataclass(frozen=True)
class SentencePairs:
    """Source and target (English) side of a search; `gold` are ids of known translations."""

    source: Sentences
    target: Sentences
    gold: tuple[tuple[str, str], ...]
