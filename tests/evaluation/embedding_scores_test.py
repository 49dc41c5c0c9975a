"""Scores of searches against scikit-learn and plain loops; blockwise search against numpy."""

import numpy as np
from absl.testing import absltest, parameterized
from sklearn import metrics

from input_pipeline.tasks.embeddings import EmbeddingExample
from xlm.evaluation import search
from xlm.evaluation.metrics import retrieval
from xlm.experiment import encoding


def unit(vectors: np.ndarray) -> np.ndarray:
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


class RankingTest(absltest.TestCase):
    def test_random_cases(self):
        rng = np.random.default_rng(0)
        queries, candidates = rng.normal(size=(40, 5)), rng.normal(size=(25, 5))
        gold = [set(rng.choice(25, rng.integers(1, 14), replace=False).tolist()) for _ in queries]
        found = retrieval.ranking_scores(queries, candidates, gold)
        truth = np.array([[row in one for row in range(25)] for one in gold], float)
        cosines = unit(queries) @ unit(candidates).T
        self.assertAlmostEqual(found["ndcg"], metrics.ndcg_score(truth, cosines, k=10), places=6)
        ranks = [1 + min(np.argsort(-row).tolist().index(x) for x in one)
                 for row, one in zip(cosines, gold, strict=True)]  # fmt: skip
        expected = np.mean([1 / rank if rank <= 10 else 0 for rank in ranks])
        self.assertAlmostEqual(found["mrr"], expected)
        self.assertAlmostEqual(found["accuracy"], np.mean(np.equal(ranks, 1)))

        nothing = retrieval.ranking_scores(np.zeros((2, 3)), np.eye(3), [{0}, {1}])
        self.assertEqual(nothing, {"accuracy": 0.0, "mrr": 0.0, "ndcg": 0.0})


class PairScoresTest(absltest.TestCase):
    def test_equal_texts_and_wrong_passages(self):
        texts = [("q", "p", "w"), ("q", "p2", "w"), ("r", "p", "x")]
        of = {"q": [1, 0, 0], "r": [0, 1, 0], "p": [0.9, 0.8, 0], "p2": [1, 0.1, 0],
              "w": [0, 0, 1], "x": [0, 1, 0.1]}  # fmt: skip
        examples = [EmbeddingExample(str(i), one) for i, one in enumerate(texts)]
        vectors = [np.array([of[text] for text in one], float) for one in texts]
        found = search.pair_scores(examples, vectors)
        # q finds p2, r finds the wrong x before p; p finds q, p2 finds q.
        names = ("forward_accuracy", "forward_mrr", "backward_accuracy", "mrr")
        self.assertEqual([found[name] for name in names], [0.5, 0.75, 1.0, 0.875])
        self.assertAlmostEqual(search.cosine(*vectors[0][:2]), 0.9 / np.hypot(0.9, 0.8))


class TopKTest(parameterized.TestCase):
    @parameterized.parameters(1, 7, 100)
    def test_blocks_find_what_a_sort_finds(self, block):
        rng = np.random.default_rng(0)
        queries, vectors = rng.normal(size=(6, 8)), rng.normal(size=(30, 8))
        vectors[20:] = vectors[:10]  # ties go to the first
        exact = np.round(unit(queries) @ unit(vectors).T, 6)
        for k in (5, 40):  # of 30
            cosines, rows = search.top_k(queries, vectors, k, block)
            expected = np.argsort(-exact, axis=1, kind="stable")[:, :k]
            np.testing.assert_array_equal(rows, expected)
            np.testing.assert_allclose(cosines, np.take_along_axis(exact, expected, 1), atol=1e-5)

    def test_int8_is_near(self):
        vectors = unit(np.random.default_rng(0).normal(size=(50, 64))).astype(np.float32)
        found = encoding.compressed(np.append(vectors, 0 * vectors[:1], axis=0), "int8")
        self.assertEqual((found.dtype, np.abs(found[0]).max(), found[50].any()), (np.int8, 127, 0))
        cosines = (unit(found[:50].astype(float)) * vectors).sum(axis=1)
        self.assertGreater(cosines.min(), 0.9995)
