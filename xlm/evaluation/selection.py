"""Model selection: the parameters of a run with the best scores on the development data."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from xlm.evaluation.tasks import TaskData
from xlm.training.state import TrainState

ALL = ""  # the choice by the mean over all languages


class Selection:
    """An evaluator of a training run that keeps the parameters with the best scores so far.

    `score` maps `predictor`'s outputs for some data to metrics, of which the mean over languages
    counts. `keep` is called with (choice, parameters, step, score) for a new best score. The choice
    is `ALL` or, `by_language`, each language. `best` has the scores of parameters kept already, by
    choice.

    A resumed run repeats its steps from the last checkpoint and gets the same scores, so nothing is
    lost if the best parameters were kept after that checkpoint.
    """

    def __init__(
        self,
        metric: str,
        data: Sequence[TaskData],
        predictor: Callable[[Any, Sequence[Any]], Sequence[np.ndarray]],
        score: Callable[[TaskData, Sequence[np.ndarray]], Mapping[str, float]],
        keep: Callable[[str, Any, int, float], None],
        best: Mapping[str, float],
        by_language: bool = False,
    ):
        self._metric, self._data, self._predictor = metric, data, predictor
        self._score, self._keep = score, keep
        self._best, self._by_language = dict(best), by_language

    def __call__(self, state: TrainState) -> Mapping[str, float]:
        """Return scores by language and their mean, as metrics of the run."""
        metric, scores = self._metric, {}
        for data in self._data:
            outputs = self._predictor(state.params, data.features)
            scores[data.language] = self._score(data, outputs)[metric]
        mean = float(np.mean(list(scores.values())))
        choices = {ALL: mean, **scores} if self._by_language else {ALL: mean}
        for choice, value in choices.items():
            if value > self._best.get(choice, -np.inf):
                self._best[choice] = value
                self._keep(choice, state.params, int(state.step), value)
        names = {f"validation/{metric}/{lang}": value for lang, value in scores.items()}
        return {f"validation/{metric}": mean, **names}
