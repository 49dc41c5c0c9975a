"""Value of a classifier's predictions: baselines, confusion, collapse, calibration."""

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from scipy import optimize, special

# A model has collapsed if one class has more than the first share of the predictions, and the model
# finds less than the second share of the other classes' labels.
_ONE_CLASS, _FOUND = 0.99, 0.1
# A loss above this share of the entropy of the labels is stuck.
_START = 0.98
_DRAWN = 10_000  # labels of the random baseline
_BINS = 15  # of confidence (Guo et al. 2017)
Scores = dict[str, float]
REMEDY = (
    "try another optimizer.learning_rate, task.text_pooling=mean, a longer warm-up "
    "(optimizer.warmup_share), or task.class_weights=balanced"
)


class Labelled(NamedTuple):
    """Labels of a language's data, and a model's scores: [N] int64 and [N, C] float32.

    Labels of tasks with several per text are [N, C] bool.
    """

    gold: np.ndarray
    logits: np.ndarray

    @property
    def found(self) -> np.ndarray:
        """Predictions in the form of `gold`."""
        return self.logits.argmax(axis=1) if self.gold.ndim == 1 else self.logits > 0

    @property
    def choices(self) -> "Labelled":
        """Choices of one class each; a label set has C choices of two, without and with a label."""
        if self.gold.ndim == 1:
            return self
        scores = np.stack([0 * self.logits.ravel(), self.logits.ravel()], axis=1)
        return Labelled(self.gold.ravel().astype(np.int64), scores)

    @property
    def counts(self) -> np.ndarray:
        """Numbers of right, gold and predicted labels of each class, [3, C]."""
        if self.gold.ndim > 1:
            sides = self.gold & self.found, self.gold, self.found
            return np.stack([side.sum(axis=0) for side in sides])
        matrix = confusion(self)
        return np.stack([np.diag(matrix), matrix.sum(axis=1), matrix.sum(axis=0)])


def confusion(found: Labelled) -> np.ndarray:
    """Return [C, C] counts of labels by gold (rows) and predicted class (columns)."""
    size = found.logits.shape[1]
    return np.bincount(found.gold * size + found.found, minlength=size**2).reshape(size, size)


def class_scores(counts: np.ndarray, labels: Sequence[str]) -> dict[str, Scores]:
    """Return precision, recall, F1 (0 for 0 / 0) and "support", gold labels, of present classes.

    `counts` [3, C] are those of `Labelled`.
    """
    right, gold, predicted = counts
    columns = {
        "precision": right / predicted.clip(1),
        "recall": right / gold.clip(1),
        "f1": 2 * right / (gold + predicted).clip(1),
        "support": gold,
    }
    return {
        label: {name: values[place].item() for name, values in columns.items()}
        for place, label in enumerate(labels)
        if gold[place] + predicted[place]
    }


def baselines(
    counts: np.ndarray, total: int, score: Callable[[np.ndarray], Mapping[str, float]],
    num_texts: int = 0,
) -> dict[str, Scores]:  # fmt: skip
    """Return the metrics of the most frequent training label, and of draws of training labels.

    `counts` [C] are those of training labels. `score` maps answers [total] to metrics. If
    `num_texts` training texts have several labels each, answers are [total, C] bool. The majority
    then has each label of more than half of the texts, and the most frequent one.
    """
    rng, shares = np.random.default_rng(0), counts / (num_texts or counts.sum())
    num_draws, most = int(np.clip(_DRAWN // total, 1, 20)), np.full(total, counts.argmax())
    if num_texts:
        most = np.tile((shares > 0.5) | (counts == counts.max()), (total, 1))
    draws = [
        score(
            rng.random(most.shape) < shares
            if num_texts
            else rng.choice(len(counts), total, p=shares)
        )
        for _ in range(num_draws)
    ]
    return {
        "majority": dict(score(most)),
        "random": {name: float(np.mean([one[name] for one in draws])) for name in draws[0]},
    }


def entropy(counts: np.ndarray) -> float:
    """Return the entropy in nats of labels with counts [C]: the best loss without reading text."""
    return float(special.entr(counts / counts.sum()).sum())


def set_entropy(shares: np.ndarray, weights: np.ndarray) -> float:
    """Return the entropy of label sets by `shares` [C] of classes, and weights of labels there."""
    there = weights * shares
    best = there / (there + 1 - shares)
    return -float((special.xlogy(there, best) + special.xlog1py(1 - shares, -best)).mean())


def collapsed(matrix: np.ndarray, labels: Sequence[str]) -> str:
    """Describe a model that answers with only one class, by its `confusion`; "" if it does not."""
    predicted, total = matrix.sum(axis=0), matrix.sum()
    one = int(predicted.argmax())
    others = total - matrix[one].sum()
    found = np.trace(matrix) - matrix[one, one]
    if not others or predicted[one] <= _ONE_CLASS * total or found >= _FOUND * others:
        return ""
    return (
        f"{labels[one]!r} is {predicted[one] / total:.1%} of the predictions, but "
        f"{matrix[one].sum() / total:.1%} of the labels"
    )


def stuck(loss: float, label_entropy: float) -> str:
    """Describe a training loss that is stuck at its start; "" if it is not."""
    if loss <= _START * label_entropy:
        return ""
    return (
        f"the training loss is {loss:.3f}, no better than that of label frequencies "
        f"({label_entropy:.3f})"
    )


def temperature(found: Labelled) -> float:
    """Return T with the least NLL of softmax(logits / T) (Guo et al. 2017); 1 without errors."""
    found = found.choices
    if (found.found == found.gold).all():
        return 1.0

    def loss(log_t: float) -> float:
        scaled = special.log_softmax(found.logits.astype(np.float64) * np.exp(-log_t), axis=1)
        return -float(scaled[np.arange(len(found.gold)), found.gold].mean())

    return float(np.exp(optimize.minimize_scalar(loss, bounds=(-4, 4), method="bounded").x))


def calibration_error(found: Labelled, t: float = 1.0) -> float:
    """Return the expected calibration error at temperature `t`, 0 to 1 (Naeini et al. 2015)."""
    found = found.choices
    confidence = special.softmax(found.logits.astype(np.float64) / t, axis=1).max(axis=1)
    bins = np.minimum((confidence * _BINS).astype(int), _BINS - 1)
    gaps = np.bincount(bins, confidence - (found.found == found.gold))
    return float(np.abs(gaps).sum() / len(bins))


def pooled(parts: Sequence[Labelled]) -> Labelled:
    return Labelled(*(np.concatenate(side) for side in zip(*parts, strict=True)))
