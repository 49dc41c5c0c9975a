"""Significance of the difference between fine-tuned runs: a paired bootstrap over test examples."""

import itertools
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import numpy as np

from input_pipeline.tasks.tasks import TASKS, Task
from vocap.segmentation import interval, resampled
from xlm.common import tables
from xlm.evaluation.metrics import questions
from xlm.evaluation.task_results import read_lines, read_results, reported_scores, reported_split
from xlm.training.run_report import settings_of

_RESAMPLES = 2000
_ROUNDING = 1e-6
_NOTE = f"""\
Each of {_RESAMPLES:,} resamples draws all test examples with replacement, the same for both runs.
*p* is two-sided. Languages with equally many examples have the same draws, since their examples may
be translations of each other. The test ignores the variation between seeds: train some
(`--seeds=3`) before you conclude that one setting is better."""

Samples = np.ndarray  # [1 + R] float64: a score, and the score of each resample


class Answered(msgspec.Struct):
    """Prediction and label of a test example, such as "good", 3.5, or a list of tags."""

    id: str
    prediction: Any
    gold: Any = None


def section(folders: Mapping[str, pathlib.Path]) -> list[str]:
    """Return the parts of a report that compare later runs with the first one.

    They are [] unless the first has ended. A pair without a comparison has the reason instead.
    Raises ValueError if files of a run are damaged, or do not belong together.
    """
    (first, start), *others = folders.items()
    if not others or not (start / "results.json").exists():
        return []
    metric = TASKS[read_results(start / "results.json")["task"]].metrics[0]
    parts, has_rows = [f"## Difference in {metric}"], False
    for other, folder in others:
        names = [tables.escaped(one) for one in (first, other)]
        try:
            rows = _rows(names, (start, folder))
        except _NotComparable as reason:
            parts.append(f"**No comparison of {names[0]} and {names[1]}**: {reason}.")
        else:
            formats = {**dict.fromkeys(names, ".1f"), "difference": "+.1f", "p": ".3f"}
            parts.append(tables.markdown(rows, formats))
            has_rows = True
    return [*parts, *[_NOTE] * has_rows]


class _NotComparable(Exception):
    pass


def _rows(names: Sequence[str], folders: Sequence[pathlib.Path]) -> list[dict[str, Any]]:
    if not (folders[1] / "results.json").exists():
        raise _NotComparable(f"{names[1]} has no results.json, so it has not ended")
    results = [read_results(folder / "results.json") for folder in folders]
    task, split = TASKS[results[0]["task"]], reported_split(results[0])
    what = [f"{one['task']} ({reported_split(one)} data)" for one in results]
    if what[0] != what[1] or task.is_search or task.is_translation or task.is_embedding:
        raise _NotComparable(f"{' and '.join(dict.fromkeys(what))} have no common scores by text")
    labels = [settings_of(folder).get("task.labels") for folder in folders]
    if labels[0] != labels[1]:
        raise _NotComparable("their labels differ")
    samples: dict[str, Sequence[Samples]] = {}
    counts: dict[str, int] = {}
    for language in (one for one in results[0][split] if one in results[1][split]):
        paths = [one / "predictions" / f"{split}.{language}.jsonl" for one in folders]
        one, other = (read_lines(path, Answered) for path in paths)
        if any(line.gold is None for line in (*one, *other)):
            raise _NotComparable("predictions have no labels (gold), as in runs of older versions")
        files = [of.get("scored", {}).get(language) for of in results]
        if files[0] != files[1] or [(x.id, x.gold) for x in one] != [(x.id, x.gold) for x in other]:
            raise _NotComparable(f"their {split} files in {language} differ")
        samples[language], counts[language] = scores(task, language, one, other), len(one)
        for path, of, found in zip(paths, results, samples[language], strict=True):
            if abs(found[0] - (known := reported_scores(of)[language])) > _ROUNDING:
                raise ValueError(f"{path}: scores {found[0]:.6f}, but results.json of the run says "
                                 f"{known:.6f}; copy the folder of the run again")  # fmt: skip
    if len(samples) > 1:
        samples["mean"] = list(np.mean(list(samples.values()), axis=0))
    rows = []
    for language, both in samples.items():
        difference = 100 * (both[1] - both[0])
        low, high = interval(difference)
        row = {"language": language, "examples": tables.shown(counts.get(language), ",")}
        row |= {name: 100 * of[0] for name, of in zip(names, both, strict=True)}
        row |= {"difference": difference[0], "95 % interval": f"{low:+.1f} to {high:+.1f}"}
        rows.append(row | {"p": p_value(difference)})
    return rows


def p_value(difference: Samples) -> float:
    """Return the two-sided p of no difference: twice the rarer sign's share of resamples."""
    rarer = 1 + min((difference[1:] <= 0).sum(), (difference[1:] >= 0).sum())
    return float(min(2 * rarer / len(difference), 1.0))


def scores(
    task: Task, language: str, one: Sequence[Answered], other: Sequence[Answered]
) -> list[Samples]:
    """Return samples of the task's first metric of two runs, on the same resamples of examples."""
    lines, metric = [*one, *other], task.metrics[0]
    if metric == "pearson":
        score, values = _pearson, _moments(lines)
    else:
        score = {"macro_f1": _macro_f1, "matthews": _matthews}.get(metric, _micro_f1)
        values = _counts(task, language, lines).reshape(len(lines), -1)
    sums = resampled(np.hstack(np.split(values, 2)), _RESAMPLES)
    return [score(of) for of in np.split(sums, 2, axis=1)]


def _counts(task: Task, language: str, lines: Sequence[Answered]) -> np.ndarray:
    """Count right, gold and predicted labels or spans by class, [N, 3, C]; or the F1 of answers."""
    if not (task.is_of_texts or task.is_of_words):  # but of questions
        return np.array([[[_f1_of(task, language, line)], [1.0], [1.0]] for line in lines])
    sides = [[one.gold for one in lines], [one.prediction for one in lines]]
    if task.is_of_words and task.scorer != "words":
        from xlm.evaluation.metrics import tagging  # slow: scikit-learn

        spans = zip(*(tagging.spans(side, task.scorer) for side in sides), strict=True)
        return np.array([[[len(a & b)], [len(a)], [len(b)]] for a, b in spans], np.float64)
    gold, found = ([one if isinstance(one, list) else [one] for one in side] for side in sides)
    names = ["1"] if task.metrics[0] == "f1" else sorted({*itertools.chain(*gold, *found)})
    counts, place = np.zeros((len(lines), 3, len(names))), {one: i for i, one in enumerate(names)}
    for row, right, predicted in zip(counts, gold, found, strict=True):
        both = [one for one, two in zip(right, predicted, strict=False) if one == two]
        if task.has_label_sets:
            both = [one for one in right if one in predicted]
        for which, side in enumerate((both, right, predicted)):
            np.add.at(row[which], [place[one] for one in side if one in place], 1)
    return counts


def _f1_of(task: Task, language: str, line: Answered) -> float:
    gold, found = {line.id: line.gold}, {line.id: line.prediction}
    if task.has_unanswerable:
        return questions.squad2_scores(gold, found)["f1"]
    rule = questions.normalizer(task.normalizer, language)
    return questions.answer_scores(gold, found, rule)["f1"]


def _moments(lines: Sequence[Answered]) -> np.ndarray:
    x, y = np.array([(one.gold, one.prediction) for one in lines]).T
    x, y = x - x.mean(), y - y.mean()  # against cancellation
    return np.stack([np.ones_like(x), x, y, x * x, y * y, x * y], axis=1)


def _ratio(over: np.ndarray, under: np.ndarray) -> np.ndarray:
    return np.divide(over, under, out=np.zeros_like(over), where=under > 0)


def _by_class(sums: np.ndarray) -> np.ndarray:
    """Return right, gold and predicted counts, [3, R, C], of sums [R, 3 C]."""
    return np.moveaxis(sums.reshape(len(sums), 3, -1), 1, 0)


def _micro_f1(sums: np.ndarray) -> Samples:
    right, gold, predicted = _by_class(sums).sum(axis=2)
    return _ratio(2 * right, gold + predicted)  # of one label each: accuracy


def _macro_f1(sums: np.ndarray) -> Samples:
    right, gold, predicted = _by_class(sums)
    there = (gold + predicted > 0).sum(axis=1)
    return _ratio(_ratio(2 * right, gold + predicted).sum(axis=1), there)


def _matthews(sums: np.ndarray) -> Samples:
    right, gold, predicted = _by_class(sums)
    total = gold.sum(axis=1)
    variances = [total**2 - (side**2).sum(axis=1) for side in (gold, predicted)]
    covariance = right.sum(axis=1) * total - (gold * predicted).sum(axis=1)
    return _ratio(covariance, np.sqrt(variances[0] * variances[1]))


def _pearson(sums: np.ndarray) -> Samples:
    n, x, y, xx, yy, xy = sums.T
    variances = np.maximum(n * xx - x * x, 0) * np.maximum(n * yy - y * y, 0)
    return _ratio(n * xy - x * y, np.sqrt(variances))
