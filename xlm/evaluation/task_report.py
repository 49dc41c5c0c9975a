"""Report of one fine-tuning run: scores, classes, confusion, calibration, errors, curves."""

import pathlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from scipy import special

from input_pipeline.tasks.tasks import Task
from xlm.common import charts, html_report, tables
from xlm.common.charts import Axis, Marks
from xlm.evaluation import label_analysis
from xlm.evaluation.label_analysis import Labelled
from xlm.evaluation.task_results import table
from xlm.evaluation.tasks import TaskData
from xlm.training.metrics import read_metrics

_ROWS = 20  # of the tables of errors and confusions
_DRAWN = 30  # most classes in a picture of confusions
_LANGUAGES = 8  # most languages with a column for F1
_TEXT = 300  # characters of a text to show
_SCORES = """\
*majority*: every answer is the most frequent label of the training data. *random*: answers are
draws from the training labels. A model that is no better has learned nothing."""
_CONFUSION = """\
Each row of the picture is a gold class, as shares of its labels, over all languages.

![Confusion of classes](confusion.svg)"""
_CALIBRATION = """\
A calibrated model is right in 80 % of the cases to which it gives 80 %. The error is the mean
distance between the two, over 15 bins of confidence. Divide the scores by the temperature before
the softmax, or the sigmoid of several labels, to get the second column. The temperature comes from
the development data."""
_UNCHOSEN = """\
**No temperature**: the model is right on all development data. Give it harder or more data."""
_CURVES = """\
Dashed lines are the loss without any text (the entropy of the training labels) and the chosen
checkpoint.

![Losses and scores by step](curves.svg)"""


def write(
    folder: pathlib.Path, task: Task, results: Mapping[str, Any], data: Sequence[TaskData],
    labelled: Mapping[str, Labelled],
) -> pathlib.Path:  # fmt: skip
    """Write report.md and .html with its plots into a run's folder; return the first's path.

    `data` are those of the reported split, `labelled` their labels by language, if classes.
    """
    name = tables.escaped(results.get("dataset") or results["task"])
    parts = [f"# {tables.escaped(results['model'])}, fine-tuned on {name}"]
    for line in results.get("collapse", ()):
        parts.append(f"**This model has collapsed.** {tables.escaped(line)}.")
    parts += ["## Scores", table(task, results).replace("\n", "  \n")]  # each note has its line
    if labelled:
        pooled = label_analysis.pooled(list(labelled.values()))
        parts += [_SCORES, *_classes(folder, task.labels, results["classes"], pooled)]
        parts += ["## Calibration", _CALIBRATION]
        if results["calibration"]["temperature"] == 1:
            parts.append(_UNCHOSEN)
        parts.append(_calibration(**results["calibration"]))
        parts += _errors(task.labels, data, labelled)
    charts.save(_curves(folder, task.metrics[0], results), folder / "curves.svg")
    return html_report.write(folder, tables.page(*parts, "## Learning curves", _CURVES))


def _classes(
    folder: pathlib.Path, labels: Sequence[str], classes: Mapping[str, Any], pooled: Labelled
) -> Iterator[str]:
    counts, names = pooled.counts, [tables.text_cell(one) for one in labels]
    languages = list(classes) if 1 < len(classes) <= _LANGUAGES else []
    yield "## Classes"
    yield tables.markdown(
        [
            {
                "class": tables.text_cell(label),
                "labels": format(one.pop("support"), ",d"),
                **{metric: 100 * value for metric, value in one.items()},
                **{f"f1, {code}": 100 * classes[code].get(label, {"f1": np.nan})["f1"]
                   for code in languages},
            }
            for label, one in label_analysis.class_scores(counts, labels).items()
        ],
        ".1f",
    )  # fmt: skip
    if never := [names[i] for i in np.flatnonzero((counts[1] > 0) & (counts[2] == 0))]:
        yield f"Never predicted: {', '.join(never)}."
    if pooled.gold.ndim > 1:
        return
    matrix = label_analysis.confusion(pooled)
    yield "## Confusion"
    if len(labels) <= _DRAWN:
        charts.save(_confusion_chart(matrix, labels), folder / "confusion.svg")
        yield _CONFUSION
    wrong = matrix * (1 - np.eye(len(labels), dtype=int))
    order = np.argsort(-wrong, axis=None, kind="stable")[:_ROWS]
    pairs = [divmod(int(one), len(labels)) for one in order if wrong.flat[one]]
    columns = ("gold", "predicted", "labels")
    found = [(names[one], names[other], f"{wrong[one, other]:,}") for one, other in pairs]
    yield tables.markdown([dict(zip(columns, row, strict=True)) for row in found], left=2)


def _confusion_chart(matrix: np.ndarray, labels: Sequence[str]) -> str:
    shares = matrix / matrix.sum(axis=1, keepdims=True).clip(1)
    rows, columns = np.indices(matrix.shape).reshape(2, -1)
    counts = [f"{count:,}" for count in matrix.flat]
    names = [label[:20] for label in labels]
    cells = Marks("", columns, rows, "cells", shares.ravel().tolist(), "c0", counts)
    return charts.chart([cells], Axis("predicted", names=names), Axis("gold", names=names))


def _calibration(
    temperature: float, error: Mapping[str, float], scaled_error: Mapping[str, float]
) -> str:
    column = f"at temperature {temperature:.2f}"
    rows = [
        {"language": language, "error": 100 * one, column: 100 * scaled_error[language]}
        for language, one in error.items()
    ]
    return tables.markdown(rows, ".1f")


def _errors(
    labels: Sequence[str], data: Sequence[TaskData], labelled: Mapping[str, Labelled]
) -> Iterator[str]:
    rows: list[dict[str, Any]] = []
    for one in data:
        found, of_sets = labelled[one.language].choices, labelled[one.language].gold.ndim > 1
        shares = special.softmax(found.logits, axis=1).max(axis=1)
        wrong = np.flatnonzero(found.found != found.gold)
        for place in wrong[np.argsort(-shares[wrong], kind="stable")][:_ROWS]:
            at, of = divmod(int(place), len(labels)) if of_sets else (int(place), 0)
            name, text = _text(one, at)
            names = [f"not {labels[of]}", labels[of]] if of_sets else labels
            gold, predicted = names[found.gold[place]], names[found.found[place]]
            cells = {"id": name, "text": text, "gold": gold, "predicted": predicted}
            cells = {key: tables.text_cell(cell) for key, cell in cells.items()}
            rows.append({"language": one.language, **cells, "%": 100 * float(shares[place])})
    if rows := sorted(rows, key=lambda row: -row["%"])[:_ROWS]:
        yield f"## The {len(rows)} most confident errors"
        yield tables.markdown(rows, ".1f", left=5)


def _text(data: TaskData, place: int) -> tuple[str, str]:
    """Return the id and text of the example with label `place`, with a tagged word in brackets."""
    words = [getattr(example, "words", None) for example in data.examples]
    ends = np.cumsum([1 if one is None else len(one) for one in words])
    at = int(np.searchsorted(ends, place, side="right"))
    of_example, text = words[at], " / ".join(data.examples[at].content)
    if of_example is not None:
        shown = list(of_example)
        place -= int(ends[at]) - len(shown)
        shown[place] = f"[{shown[place]}]"
        text = " ".join(shown[max(place - 12, 0) : place + 13])
    return str(data.examples[at].id), text[:_TEXT] + "…" * (len(text) > _TEXT)


def _curves(folder: pathlib.Path, metric: str, results: Mapping[str, Any]) -> str:
    records = read_metrics(folder / "metrics.jsonl")
    upper = [charts.by_step(records, name) for name in ("train/loss", "validation/loss")]
    if "label_entropy" in results:
        upper.append(Marks("loss without text", [], [results["label_entropy"]], "rule"))
    lower = [charts.by_step(records, f"validation/{metric}")]
    lower.append(Marks("chosen checkpoint", [results["selected"]["step"]], [], "rule"))
    axes = zip((upper, lower), ("loss", metric), strict=True)
    return charts.stacked([charts.chart(of, Axis("step"), Axis(name)) for of, name in axes])
