"""Sentence vectors from pairs with scores: the loss, the files, and a run."""

import math

import jax
import numpy as np
import scipy.stats
from absl.testing import absltest

from input_pipeline.tasks import embeddings
from input_pipeline.tasks.tasks import TASKS, Columns
from tests import folders, tiny_tasks
from xlm.evaluation import task_results
from xlm.objectives.contrastive import pair_loss, similarity_loss

TASK = TASKS["text_similarity"].with_labels((), Columns(("query",), ("passage",), ("score",)))


class LossTest(absltest.TestCase):
    def test_plain_loops_say_the_same(self):
        rng = np.random.default_rng(0)
        vectors = rng.normal(size=(6, 2, 8)).astype(np.float32)
        labels = np.array([3, 1, 1, 0, 2, 9], np.float32)
        weights = np.array([1, 1, 1, 1, 1, 0], np.float32)  # the last row is padding
        batch = {"labels": labels, "weights": weights}
        expected = []
        for size in (4, 8):
            first = vectors[:, :, :size].astype(float)
            cosines = [a @ b / math.sqrt((a @ a) * (b @ b)) for a, b in first]
            gaps = [math.exp((cosines[j] - cosines[i]) / 0.2)
                    for i in range(5) for j in range(5) if labels[i] > labels[j]]  # fmt: skip
            expected.append(math.log1p(sum(gaps)))
        loss, weight = jax.jit(similarity_loss, static_argnames=("temperature", "dimensions"))(
            vectors, batch, temperature=0.2, dimensions=(4, 8)
        )["loss"]
        self.assertAlmostEqual(float(loss / weight), np.mean(expected), places=5)
        # Without labels it is that of pairs.
        batch = {"text_ids": np.arange(12).reshape(6, 2), "weights": weights}
        found, pairs = (one(vectors, batch, temperature=0.2, contrast_margin=0.1)
                        for one in (similarity_loss, pair_loss))  # fmt: skip
        self.assertEqual(found, pairs)


class RunTest(folders.FolderTest):
    def test_files(self):
        rows = [("a", "b", "3.5"), ("c", "d", "x")]
        tsv = "\n".join("\t".join(row) for row in rows)
        named = "query,passage,score\n" + "\n".join(",".join(row) for row in rows)
        for name, text in (("a.tsv", tsv), ("a.csv", named)):
            (_, one), (_, bad) = embeddings.read_examples(self.write(name, text), TASK)
            self.assertEqual((one.texts, one.label), (("a", "b"), 3.5))
            self.assertRegex(bad.error, f"{name}, line .: the score 'x' is not a number")
        for text in ("a\tb\n", "query\tpassage\na\tb\n"):
            ((_, one),) = embeddings.read_examples(self.write("b.tsv", text), TASK)
            self.assertEqual((one.texts, one.label), (("a", "b"), None))

    def test_a_run_is_scored_by_rank_correlation(self):
        rng, words = np.random.default_rng(0), ["cat", "dog", "fox", "zebra", "the"]
        for split, count in (("train", 48), ("test", 24)):
            rows = []
            for _ in range(count):
                one, two = rng.choice(words, 4), rng.choice(words, 4)
                same = rng.integers(5)
                two[:same] = one[:same]
                rows.append("\t".join((" ".join(one), " ".join(two), str((one == two).mean()))))
            self.write(f"data/{split}.en.tsv", "\n".join(rows) + "\n")
        config = tiny_tasks.config(
            "embeddings", "scores,", task__root=str(self.folder / "data"), num_layers=0,
            train__batch_size=16, train__epochs=10.0, optimizer__learning_rate=1e-2,
        )  # fmt: skip
        results = tiny_tasks.run(config, self.folder / "run")
        scores = results["test"]["en"]
        self.assertGreater(scores["spearman"], 0.5)
        lines = task_results.read_lines(self.folder / "run/predictions/test.en.jsonl", dict)
        sides = [line["gold"] for line in lines], [line["score"] for line in lines]
        self.assertAlmostEqual(scores["spearman"], scipy.stats.spearmanr(*sides)[0], places=5)
        # Pairs, and nothing to select on.
        self.write("data/train.en.tsv", "".join(f"a {i}\tb {i}\n" for i in range(20)))
        config.task.root = str(self.folder / "data")
        with self.assertRaisesRegex(ValueError, "have no score.*task.train"):
            tiny_tasks.run(config, self.folder / "other")
        self.write("data/dev.en.tsv", "x\ty\t1\ny\tz\t2\n")
        self.assertIn("spearman", tiny_tasks.run(config, self.folder / "other")["test"]["en"])
