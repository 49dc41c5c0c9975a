"""From examples to token ids: texts, pairs of texts, and tagged words.

A feature is one row of a batch: a whole example, or a window of one longer than a row.
"""

import dataclasses
import logging
from collections.abc import Iterator, Sequence
from typing import Protocol

import numpy as np
import sentencepiece as spm

from input_pipeline.bitext import NUM_SPECIALS, join_pair
from input_pipeline.packed_dataset import SpecialIds
from input_pipeline.tasks.examples import TaggedExample, TextExample

MIN_LENGTH = 8  # tokens of a row
_NAMED = 5  # examples that a message names
_REMEDY = "raise task.max_length of finetune.py, up to the positions of the encoder, or split them"


class Feature(Protocol):
    """One row of a batch: the number of its example, and its [L] int32 ids without padding."""

    @property
    def example(self) -> int: ...

    @property
    def tokens(self) -> np.ndarray: ...

    def arrays(self, length: int, pad: int) -> dict[str, np.ndarray]:
        """Return the arrays of the row by name, padded to `length`."""


def token_arrays(tokens: np.ndarray, length: int, pad: int) -> dict[str, np.ndarray]:
    """Return `tokens`, `segments` (1 for text, 0 for padding) and `positions`, [length] int32."""
    index = np.arange(length, dtype=np.int32)
    return {
        "tokens": padded(tokens, length, pad),
        "segments": (index < len(tokens)).astype(np.int32),
        "positions": index,
    }


def padded(values: np.ndarray, length: int, fill: int) -> np.ndarray:
    """Return `values` padded with `fill` to [length], of the same dtype."""
    return np.pad(values, (0, length - len(values)), constant_values=fill)


@dataclasses.dataclass(frozen=True, eq=False)
class TextFeature:
    """A text or a pair, `<s> a </s>` or `<s> a </s> </s> b </s>`.

    `second` is where a second segment begins, with `<s>` and restarted positions; None without one.
    """

    example: int
    tokens: np.ndarray
    label: int | float | None
    second: int | None = None

    def arrays(self, length: int, pad: int) -> dict[str, np.ndarray]:
        arrays = token_arrays(self.tokens, length, pad)
        if self.second is not None:
            arrays["segments"][self.second : len(self.tokens)] = 2
            arrays["positions"][self.second :] -= self.second
        if self.label is not None:
            kind = np.float32 if isinstance(self.label, float) else np.int32
            arrays["labels"] = np.asarray(self.label, kind)
        return arrays


@dataclasses.dataclass(frozen=True, eq=False)
class TaggedFeature:
    """Words of a sentence that fit into a row, `<s> words </s>`.

    `words` [L] int32 numbers each token's word in this row, -1 for specials. `tags` are [N] int32,
    or [0] without tags. `first_word` is the number of the row's first word in its sentence.
    """

    example: int
    tokens: np.ndarray
    words: np.ndarray
    num_words: int
    tags: np.ndarray
    first_word: int

    def arrays(self, length: int, pad: int) -> dict[str, np.ndarray]:
        return {
            **token_arrays(self.tokens, length, pad),
            "words": padded(self.words, length, -1),
            "tags": padded(self.tags, length, -1),
        }


def check_length(max_length: int) -> None:
    """Raise ValueError if rows of `max_length` tokens are too short."""
    if max_length < MIN_LENGTH:
        raise ValueError(f"max_length is {max_length}, must be at least {MIN_LENGTH}")


def warn_of_cuts(
    what: str, sizes: Sequence[int], room: int, ids: Sequence[str], unit: str, remedy: str
) -> None:
    """Log how many texts exceed `room` tokens, and some `ids`; `unit` names what ids number."""
    long = [id for id, size in zip(ids, sizes, strict=True) if size > room]
    if long:
        names = ", ".join(long[:_NAMED])
        logging.warning(
            "%d of %d %s have more than %d tokens and are cut (%s %s%s); %s",
            len(long), len(sizes), what, room, unit, names, ", ..." if len(long) > _NAMED else "",
            remedy,
        )  # fmt: skip


def text_features(
    examples: Sequence[TextExample],
    processor: spm.SentencePieceProcessor,
    special: SpecialIds,
    max_length: int,
    *,
    separate_segments: bool = False,
) -> list[TextFeature]:
    """Return a feature of each text or pair; the examples are all texts or all pairs.

    Texts that are too long are cut at the end, with a warning that counts them. Of a pair the
    longer text is cut first (`bitext.join_pair`). Raise ValueError if `max_length` is too short.
    """
    check_length(max_length)
    texts = _encoded([example.text for example in examples], processor)
    pairs = _encoded([example.text_pair or "" for example in examples], processor)
    is_pair = any(example.text_pair is not None for example in examples)
    what, room = ("pairs", max_length - NUM_SPECIALS) if is_pair else ("texts", max_length - 2)
    sizes = [len(one) + len(two) for one, two in zip(texts, pairs, strict=True)]
    warn_of_cuts(what, sizes, room, [one.id for one in examples], "example", _REMEDY)
    found = []
    for number, (example, one, two) in enumerate(zip(examples, texts, pairs, strict=True)):
        second = None
        if example.text_pair is None:
            tokens = np.concatenate([[special.bos], one[: max_length - 2], [special.eos]])
        else:
            tokens, start = join_pair(one, two, max_length, special)
            if separate_segments:
                tokens[start], second = special.bos, start
        found.append(TextFeature(number, tokens.astype(np.int32), example.label, second))
    return found


def sentence_features(
    texts: Sequence[str],
    processor: spm.SentencePieceProcessor,
    special: SpecialIds,
    max_length: int,
) -> list[TextFeature]:
    """Return a feature `<s> text </s>` of each text, without a label; see `text_features`."""
    examples = [TextExample(str(i), text, None, None) for i, text in enumerate(texts)]
    return text_features(examples, processor, special, max_length)


def _encoded(texts: list[str], processor: spm.SentencePieceProcessor) -> list[np.ndarray]:
    """Return the int32 token ids of each text."""
    return processor.encode(texts, return_type="numpy")


def tagging_features(
    examples: Sequence[TaggedExample],
    processor: spm.SentencePieceProcessor,
    special: SpecialIds,
    max_length: int,
) -> list[TaggedFeature]:
    """Return the features of tagged sentences; every word is in exactly one.

    Words are encoded one by one, as if a space stood before each. A sentence that is too long is
    cut between words. A word that is longer than a row keeps its first pieces. A word without
    pieces, such as a lone control character, becomes `<unk>`, as in XTREME.
    """
    check_length(max_length)
    distinct = list(dict.fromkeys(word for example in examples for word in example.words))
    unknown = np.array([special.unk], np.int32)
    pieces = {
        word: ids[: max_length - 2] if len(ids) else unknown
        for word, ids in zip(distinct, _encoded(distinct, processor), strict=True)
    }
    found = []
    for number, example in enumerate(examples):
        lengths = [len(pieces[word]) for word in example.words]
        for start, end in _windows(lengths, max_length - 2):
            words = np.repeat(np.arange(end - start), lengths[start:end])
            ids = [pieces[word] for word in example.words[start:end]]
            feature = TaggedFeature(
                number,
                np.concatenate([[special.bos], *ids, [special.eos]]).astype(np.int32),
                np.pad(words, 1, constant_values=-1).astype(np.int32),
                end - start,
                np.asarray(example.tags[start:end], np.int32),
                start,
            )
            found.append(feature)
    return found


def _windows(lengths: Sequence[int], room: int) -> Iterator[tuple[int, int]]:
    """Yield first and past-last word of maximal runs of at most `room` tokens; no word has more."""
    start = used = 0
    for number, length in enumerate(lengths):
        if used + length > room:
            yield start, number
            start, used = number, 0
        used += length
    if lengths:
        yield start, len(lengths)
