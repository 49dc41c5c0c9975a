"""Tests of ALP (Eq. 1) against the sum over every sentence."""

import numpy as np
from absl.testing import absltest

from vocap.alp import average_log_probability, smoothed_log_probs


class AverageLogProbabilityTest(absltest.TestCase):
    def test_is_the_sum_over_all_sentences(self):
        rng = np.random.default_rng(0)
        for _ in range(20):
            log_probs = np.log(rng.dirichlet(np.ones(30)))
            corpus = [rng.integers(30, size=rng.integers(1, 12)) for _ in range(rng.integers(1, 9))]
            slow = sum(log_probs[piece] for sentence in corpus for piece in sentence) / len(corpus)
            counts = np.bincount(np.concatenate(corpus), minlength=30)
            alp = average_log_probability(counts, log_probs, len(corpus))
            self.assertAlmostEqual(alp, slow, places=10)
            twice = average_log_probability(2 * counts, log_probs, 2 * len(corpus))
            self.assertAlmostEqual(twice, alp, places=10)

    def test_impossible_pieces_count_only_where_they_occur(self):
        log_probs = np.array([-1.0, -np.inf])
        self.assertEqual(average_log_probability(np.array([3, 0]), log_probs, 1), -3.0)
        self.assertEqual(average_log_probability(np.array([3, 1]), log_probs, 1), -np.inf)


class SmoothedTest(absltest.TestCase):
    def test_unseen_pieces_share_as_much_as_each_distinct_piece_adds(self):
        *found, unknown = smoothed_log_probs(np.array([6, 0, 3, 1, 0]))
        np.testing.assert_allclose(np.exp(found) * 13, [6, 1.5, 3, 1, 1.5])
        self.assertAlmostEqual(unknown, -np.log(13) - 10)

    def test_it_is_a_distribution(self):
        rng = np.random.default_rng(0)
        for size, tokens in ((1, 0), (1, 5), (30, 0), (30, 10), (30, 500), (50_000, 300)):
            counts = np.bincount(rng.integers(size, size=tokens), minlength=size)
            self.assertAlmostEqual(np.exp(smoothed_log_probs(counts)[:-1]).sum(), 1, places=9)

    def test_pieces_of_other_languages_cost_nothing(self):
        counts = np.array([40, 0, 7, 1])
        few, many = smoothed_log_probs(counts), smoothed_log_probs(np.append(counts, [0] * 500_000))
        np.testing.assert_array_equal(many[[0, 2, 3, -1]], few[[0, 2, 3, -1]])
