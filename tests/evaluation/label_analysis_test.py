"""Baselines, confusion, collapse and calibration against scikit-learn and scipy."""

import numpy as np
from absl.testing import parameterized
from scipy import special, stats
from sklearn import metrics

from xlm.evaluation import label_analysis
from xlm.evaluation.label_analysis import Labelled


def labelled(seed: int, count: int = 200, classes: int = 5, sharpness: float = 1.0) -> Labelled:
    """Labels drawn from the softmax of logits, and the logits scaled by `sharpness`."""
    rng = np.random.default_rng(seed)
    logits = rng.normal(size=(count, classes)) * 2
    shares = special.softmax(logits, axis=1)
    gold = (rng.random((count, 1)) > shares.cumsum(axis=1)).sum(axis=1).clip(0, classes - 1)
    return Labelled(gold, (sharpness * logits).astype(np.float32))


class ClassesTest(parameterized.TestCase):
    @parameterized.parameters((0, 200, 5), (1, 3, 6), (2, 40, 12))
    def test_as_scikit_learn(self, seed, count, classes):
        found = labelled(seed, count, classes)
        matrix = label_analysis.confusion(found)
        kinds = range(classes)
        expected = metrics.confusion_matrix(found.gold, found.found, labels=[*kinds])
        np.testing.assert_array_equal(matrix, expected)
        scores = label_analysis.class_scores(found.counts, [str(one) for one in kinds])
        there = np.union1d(found.gold, found.found)
        columns = metrics.precision_recall_fscore_support(
            found.gold, found.found, labels=there, zero_division=0
        )
        self.assertEqual(list(scores), [str(one) for one in there])
        for name, column in zip(("precision", "recall", "f1", "support"), columns, strict=True):
            np.testing.assert_allclose([one[name] for one in scores.values()], column)

    def test_baselines(self):
        counts, gold = np.array([10, 60, 30]), np.random.default_rng(0).integers(0, 3, 2000)

        def score(labels: np.ndarray) -> dict[str, float]:
            return {"accuracy": float(np.mean(labels == gold))}

        found = label_analysis.baselines(counts, len(gold), score)
        self.assertEqual(found["majority"], {"accuracy": np.mean(gold == 1)})
        expected = np.bincount(gold) / len(gold) @ counts / counts.sum()
        self.assertAlmostEqual(found["random"]["accuracy"], expected, delta=0.015)
        self.assertEqual(label_analysis.baselines(counts, len(gold), score), found)
        drawn = []
        label_analysis.baselines(counts, 20_000, lambda one: drawn.append(one) or {"a": 0.0})
        self.assertLen(drawn, 2)  # one draw is enough for so many labels
        np.testing.assert_allclose(np.bincount(drawn[0]) / 20_000, counts / 100, atol=0.01)

    def test_entropy(self):
        counts = np.array([3, 0, 5, 9])
        self.assertAlmostEqual(label_analysis.entropy(counts), stats.entropy(counts))


class CollapseTest(parameterized.TestCase):
    @parameterized.parameters(
        ([[40, 0], [60, 0]], True),
        ([[0, 40], [1, 59]], False),  # 99 % is not more than 99 %
        ([[0, 400], [1, 599]], True),
        ([[99, 0], [1, 0]], True),  # never finds a rare class
        ([[995, 0], [1, 4]], False),  # finds a rare class
        ([[100, 0], [0, 0]], False),  # there is no other class
        ([[40, 5], [20, 35]], False),
    )
    def test_one_class_for_all(self, matrix, has_collapsed):
        found = label_analysis.collapsed(np.array(matrix), ["complaint", "praise"])
        self.assertEqual(bool(found), has_collapsed, found)

    def test_its_words(self):
        found = label_analysis.collapsed(np.array([[40, 0], [60, 0]]), ["complaint", "praise"])
        self.assertEqual(
            found, "'complaint' is 100.0% of the predictions, but 40.0% of the labels"
        )  # fmt: skip
        self.assertIn("is 1.097, no better", label_analysis.stuck(1.097, np.log(3)))
        self.assertEqual(label_analysis.stuck(1.07, np.log(3)), "")


class CalibrationTest(parameterized.TestCase):
    @parameterized.parameters(0.5, 1.0, 4.0)
    def test_the_temperature_undoes_a_scale(self, sharpness):
        found = labelled(0, 20_000, sharpness=sharpness)
        t = label_analysis.temperature(found)
        self.assertAlmostEqual(t / sharpness, 1.0, delta=0.05)
        self.assertLess(label_analysis.calibration_error(found, t), 0.02)
        if sharpness != 1.0:
            self.assertGreater(label_analysis.calibration_error(found), 0.1)
        losses = [
            metrics.log_loss(found.gold, special.softmax(found.logits / one, axis=1))
            for one in (0.98 * t, t, 1.02 * t)
        ]
        self.assertLess(losses[1], min(losses[0], losses[2]))

    def test_data_without_errors_have_no_temperature(self):
        found = labelled(0)
        right = found._replace(gold=found.found)
        self.assertEqual(label_analysis.temperature(right), 1.0)

    def test_the_error_as_its_definition(self):
        found, expected = labelled(3), 0.0
        shares = special.softmax(found.logits.astype(float), axis=1)
        for start in np.arange(15) / 15:
            inside = [i for i in range(200) if start <= shares[i].max() < start + 1 / 15]
            right = sum(int(shares[i].argmax() == found.gold[i]) for i in inside)
            expected += abs(right - sum(shares[i].max() for i in inside)) / 200
        self.assertAlmostEqual(label_analysis.calibration_error(found), expected)
        halves = [Labelled(found.gold[a:b], found.logits[a:b]) for a, b in ((0, 60), (60, 200))]
        for one, other in zip(label_analysis.pooled(halves), found, strict=True):
            np.testing.assert_array_equal(one, other)
