"""Tests of ALP (Eq. 1) against the sum over every sentence."""

import numpy as np
from absl.testing import absltest

from vocap.alp import average_log_probability, smoothed_log_probs


class AverageLogProbabilityTest(absltest.TestCase):
    def test_impossible_pieces_count_only_where_they_occur(self):
        log_probs = np.array([-1.0, -np.inf])
        self.assertEqual(average_log_probability(np.array([3, 0]), log_probs, 1), -3.0)
        self.assertEqual(average_log_probability(np.array([3, 1]), log_probs, 1), -np.inf)


class SmoothedTest(absltest.TestCase):
    def test_it_is_a_distribution(self):
        rng = np.random.default_rng(0)
        for size, tokens in ((1, 0), (1, 5), (30, 0), (30, 10), (30, 500), (50_000, 300)):
            counts = np.bincount(rng.integers(size, size=tokens), minlength=size)
            self.assertAlmostEqual(np.exp(smoothed_log_probs(counts)[:-1]).sum(), 1, places=9)
