"""Model selection: the parameters of a run with the best score on the development data."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from evaluation.tasks import Answering, Predictor, TaskData, decide, score
from input_pipeline.tasks.tasks import Task
from training.state import TrainState


class Selection:
    """An evaluator of a training run that keeps the best parameters so far.

    A resumed run repeats its steps from the last checkpoint and gets the same scores, so nothing is
    lost if the best parameters were kept after that checkpoint.
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
        """Select by the mean, over the languages, of the task's first metric.

        Args:
          task: the task.
          data: development data by language.
          predictor: predictor of the run's model.
          answering: settings for the answers of questions.
          keep: called with (parameters, step, score) when the score is the best so far.
          best: score of the parameters kept already; None if there are none.
        """
        self._task, self._data, self._predictor = task, data, predictor
        self._answering, self._keep = answering, keep
        self._best = -np.inf if best is None else best

    def __call__(self, state: TrainState) -> Mapping[str, float]:
        """Return scores by language and their mean, as metrics of the run."""
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
