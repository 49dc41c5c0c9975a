"""From examples to token ids: texts, pairs, tagged words, questions, translations.

A feature is one row of a batch: a whole example, or a window of one longer than a row.

A window of a question is `<s> question </s> </s> part of the context </s>`. Windows begin every
`stride` tokens and overlap. `has_max_context` marks the window that gives a token the most context
on both sides, the one to read its score from (the rule of BERT's run_squad.py).

Offsets count characters of the original context. SentencePiece normalises it (NFKC, spaces), but
reports the characters of each piece. Three rules settle the rest. Spaces before a word are not part
of its piece. If a character becomes several pieces, such as a ligature, each has its offsets. A
piece of one space stands for the joiners and direction marks that became this space, since answers
may begin or end with them.
"""

import dataclasses
import itertools
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Literal, Protocol

import numpy as np
import sentencepiece as spm

from input_pipeline.bitext import join_pair
from input_pipeline.packed_dataset import SpecialIds
from input_pipeline.pair_rows import NUM_SPECIALS
from input_pipeline.tasks.examples import (
    Answer,
    QuestionExample,
    TaggedExample,
    TextExample,
    TranslationExample,
)

SPACE = "▁"
MIN_LENGTH = 8  # tokens of a row
_NAMED = 5  # examples that a message names
_REMEDY = "raise task.max_length of finetune.py, up to the positions of the encoder, or split them"

Unit = Literal["example", "line"]
REMEDIES: dict[Unit, str] = {
    "example": "raise task.max_length, up to the positions of the encoder",
    "line": "split them, such as into sentences",
}


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

    `label` is an index, a score, or [C] float32 with 1 for each of several labels. `second` is the
    beginning of a second segment, with `<s>` and restarted positions, if there is one.
    """

    example: int
    tokens: np.ndarray
    label: int | float | np.ndarray | None
    second: int | None = None

    def arrays(self, length: int, pad: int) -> dict[str, np.ndarray]:
        arrays = token_arrays(self.tokens, length, pad)
        if self.second is not None:
            arrays["segments"][self.second : len(self.tokens)] = 2
            arrays["positions"][self.second :] -= self.second
        if self.label is not None:
            kind = np.float32 if isinstance(self.label, float | np.ndarray) else np.int32
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
    what: str, sizes: Sequence[int] | np.ndarray, room: int, ids: Sequence[str | int], unit: str,
    remedy: str,
) -> None:  # fmt: skip
    """Log how many texts exceed `room` tokens, and the `ids` of some; `unit` is what ids number."""
    if len(long := np.flatnonzero(np.asarray(sizes) > room)):
        names = ", ".join(str(ids[number]) for number in long[:_NAMED].tolist())
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
    num_labels: int = 0,
) -> list[TextFeature]:
    """Return a feature of each text or pair; the examples are all texts or all pairs.

    It cuts texts that are too long, in pairs the longer text first (`bitext.join_pair`), with a
    warning that counts them. Sets of labels are among `num_labels`. Raise ValueError if
    `max_length` is too short.
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
        label: Any = example.label
        if isinstance(label, tuple):
            label = np.isin(np.arange(num_labels), label).astype(np.float32)
        found.append(TextFeature(number, tokens.astype(np.int32), label, second))
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
    return processor.encode(texts, return_type="numpy")  # int32


def tagging_features(
    examples: Sequence[TaggedExample],
    processor: spm.SentencePieceProcessor,
    special: SpecialIds,
    max_length: int,
) -> list[TaggedFeature]:
    """Return the features of tagged sentences; every word is in exactly one.

    Words are encoded one by one, with a space before each. Long sentences are cut between words. A
    word longer than a row keeps its first pieces. A word without pieces, such as a lone control
    character, becomes `<unk>`, as in XTREME.
    """
    check_length(max_length)
    distinct = list(dict.fromkeys(word for example in examples for word in example.words))
    unknown = np.array([special.unk], np.int32)
    # Tokenizers without normalisation add no blank before a text.
    adds_blank = "".join(processor.encode("a", out_type=str)).startswith(SPACE)
    texts = distinct if adds_blank else [f" {word}" for word in distinct]
    pieces = {
        word: ids[: max_length - 2] if len(ids) else unknown
        for word, ids in zip(distinct, _encoded(texts, processor), strict=True)
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
    """Yield first and past-last word of maximal runs of at most `room` tokens."""
    start = used = 0
    for number, length in enumerate(lengths):
        if used + length > room:
            yield start, number
            start, used = number, 0
        used += length
    if lengths:
        yield start, len(lengths)


@dataclasses.dataclass(frozen=True, eq=False)
class QuestionFeature:
    """A question with a window of its context.

    Attributes:
      offsets: [L, 2] int32 first and past-last character of each token in the context; equal for
        tokens without a character of it.
      has_max_context: [L] bool, whether this is the token's best window.
      start, end: first and last token of the first answer; both 0 (`<s>`) if a part is missing.
    """

    example: int
    tokens: np.ndarray
    offsets: np.ndarray
    has_max_context: np.ndarray
    start: int
    end: int

    @property
    def answerable(self) -> np.ndarray:
        """[L] bool, places where an answer may begin and end: context, and `<s>` for no answer."""
        found = self.offsets[:, 0] < self.offsets[:, 1]
        found[0] = True
        return found

    def arrays(self, length: int, pad: int) -> dict[str, np.ndarray]:
        return {
            **token_arrays(self.tokens, length, pad),
            "starts": np.asarray(self.start, np.int32),
            "ends": np.asarray(self.end, np.int32),
            "answerable": padded(self.answerable, length, False),
        }


def question_features(
    examples: Sequence[QuestionExample],
    processor: spm.SentencePieceProcessor,
    special: SpecialIds,
    max_length: int,
    max_query_length: int,
    stride: int,
) -> list[QuestionFeature]:
    """Return the windows of each question, one after the other.

    It keeps `max_query_length` tokens of a question. `stride` is the distance between the
    beginnings of two windows, at most one window of context. Raise ValueError if there is no room
    for a context.
    """
    check_length(max_length)
    if max_query_length >= max_length - NUM_SPECIALS:
        raise ValueError(
            f"max_query_length is {max_query_length} of max_length {max_length}, which leaves no "
            "room for the context; lower it"
        )
    questions = _encoded([one.question for one in examples], processor)
    # XQuAD and MLQA ask several questions about a context.
    texts = list(dict.fromkeys(one.context for one in examples))
    encoded = processor.encode(texts, return_type="offset_mapping", return_bytes=False)
    contexts = {
        text: (np.array(one["ids"], np.int32), token_offsets(text, one["pieces"], one["offsets"]))
        for text, one in zip(texts, encoded, strict=True)
    }
    windows = []
    for number, (example, question) in enumerate(zip(examples, questions, strict=True)):
        head = np.concatenate([[special.bos], question[:max_query_length], [special.eos] * 2])
        context, offsets = contexts[example.context]
        span = token_span(offsets, example.answers[0]) if example.answers else None
        room = max_length - len(head) - 1
        step = min(stride, room)
        starts = range(0, max(len(context) - room, 0) + step, step)  # only the last reaches the end
        best = _best_windows(starts, room, len(context))
        for which, first in enumerate(starts):
            last = min(first + room, len(context))
            tokens = np.concatenate([head, context[first:last], [special.eos]]).astype(np.int32)
            part = slice(len(head), len(tokens) - 1)
            places = np.zeros((len(tokens), 2), np.int32)
            places[part] = offsets[first:last]
            has_max_context = np.zeros(len(tokens), bool)
            has_max_context[part] = best[first:last] == which
            start = end = 0
            if span is not None and first <= span[0] and span[1] < last:
                start, end = (place - first + len(head) for place in span)
            windows.append(QuestionFeature(number, tokens, places, has_max_context, start, end))
    return windows


def token_offsets(
    text: str, pieces: Sequence[str], offsets: Sequence[tuple[int, int]]
) -> np.ndarray:
    """Return [tokens, 2] int32 first and past-last character of each token, without spaces around.

    Both are equal for a piece of spaces. `offsets` come from SentencePiece and cover the text up to
    the last word's end. If a character becomes several pieces, all but the last are empty there,
    at its beginning.
    """
    found = np.zeros((len(pieces), 2), np.int32)
    for row, piece, (start, end) in zip(found, pieces, offsets, strict=True):
        surface = text[start:end]
        first = end - len(surface.lstrip())
        last = first + len(surface.strip())
        if first == last and piece.strip(SPACE):
            if surface and not piece.startswith(SPACE):
                first, last = start, end  # a character that only Python counts as a space
            else:
                # Its character belongs to a later piece as well.
                last = min(first + 1, len(text))
        row[:] = first, last
    return found


def token_span(offsets: np.ndarray, answer: Answer) -> tuple[int, int] | None:
    """Return first and last token of an answer, or None; `offsets` are [tokens, 2]."""
    is_text = offsets[:, 0] < offsets[:, 1]
    end = answer.start + len(answer.text)
    inside = np.flatnonzero(is_text & (offsets[:, 1] > answer.start) & (offsets[:, 0] < end))
    return (int(inside[0]), int(inside[-1])) if len(inside) else None


def _best_windows(starts: Sequence[int], room: int, length: int) -> np.ndarray:
    """Return [length] the number of the window in which each context token has the most context.

    Context is the smaller number of tokens before and after it in the window, plus a hundredth of
    the window's length. The first of equal windows wins.
    """
    first = np.asarray(starts)[:, None]
    last = np.minimum(first + room, length)
    index = np.arange(length)
    context = np.minimum(index - first, last - 1 - index) + 0.01 * (last - first)
    inside = (index >= first) & (index < last)
    return np.argmax(np.where(inside, context, -1.0), axis=0)


@dataclasses.dataclass(frozen=True, eq=False)
class TranslationFeature:
    """A source `<s> x </s>`, [S] int32 `tokens`, and a target `symbol y </s>`, if known.

    `symbol` is the decoder's first input. `target` is [T] int32 `y </s>`, or None.
    """

    example: int
    tokens: np.ndarray
    symbol: int
    target: np.ndarray | None

    @property
    def size(self) -> int:
        """Tokens of the longer side."""
        return max(len(self.tokens), 0 if self.target is None else len(self.target))

    def arrays(self, length: int, pad: int) -> dict[str, np.ndarray]:
        """Return the arrays of other features for the source, and the target, int32.

        `first_token` [] is the symbol, `target_inputs` [length] the symbol and y, and
        `target_outputs` [length] the next tokens, y and `</s>`, -1 for none.
        """
        arrays = {
            **token_arrays(self.tokens, length, pad),
            "first_token": np.array(self.symbol, np.int32),
        }
        if self.target is not None:
            inputs = np.concatenate([[self.symbol], self.target[:-1]]).astype(np.int32)
            arrays["target_inputs"] = padded(inputs, length, pad)
            arrays["target_outputs"] = padded(self.target, length, -1)
        return arrays


def language_symbols(
    languages: Sequence[str],
    vocab_size: int,
    pieces: Mapping[str, str],
    piece_id: Callable[[str], int],
    special: SpecialIds,
) -> dict[str, int]:
    """Return the ids of a decoder's first input, by target language.

    `pieces` names the pieces of some languages, such as {"de": "▁<2de>"}. The only special one
    allowed is `</s>`, with which other decoders begin. Any other language gets a row of the
    embedding table after the pieces, unknown to tokenizer and softmax. A later run may append to
    `languages` and keep the symbols. `piece_id` gives `<unk>` for unknown pieces.

    Raise ValueError for a piece that is unknown, special, or of two languages, or for a language
    that is not a target.
    """
    if unknown := sorted(set(pieces) - set(languages)):
        raise ValueError(
            f"translation.language_pieces names {', '.join(map(repr, unknown))}, but the target "
            f"languages are {', '.join(dict.fromkeys(languages))}; correct or remove the codes"
        )
    found: dict[str, int] = {}
    rows = itertools.count(vocab_size)
    for language in dict.fromkeys(languages):
        if language not in pieces:
            found[language] = next(rows)
            continue
        symbol = piece_id(pieces[language])
        if symbol == special.unk:
            fault = "is not a piece of the vocabulary; name another piece, or none"
        elif symbol in special.special_ids() and symbol != special.eos:
            fault = "is a special token; name another piece, or none"
        elif other := [one for one, row in found.items() if row == symbol]:
            fault = f"is also the piece of {other[0]!r}; name another piece, or none"
        else:
            found[language] = symbol
            continue
        raise ValueError(
            f"translation.language_pieces: {pieces[language]!r} of {language!r} {fault}"
        )
    return found


def translation_features(
    examples: Sequence[TranslationExample],
    processor: spm.SentencePieceProcessor,
    special: SpecialIds,
    max_length: int,
    symbols: Mapping[str, int],
    unit: Unit = "example",
    of_sources: spm.SentencePieceProcessor | None = None,
) -> list[TranslationFeature]:
    """Return a feature of each pair; cut sides that are too long, with a warning that counts them.

    `max_length` limits a source with `<s>` and `</s>`, and a target with `</s>`. Ids number a
    `unit`: examples of a run's data, or lines of a text for a finished model. `of_sources`, if
    given, reads sources. Raise ValueError if `max_length` is too short, or a symbol is missing.
    """
    check_length(max_length)
    wanted = {example.target_language for example in examples}
    if missing := sorted(wanted - set(symbols)):
        raise ValueError(
            f"no symbol for the target language {', '.join(missing)}; the model was made for "
            f"{', '.join(symbols)}: train on a direction into it, or correct the direction"
        )
    sources = _encoded([one.source for one in examples], of_sources or processor)
    targets = _encoded([one.target or "" for one in examples], processor)
    ids = [one.id for one in examples]
    for what, texts, room in (
        ("sources", sources, max_length - 2),
        ("targets", targets, max_length - 1),
    ):
        warn_of_cuts(what, [len(one) for one in texts], room, ids, unit, REMEDIES[unit])
    found = []
    for number, (example, x, y) in enumerate(zip(examples, sources, targets, strict=True)):
        source = np.concatenate([[special.bos], x[: max_length - 2], [special.eos]])
        target = None
        if example.target is not None:
            target = np.append(y[: max_length - 1], special.eos).astype(np.int32)
        symbol = symbols[example.target_language]
        found.append(TranslationFeature(number, source.astype(np.int32), symbol, target))
    return found
