"""The paired bootstrap against each metric's scorer on resampled examples, and against scipy."""

import dataclasses
import json
import pathlib
from typing import Any

import numpy as np
import scipy.stats
from absl.testing import parameterized

from input_pipeline.tasks.tasks import TASKS, Task
from tests import commands, folders
from vocap.segmentation import interval, resampled
from xlm.evaluation import significance
from xlm.evaluation.metrics import classification, questions, tagging
from xlm.evaluation.significance import Answered
from xlm.evaluation.tasks import with_each_label

_ANSWERS = ["the red cat", "red", "a dog runs", "dog", ""]


def lines(rng: np.random.Generator, gold: list[Any], options: Any, right: float) -> list[Answered]:
    """Predictions, right with probability `right`, else random."""
    found = [one if rng.random() < right else options() for one in gold]
    return [Answered(str(i), *pair) for i, pair in enumerate(zip(found, gold, strict=True))]


def case(name: str) -> tuple[Task, Any]:
    """Return a task, and a function that draws labels."""
    rng = np.random.default_rng(3)
    task = TASKS[name]
    if task.kind == "tagging":
        tags = task.labels or ("O", "B-A", "I-A", "B-B", "I-B")
        return dataclasses.replace(task, labels=tags), lambda: rng.choice(tags, 5).tolist()
    if name in ("squad", "squad2"):
        return task, lambda: _ANSWERS[rng.integers(5 if name == "squad2" else 4)]
    if task.kind == "regression":
        return task, lambda: float(rng.normal())
    labels = task.labels or tuple("abcdefghijklmnop")  # some in few examples
    task = dataclasses.replace(task, labels=labels)
    if task.kind == "multilabel":
        return task, lambda: [one for one in labels if rng.random() < 0.2]
    return task, lambda: str(rng.choice(labels))


def direct(task: Task, some: list[Answered]) -> float:
    """Return the score by the task's own scorer."""
    gold, found = [one.gold for one in some], [one.prediction for one in some]
    if task.kind == "tagging":
        return tagging.SCORERS[task.scorer](gold, found)[task.metrics[0]]
    if task.kind == "extractive_qa":
        right, answers = ({str(i): one for i, one in enumerate(side)} for side in (gold, found))
        right = {i: [one] * bool(one) for i, one in right.items()}
        if task.has_unanswerable:
            return questions.squad2_scores(right, answers)["f1"]
        return questions.answer_scores(right, answers, questions.normalize_squad)["f1"]
    if task.kind == "multilabel":
        sides = [[[*map(ord, one)] for one in side] for side in (gold, found)]
        return classification.set_scores(*(with_each_label(one, 128) for one in sides))["micro_f1"]
    if task.kind == "classification":
        gold, found = ([task.labels.index(one) for one in side] for side in (gold, found))
    return classification.scores(task.metrics[:1], gold, found)[task.metrics[0]]


class ScoresTest(parameterized.TestCase):
    @parameterized.parameters(
        "text_classes", "xnli", "mrpc", "cola", "stsb", "text_numbers", "tag_words", "tag_spans",
        "udpos", "squad", "squad2", "text_labels",
    )  # fmt: skip
    def test_resamples_score_as_the_tasks_scorer_does(self, name):
        task, draw = case(name)
        rng = np.random.default_rng(0)
        gold = [draw() for _ in range(40)]
        runs = [lines(rng, gold, draw, right) for right in (0.3, 0.6)]
        given = runs
        if task.kind == "extractive_qa":  # several right answers
            given = [[Answered(x.id, x.prediction, [x.gold] * bool(x.gold)) for x in run]
                     for run in runs]  # fmt: skip
        found = significance.scores(task, "en", *given)
        times = resampled(np.eye(40), 3).astype(int)
        for samples, run in zip(found, runs, strict=True):
            for score, counts in zip(samples, times, strict=False):
                drawn = [one for one, n in zip(run, counts, strict=True) for _ in range(n)]
                self.assertAlmostEqual(score, direct(task, drawn))

    def test_interval_and_p_agree_with_scipy(self):
        rng = np.random.default_rng(1)
        task, draw = case("xnli")
        gold = [draw() for _ in range(300)]
        runs = [lines(rng, gold, draw, right) for right in (0.5, 0.53)]
        one, other = significance.scores(task, "en", *runs)
        right = [np.array([x.prediction == x.gold for x in run], float) for run in runs]
        theirs = scipy.stats.bootstrap(
            right, lambda a, b, axis: b.mean(axis) - a.mean(axis), paired=True, n_resamples=4000,
            method="percentile", rng=np.random.default_rng(2),
        )  # fmt: skip
        found = interval(other - one)
        np.testing.assert_allclose(found, theirs.confidence_interval, atol=0.008)
        p = scipy.stats.ttest_rel(*right).pvalue
        self.assertAlmostEqual(significance.p_value(other - one), p, delta=0.03)
        self.assertEqual(significance.p_value(one - other), significance.p_value(other - one))
        self.assertAlmostEqual(significance.p_value(np.arange(2001.0) + 1), 2 / 2001)


class ReportTest(folders.FolderTest):
    def run_of(self, name: str, right: float, **differs: Any) -> pathlib.Path:
        """Write a finished run on 200 examples in two languages."""
        rng, folder = np.random.default_rng(len(name)), self.folder / name
        labels, split = differs.pop("labels", ["bad", "good"]), "test"
        results: dict[str, Any] = {
            "task": "text_classes", "model": "m", "setting": "s", "seed": 0, "hyperparameters": {},
            "test": {}, "scored": {"en": "aa", "sw": "bb"}, **differs,
        }  # fmt: skip
        for language in ("en", "sw"):
            gold = np.random.default_rng(7).choice(["bad", "good"], 200).tolist()
            run = lines(rng, gold, lambda: str(rng.choice(["bad", "good"])), right)
            task = dataclasses.replace(TASKS["text_classes"], labels=("bad", "good"))
            names = ("macro_f1", "micro_f1", "accuracy")
            results["test"][language] = dict.fromkeys(names, direct(task, run))
            rows = [json.dumps({"id": x.id, "prediction": x.prediction, "gold": x.gold})
                    for x in run]  # fmt: skip
            self.write(f"{name}/predictions/{split}.{language}.jsonl", "\n".join(rows) + "\n")
        self.write(f"{name}/results.json", json.dumps(results))
        self.write(
            f"{name}/settings.json",
            json.dumps({"task": {"name": "text_classes", "labels": labels}}),
        )
        return folder

    def section(self, **runs: pathlib.Path) -> str:
        return "\n".join(significance.section(runs))

    def test_a_better_run_by_language_and_in_the_mean(self):
        one, two = self.run_of("a", 0.4), self.run_of("bb", 0.9)
        text = self.section(a=one, bb=two, again=one)
        self.assertIn("## Difference in macro_f1", text)
        rows = [line.strip("| ").split(" | ") for line in text.splitlines() if line[:1] == "|"]
        better, same = ([row for row in rows if row[0] in ("en", "sw", "mean")][i : i + 3]
                        for i in (0, 3))  # fmt: skip
        for _, _, first, second, difference, between, p in better:
            self.assertAlmostEqual(float(second) - float(first), float(difference), delta=0.11)
            low, high = map(float, between.split(" to "))
            self.assertTrue(0 < low < float(difference) < high)
            self.assertLess(float(p), 0.01)
        for *_, difference, between, p in same:
            self.assertEqual((difference, between, p), ("+0.0", "+0.0 to +0.0", "1.000"))

    def test_what_differs_is_refused_with_its_name(self):
        one = self.run_of("a", 0.4)
        for reason, differs in {
            "their labels differ": {"labels": ["bad", "good", "other"]},
            "their test files in sw differ": {"scored": {"en": "aa", "sw": "cc"}},
            r"text_classes \(test data\) and text_labels .* no common": {"task": "text_labels"},
        }.items():
            other = self.run_of("bb", 0.5, **differs)
            self.assertRegex(self.section(a=one, bb=other), rf"No comparison of a and bb.*{reason}")
        other = self.run_of("bb", 0.5)
        path = "bb/predictions/test.en.jsonl"
        text = (self.folder / path).read_text()
        self.write(path, text.replace('"id": "5"', '"id": "x"'))
        self.assertIn("test files in en differ", self.section(a=one, bb=other))
        self.write(path, text.replace('"gold"', '"label"'))
        self.assertIn("predictions have no labels (gold)", self.section(a=one, bb=other))
        self.write(path, text.replace('"prediction": "bad"', '"prediction": "good"'))
        with self.assertRaisesRegex(ValueError, "but results.json of the run says"):
            self.section(a=one, bb=other)
        (other / "results.json").unlink()
        self.assertIn("bb has no results.json", self.section(a=one, bb=other))
        self.assertEqual(significance.section({"bb": other, "a": one}), [])
        self.assertEqual(significance.section({"a": one}), [])

    def test_the_command_shows_it(self):
        one, two = self.run_of("a", 0.4), self.run_of("bb", 0.9)
        page = self.folder / "page"
        commands.execute("report", f"--runs={one},{two}", f"--output={page}")
        found = (page / "report.md").read_text(encoding="utf-8")
        self.assertIn("| mean |", found)
        self.assertNotIn("losses are not compared", found)
