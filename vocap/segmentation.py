"""Scores of any tokenizer on text by language: fit, length, coverage, and cost across languages."""

import dataclasses
import hashlib
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from vocap.alp import average_log_probability, smoothed_log_probs

_LONGEST_WORD = 20  # mean characters between blanks, above which a script has no blanks
_BATCH = 4096

Encode = Callable[[Sequence[str]], list[list[int]]]


@dataclasses.dataclass(frozen=True)
class TextScore:
    """Scores of a tokenizer on the text of a language.

    Attributes:
      tokens_per_word: of words between blanks; None for scripts that write no blanks.
      characters_per_token: blanks included.
      unknown_rate: share of the tokens that are unknown; 0 for tokenizers without such a token.
      alp: average log probability of a sentence in nats (VoCap, Eq. 1), by
        `average_log_probability_of_halves`; None if the tokenizer is no unigram model.
    """

    sentences: int
    tokens_per_sentence: float
    tokens_per_word: float | None
    characters_per_token: float
    unknown_rate: float
    alp: float | None


@dataclasses.dataclass(frozen=True)
class TokenizerScore:
    """Scores of a tokenizer with `size` ids.

    `used` is the share of its pieces that the texts use at least once. `tax` has the tokens of each
    language's parallel text per token of the same sentences in the pivot, without the pivot.
    """

    kind: str
    size: int
    used: float
    texts: Mapping[str, TextScore]
    tax: Mapping[str, float]


def score_text(
    encode: Encode, sentences: Sequence[str], size: int, unknown: int | None, *, is_unigram: bool
) -> tuple[TextScore, np.ndarray]:
    """Score a tokenizer on one or more sentences of a language; also count [V] int64 its ids."""
    halves = np.zeros((2, size), np.int64)
    numbers = np.zeros(2, np.int64)
    half_of = [_half(sentence) for sentence in sentences]
    for start in range(0, len(sentences), _BATCH):
        batch = slice(start, start + _BATCH)
        for half, ids in zip(half_of[batch], encode(sentences[batch]), strict=True):
            np.add.at(halves[half], ids, 1)
            numbers[half] += 1
    counts = halves.sum(axis=0)
    tokens, characters = max(int(counts.sum()), 1), sum(map(len, sentences))
    words = sum(len(sentence.split()) for sentence in sentences)
    has_words = characters <= _LONGEST_WORD * words
    score = TextScore(
        sentences=len(sentences),
        tokens_per_sentence=tokens / len(sentences),
        tokens_per_word=tokens / words if has_words else None,
        characters_per_token=characters / tokens,
        unknown_rate=float(counts[unknown] / tokens) if unknown is not None else 0.0,
        alp=average_log_probability_of_halves(halves, numbers, unknown) if is_unigram else None,
    )
    return score, counts


def _half(sentence: str) -> int:
    """Half of the text that a sentence is in; repetitions are in the same."""
    return hashlib.blake2b(sentence.encode(), digest_size=1).digest()[0] & 1


def average_log_probability_of_halves(
    counts: np.ndarray, sentences: np.ndarray, unknown: int | None
) -> float | None:
    """Compute ALP (Eq. 1) of each half of a text under the unigram distribution of the other.

    Probabilities from the text itself would favour vocabularies that fit a small sample more
    closely. Pieces that the other half does not use share the smoothed remainder
    (`smoothed_log_probs`). Unknown text costs ten nats more than the rarest piece, as in a
    segmentation by SentencePiece.

    `counts` [2, V] are occurrences of each piece in the best segmentations, `sentences` [2] the
    sizes of the halves. Returns the mean over all sentences in nats a sentence; None if a half is
    empty.
    """
    if not sentences.all():
        return None
    lacking = np.zeros(2) if unknown is None else counts[:, unknown]
    pieces = counts if unknown is None else np.delete(counts, unknown, axis=1)
    total = 0.0
    for own, other in ((0, 1), (1, 0)):
        log_probs = smoothed_log_probs(pieces[other])
        total += average_log_probability(np.append(pieces[own], lacking[own]), log_probs, 1)
    return total / float(sentences.sum())


def token_counts(encode: Encode, texts: Sequence[str]) -> np.ndarray:
    """Return the number of tokens [N] int64 of each text."""
    lengths = [
        len(ids)
        for start in range(0, len(texts), _BATCH)
        for ids in encode(texts[start : start + _BATCH])
    ]
    return np.array(lengths, np.int64)


def tax(
    encode: Encode, rows: Sequence[Sequence[str]], languages: Sequence[str], pivot: str
) -> dict[str, tuple[int, int]]:
    """Count the tokens of parallel sentences of each language, and of the same in the pivot.

    `rows` have a cell for each language, "" for a missing translation. A language counts the rows
    that have both. Returns {} if the pivot is none of the languages.
    """
    if pivot not in languages:
        return {}
    of_pivot = [row[languages.index(pivot)] for row in rows]
    pivot_tokens = token_counts(encode, of_pivot)
    found = {}
    for column, language in enumerate(languages):
        cells = [row[column] for row in rows]
        both = np.array([bool(a and b) for a, b in zip(cells, of_pivot, strict=True)], bool)
        if language != pivot and both.any():
            own = token_counts(encode, [cells[i] for i in np.flatnonzero(both)])
            found[language] = (int(own.sum()), int(pivot_tokens[both].sum()))
    return found


def gini(values: np.ndarray) -> float:
    """Gini coefficient of positive values [N]: 0 if all are equal, below 1."""
    ascending, count = np.sort(values), len(values)
    ranks = 2 * np.arange(1, count + 1) - count - 1
    return float(ranks @ ascending / (count * ascending.sum()))
