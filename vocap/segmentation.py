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
      sentences: number of sentences.
      tokens_per_sentence: mean number of tokens of a sentence.
      tokens_per_word: the same of a word between blanks; None where words have no blanks between.
      characters_per_token: characters of the text, blanks included, by tokens.
      unknown_rate: share of the tokens that are unknown; 0 for tokenizers without such a token.
      alp: average log probability of a sentence in nats (VoCap, Eq. 1); None if the tokenizer is no
        unigram model. See `average_log_probability_of_halves`.
    """

    sentences: int
    tokens_per_sentence: float
    tokens_per_word: float | None
    characters_per_token: float
    unknown_rate: float
    alp: float | None


@dataclasses.dataclass(frozen=True)
class TokenizerScore:
    """Scores of a tokenizer.

    Attributes:
      kind: of the tokenizer, such as "unigram".
      size: V, number of ids.
      used: share of its pieces that the texts of all languages use, once at least.
      texts: scores on the text of each language.
      tax: tokens of the parallel text of a language by those of the same sentences in the pivot
        language; without the pivot.
    """

    kind: str
    size: int
    used: float
    texts: Mapping[str, TextScore]
    tax: Mapping[str, float]


def score_text(
    encode: Encode, sentences: Sequence[str], size: int, unknown: int | None, *, is_unigram: bool
) -> tuple[TextScore, np.ndarray]:
    """Score a tokenizer on the text of a language.

    Args:
      sentences: of the language, at least one.
      unknown: id of unknown text, or None.
      is_unigram: whether it is a unigram model, which ALP is defined for.

    Returns:
      The scores, and the occurrences [V] int64 of each id.
    """
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
    alp = None
    if is_unigram:
        alp = average_log_probability_of_halves(halves, numbers, unknown)
    score = TextScore(
        sentences=len(sentences),
        tokens_per_sentence=tokens / len(sentences),
        tokens_per_word=tokens / words if has_words else None,
        characters_per_token=characters / tokens,
        unknown_rate=float(counts[unknown] / tokens) if unknown is not None else 0.0,
        alp=alp,
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
    closely. Pieces that the other half does not use share what smoothing leaves them
    (`smoothed_log_probs`), and unknown text costs ten nats more than the rarest piece, as in a
    segmentation by SentencePiece.

    Args:
      counts: [2, V] occurrences of each piece in the best segmentations of each half.
      sentences: [2] numbers of sentences.
      unknown: id of unknown text, or None.

    Returns:
      The mean over both halves' sentences, nats a sentence; None if a half is empty.
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

    Args:
      rows: a cell for each language; "" is a missing translation.

    Returns:
      Both numbers by language, of the rows that have both; {} if the pivot is none of them.
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
