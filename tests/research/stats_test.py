"""Statistics against scipy."""

import math

import numpy as np
import scipy.stats
from absl.testing import absltest

from research import stats


class StatsTest(absltest.TestCase):
    def setUp(self):
        super().setUp()
        self.rng = np.random.default_rng(0)

    def test_a_least_difference_has_a_p_value_of_5_per_cent(self):
        one, two = self.rng.normal(size=4), self.rng.normal(size=4)
        least = stats.least_detectable([list(one), list(two)])
        shifted = two - two.mean() + one.mean() + least
        self.assertAlmostEqual(scipy.stats.ttest_ind(one, shifted).pvalue, 0.05)

    def test_unequal_numbers_of_seeds(self):
        # One seed adds no spread, and makes 2 / n the mean of 1 / n of the runs.
        some = [1.0, 2.0, 4.0]
        spread = np.std(some, ddof=1) * scipy.stats.t.ppf(0.975, 2)
        least = stats.least_detectable([some, [7.0], []])
        self.assertAlmostEqual(least, spread * math.sqrt(2 * (1 / 3 + 1) / 2))
        self.assertIsNone(stats.least_detectable([[1.0], [2.0]]))

    def test_a_least_change_has_a_p_value_of_5_per_cent(self):
        changes = self.rng.normal(size=5)
        least = stats.least_detectable_change(list(changes))
        found = scipy.stats.ttest_1samp(changes - changes.mean() + least, 0)
        self.assertAlmostEqual(found.pvalue, 0.05)
        self.assertIsNone(stats.least_detectable_change([1.0]))

    def test_correlation(self):
        x, y = self.rng.normal(size=(2, 7))
        found = scipy.stats.pearsonr(x, y)
        self.assertAlmostEqual(stats.correlation(list(x), list(y)), found.statistic)
        self.assertTrue(math.isnan(stats.correlation([1, 2, 3], [5, 5, 5])))

    def test_a_significant_correlation_has_a_p_value_of_5_per_cent(self):
        least = stats.significant_correlation(9)
        x = np.linspace(-1, 1, 9)
        noise = self.rng.normal(size=9)
        noise -= noise.mean() + x * (noise @ x) / (x @ x)
        y = least * x / np.linalg.norm(x)
        y += math.sqrt(1 - least**2) * noise / np.linalg.norm(noise)
        self.assertAlmostEqual(scipy.stats.pearsonr(x, y).pvalue, 0.05)

    def test_pooled_deviation(self):
        groups = [[1.0, 2.0, 4.0], [3.0, 3.5, 9.0], [1.0]]
        wanted = math.sqrt(np.mean([np.var(one, ddof=1) for one in groups[:2]]))
        self.assertAlmostEqual(stats.pooled_deviation(groups), wanted)
        self.assertTrue(math.isnan(stats.pooled_deviation([[1.0]])))
