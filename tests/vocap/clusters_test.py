"""Tests of the clusters of languages."""

import itertools
import random

import numpy as np
from absl.testing import parameterized

from vocap.clusters import cluster_languages


def random_vocabularies(rng: random.Random, names, pool_size: int = 12):
    pieces = {lang: rng.sample(range(pool_size), rng.randint(3, 8)) for lang in names}
    pieces = {lang: [f"p{i}" for i in numbers] for lang, numbers in pieces.items()}
    log_probs = {lang: -np.array([rng.uniform(1, 15) for _ in one]) for lang, one in pieces.items()}
    return pieces, log_probs


def dense_fingerprints(pieces, log_probs) -> dict[str, np.ndarray]:
    absent = 10.0 - min(one.min() for one in log_probs.values())
    union = sorted(set().union(*pieces.values()))
    fingerprints = {}
    for lang, one in pieces.items():
        prices = dict(zip(one, -log_probs[lang], strict=True))
        fingerprints[lang] = np.array([prices.get(piece, absent) for piece in union])
    return fingerprints


def inertia(points: np.ndarray, labels) -> float:
    labels = np.asarray(labels)
    groups = [points[labels == label] for label in set(labels.tolist())]
    return sum(((group - group.mean(axis=0)) ** 2).sum() for group in groups)


class ClusterLanguagesTest(parameterized.TestCase):
    @parameterized.parameters(1, 2, 3, 4)
    def test_no_other_partition_has_a_smaller_inertia(self, k):
        rng = random.Random(k)
        for _ in range(4):
            names = [f"l{i}" for i in range(6)]
            pieces, log_probs = random_vocabularies(rng, names)
            points = np.stack(list(dense_fingerprints(pieces, log_probs).values()))
            partitions = (
                p for p in itertools.product(range(k), repeat=len(names)) if len(set(p)) == k
            )
            best = min(inertia(points, p) for p in partitions)
            clusters = cluster_languages(pieces, log_probs, k)
            self.assertAlmostEqual(inertia(points, [clusters[lang] for lang in names]), best)

    def test_no_move_of_a_language_makes_the_inertia_smaller(self):
        rng = random.Random(5)
        names = [f"l{i:02}" for i in range(40)]
        pieces, log_probs = random_vocabularies(rng, names, 40)
        points = np.stack(list(dense_fingerprints(pieces, log_probs).values()))
        clusters = cluster_languages(pieces, log_probs, 8)
        labels = [clusters[lang] for lang in names]
        for i in range(len(names)):
            for label in range(8):
                moved = [*labels[:i], label, *labels[i + 1 :]]
                self.assertGreaterEqual(inertia(points, moved), inertia(points, labels) - 1e-6)

    def test_the_order_of_languages_and_pieces_does_not_matter(self):
        rng = random.Random(1)
        for _ in range(5):
            pieces, log_probs = random_vocabularies(rng, [f"l{i}" for i in range(12)], 40)
            expected = cluster_languages(pieces, log_probs, 4)
            self.assertEqual(list(expected), sorted(pieces))
            firsts = {cluster: lang for lang, cluster in reversed(expected.items())}
            self.assertEqual([firsts[i] for i in range(4)], sorted(firsts.values()))
            shuffled, shuffled_log_probs = {}, {}
            for lang in rng.sample(list(pieces), len(pieces)):
                order = rng.sample(range(len(pieces[lang])), len(pieces[lang]))
                shuffled[lang] = [pieces[lang][i] for i in order]
                shuffled_log_probs[lang] = log_probs[lang][order]
            self.assertEqual(cluster_languages(shuffled, shuffled_log_probs, 4), expected)

    def test_one_cluster_and_one_for_each_even_of_equal_languages(self):
        one = (["a", "b"], -np.array([1.0, 2.0]))
        pieces = {"en": one[0], "sw": ["c"], "xx": one[0], "yy": one[0]}
        log_probs = {"en": one[1], "sw": -np.array([1.0]), "xx": one[1], "yy": one[1]}
        self.assertEqual(set(cluster_languages(pieces, log_probs, 1).values()), {0})
        two = cluster_languages(pieces, log_probs, 2)
        self.assertEqual(two, {"en": 0, "sw": 1, "xx": 0, "yy": 0})
        each = cluster_languages(pieces, log_probs, 4)
        self.assertEqual(each, {"en": 0, "sw": 1, "xx": 2, "yy": 3})
        self.assertLen(set(cluster_languages(pieces, log_probs, 3).values()), 3)

    def test_rounding_does_not_decide_between_equally_good_clusters(self):
        rng = random.Random(6)
        prices = -np.array([rng.uniform(1, 15) for _ in range(50)])
        expected = None
        for _ in range(10):  # all languages are equally far from each other
            order = rng.sample(range(50), 50)
            pieces = {lang: [f"{lang}{i}" for i in order] for lang in "abcdef"}
            clusters = cluster_languages(pieces, dict.fromkeys(pieces, prices[order]), 3)
            expected = expected or clusters
            self.assertEqual(clusters, expected)
