"""Which parameters of a run are kept: those that do best on the development data."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from evaluation.tasks import Answering, Predictor, TaskData, decide, score
from input_pipeline.tasks.tasks import Task
from training.state import TrainState


class Selection:
    """An evaluator of a training run that keeps the best parameters so far.

    A run that goes on after a stop takes its steps again from the last checkpoint, and finds the
    same scores; so nothing is lost if the best was kept after that checkpoint.
    """

    def __init__(
        self,
        task: Task,
        data: Sequence[TaskData],
        predictor: Predictor,
        answering: Answering,
        keep: Callable[[Any, int, float], None],
        best: float | None,
    ):
        """Selects by the mean, over the languages, of the task's first metric.

        Args:
          task: what is predicted.
          data: development data by language.
          predictor: of the run's model.
          answering: of questions.
          keep: (parameters, step, score), called when they are better than any before.
          best: the score of what is kept already; None if nothing is.
        """
        self._task, self._data, self._predictor = task, data, predictor
        self._answering, self._keep = answering, keep
        self._best = -np.inf if best is None else best

    def __call__(self, state: TrainState) -> Mapping[str, float]:
        """Scores by language and their mean, as metrics of the run."""
        metric = self._task.metrics[0]
        scores = {}
        for data in self._data:
            outputs = self._predictor(state.params, data.features)
            decided = decide(self._task, data, outputs, self._answering)
            scores[data.language] = score(self._task, data, decided)[metric]
        mean = float(np.mean(list(scores.values())))
        if mean > self._best:
            self._best = mean
            self._keep(state.params, int(state.step), mean)
        names = {f"validation/{metric}/{lang}": value for lang, value in scores.items()}
        return {f"validation/{metric}": mean, **names}
