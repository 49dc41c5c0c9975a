"""Decisions of a fine-tuned model on a task's examples, their scores, and model selection."""

import dataclasses
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh
from scipy import special

from input_pipeline.tasks.batches import length_batches
from input_pipeline.tasks.examples import TaggedExample
from input_pipeline.tasks.features import Feature
from input_pipeline.tasks.tasks import Task
from xlm.common import console, tables
from xlm.evaluation.batch_layout import BatchLayout
from xlm.evaluation.metrics import questions
from xlm.evaluation.metrics.questions import Found
from xlm.objectives.fine_tuning import TaskLoss
from xlm.training.state import TrainState

Line = dict[str, Any]
ALL = ""  # the choice by the mean over all languages


@dataclasses.dataclass(frozen=True)
class TaskData:
    """Examples of a task in a language, such as `TextExample`s, and their features."""

    language: str
    examples: Sequence[Any]
    features: Sequence[Any]


class Predictor:
    """Outputs of a model for features: batches padded to `buckets`, one transfer at the end.

    `outputs` maps parameters and a batch to arrays [B, ...]. A `title` enables a progress bar.
    """

    def __init__(
        self, outputs: Callable[[Any, Any], jax.Array], *, batch_size: int, buckets: Sequence[int],
        pad: int, mesh: Mesh | None = None, title: str = "",
    ):  # fmt: skip
        self._buckets, self._pad, self._title = buckets, pad, title
        self._layout = BatchLayout(mesh, batch_size)
        self._outputs = self._layout.jit(outputs)

    def __call__(self, params: Any, features: Sequence[Feature]) -> list[np.ndarray]:
        """Return the output for each feature, in order, such as a head's [C], [L, tags], [L, 2]."""
        size = self._layout.size
        batches = length_batches(features, size, self._buckets, self._pad)
        shown: Any = batches
        if self._title:
            shown = console.bar(batches, self._title, -(-len(features) // size), "batches")
        return in_order(shown, self._layout, lambda batch: self._outputs(params, batch))


def in_order(
    batches: Iterable[tuple[dict[str, np.ndarray], np.ndarray]],
    layout: BatchLayout,
    run: Callable[[dict[str, Any]], Any],
) -> list[Any]:
    """Return the outputs of `run`, a pytree of [B, ...], by feature, with one transfer."""
    waiting, places = [], []
    for batch, numbers in batches:
        placed = dict(zip(batch, layout.placed(*batch.values()), strict=True))
        waiting.append(run(placed))
        places.append(numbers)
    rows = {
        int(number): jax.tree.map(lambda x, row=row: x[row], outputs)
        for outputs, numbers in zip(jax.device_get(waiting), places, strict=True)
        for row, number in enumerate(numbers)
        if number >= 0
    }
    return [rows[number] for number in range(len(rows))]


def mean_loss(
    loss: TaskLoss, features: Sequence[Feature], outputs: Sequence[np.ndarray], pad: int
) -> float:
    """Return a task's mean loss by a model's outputs for features."""
    longest = max(len(feature.tokens) for feature in features)
    total, weight, by_shape = 0.0, 0.0, dict[tuple, list[int]]()
    for number, row in enumerate(outputs):
        by_shape.setdefault(row.shape, []).append(number)
    for shape, rows in by_shape.items():
        length = shape[0] if len(shape) > 1 else longest  # scores of tokens, or of a text
        arrays = [features[row].arrays(length, pad) for row in rows]
        batch = {name: jax.numpy.stack([one[name] for one in arrays]) for name in arrays[0]}
        batch["weights"] = jax.numpy.ones(len(rows))
        found = loss(jax.numpy.stack([outputs[row] for row in rows]), batch)["loss"]
        total, weight = total + float(found[0]), weight + float(found[1])
    return total / max(weight, 1.0)


def classes(outputs: Sequence[np.ndarray]) -> list[int]:
    """Return by example the index into `Task.labels` of the highest score, [C]."""
    return [int(np.argmax(row)) for row in outputs]


def label_sets(outputs: Sequence[np.ndarray]) -> list[tuple[int, ...]]:
    """Return by example the indices of scores [C] above 0, a probability above 0.5."""
    return [tuple(np.flatnonzero(row > 0).tolist()) for row in outputs]


def with_each_label(sets: Sequence[Sequence[int]], num_labels: int) -> np.ndarray:
    """Return [N, C] bool of sets of indices: whether a set has the label."""
    found = np.zeros((len(sets), num_labels), bool)
    for row, one in zip(found, sets, strict=True):
        row[list(one)] = True
    return found


def tag_logits(data: TaskData, outputs: Sequence[np.ndarray]) -> np.ndarray:
    """Return the scores of all words, [N, C], in order, by scores [L, C] of rows."""
    parts = [row[: one.num_words] for one, row in zip(data.features, outputs, strict=True)]
    return np.concatenate(parts)


def numbers(outputs: Sequence[np.ndarray]) -> list[float]:
    return [float(row[0]) for row in outputs]


def _by_word(
    data: TaskData, outputs: Sequence[np.ndarray], value: Callable[[np.ndarray], np.ndarray]
) -> list[np.ndarray]:
    """Return by sentence a `value` of each word's scores [C], from the row where it begins."""
    found = [np.zeros(len(example.words)) for example in data.examples]
    for feature, row in zip(data.features, outputs, strict=True):
        words = slice(feature.first_word, feature.first_word + feature.num_words)
        found[feature.example][words] = value(row[: feature.num_words])
    return found


def tags(data: TaskData, outputs: Sequence[np.ndarray]) -> list[tuple[int, ...]]:
    """Return the indices into `Task.labels` of each sentence's words, by scores [L, C] of rows."""
    found = _by_word(data, outputs, lambda scores: scores.argmax(axis=1))
    return [tuple(one.astype(int).tolist()) for one in found]


def class_probabilities(task: Task, outputs: Sequence[np.ndarray]) -> list[Line]:
    """Return by example the probability of every class by name, of scores [C].

    It is their softmax, or the sigmoid of each if a text has several labels.
    """
    of = special.expit if task.has_label_sets else special.softmax
    return [
        {"probabilities": dict(zip(task.labels, _rounded(of(row)), strict=True))} for row in outputs
    ]


def tag_probabilities(data: TaskData, outputs: Sequence[np.ndarray]) -> list[Line]:
    """Return the probability of each word's predicted tag, by scores [L, C] of rows."""
    found = _by_word(data, outputs, lambda scores: special.softmax(scores, 1).max(1))
    return [{"probabilities": _rounded(one)} for one in found]


def _rounded(values: np.ndarray) -> list[float]:
    return np.round(values.astype(np.float64), 6).tolist()


def answers(
    data: TaskData, outputs: Sequence[np.ndarray], *, max_answer_length: int, n_best: int
) -> list[Found]:
    """Find the best answer to each question by scores [L, 2] of rows as first and last token."""
    length = max((len(row) for row in outputs), default=0)

    def stacked(arrays: Sequence[np.ndarray], fill: Any) -> np.ndarray:
        return np.stack([
            np.pad(array, [(0, length - len(array)), *[(0, 0)] * (array.ndim - 1)],
                   constant_values=fill)
            for array in arrays
        ])  # fmt: skip

    scores = stacked(outputs, -1e9)
    answerable = stacked([feature.answerable for feature in data.features], False)
    answerable[:, 0] = False  # `<s>` stands for no answer
    return questions.best_answers(
        scores[:, :, 0],
        scores[:, :, 1],
        offsets=stacked([feature.offsets for feature in data.features], 0),
        answerable=answerable,
        max_context=stacked([feature.has_max_context for feature in data.features], False),
        examples=np.array([feature.example for feature in data.features]),
        contexts=[example.context for example in data.examples],
        n_best=n_best,
        max_answer_length=max_answer_length,
    )


def null_threshold(task: Task, data: TaskData, decided: Sequence[Any]) -> float | None:
    """Return the best margin of "no answer" for this data; None if all have answers."""
    if not task.has_unanswerable:
        return None
    threshold, _ = questions.best_null_threshold(*_answered(data, decided))
    return threshold


def _answered(
    data: TaskData, decided: Sequence[Found]
) -> tuple[dict[str, list[str]], dict[str, str], dict[str, float]]:
    """Return gold answers, predicted answers, and their null differences, by id."""
    pairs = list(zip(data.examples, decided, strict=True))
    return (
        {example.id: [answer.text for answer in example.answers] for example, _ in pairs},
        {example.id: found.best.text for example, found in pairs},
        {example.id: found.null_difference for example, found in pairs},
    )


def label_scores(task: Task, data: TaskData, decided: Sequence[Any]) -> dict[str, float]:
    """Return the task's metrics of classes or numbers; ValueError if an example has no label."""
    from xlm.evaluation.metrics import classification  # slow: scikit-learn, scipy.stats

    labels = [example.label for example in data.examples]
    if None in labels:
        raise ValueError(
            f"{task.name}, {data.language}: example {labels.index(None)} has no label; add it"
        )
    return classification.scores(task.metrics, labels, decided)


def set_scores(task: Task, data: TaskData, decided: Sequence[Any]) -> dict[str, float]:
    from xlm.evaluation.metrics import classification  # slow: scikit-learn

    gold = [example.label for example in data.examples]
    sides = (with_each_label(side, len(task.labels)) for side in (gold, decided))
    return classification.set_scores(*sides)


def tag_scores(task: Task, data: TaskData, decided: Sequence[tuple[int, ...]]) -> dict[str, float]:
    from xlm.evaluation.metrics import tagging  # slow: scikit-learn

    gold, found = (
        [[task.labels[tag] for tag in sentence] for sentence in sentences]
        for sentences in ([example.tags for example in data.examples], decided)
    )
    return tagging.SCORERS[task.scorer](gold, found)


def answer_scores(
    task: Task, data: TaskData, decided: Sequence[Found], threshold: float | None = None
) -> dict[str, float]:
    """Return F1 and exact match, by a SQuAD 2.0 `threshold` or the best for this data."""
    gold_answers, texts, differences = _answered(data, decided)
    if not task.has_unanswerable:
        normalize = questions.normalizer(task.normalizer, data.language)
        return questions.answer_scores(gold_answers, texts, normalize)
    if threshold is None:
        threshold = null_threshold(task, data, decided)
        assert threshold is not None
    return questions.squad2_scores(gold_answers, questions.withhold(texts, differences, threshold))


def label_line(task: Task, decided: float) -> Line:
    return {"prediction": task.labels[int(decided)] if task.labels else decided}


def tag_line(task: Task, example: TaggedExample, decided: Sequence[int]) -> Line:
    return {"words": list(example.words), "prediction": [task.labels[tag] for tag in decided]}


def answer_line(task: Task, decided: Found, threshold: float | None) -> Line:
    """Return an answer, "" if "no answer" is above the threshold, and the scores behind it.

    The probability is the softmax over the scores of the best spans, and of no answer if the task
    has such questions (Devlin et al. 2019, the baseline of SQuAD).
    """
    best = decided.best
    is_withheld = threshold is not None and decided.null_difference > threshold
    scores = [span.score for span in decided.spans] or [best.score]
    chosen = special.softmax([*scores, decided.null_score] if task.has_unanswerable else scores)
    return {
        "prediction": "" if is_withheld else best.text,
        "start": best.start,
        "score": best.score,
        "null_score": decided.null_score,
        "probability": round(float(chosen[-1 if is_withheld else 0]), 6),
    }


@dataclasses.dataclass
class Selection:
    """An evaluator of a training run that keeps the parameters with the best scores so far.

    `score` maps `predictor`'s outputs for some data to metrics, whose mean over languages counts.
    For a new best score it calls `keep` with (choice, parameters, step, score). The choice is `ALL`
    or, `by_language`, each language. `best` has the scores of earlier choices. `loss` maps outputs
    to a mean loss. `history` has the means of earlier evaluations by step. After `patience` of them
    without a better mean, if it is not 0, the run is over.

    A resumed run repeats its steps from the last checkpoint and gets the same scores, so it loses
    no choice after that checkpoint.
    """

    metric: str
    data: Sequence[TaskData]
    predictor: Callable[[Any, Sequence[Any]], Sequence[np.ndarray]]
    score: Callable[[TaskData, Sequence[np.ndarray]], Mapping[str, float]]
    keep: Callable[[str, Any, int, float], None]
    best: dict[str, float]
    by_language: bool = False
    loss: Callable[[TaskData, Sequence[np.ndarray]], float] | None = None
    patience: int = 0
    history: dict[int, float] = dataclasses.field(default_factory=dict)

    def is_over(self, step: int) -> bool:
        """Return whether `patience` ends the run after `step`."""
        means = [mean for at, mean in sorted(self.history.items()) if at <= step]
        return 0 < self.patience < len(means) - int(np.argmax(means or [0.0]))

    def __call__(self, state: TrainState) -> Mapping[str, float]:
        """Return scores by language and their mean, as metrics of the run."""
        metric, scores, losses = self.metric, {}, []
        for data in self.data:
            outputs = self.predictor(state.params, data.features)
            scores[data.language] = self.score(data, outputs)[metric]
            losses += [self.loss(data, outputs)] if self.loss else []
        mean = float(np.mean(list(scores.values())))
        loss = {"validation/loss": float(np.mean(losses))} if losses else {}
        self._tell(int(state.step), mean, scores, loss)
        choices = {ALL: mean, **scores} if self.by_language else {ALL: mean}
        for choice, value in choices.items():
            if value > self.best.get(choice, -np.inf):
                self.best[choice] = value
                self.keep(choice, state.params, int(state.step), value)
        names = {f"validation/{metric}/{lang}": value for lang, value in scores.items()}
        return {f"validation/{metric}": mean, **names, **loss}

    def _tell(
        self, step: int, mean: float, scores: Mapping[str, float], loss: Mapping[str, float]
    ) -> None:
        best = max(((value, -at) for at, value in self.history.items() if at < step), default=None)
        self.history[step] = mean
        parts = [f"{language} {100 * score:.1f}" for language, score in scores.items()]
        found = f"{100 * mean:.1f}{f' ({tables.named(parts, 8)})' * (len(parts) > 1)}"
        found += "".join(f", loss {value:.3f}" for value in loss.values())
        if best and best[0] >= mean:
            found += f"; best {100 * best[0]:.1f} after step {-best[1]:,}"
        logging.info("step %s: validation %s %s", f"{step:,}", self.metric, found)
