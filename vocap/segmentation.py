"""Scores of any tokenizer on text by language: fit, length, coverage, and cost across languages.

Each score comes with bootstrap resamples: scores of as many sentences, drawn with replacement. All
tokenizers share the resamples, so their differences are paired.
"""

import dataclasses
import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from vocap.alp import smoothed_log_probs
from xlm.interop.segmenter import Segmenter

_LONGEST_WORD = 20  # most characters between blanks, on average, of a script with blanks
_RESAMPLES = 1000
_DRAWS = 1 << 21  # sentences drawn at once, 32 MB

Rows = Sequence[Sequence[str]]
Samples = np.ndarray  # [1 + R] float64: a score, and the score of each resample


@dataclasses.dataclass(frozen=True)
class TokenizerScore:
    """Scores of a tokenizer with `size` ids.

    Attributes:
      used: share of its pieces that the texts use at least once.
      sentences: number of sentences by language.
      texts: samples by language and measure, see `text_scores`.
      tax: samples by language, see `taxes`; the pivot's is 1.
    """

    kind: str
    size: int
    used: float
    sentences: Mapping[str, int]
    texts: Mapping[str, Mapping[str, Samples]]
    tax: Mapping[str, Samples]


def resampled(values: np.ndarray, resamples: int = _RESAMPLES) -> np.ndarray:
    """Sum values [N, K] over sentences, and over bootstrap resamples of them: [1 + R, K] float64.

    Row 0 has the sums over the sentences themselves. Equal N draw equal sentences.
    """
    number, rng = len(values), np.random.default_rng(0)
    found = [values.sum(axis=0, keepdims=True)]
    step = max(1, _DRAWS // number)
    for start in range(0, resamples, step):
        places = np.arange(min(step, resamples - start))[:, None]
        drawn = places * number + rng.integers(number, size=(len(places), number))
        times = np.bincount(drawn.ravel(), minlength=len(places) * number)
        found.append(times.reshape(len(places), number).astype(np.float64) @ values)
    return np.concatenate(found)


def interval(samples: Samples) -> tuple[float, float]:
    """Return the 95 % percentile interval of a score."""
    low, high = np.nanpercentile(samples[1:], [2.5, 97.5])
    return float(low), float(high)


def score_text(
    segmenters: Sequence[Segmenter], sentences: Sequence[str]
) -> tuple[list[dict[str, Samples]], list[np.ndarray]]:
    """Score tokenizers on sentences of a language; also count their ids, [V] int64 each."""
    facts = [(1, len(one.split()), len(one), len(one.encode())) for one in sentences]
    halves = np.array([_half(sentence) for sentence in sentences])
    measured = [_measured(segmenter, sentences, halves) for segmenter in segmenters]
    totals = resampled(np.hstack([np.array(facts, float), *(sums for sums, _ in measured)]))
    of_text, *of_tokens = np.split(totals, range(4, totals.shape[1], 3), axis=1)
    scores = [
        text_scores(of_text, one, is_unigram=segmenter.kind == "unigram")
        for segmenter, one in zip(segmenters, of_tokens, strict=True)
    ]
    return scores, [counts for _, counts in measured]


def text_scores(
    of_text: np.ndarray, of_tokens: np.ndarray, *, is_unigram: bool
) -> dict[str, Samples]:
    """Return samples by measure of totals [1 + R, 4] of a text and [1 + R, 3] of its tokens.

    - `tokens_per_word`: of words between blanks; absent for scripts without blanks.
    - `characters_per_token`, `bytes_per_token`: with blanks.
    - `unknown_rate`: share of unknown tokens; 0 for tokenizers without such a token.
    - `bits_per_byte`: length of the code of `code_lengths`; absent if a half has no sentence.
    - `alp`: minus its nats a sentence, the average log probability (VoCap, Eq. 1) if the
      segmentation is the likeliest one; absent if the tokenizer is not a unigram model.
    """
    sentences, words, characters, num_bytes = of_text.T
    tokens, unknown, nats = of_tokens.T
    tokens = np.maximum(tokens, 1)
    found = {"tokens_per_sentence": tokens / sentences}
    if characters[0] <= _LONGEST_WORD * words[0]:
        found["tokens_per_word"] = tokens / np.maximum(words, 1)
    found["characters_per_token"] = characters / tokens
    found["bytes_per_token"] = num_bytes / tokens
    found["unknown_rate"] = unknown / tokens
    if not np.isnan(nats[0]):
        found["bits_per_byte"] = nats / np.log(2) / np.maximum(num_bytes, 1)
        if is_unigram:
            found["alp"] = -nats / sentences
    return found


def _half(sentence: str) -> int:
    """Return the half of the text with a sentence, the same for its repetitions."""
    return hashlib.blake2b(sentence.encode(), digest_size=1).digest()[0] & 1


def _measured(
    segmenter: Segmenter, sentences: Sequence[str], halves: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return tokens, unknown ones and nats [N, 3] of sentences, and counts [V] of their ids."""
    encoded = [np.array(ids, np.int32) for ids in segmenter.each(sentences)]
    lengths, ids = np.array([len(one) for one in encoded]), np.concatenate(encoded)
    owners = np.repeat(np.arange(len(lengths)), lengths)
    lacking = np.bincount(owners[ids == segmenter.unknown], minlength=len(lengths))
    nats = code_lengths(ids, halves[owners], segmenter.size, segmenter.unknown)
    nats = np.bincount(owners, nats, len(lengths))
    if len(set(halves)) < 2:
        nats = np.full(len(lengths), np.nan)
    return np.stack([lengths, lacking, nats], axis=1), np.bincount(ids, minlength=segmenter.size)


def code_lengths(ids: np.ndarray, halves: np.ndarray, size: int, unknown: int | None) -> np.ndarray:
    """Compute the length [tokens] in nats of each token in the code of the other half.

    The code is the unigram distribution of the tokens of the other half of the text. That of the
    text itself would favour vocabularies that fit a small sample closely. Pieces unused in the
    other half share the smoothed remainder (`smoothed_log_probs`). Unknown text costs ten nats more
    than the rarest piece, as in a segmentation by SentencePiece.
    """
    nats = np.zeros(len(ids))
    for half in (0, 1):
        counts = np.bincount(ids[halves != half], minlength=size)
        if unknown is None:
            log_probs = smoothed_log_probs(counts)
        else:
            *pieces, lacking = smoothed_log_probs(np.delete(counts, unknown))
            log_probs = np.insert(pieces, unknown, lacking)
        nats[halves == half] = -log_probs[ids[halves == half]]
    return nats


def row_tokens(segmenter: Segmenter, rows: Rows) -> np.ndarray:
    """Return the tokens [N, L] float64 of the cells of rows; NaN for a missing translation."""
    cells = [cell for row in rows for cell in row]
    lengths = [len(ids) for ids in segmenter.each(cells)]
    has_text = np.array([bool(cell) for cell in cells], bool)
    return np.where(has_text, lengths, np.nan).reshape(len(rows), -1)


def taxes(tokens: np.ndarray, pivot: int) -> np.ndarray:
    """Return samples [1 + R, L] of each language's tokens over the pivot's.

    The parallel sentences of `tokens` [N, L] are resampled together. A language counts rows with
    both; NaN if there are none.
    """
    has_both = ~np.isnan(tokens) & ~np.isnan(tokens[:, [pivot]])
    sides = (np.where(has_both, one, 0.0) for one in (tokens, tokens[:, [pivot]]))
    own, of_pivot = np.split(resampled(np.hstack(list(sides))), 2, axis=1)
    with np.errstate(invalid="ignore", divide="ignore"):
        return own / of_pivot


def gini(values: np.ndarray) -> Any:
    """Return Gini coefficients [...] of positive values [..., N]: below 1, 0 if all are equal."""
    ascending, count = np.sort(values, axis=-1), values.shape[-1]
    ranks = 2 * np.arange(1, count + 1) - count - 1
    return ascending @ ranks / (count * ascending.sum(axis=-1))
