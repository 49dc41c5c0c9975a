"""Analysis of a fine-tuned classifier: the parts of results.json on its classes."""

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from absl import logging

from xlm.evaluation import label_analysis
from xlm.evaluation.label_analysis import Labelled
from xlm.evaluation.tasks import TaskData, label_sets, with_each_label
from xlm.experiment.task_kinds import KINDS
from xlm.experiment.task_settings import TaskSettings


def gold_labels(options: TaskSettings, data: Sequence[TaskData]) -> np.ndarray:
    """The labels of all examples in order, [N] int64, of a kind with classes; sets [N, C] bool."""
    if options.task.has_label_sets:
        sets = [example.label for one in data for example in one.examples]
        return with_each_label(sets, len(options.task.labels))
    classes = KINDS[options.task.kind].classes
    assert classes is not None
    found = (classes(example) for one in data for example in one.examples)
    return np.fromiter(itertools.chain.from_iterable(found), np.int64)


def analysed(
    options: TaskSettings,
    data: Mapping[str, Sequence[TaskData]],
    labelled: Mapping[str, Mapping[str, Labelled]],
    class_weights: np.ndarray,
    training_loss: float,
) -> dict[str, Any]:
    """Baselines, scores by class, confusion, calibration and collapse of the reported data.

    `labelled` are by split and language; `class_weights`, of the loss, are [C] or one number.
    """
    task, split = options.task, "test" if data["test"] else "validation"
    gold, num_texts, names = gold_labels(options, data["train"]), 0, task.labels
    if task.has_label_sets:
        counts, num_texts, names = gold.sum(axis=0), len(gold), ("no label", "a label")
        entropy = label_analysis.set_entropy(counts / num_texts, class_weights)
    else:
        counts = np.bincount(gold, minlength=len(task.labels))
        entropy = label_analysis.entropy(counts * class_weights)
    t = label_analysis.temperature(label_analysis.pooled(list(labelled["validation"].values())))
    errors, scaled, classes, confusion = {}, {}, {}, {}
    baselines: dict[str, Any] = {}
    stuck = label_analysis.stuck(training_loss, entropy)
    collapse = [stuck] if stuck else []
    for one in data[split]:
        language, found = one.language, labelled[split][one.language]
        total = len(found.gold)
        for name, scores in _baselines(options, one, counts, total, num_texts).items():
            baselines.setdefault(name, {})[language] = scores
        classes[language] = label_analysis.class_scores(found.counts, task.labels)
        errors[language] = label_analysis.calibration_error(found)
        scaled[language] = label_analysis.calibration_error(found, t)
        matrix = label_analysis.confusion(found.choices)
        confusion[language] = {
            names[gold]: {names[i]: int(row[i]) for i in np.flatnonzero(row)}
            for gold, row in enumerate(matrix)
            if row.any()
        }
        if said := label_analysis.collapsed(matrix, names):
            collapse.append(f"{split}, {language}: {said}")
    for line in collapse:
        logging.warning("%s has collapsed: %s; %s", options.name, line, label_analysis.REMEDY)
    return {
        "training_loss": training_loss, "label_entropy": entropy, "collapse": collapse,
        "baselines": baselines, "classes": classes, "confusion": confusion,
        "calibration": {"temperature": t, "error": errors, "scaled_error": scaled},
    }  # fmt: skip


def _baselines(
    options: TaskSettings, data: TaskData, counts: np.ndarray, total: int, num_texts: int
) -> dict[str, dict[str, float]]:
    task, kind = options.task, KINDS[options.task.kind]
    assert kind.classes is not None
    ends = np.cumsum([len(kind.classes(example)) for example in data.examples])[:-1]

    def score(labels: np.ndarray) -> dict[str, float]:
        if task.has_label_sets:
            return kind.score(task, data, label_sets([*labels]), None)
        parts = (part.tolist() for part in np.split(labels, ends))
        return kind.score(task, data, [kind.decision(part) for part in parts], None)

    return label_analysis.baselines(counts, total, score, num_texts)
