"""Scores of one label an example, against their formulas on small cases."""

import numpy as np
from absl.testing import parameterized

from xlm.evaluation.metrics import classification


def score(metric: str, gold, predicted) -> float:
    return classification.scores((metric,), gold, predicted)[metric]


class ClassificationTest(parameterized.TestCase):
    def test_by_hand(self):
        # Class 1 has 3 true and 2 false positives, 4 true and 1 false negatives:
        # (3*4 - 2*1) / sqrt((3+2) (3+1) (4+2) (4+1)) = 10 / sqrt(600).
        gold, predicted = [1] * 3 + [0] * 2 + [0] * 4 + [1], [1] * 5 + [0] * 5
        expected = {
            "accuracy": 7 / 10, "f1": 6 / 9, "macro_f1": (6 / 9 + 8 / 11) / 2,
            "matthews": 10 / 600**0.5, "pearson": 10 / 600**0.5,
        }  # fmt: skip
        for metric, value in expected.items():
            self.assertAlmostEqual(score(metric, gold, predicted), value, msg=metric)
        # Class 0: 1 of 2 found, nothing else: 2/3. Class 1: found, and once too often: 2/3.
        # Class 2: found: 1.
        self.assertAlmostEqual(score("macro_f1", [0, 0, 1, 2], [0, 1, 1, 2]), 7 / 9)
        self.assertEqual(score("f1", [0, 0], [0, 0]), 0)  # of a class that is nowhere
        self.assertEqual(score("f1", [1, 1], [0, 0]), 0)

    @parameterized.parameters(
        ([0, 1, 1], [1, 1, 1]), ([1, 1, 1], [0, 1, 1]), ([1, 1], [1, 1]), ([0, 0], [1, 1])
    )
    def test_matthews_of_one_class_is_zero(self, gold, predicted):
        self.assertEqual(score("matthews", gold, predicted), 0)

    def test_correlations_by_hand(self):
        # Deviations -2 0 2 and -1 -1 2: (2 + 0 + 4) / sqrt(8 * 6).
        self.assertAlmostEqual(score("pearson", [1, 3, 5], [0.0, 0.0, 3.0]), 6 / 48**0.5)
        # Ranks 1 2 3 4 and 1 2.5 2.5 4; deviations -1.5 -.5 .5 1.5 and -1.5 0 0 1.5:
        # 4.5 / sqrt(5 * 4.5).
        found = score("spearman", [1, 2, 3, 100], [0.1, 7.0, 7.0, 8.0])
        self.assertAlmostEqual(found, 4.5 / (5 * 4.5) ** 0.5)
        for metric in ("pearson", "spearman"):  # of a constant
            self.assertEqual(score(metric, [1.0, 2.0, 3.0], [2.5, 2.5, 2.5]), 0)
            self.assertEqual(score(metric, [2.5, 2.5], [1.0, 2.0]), 0)

    def test_wrong_input_is_told(self):
        with self.assertRaisesRegex(ValueError, "2 predictions for 3"):
            classification.scores(("accuracy",), [0, 1, 1], [0, 1])
        with self.assertRaisesRegex(ValueError, "at least one"):
            classification.scores(("accuracy",), [], [])
        with self.assertRaisesRegex(ValueError, "prediction 1 is not a finite"):
            classification.scores(("pearson",), [0.0, 1.0], [0.5, np.nan])
