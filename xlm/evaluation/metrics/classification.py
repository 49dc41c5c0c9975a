"""Scores of one label, or one number, per example (XNLI, PAWS-X, GLUE)."""

from collections.abc import Callable, Sequence

import numpy as np
from scipy import stats
from sklearn import metrics as sklearn_metrics


def scores(
    metrics: Sequence[str], gold: Sequence[float], predicted: Sequence[float]
) -> dict[str, float]:
    """Return each of `metrics` (keys of `SCORERS`) of gold and predicted classes or numbers [N].

    Raises ValueError if there are no examples, lengths differ, or a prediction is not finite.
    """
    right, found = np.asarray(gold), np.asarray(predicted)
    if right.shape != found.shape or right.ndim != 1 or not len(right):
        raise ValueError(
            f"{len(found)} predictions for {len(right)} gold labels; scores need one for each of "
            "at least one example"
        )
    if not np.all(np.isfinite(found)):
        raise ValueError(f"prediction {np.argmin(np.isfinite(found))} is not a finite number")
    return {name: SCORERS[name](right, found) for name in metrics}


def accuracy(gold: np.ndarray, predicted: np.ndarray) -> float:
    return float(sklearn_metrics.accuracy_score(gold, predicted))


def binary_f1(gold: np.ndarray, predicted: np.ndarray) -> float:
    """F1 of class 1 (GLUE: MRPC, QQP); 0 if neither gold nor predictions have that class."""
    return float(sklearn_metrics.f1_score(gold == 1, predicted == 1, zero_division=0))


def macro_f1(gold: np.ndarray, predicted: np.ndarray) -> float:
    """Mean F1 over the classes in gold or predictions."""
    return float(sklearn_metrics.f1_score(gold, predicted, average="macro", zero_division=0))


def matthews(gold: np.ndarray, predicted: np.ndarray) -> float:
    """Matthews correlation (GLUE: CoLA); 0 if one side is constant, so that it is undefined."""
    if _constant(gold) or _constant(predicted):
        return 0.0
    return float(sklearn_metrics.matthews_corrcoef(gold, predicted))


def pearson(gold: np.ndarray, predicted: np.ndarray) -> float:
    """Pearson correlation (GLUE: STS-B); 0 if one side is constant, so that it is undefined."""
    if _constant(gold) or _constant(predicted):
        return 0.0
    return float(stats.pearsonr(gold.astype(np.float64), predicted.astype(np.float64))[0])


def spearman(gold: np.ndarray, predicted: np.ndarray) -> float:
    """Pearson correlation of the ranks, with ties sharing theirs; 0 if one side is constant."""
    if _constant(gold) or _constant(predicted):
        return 0.0
    return float(stats.spearmanr(gold, predicted)[0])


def _constant(values: np.ndarray) -> bool:
    return bool(np.all(values == values[0]))


SCORERS: dict[str, Callable[[np.ndarray, np.ndarray], float]] = {
    "accuracy": accuracy,
    "f1": binary_f1,
    "macro_f1": macro_f1,
    "matthews": matthews,
    "pearson": pearson,
    "spearman": spearman,
}
