"""From questions to token ids: windows of the context, and where in the context a token is.

A window is `<s> question </s> </s> part of the context </s>`. Windows begin every `stride` tokens
and overlap. `has_max_context` marks the window that gives a token the most context on both sides,
the one to read its score from (the rule of BERT's run_squad.py).

Offsets count characters of the original context. SentencePiece normalises it (NFKC, spaces), but
tells which characters a piece comes from. Three rules settle the rest. Spaces before a word are not
part of its piece. If a character becomes several pieces, such as a ligature, each has its offsets.
A piece that is only a space stands for the joiners and direction marks that became this space,
since answers may begin or end with them.
"""

import dataclasses
from collections.abc import Sequence

import numpy as np
import sentencepiece as spm

from input_pipeline.bitext import NUM_SPECIALS
from input_pipeline.packed_dataset import SpecialIds
from input_pipeline.tasks.examples import Answer, QuestionExample
from input_pipeline.tasks.features import check_length, padded, token_arrays

SPACE = "▁"


@dataclasses.dataclass(frozen=True, eq=False)
class QuestionFeature:
    """A question with a window of its context.

    Attributes:
      offsets: [L, 2] int32 first and past-last character of each token in the context; both equal
        for tokens that stand for no character of it.
      has_max_context: [L] bool, whether this is the token's best window.
      start, end: first and last token of the first answer; both 0 (`<s>`) if it is not all here.
    """

    example: int
    tokens: np.ndarray
    offsets: np.ndarray
    has_max_context: np.ndarray
    start: int
    end: int

    @property
    def answerable(self) -> np.ndarray:
        """[L] bool, where an answer may begin and end: the context, and `<s>` for no answer."""
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

    `max_query_length` is how many tokens of a question are kept, `stride` the distance between the
    beginnings of two windows, at most one window of context. Raise ValueError if there is no room
    for a context, or one of the two is not positive.
    """
    _check_lengths(max_length, max_query_length, stride)
    questions = processor.encode([one.question for one in examples], return_type="numpy")
    # XQuAD and MLQA ask several questions about a context.
    texts = list(dict.fromkeys(one.context for one in examples))
    encoded = processor.encode(texts, return_type="offset_mapping", return_bytes=False)
    contexts = {
        text: (np.array(one["ids"], np.int32), token_offsets(text, one["pieces"], one["offsets"]))
        for text, one in zip(texts, encoded, strict=True)
    }
    windows = []
    for number, (example, question) in enumerate(zip(examples, questions, strict=True)):
        head = np.concatenate(
            [[special.bos], question[:max_query_length], [special.eos, special.eos]]
        )
        context, offsets = contexts[example.context]
        span = token_span(offsets, example.answers[0]) if example.answers else None
        room = max_length - len(head) - 1
        starts = _window_starts(len(context), room, min(stride, room))
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
            window = QuestionFeature(number, tokens, places, has_max_context, start, end)
            windows.append(window)
    return windows


def _check_lengths(max_length: int, max_query_length: int, stride: int) -> None:
    check_length(max_length)
    if min(stride, max_query_length) < 1:
        raise ValueError(
            f"stride is {stride} and max_query_length is {max_query_length}; both must be positive"
        )
    if max_query_length >= max_length - NUM_SPECIALS:
        raise ValueError(
            f"max_query_length is {max_query_length} of max_length {max_length}, which leaves no "
            "room for the context; choose a smaller one"
        )


def token_offsets(
    text: str, pieces: Sequence[str], offsets: Sequence[tuple[int, int]]
) -> np.ndarray:
    """Return [tokens, 2] int32 first and past-last character of each token, without spaces around.

    Both are equal if a piece stands for nothing else. `offsets` are those that SentencePiece
    reports. They cover the text up to the last word's end. If a character becomes several pieces,
    all but the last are empty ones at its beginning.
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
                # The character that it was made from belongs to a later piece as well.
                last = min(first + 1, len(text))
        row[:] = first, last
    return found


def token_span(offsets: np.ndarray, answer: Answer) -> tuple[int, int] | None:
    """Return first and last token of an answer, or None; `offsets` are [tokens, 2]."""
    is_text = offsets[:, 0] < offsets[:, 1]
    end = answer.start + len(answer.text)
    inside = np.flatnonzero(is_text & (offsets[:, 1] > answer.start) & (offsets[:, 0] < end))
    return (int(inside[0]), int(inside[-1])) if len(inside) else None


def _window_starts(length: int, room: int, stride: int) -> list[int]:
    """Return the first context token of each window; only the last window reaches the end."""
    return list(range(0, max(length - room, 0) + stride, stride))


def _best_windows(starts: Sequence[int], room: int, length: int) -> np.ndarray:
    """Return [length] the number of the window in which each context token has the most context.

    That is the smaller number of tokens before and after it in the window, plus a hundredth of the
    window's length. The first of two equal windows wins.
    """
    first = np.asarray(starts)[:, None]
    last = np.minimum(first + room, length)
    index = np.arange(length)
    context = np.minimum(index - first, last - 1 - index) + 0.01 * (last - first)
    inside = (index >= first) & (index < last)
    return np.argmax(np.where(inside, context, -1.0), axis=0)
