"""Texts with any number of labels: from files to results, report, predictions and export."""

import json

import numpy as np
from absl.testing import absltest
from scipy import special
from sklearn import metrics

from input_pipeline.tasks import delimited
from input_pipeline.tasks.examples import BadRow
from input_pipeline.tasks.tasks import TASKS, Columns
from tests import own_task_test
from xlm.common import artifacts
from xlm.evaluation import label_analysis, task_results
from xlm.evaluation.label_analysis import Labelled
from xlm.evaluation.metrics import classification
from xlm.experiment import tuned_export
from xlm.objectives import fine_tuning

LABELS = ("cat", "dog", "fox")
TASK = TASKS["text_labels"].with_labels(LABELS, Columns(("text",), (), ("label",)))


class FilesTest(own_task_test.Case):
    def read(self, name: str, content: str, separator: str = ","):
        task = TASK.with_labels(LABELS, TASK.columns)
        object.__setattr__(task, "label_separator", separator)
        return [one for _, one in delimited.read_texts(self.write(name, content), task)]

    def test_lists_and_cells_say_the_same(self):
        rows = [("a", ["dog", "cat"]), ("b", []), ("c", ["fox"]), ("d", ["fox", "fox"])]
        lines = "\n".join(json.dumps({"text": text, "label": of}) for text, of in rows)
        found = self.read("a.jsonl", lines)
        self.assertEqual([one.label for one in found], [(0, 1), (), (2,), (2,)])
        for separator in ",|":
            cells = "\n".join(f'{text},"{f" {separator} ".join(of)}"' for text, of in rows)
            self.assertEqual(self.read("a.csv", f"text,label\n{cells}\n", separator), found)
        # Without a separator a cell is one label.
        _, other = self.read("a.csv", 'text,label\na,cat\nb,"cat,dog"\n', "")
        self.assertRegex(other.error, "line 3: no label 'cat,dog' in the training data")
        names = delimited.read_labels(self.write("b.jsonl", lines), TASKS["text_labels"])
        self.assertEqual([name for _, name in names], ["dog", "cat", "fox", "fox", "fox"])

    def test_faults_have_their_line(self):
        for cell, message in (
            ("null", "column 'label' is empty; fill it in"),
            ('["cat", ""]', "column 'label' is empty"),
            ('[["cat"]]', "column 'label' holds .*, not a text or number"),
            ('["wolf"]', "no label 'wolf' in the training data"),
        ):
            (found,) = self.read("a.jsonl", '{"text": "a", "label": ' + cell + "}\n")
            self.assertIsInstance(found, BadRow)
            self.assertRegex(found.error, f"a.jsonl, line 1: {message}")


class ScoresTest(absltest.TestCase):
    def setUp(self):
        super().setUp()
        rng = np.random.default_rng(0)
        self.gold = rng.random((50, 4)) < [0.6, 0.3, 0.1, 0.0]
        self.logits = (rng.normal(size=(50, 4)) + 2 * self.gold - 2).astype(np.float32)
        self.logits[:, 3] = -3  # neither there nor predicted
        self.found = Labelled(self.gold, self.logits)

    def test_scores_as_scikit_learn(self):
        found = self.logits > 0
        scores = classification.set_scores(self.gold, found)
        for way in ("micro", "macro"):
            expected = metrics.f1_score(self.gold[:, :3], found[:, :3], average=way)
            self.assertAlmostEqual(scores[f"{way}_f1"], expected)
        by_class = label_analysis.class_scores(self.found.counts, "abcd")
        columns = metrics.precision_recall_fscore_support(self.gold[:, :3], found[:, :3])
        for name, column in zip(("precision", "recall", "f1", "support"), columns, strict=True):
            np.testing.assert_allclose([one[name] for one in by_class.values()], column)

    def test_loss_entropy_and_probabilities(self):
        batch = {"labels": self.gold.astype(np.float32), "weights": np.ones(50)}
        loss, weight = fine_tuning.multilabel_loss(self.logits, batch)["loss"]
        likely = special.expit(self.logits.astype(float))
        expected = -np.log(np.where(self.gold, likely, 1 - likely)).mean()
        self.assertAlmostEqual(float(loss / weight), expected, places=5)
        # Weights are of labels that are there, and the entropy is the best loss of constant scores.
        weights = (1.0, 4.0, 0.5, 1.0)
        shares = self.gold.mean(axis=0)
        best = special.logit(shares) + np.log(weights)
        constant = np.tile(best.clip(-30), (50, 1)).astype(np.float32)
        loss, _ = fine_tuning.multilabel_loss(constant, batch, weights)["loss"]
        entropy = label_analysis.set_entropy(shares, np.array(weights))
        self.assertAlmostEqual(float(loss) / 50, entropy, places=5)
        # Calibration reads the same probabilities, one choice for each text and class.
        choices = self.found.choices
        np.testing.assert_allclose(special.softmax(choices.logits, axis=1)[:, 1], likely.ravel(),
                                   rtol=1e-5)  # fmt: skip
        np.testing.assert_array_equal(choices.gold, self.gold.ravel())
        np.testing.assert_array_equal(choices.found, (self.logits > 0).ravel())
        none = label_analysis.confusion(Labelled(self.gold, -np.abs(self.logits)).choices)
        self.assertIn("'no' is 100.0%", label_analysis.collapsed(none, ("no", "yes")))

    def test_baselines(self):
        answers, counts = [], np.array([60, 30, 70])
        for total, num_texts in ((4000, 100), (9, 500)):
            label_analysis.baselines(
                counts, total, lambda one: answers.append(one) or {"a": 0.0}, num_texts
            )
        self.assertTrue((answers[2] == [True, False, True]).all())
        np.testing.assert_allclose(answers[0].mean(axis=0), counts / 100, atol=0.03)
        self.assertTrue((answers[-1] == [False, False, True]).all())  # at least one label


class RunTest(own_task_test.Case):
    def test_from_files_to_export(self):
        rng = np.random.default_rng(0)
        for name, count in (("train.en.jsonl", 120), ("train.sw.jsonl", 40), ("test.sw.jsonl", 30)):
            rows = []
            for i in range(count):
                of = [label for label in LABELS[:2] if rng.random() < 0.5]
                text = f"the {' '.join(of) or 'a'} runs, {'b' * (i % 5)}{i % 7}{i}."
                rows.append({"text": text, "label": of, "id": str(i)})
            self.write(name, "\n".join(map(json.dumps, rows)))
        config = self.config("text", "multilabel,", num_layers=1, task__id_column="id",
                             train__epochs=24.0)  # fmt: skip
        with self.assert_told("held out of training: no label .*, cat .*, dog ", level="INFO"):
            results = self.run_it(config)
        folder = self.folder / "run"
        self.assertGreater(results["test"]["sw"]["micro_f1"], 0.8)
        self.assertLess(results["baselines"]["majority"]["sw"]["micro_f1"], 0.75)
        self.assertEqual((results["collapse"], [*results["classes"]["sw"]]), ([], ["cat", "dog"]))
        lines = task_results.read_lines(folder / "predictions" / "test.sw.jsonl", dict)
        self.assertIn([], [line["gold"] for line in lines])
        for line in lines:
            likely = [name for name, share in line["probabilities"].items() if share > 0.5]
            self.assertEqual(line["prediction"], likely)
        self.assertNotIn("## Confusion", (folder / "report.md").read_text())
        (line, other) = self.predict("the cat dog runs, b1.\nthe a runs, b1.\n")
        self.assertEqual((line["prediction"], other["prediction"]), (["cat", "dog"], []))
        tuned_export.export(folder, self.folder / "exported")
        found = artifacts.read_json(self.folder / "exported" / "config.json")
        self.assertEqual(found["problem_type"], "multi_label_classification")
        self.assertEqual(found["id2label"], {"0": "cat", "1": "dog"})
