"""Scores of extractive question answering, and answers from the logits of sliding windows.

Each dataset has its own rule for equal answers. XTREME scores XQuAD and TyDiQA-GoldP by the script
of SQuAD 1.1, with its English articles and ASCII punctuation, in every language. Only MLQA has a
rule for each language. `normalizer` follows XTREME, as the papers do.
"""

import collections
import dataclasses
import functools
import itertools
import re
import string
import unicodedata
from collections.abc import Callable, Mapping, Sequence

import numpy as np
from absl import logging

Gold = Mapping[str, Sequence[str]]
Normalize = Callable[[str], str]

# Score of an answer without a span; finite, as JSON needs.
NO_SPAN = float(np.finfo(np.float32).min)

_ARTICLES = {
    "en": r"\b(a|an|the)\b",
    "es": r"\b(un|una|unos|unas|el|la|los|las)\b",
    "de": r"\b(ein|eine|einen|einem|eines|einer|der|die|das|den|dem|des)\b",
    "vi": r"\b(của|là|cái|chiếc|những)\b",
    # The script means a prefix, but its pattern matches these two letters anywhere.
    "ar": "ال",
    "hi": None,
    "zh": None,
}
_HAN = re.compile("([\u4e00-\u9fa5])")


def normalizer(rule: str, language: str) -> Normalize:
    """Return the function of a rule, "squad" or "mlqa"; ValueError if MLQA has no such language."""
    if rule == "squad":
        return normalize_squad
    if language not in _ARTICLES:
        raise ValueError(
            f"mlqa has no normalisation for {language!r}; its languages are {', '.join(_ARTICLES)}"
        )
    return functools.partial(normalize_mlqa, language=language)


def normalize_squad(text: str) -> str:
    """Lower case, without ASCII punctuation, English articles and extra blanks (SQuAD 1.1, 2.0)."""
    kept = "".join(c for c in text.lower() if c not in string.punctuation)
    return " ".join(re.sub(r"\b(a|an|the)\b", " ", kept).split())


def normalize_mlqa(text: str, language: str) -> str:
    """Normalise as `normalize_squad`, but by Unicode's punctuation and the language's articles.

    In Chinese, each Han character is a word. This is the rule of MLQA's script, version 1.
    """
    kept = "".join(c for c in text.lower() if not _is_punctuation(c))
    if articles := _ARTICLES[language]:
        kept = re.sub(articles, " ", kept)
    if language == "zh":
        kept = _HAN.sub(r" \1 ", kept)
    return " ".join(kept.split())


def _is_punctuation(character: str) -> bool:
    return character in string.punctuation or unicodedata.category(character).startswith("P")


def answer_scores(
    gold: Gold, predictions: Mapping[str, str], normalize: Normalize
) -> dict[str, float]:
    """Return mean "f1" over words and "exact_match", each the best over a question's gold answers.

    This is the rule of the scripts of SQuAD 1.1 and MLQA: an unanswered question scores 0, and so
    does the F1 of two answers that normalisation empties. `gold` has at least one answer by
    question id. Raises ValueError for no questions, a question without gold answers, or predictions
    for others.
    """
    _check(gold, predictions)
    for question, answers in gold.items():
        if not answers:
            raise ValueError(
                f"question {question} has no gold answer; use the task squad2 for data with "
                "unanswerable questions"
            )
    return _means(_scores(gold, predictions, normalize, empty_is_answer=False))


def squad2_scores(gold: Gold, predictions: Mapping[str, str]) -> dict[str, float]:
    """Return mean "f1" and "exact_match" if questions may have no answer: then only "" is right.

    This is the rule of SQuAD 2.0's script, with one exception. The script leaves unanswered
    questions out of the means, which would reward skipping hard ones. Here they score 0. `gold`
    lists no answers for an unanswerable question. Raises ValueError for no questions, or
    predictions for others.
    """
    _check(gold, predictions)
    return _means(_scores(gold, predictions, normalize_squad, empty_is_answer=True))


def withhold(
    predictions: Mapping[str, str], null_differences: Mapping[str, float], threshold: float
) -> dict[str, str]:
    """Replace predictions by "" if the null score exceeds the answer's by over `threshold`."""
    return {
        question: "" if null_differences[question] > threshold else text
        for question, text in predictions.items()
    }


def best_null_threshold(
    gold: Gold,
    predictions: Mapping[str, str],
    null_differences: Mapping[str, float],
    metric: str = "f1",
) -> tuple[float, float]:
    """Return the threshold for `withhold` with the best score, and that score.

    As in SQuAD 2.0's script, all questions start unanswered, and the threshold passes their null
    differences (null score minus the answer's score) in order. An answered question adds its score,
    an unanswerable one loses its own. The first best threshold counts. The script also counts
    thresholds between equal differences, which no rule can apply. Here only the last of them
    counts. `predictions` are the best answers, without any withheld. Raises ValueError as
    `squad2_scores`, or for a question without a prediction or a difference.
    """
    _check(gold, predictions)
    if missing := set(gold) - (set(predictions) & set(null_differences)):
        raise ValueError(f"question {min(missing)} lacks a prediction or a null difference; add it")
    answered = _scores(gold, predictions, normalize_squad, empty_is_answer=True)
    order = sorted(gold, key=lambda question: null_differences[question])
    differences = np.array([null_differences[question] for question in order])
    gains = [answered[question][metric] - float(not _answers(gold[question])) for question in order]
    totals = np.cumsum([sum(not _answers(answers) for answers in gold.values()), *gains])
    thresholds = np.array([differences[0] - 1, *differences])
    is_last = np.append(thresholds[1:] != thresholds[:-1], True)
    best = np.flatnonzero(is_last)[np.argmax(totals[is_last])]
    return float(thresholds[best]), float(totals[best] / len(gold))


def _check(gold: Gold, predictions: Mapping[str, str]) -> None:
    if not gold:
        raise ValueError("there are no questions to score; give gold data")
    if extra := set(predictions) - set(gold):
        raise ValueError(
            f"there is a prediction for {min(extra)}, but no such question in the gold data; use "
            "predictions and gold data of the same questions"
        )
    if missing := set(gold) - set(predictions):
        logging.warning("%d questions have no prediction and score 0", len(missing))


def _scores(
    gold: Gold, predictions: Mapping[str, str], normalize: Normalize, *, empty_is_answer: bool
) -> dict[str, dict[str, float]]:
    """Return "f1" and "exact_match" by question id; 0 for a question without prediction."""
    found = {}
    for question, answers in gold.items():
        if question not in predictions:
            found[question] = {"f1": 0.0, "exact_match": 0.0}
            continue
        predicted = normalize(predictions[question])
        if empty_is_answer:
            answers = _answers(answers) or [""]
        right = [normalize(answer) for answer in answers]
        found[question] = {
            "f1": max(_f1(predicted, one, empty_is_answer) for one in right),
            "exact_match": float(predicted in right),
        }
    return found


def _answers(answers: Sequence[str]) -> list[str]:
    """Return answers that normalisation does not empty: SQuAD 2.0 counts no others."""
    return [answer for answer in answers if normalize_squad(answer)]


def _f1(predicted: str, right: str, empty_is_answer: bool) -> float:
    """Return the F1 of the words of two normalised answers, repetitions included."""
    ours, theirs = predicted.split(), right.split()
    if empty_is_answer and not (ours and theirs):
        return float(ours == theirs)
    common = (collections.Counter(ours) & collections.Counter(theirs)).total()
    return 2 * common / (len(ours) + len(theirs)) if common else 0.0


def _means(found: Mapping[str, Mapping[str, float]]) -> dict[str, float]:
    return {
        metric: float(np.mean([one[metric] for one in found.values()]))
        for metric in ("f1", "exact_match")
    }


@dataclasses.dataclass(frozen=True)
class Span:
    """A part of a context: `text == context[start : start + len(text)]`, and its score."""

    text: str
    start: int
    score: float


_NOTHING = Span("", 0, NO_SPAN)


@dataclasses.dataclass(frozen=True)
class Found:
    """Distinct spans in the windows of a question, best first, and the score of "no answer".

    That score is the lowest start + end at `<s>`, the first token, of all windows.
    """

    spans: tuple[Span, ...]
    null_score: float

    @property
    def best(self) -> Span:
        return self.spans[0] if self.spans else _NOTHING

    @property
    def null_difference(self) -> float:
        """Score of "no answer" less that of the best span; see `withhold`."""
        return self.null_score - self.best.score


def best_answers(
    start: np.ndarray, end: np.ndarray, *, offsets: np.ndarray, answerable: np.ndarray,
    max_context: np.ndarray, examples: np.ndarray, contexts: Sequence[str], n_best: int = 20,
    max_answer_length: int = 30,
) -> list[Found]:  # fmt: skip
    """Find the best spans of each question in its sliding windows, as text of the original context.

    A span (s, e) scores start[s] + end[e]. Its ends are among the `n_best` highest allowed starts
    and ends of its window, s <= e < s + max_answer_length, both lie in the context, and s has the
    most context in this window (SQuAD's baselines, Devlin et al. 2019). This strips white space
    from spans, drops empty ones, and returns at most `n_best`. Raises ValueError for a question
    without window.

    Args:
      start, end: [N, L] logits of N windows of L tokens.
      offsets: [N, L, 2] first character of each token in its context, and its end.
      answerable: [N, L] whether a token is part of the context.
      max_context: [N, L] whether no other window has more context around the token.
      examples: [N] number of each window's question, an index into `contexts` [E].
    """
    if not np.array_equal(np.unique(examples), np.arange(len(contexts))):
        raise ValueError(
            f"examples must number {len(contexts)} questions from 0, each with a window; give the "
            "windows of all"
        )
    null_scores = np.full(len(contexts), np.inf)
    null = start[:, 0].astype(np.float64) + end[:, 0]
    np.minimum.at(null_scores, examples, null)
    starts = np.where(answerable & max_context, start, -np.inf)
    ends = np.where(answerable, end, -np.inf)
    found = _pairs(starts, ends, n_best, max_answer_length)
    # Ties go to the first window, and in it to the higher start.
    order = np.lexsort((-found[3], examples[found[0]]))
    windows, firsts, lasts, scores = (column[order] for column in found)
    bounds = np.searchsorted(examples[windows], np.arange(len(contexts) + 1))
    begin, stop = offsets[windows, firsts, 0], offsets[windows, lasts, 1]
    parts = [slice(*pair) for pair in itertools.pairwise(bounds)]
    return [
        Found(_spans(context, begin[part], stop[part], scores[part], n_best), float(null_score))
        for context, part, null_score in zip(contexts, parts, null_scores, strict=True)
    ]


_WINDOWS_AT_ONCE = 2048  # bounds the memory of all pairs of starts and ends


def _pairs(
    starts: np.ndarray, ends: np.ndarray, n_best: int, max_length: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Return allowed pairs of each window's `n_best` starts and ends: window, start, end, score."""
    parts = []
    for first in range(0, len(starts), _WINDOWS_AT_ONCE):
        one, other = (x[first : first + _WINDOWS_AT_ONCE] for x in (starts, ends))
        s, e = (np.argsort(-x, axis=1, kind="stable")[:, :n_best] for x in (one, other))
        scores = (
            np.take_along_axis(one, s, 1)[:, :, None].astype(np.float64)
            + np.take_along_axis(other, e, 1)[:, None, :]
        )
        length = e[:, None, :] - s[:, :, None] + 1
        scores[(length < 1) | (length > max_length)] = -np.inf
        window, row, column = pair = np.nonzero(np.isfinite(scores))
        parts.append((first + window, s[window, row], e[window, column], scores[pair]))
    window, start, end, score = (np.concatenate(column) for column in zip(*parts, strict=True))
    return window, start, end, score


def _spans(
    context: str, begin: np.ndarray, stop: np.ndarray, scores: np.ndarray, n_best: int
) -> tuple[Span, ...]:
    spans: dict[str, Span] = {}
    for first, last, score in zip(begin.tolist(), stop.tolist(), scores.tolist(), strict=True):
        text = context[first:last]
        first += len(text) - len(text.lstrip())
        text = text.strip()
        if text and text not in spans:
            spans[text] = Span(text, first, score)
        if len(spans) == n_best:
            break
    return tuple(spans.values())
