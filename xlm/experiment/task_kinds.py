"""Kinds of downstream tasks: a record for each, with its functions from all packages.

To add a kind, write its functions in files of their own, and add an entry here. No other code names
a kind, except that of XTREME's submissions.
"""

import dataclasses
import functools
import operator
from collections.abc import Callable, Sequence
from typing import Any

import flax.linen as nn
import numpy as np

from input_pipeline.tasks import (
    delimited,
    embeddings,
    features,
    questions,
    tagged,
    text_pairs,
    tfds_examples,
    translation,
    unlabelled,
)
from input_pipeline.tasks.features import Feature
from input_pipeline.tasks.loading import PairsReader, Readers
from input_pipeline.tasks.tasks import Task
from xlm.evaluation import search, tasks
from xlm.evaluation.metrics.questions import normalizer
from xlm.evaluation.tasks import Line, TaskData
from xlm.experiment.task_settings import TaskSettings
from xlm.interop import task_heads
from xlm.models.heads import ClassificationHead, PoolingHead, SpanHead, TaggingHead
from xlm.models.settings import EncoderSettings
from xlm.objectives import contrastive, fine_tuning
from xlm.objectives.objective import LossAndMetrics


@dataclasses.dataclass(frozen=True)
class TaskKind:
    """Kind of tasks that an encoder is fine-tuned on.

    Attributes:
      is_labelled: (task, example) -> whether it can be trained and scored on.
      features: (options, examples, processor, special ids, maximum length) -> rows.
      head: (options, settings of the encoder) -> module like those of `xlm.models.heads`.
      loss: of the head's outputs and a batch's arrays; of kinds with `classes` it takes
        `class_weights` too.
      loss_keys: keys of the `task` section that are also arguments of the loss.
      decide: (options, data, outputs by row) -> a decision on each example.
      score: (task, data, decisions, threshold) -> the task's metrics, by name.
      line: (task, example, decision, threshold) -> its prediction, besides the id.
      probabilities: (task, data, outputs by row) -> probabilities for the line of each example;
        none by default.
      gold: (task, example) -> its label in the form of predictions; None if examples have no scores
        of their own.
      classes: example -> its labels, for kinds with classes.
      logits: (data, outputs by row) -> scores [N, C] of the classes, a row for each label, for
        kinds that choose one class for each.
      decision: labels of an example -> a decision like those of `decide`, for kinds with `logits`.
      check_scored: (task, language) -> raises ValueError if no rule scores the language; nothing by
        default.
      threshold: (task, data, decisions) -> number that the first development data choose for all
        later scores; None if there is nothing to choose.
      target: word for a label in messages.
      capitals_count: whether labels that differ in capitals only are different labels.
      class_suffix: class of `transformers` that computes the head's outputs, see
        `xlm.interop.task_heads.TaskHead`; "" if none does.
    """

    readers: Readers
    is_labelled: Callable[[Task, Any], bool]
    features: Callable[..., Sequence[Feature]]
    head: Callable[[TaskSettings, EncoderSettings], nn.Module]
    loss: Callable[..., LossAndMetrics]
    decide: Callable[[TaskSettings, TaskData, Sequence[np.ndarray]], list[Any]]
    score: Callable[[Task, TaskData, Sequence[Any], float | None], dict[str, float]]
    line: Callable[[Task, Any, Any, float | None], Line]
    probabilities: Callable[[Task, TaskData, Sequence[np.ndarray]], list[Line]] = (
        lambda task, data, outputs: [{}] * len(data.examples)
    )
    gold: Callable[[Task, Any], Any] | None = None
    classes: Callable[[Any], Sequence[int]] | None = None
    logits: Callable[[TaskData, Sequence[np.ndarray]], np.ndarray] | None = None
    decision: Callable[[Any], Any] = tuple
    check_scored: Callable[[Task, str], Any] = lambda *_: None
    threshold: Callable[[Task, TaskData, Sequence[Any]], float | None] = lambda *_: None
    loss_keys: tuple[str, ...] = ()
    target: str = "label"
    capitals_count: bool = False
    class_suffix: str = ""

    def lines(
        self,
        task: Task,
        data: TaskData,
        outputs: Sequence[np.ndarray],
        decided: Sequence[Any],
        threshold: float | None,
    ) -> list[Line]:
        """One JSON object per example: its id, prediction and probabilities."""
        more = self.probabilities(task, data, outputs)
        return [
            {"id": example.id, **self.line(task, example, found, threshold), **probable}
            for example, found, probable in zip(data.examples, decided, more, strict=True)
        ]


@dataclasses.dataclass(frozen=True)
class SearchKind:
    """Kind of searches for translations, with a pre-trained encoder.

    Attributes:
      search: (options, sides, vectors of both, threshold) -> metrics, predictions, and the
        threshold of the language, None if there is nothing to choose.
      find: the same arguments -> predictions, for sides without gold pairs.
      options: keys of the `task` section to name in results.
    """

    reader: PairsReader
    search: Callable[..., tuple[dict[str, float], list[Line], float | None]]
    find: Callable[..., list[Line]]
    options: tuple[str, ...]


def _question_features(options, *args):
    return features.question_features(*args, options.max_query_length, options.stride)


def _mined(options, pairs, source, target, threshold):
    found = search.candidates(pairs, source, target, options.margin)
    return search.mined(found, pairs.gold, threshold)


def _above(options, pairs, source, target, threshold):
    found = search.candidates(pairs, source, target, options.margin)
    return [line for line in found if threshold is None or line["score"] >= threshold]


def _texts(path, task):
    return (delimited.read_texts if task.is_own else text_pairs.read_text_pairs)(path, task)


def _unlabelled_texts(path, task):
    return (delimited.read_unlabelled if task.is_own else unlabelled.read_texts)(path, task)


def _text_head(num_outputs, options, encoder):
    is_modern = encoder.norm == "layer_no_bias" and not encoder.bias
    epsilon = encoder.norm_epsilon if is_modern else None
    return ClassificationHead(num_outputs, encoder.dropout_rate, options.text_pooling, epsilon)


_CLASSIFICATION = TaskKind(
    readers=Readers(
        _texts, tfds_examples.text_examples, _unlabelled_texts, labels=delimited.read_labels
    ),
    is_labelled=lambda task, example: example.label is not None,
    features=lambda options, *args: features.text_features(
        *args, separate_segments=options.cross_attention, num_labels=len(options.task.labels)
    ),
    head=lambda options, encoder: _text_head(len(options.task.labels), options, encoder),
    loss=fine_tuning.classification_loss,
    loss_keys=("label_smoothing",),
    decide=lambda options, data, outputs: tasks.classes(outputs),
    score=lambda task, data, decided, _: tasks.label_scores(task, data, decided),
    line=lambda task, example, decided, _: tasks.label_line(task, decided),
    probabilities=lambda task, data, outputs: tasks.class_probabilities(task, outputs),
    gold=lambda task, example: task.labels[example.label],
    classes=lambda example: (example.label,),
    logits=lambda data, outputs: np.stack(outputs),
    decision=operator.itemgetter(0),
    class_suffix=task_heads.SEQUENCES,
)


def _embedding_features(
    options: TaskSettings, examples: Sequence[Any], processor: Any, special: Any, length: int
) -> Sequence[Feature]:
    return embeddings.embedding_features(
        examples, processor, special, length, query_prefix=options.query_prefix,
        passage_prefix=options.passage_prefix, reads_first=options.text_pooling == "first",
    )  # fmt: skip


_EMBEDDING = TaskKind(
    readers=Readers(
        embeddings.read_examples, tfds_examples.text_examples, embeddings.refuse_unlabelled
    ),
    is_labelled=lambda task, example: True,
    features=_embedding_features,
    head=lambda options, encoder: PoolingHead(),
    loss=contrastive.pair_loss,
    loss_keys=("temperature", "dimensions", "contrast_margin"),
    decide=lambda options, data, outputs: list(outputs),
    score=lambda task, data, vectors, _: search.pair_scores(data.examples, vectors),
    line=lambda task, example, vectors, _: {"score": search.cosine(*vectors[:2])},
)

KINDS: dict[str, TaskKind] = {
    "classification": _CLASSIFICATION,
    "regression": dataclasses.replace(
        _CLASSIFICATION,
        readers=_CLASSIFICATION.readers._replace(labels=None),
        head=functools.partial(_text_head, 1),
        loss=fine_tuning.regression_loss,
        loss_keys=(),
        decide=lambda options, data, outputs: tasks.numbers(outputs),
        probabilities=lambda task, data, outputs: [{}] * len(outputs),
        gold=lambda task, example: example.label,
        classes=None,
        logits=None,
    ),
    "multilabel": dataclasses.replace(
        _CLASSIFICATION,
        loss=fine_tuning.multilabel_loss,
        loss_keys=(),
        decide=lambda options, data, outputs: tasks.label_sets(outputs),
        score=lambda task, data, decided, _: tasks.set_scores(task, data, decided),
        line=lambda task, example, decided, _: {"prediction": [task.labels[i] for i in decided]},
        gold=lambda task, example: [task.labels[i] for i in example.label],
        classes=lambda example: example.label,
        decision=tuple,
    ),
    "embedding": _EMBEDDING,
    "similarity": dataclasses.replace(
        _EMBEDDING,
        is_labelled=lambda task, example: example.label is not None,
        loss=contrastive.similarity_loss,
        score=lambda task, data, vectors, _: tasks.label_scores(
            task, data, [search.cosine(*one[:2]) for one in vectors]
        ),
        gold=lambda task, example: example.label,
        target="score",
    ),
    "tagging": TaskKind(
        readers=Readers(
            tagged.read_tagged,
            tfds_examples.tagged_examples,
            tagged.read_untagged,
            labels=tagged.read_tags,
        ),
        is_labelled=lambda task, example: bool(example.tags),
        features=lambda options, *args: features.tagging_features(*args),
        head=lambda options, encoder: TaggingHead(
            len(options.task.labels), encoder.dropout_rate, options.pooling
        ),
        loss=fine_tuning.tagging_loss,
        loss_keys=("label_smoothing",),
        decide=lambda options, data, outputs: tasks.tags(data, outputs),
        score=lambda task, data, decided, _: tasks.tag_scores(task, data, decided),
        line=lambda task, example, decided, _: tasks.tag_line(task, example, decided),
        probabilities=lambda task, data, outputs: tasks.tag_probabilities(data, outputs),
        gold=lambda task, example: [task.labels[tag] for tag in example.tags],
        classes=lambda example: example.tags,
        logits=tasks.tag_logits,
        capitals_count=True,
        class_suffix=task_heads.TOKENS,
    ),
    "extractive_qa": TaskKind(
        readers=Readers(
            questions.read_questions, tfds_examples.question_examples, unlabelled.read_questions
        ),
        is_labelled=lambda task, example: bool(example.answers) or task.has_unanswerable,
        features=_question_features,
        head=lambda options, encoder: SpanHead(),
        loss=fine_tuning.span_loss,
        decide=lambda options, data, outputs: tasks.answers(
            data, outputs, max_answer_length=options.max_answer_length, n_best=options.n_best
        ),
        score=tasks.answer_scores,
        check_scored=lambda task, language: normalizer(task.normalizer, language),
        line=lambda task, example, decided, threshold: tasks.answer_line(task, decided, threshold),
        threshold=tasks.null_threshold,
        gold=lambda task, example: [answer.text for answer in example.answers],
        target="answer",
        class_suffix=task_heads.SPANS,
    ),
}
SEARCHES: dict[str, SearchKind] = {
    "retrieval": SearchKind(
        PairsReader(
            range(1, 3), "both sides, or the text and its English", translation.read_aligned
        ),
        search=lambda options, pairs, *args: (*search.retrieved(pairs, *args[:2]), None),
        find=lambda options, pairs, *args: search.nearest(pairs.source, pairs.target, *args[:2]),
        options=("layer",),
    ),
    "mining": SearchKind(
        PairsReader(range(2, 4), "the text, its English, the gold pairs", translation.read_mining),
        search=_mined,
        find=_above,
        options=("layer", "margin"),
    ),
}
