"""Translations found by known vectors, and by the vectors of an encoder."""

import numpy as np
from absl.testing import absltest, parameterized

from input_pipeline.tasks.examples import SentencePairs, Sentences
from input_pipeline.tasks.features import TextFeature
from tests import tiny_tasks
from xlm.evaluation import search
from xlm.evaluation.retrieval import mean_states
from xlm.evaluation.search import SentenceEncoder
from xlm.models.encoder import Encoder


def pairs(sources: list[str], targets: list[str], *gold: tuple[str, str]) -> SentencePairs:
    return SentencePairs(
        Sentences(tuple(f"s{i}" for i in range(len(sources))), tuple(sources)),
        Sentences(tuple(f"t{i}" for i in range(len(targets))), tuple(targets)),
        gold,
    )


class RetrievedTest(absltest.TestCase):
    def test_english_is_what_is_asked_for(self):
        # Both English sentences are near the same source, and the second is its translation.
        sources, targets = np.eye(2), np.array([[0.4, 0.6], [0.1, 2.0]])
        scores, lines = search.retrieved(pairs(["a", "b"], ["c", "d"]), sources, targets)
        self.assertEqual(scores, {"accuracy": 0.5})
        self.assertEqual([(one["id"], one["prediction"]) for one in lines],
                         [("t0", "s1"), ("t1", "s1")])  # fmt: skip
        self.assertAlmostEqual(lines[0]["score"], 0.6 / np.hypot(0.4, 0.6), places=6)
        found = pairs(["a", "b", "c"], ["d"])
        lines = search.nearest(found.source, found.target, np.eye(3), np.ones((1, 3)))
        self.assertEqual([one["prediction"] for one in lines], ["t0"] * 3)


class MinedTest(parameterized.TestCase):
    def setUp(self):
        super().setUp()
        rng = np.random.default_rng(0)
        self.vectors = 1 + rng.normal(size=(6, 16))
        self.noise = 1 + rng.normal(size=(6, 16))
        texts = list("abcdef")
        gold = [(f"s{i}", f"t{i}") for i in range(4)]
        self.pairs = pairs(texts, texts, *gold)
        # Four translations, and two sentences without one on each side.
        self.targets = np.concatenate([self.vectors[:4] + 0.1 * self.noise[:4], self.noise[4:]])

    def candidates(self, margin: str = "ratio") -> list[dict]:
        return search.candidates(self.pairs, self.vectors, self.targets, margin)

    def test_the_best_threshold_and_a_given_one(self):
        found = self.candidates()
        scores, lines, threshold = search.mined(found, self.pairs.gold, None)
        self.assertEqual(scores, {"f1": 1.0, "precision": 1.0, "recall": 1.0})
        self.assertEqual(lines, found[:4])
        self.assertBetween(threshold, found[4]["score"], found[3]["score"])
        limit = found[1]["score"]
        scores, lines, same = search.mined(found, self.pairs.gold, limit)
        self.assertEqual((lines, same), (found[:2], limit))
        self.assertEqual((scores["precision"], scores["recall"]), (1.0, 0.5))

    def test_a_text_that_stands_there_twice_is_in_no_pair(self):
        self.pairs = pairs(["a", "b", "a"], ["c", "d", "e"], ("s1", "t1"))
        self.vectors, self.targets = np.eye(3)[[0, 1, 0]], np.eye(3)
        found = search.candidates(self.pairs, self.vectors, self.targets, "absolute")
        self.assertEqual({one["source"] for one in found}, {"s1"})


class SentenceEncoderTest(parameterized.TestCase):
    @parameterized.parameters(0, 1)
    def test_vectors_are_mean_states_in_the_order_of_the_features(self, layer):
        rng = np.random.default_rng(0)
        sentences = [rng.integers(5, tiny_tasks.VOCAB, n) for n in (3, 9, 1, 5)]
        features = [
            TextFeature(i, np.array([0, *s, 2], np.int32), None) for i, s in enumerate(sentences)
        ]
        encoder, params = Encoder(tiny_tasks.SETTINGS), tiny_tasks.params()
        vectors = SentenceEncoder(
            encoder, params, layer=layer, batch_size=3, buckets=(12,), pad=1, specials=(0, 1, 2)
        )(features)
        batch = [feature.arrays(12, 1) for feature in features]
        names = "tokens", "segments", "positions"
        arrays = [np.stack([row[name] for row in batch]) for name in names]
        expected = mean_states(encoder, params, *arrays, num_layers=layer, specials=(0, 1, 2))
        np.testing.assert_allclose(vectors, expected, rtol=1e-4, atol=1e-5)
