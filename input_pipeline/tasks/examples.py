"""Examples of the downstream tasks: text and labels, before any tokenizer has seen them."""

import dataclasses


@dataclasses.dataclass(frozen=True)
class TextExample:
    """A text or a pair of texts to put into a class, or to score.

    Attributes:
      id: its number among the examples of its language and split, from "0".
      text, text_pair: the text, and the second one of tasks on pairs.
      label: an index into `Task.labels`, a score of a regression, or None where there is none.
    """

    id: str
    text: str
    text_pair: str | None
    label: int | float | None

    @property
    def content(self) -> tuple[str, ...]:
        """All text of it."""
        return (self.text,) if self.text_pair is None else (self.text, self.text_pair)


@dataclasses.dataclass(frozen=True)
class TaggedExample:
    """A sentence with a tag for each word.

    Attributes:
      id: as of `TextExample`.
      words: the words, as the dataset cuts them.
      tags: one index into `Task.labels` a word; empty where there are no tags.
    """

    id: str
    words: tuple[str, ...]
    tags: tuple[int, ...]

    @property
    def content(self) -> tuple[str, ...]:
        """All text of it."""
        return self.words


@dataclasses.dataclass(frozen=True)
class Answer:
    """A part of a context: `context[start : start + len(text)] == text`."""

    text: str
    start: int


@dataclasses.dataclass(frozen=True)
class QuestionExample:
    """A question about a context.

    Attributes:
      id: the dataset's.
      question, context: the texts, as they are in the dataset.
      answers: the right ones; none for a question without an answer in the context (SQuAD 2.0).
    """

    id: str
    question: str
    context: str
    answers: tuple[Answer, ...]


@dataclasses.dataclass(frozen=True)
class TranslationExample:
    """A text to translate.

    Attributes:
      id: as of `TextExample`.
      source: the text.
      target: its translation, None where there is none.
      target_language: code of the language to translate into.
    """

    id: str
    source: str
    target: str | None
    target_language: str


@dataclasses.dataclass(frozen=True)
class Sentences:
    """Sentences of one language, each with an id of its own."""

    ids: tuple[str, ...]
    texts: tuple[str, ...]


@dataclasses.dataclass(frozen=True)
class SentencePairs:
    """Two sides of a search for translations.

    Attributes:
      source, target: the sentences of a language, and those in English.
      gold: ids of the source and the target sentence of each pair of translations, where known.
    """

    source: Sentences
    target: Sentences
    gold: tuple[tuple[str, str], ...]
