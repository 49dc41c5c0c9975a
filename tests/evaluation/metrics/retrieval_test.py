"""Neighbours, mined pairs and their threshold, against loops over everything."""

import itertools
from unittest import mock

import numpy as np
from absl.testing import absltest, parameterized

from xlm.evaluation.metrics import retrieval


def vectors(count: int, seed: int, size: int = 6) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(count, size)).astype(np.float32)


def cosine(a: np.ndarray, b: np.ndarray) -> float:
    return float(a @ b / np.linalg.norm(a) / np.linalg.norm(b))


def slow_scores(sources, targets, margin, k):
    """Margins of the pairs in which one is among the k neighbours of the other; the neighbours."""
    all_cosines = np.array([[cosine(s, t) for t in targets] for s in sources])
    forward, backward = np.argsort(-all_cosines)[:, :k], np.argsort(-all_cosines.T)[:, :k]
    scores = {}
    for s, t in np.ndindex(*all_cosines.shape):
        if t in forward[s] or s in backward[t]:
            mean = (all_cosines[s, forward[s]].mean() + all_cosines[backward[t], t].mean()) / 2
            value = all_cosines[s, t]
            by_margin = {"ratio": value / mean, "distance": value - mean, "absolute": value}
            scores[s, t] = by_margin[margin]
    return scores, forward, backward


class NeighbourTest(parameterized.TestCase):
    @parameterized.parameters(1, 3, 7)
    def test_against_a_loop(self, k):
        queries, targets = vectors(9, 0), vectors(7, 1)
        with mock.patch.object(retrieval, "_BLOCK", 4):
            cosines, found = retrieval.nearest_neighbours(queries, targets, k)
        for query, one, row in zip(queries, cosines, found, strict=True):
            expected = sorted((cosine(query, target), i) for i, target in enumerate(targets))[::-1]
            self.assertEqual(row.tolist(), [i for _, i in expected[:k]])
            np.testing.assert_allclose(one, [c for c, _ in expected[:k]], rtol=1e-5, atol=1e-6)

    def test_of_equal_targets_the_first_is_nearest(self):
        targets = np.concatenate([vectors(3, 0)] * 2)
        _, found = retrieval.nearest_neighbours(targets[:3], targets, 2)
        self.assertEqual(found.tolist(), [[0, 3], [1, 4], [2, 5]])
        _, found = retrieval.nearest_neighbours(vectors(2, 0), vectors(3, 1), 4)
        self.assertEqual(found.shape, (2, 3))  # all targets

    def test_accuracy(self):
        # Both queries are nearest to target 0; from the targets, each finds its own.
        queries = np.array([[1.0, 0.0], [1.0, 0.1]])
        targets = np.array([[1.0, 0.0], [0.0, 1.0]])
        self.assertEqual(retrieval.nearest_accuracy(queries, targets), 0.5)
        self.assertEqual(retrieval.nearest_accuracy(targets, queries), 1)
        some = vectors(40, 0)
        some[:10] = 0  # vectors of no length find nothing
        self.assertEqual(retrieval.nearest_accuracy(some, vectors(40, 0)), 0.75)
        self.assertEqual(retrieval.nearest_accuracy(np.zeros((4, 8)), np.zeros((4, 8))), 0)
        mined = retrieval.mine(some[:20], np.zeros((3, 6)))
        self.assertTrue(np.all(np.isfinite(mined.scores)))


class MiningTest(parameterized.TestCase):
    @parameterized.parameters(*itertools.product(retrieval.MARGINS, (1, 2, 4)))
    def test_against_loops(self, margin, k):
        sources, targets = vectors(8, 2), vectors(11, 3)
        scores, forward, backward = slow_scores(sources, targets, margin, k)
        ahead = {(s, max(forward[s], key=lambda t: scores[s, t])) for s in range(8)}
        back = {(max(backward[t], key=lambda s: scores[s, t]), t) for t in range(11)}
        best_first = sorted(ahead | back, key=lambda pair: -scores[pair])
        greedy = []
        for pair in best_first:
            if all(pair[0] != s and pair[1] != t for s, t in greedy):
                greedy.append(pair)
        mined = retrieval.mine(sources, targets, margin=margin, k=k)
        found = list(zip(mined.sources.tolist(), mined.targets.tolist(), strict=True))
        self.assertCountEqual(found, greedy)
        self.assertTrue(np.all(np.diff(mined.scores) <= 0))
        expected_scores = [scores[pair] for pair in found]
        np.testing.assert_allclose(mined.scores, expected_scores, rtol=1e-4, atol=1e-5)

    def test_wrong_input_is_told(self):
        with self.assertRaisesRegex(ValueError, "nothing to mine in 2 and 0"):
            retrieval.mine(vectors(2, 0), vectors(0, 1))


class DistinctTest(absltest.TestCase):
    def test_repeated_texts_are_searched_once_and_in_no_pair(self):
        first, alone = retrieval.distinct(["我们走吧。", "好", " 我们走吧。", "不", "好"])
        self.assertEqual(first.tolist(), [0, 1, 3])
        self.assertEqual(alone.tolist(), [False, False, True])


class ThresholdTest(parameterized.TestCase):
    def test_by_hand(self):
        # Best first: right, right, wrong, right, wrong; 4 gold pairs. F1 after each:
        # 2/5, 4/6, 4/7, 6/8, 6/9. The best, 3/4, is after the fourth, between .4 and .1.
        scores = np.array([0.9, 0.1, 0.4, 0.8, 0.5])
        right = np.array([True, False, True, True, False])
        threshold, f1 = retrieval.best_threshold(scores, right, 4)
        self.assertAlmostEqual(threshold, 0.25)
        self.assertAlmostEqual(f1, 0.75)

    def test_no_threshold_is_better(self):
        rng = np.random.default_rng(0)
        for _ in range(50):
            scores = rng.integers(0, 8, 12) / 8  # many are equal
            right = rng.random(12) < 0.5
            right[0] = True
            gold = int(right.sum()) + 2
            threshold, f1 = retrieval.best_threshold(scores, right, gold)

            def f1_at(value, scores=scores, right=right, gold=gold):
                taken = scores >= value
                return 2 * right[taken].sum() / (taken.sum() + gold)

            self.assertAlmostEqual(f1_at(threshold), f1)
            self.assertAlmostEqual(max(f1_at(value) for value in scores), f1)

    def test_scores_next_to_each_other_are_told_apart(self):
        for start in np.linspace(0.5, 2, 20).astype(np.float32):
            scores = np.array([np.nextafter(start, np.float32(3)), start])
            right = np.array([True, False])
            threshold, f1 = retrieval.best_threshold(scores, right, 1)
            self.assertEqual(f1, 1)
            self.assertEqual((scores >= threshold).tolist(), right.tolist())

    def test_nothing_right_and_all(self):
        self.assertEqual(retrieval.best_threshold(np.ones(3), np.zeros(3, bool), 5), (0, 0))
        self.assertEqual(retrieval.best_threshold(np.ones(0), np.zeros(0, bool), 5), (0, 0))
        both = np.array([True, True])
        self.assertEqual(retrieval.best_threshold(np.array([3.0, 2.0]), both, 2), (2, 1))

    def test_scores_of_pairs(self):
        # 2 of 3 predicted are right, of 4 gold ones.
        gold = [("zh-1", "en-1"), ("zh-2", "en-2"), ("zh-3", "en-3"), ("zh-4", "en-4")]
        found = [("zh-1", "en-1"), ("zh-2", "en-3"), ("zh-4", "en-4"), ("zh-4", "en-4")]
        scores = retrieval.mining_scores(gold, found)
        self.assertAlmostEqual(scores["precision"], 2 / 3)
        self.assertAlmostEqual(scores["recall"], 1 / 2)
        self.assertAlmostEqual(scores["f1"], 4 / 7)
        self.assertEqual(retrieval.mining_scores(gold, []), dict.fromkeys(scores, 0.0))
        with self.assertRaisesRegex(ValueError, "no gold pairs"):
            retrieval.mining_scores([], found)
