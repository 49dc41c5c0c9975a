"""Scores of one label, or one number, per example (XNLI, PAWS-X, GLUE)."""

import functools
from collections.abc import Callable, Sequence

import numpy as np
from scipy import stats
from sklearn import metrics as sklearn_metrics

Scorer = Callable[[np.ndarray, np.ndarray], float]


def scores(
    metrics: Sequence[str], gold: Sequence[float], predicted: Sequence[float]
) -> dict[str, float]:
    """Return each of `metrics` (keys of `SCORERS`) of gold and predicted classes or numbers [N].

    Raises ValueError if there are no examples, lengths differ, or a prediction is not finite.
    """
    right, found = np.asarray(gold), np.asarray(predicted)
    if right.shape != found.shape or right.ndim != 1 or not len(right):
        raise ValueError(
            f"{len(found)} predictions for {len(right)} gold labels; give one for each example, "
            "and at least one example"
        )
    if not np.all(np.isfinite(found)):
        raise ValueError(f"prediction {np.argmin(np.isfinite(found))} is not a finite number")
    return {name: float(SCORERS[name](right, found)) for name in metrics}


def set_scores(gold: np.ndarray, predicted: np.ndarray) -> dict[str, float]:
    """Return "micro_f1" and "macro_f1" of sets [N, C] bool, over classes in either, or 0."""
    there = (gold | predicted).any(axis=0)
    if not there.any():
        return {"micro_f1": 0.0, "macro_f1": 0.0}
    sides = gold[:, there], predicted[:, there]
    return {f"{way}_f1": float(_f1(*sides, average=way)) for way in ("micro", "macro")}


def _correlation(score: Scorer) -> Scorer:
    """Return a correlation that is 0, instead of undefined, if one side is constant."""

    def found(gold: np.ndarray, predicted: np.ndarray) -> float:
        is_constant = any(np.all(side == side[0]) for side in (gold, predicted))
        return 0.0 if is_constant else score(gold, predicted)

    return found


def _pearson(gold: np.ndarray, predicted: np.ndarray) -> float:
    return stats.pearsonr(gold.astype(np.float64), predicted.astype(np.float64))[0]


_f1 = functools.partial(sklearn_metrics.f1_score, zero_division=0)
SCORERS: dict[str, Scorer] = {
    "accuracy": sklearn_metrics.accuracy_score,
    # Of class 1 (GLUE: MRPC, QQP); 0 if neither gold nor predictions have that class.
    "f1": lambda gold, predicted: _f1(gold == 1, predicted == 1),
    # Mean over the classes in gold or predictions.
    "macro_f1": functools.partial(_f1, average="macro"),
    "matthews": _correlation(sklearn_metrics.matthews_corrcoef),  # GLUE: CoLA
    "pearson": _correlation(_pearson),  # GLUE: STS-B
    # Of the ranks, which ties share.
    "spearman": _correlation(lambda gold, predicted: stats.spearmanr(gold, predicted)[0]),
}
