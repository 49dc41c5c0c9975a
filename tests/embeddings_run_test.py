"""Sentence vectors from files of pairs, or of pairs with scores, to a search and an export."""

import functools
import json
import math
import pathlib
import warnings
from unittest import mock

import jax
import numpy as np
import scipy.stats
from absl.testing import absltest

from input_pipeline.tasks import embeddings
from input_pipeline.tasks.embeddings import EmbeddingExample
from input_pipeline.tasks.tasks import TASKS, Columns
from tests import commands, folders, tiny_tasks
from tests.interop.sentence_folder_test import HAS_LIBRARY
from xlm.common import artifacts
from xlm.evaluation import task_results
from xlm.evaluation.tasks import TaskData
from xlm.experiment import encoding
from xlm.experiment.task_settings import TaskSettings
from xlm.objectives.contrastive import distillation_loss, pair_loss, similarity_loss

WORDS = ["cat", "dog", "the", "runs", "sleeps", "fox", "zebra"]


def pairs(count: int, seed: int) -> list[tuple[str, str]]:
    """Sentences, and their words spelled backwards."""
    rng = np.random.default_rng(seed)
    found = [rng.choice(WORDS, 3) for _ in range(count)]
    return [(" ".join(one), " ".join(word[::-1] for word in one)) for one in found]


@functools.cache
def learned() -> pathlib.Path:
    folder = tiny_tasks.scratch() / "embeddings"
    for split, count in (("train", 64), ("test", 16)):
        lines = "".join(f"{a}\t{b}\n" for a, b in pairs(count, count))
        tiny_tasks.write(folder / "data" / f"{split}.de-en.tsv", lines)
    config = tiny_tasks.config(
        "embeddings", task__root=str(folder / "data"), task__query_prefix="a ",
        task__passage_prefix="b ", task__dimensions=(8, 16), train__batch_size=16,
        train__accumulation_steps=2, train__epochs=30.0, optimizer__learning_rate=3e-3,
    )  # fmt: skip
    tiny_tasks.run(config, folder / "run")
    return folder / "run"


class EmbeddingsRunTest(folders.FolderTest):
    def run_command(self, name: str, *flags: str, status: int = 0) -> str:
        with tiny_tasks.quick():
            done = commands.execute(name, *flags)
        self.assertEqual(done.returncode, status, done.stderr)
        return done.stdout if status == 0 else done.stderr

    def test_training_selects_what_finds_partners(self):
        results = artifacts.read_json(learned() / "results.json")
        self.assertGreater(results["test"]["de-en"]["mrr"], 0.7)
        self.assertEqual(results["selected"]["value"], results["validation"]["de-en"]["mrr"])

    def test_encoded_files_are_found(self):
        texts, queries = ([one[side] for one in pairs(9, 1)] for side in (1, 0))
        texts[4] = ""
        of_texts = self.write("texts", "\n".join(texts) + "\n")
        of_queries = self.write("queries", "\n".join(queries) + "\n")
        output, run = self.folder / "vectors.npy", f"--workdir={learned()}"
        encode = ("encode", run, f"--input={of_texts}", f"--output={output}")
        with tiny_tasks.quick():
            expected = encoding.TextEncoder(learned())(texts)
        parts, encoder = [expected[:4] / 2, expected[4:8], expected[8:]], encoding.TextEncoder
        with mock.patch.object(encoding, "CHUNK", 4):
            # A stop after the first part, which is not done again.
            for given, status in ((parts[:1], 130), (parts[1:], 0)):
                with mock.patch.object(
                    encoder, "__call__", side_effect=[*given, KeyboardInterrupt]
                ):
                    self.run_command(*encode, status=status)
        np.testing.assert_allclose(np.load(output), np.concatenate(parts))
        self.assertFalse(expected[4].any())
        self.run_command(*encode, "--overwrite", "--precision=int8", "--dimension=8")
        printed = self.run_command(
            "search", run, f"--vectors={output}", f"--queries={of_queries}", f"--texts={of_texts}"
        )
        lines = list(map(json.loads, printed.splitlines()))
        for line, query in zip(lines, queries, strict=True):
            self.assertEqual((line["query"], len(line["hits"])), (query, 9))
            self.assertEqual(line["hits"][0]["text"], texts[line["hits"][0]["line"] - 1])
        right = [line["hits"][0]["line"] == number for number, line in enumerate(lines, 1)]
        self.assertGreater(np.mean(right), 0.3)
        asked = f"--vectors={output}", f"--queries={self.write('none', '')}"
        self.assertIn("none: the file is empty", self.run_command("search", run, *asked, status=2))
        told = self.run_command(*encode, "--overwrite", "--dimension=17", status=2)
        self.assertIn("--dimension is 17, must be at most 16", told)
        told = self.run_command("predict", *encode[1:], "--overwrite", status=2)
        self.assertIn("predicts no labels; xlm encode gives its vectors", told)

    def test_mined_passages_are_wrong_and_train(self):
        path = learned().parent / "data/train.de-en.tsv"
        output, run = self.folder / "hard/train.en.jsonl", f"--workdir={learned()}"
        self.run_command("mine_negatives", run, f"--input={path}", f"--output={output}",
                         "--negatives=2", "--at_most=0.99")  # fmt: skip
        rows = list(map(json.loads, output.read_text().splitlines()))
        right = set(pairs(64, 64))
        self.assertEqual([(row["query"], row["passage"]) for row in rows], pairs(64, 64))
        names = ["negative_1", "negative_2"]
        wrong = {(row["query"], row[name]) for row in rows for name in names}
        self.assertEmpty(wrong & right)
        self.write("hard/test.en.tsv", "".join(f"{a}\t{b}\n" for a, b in pairs(16, 16)))
        config = tiny_tasks.config("embeddings", task__root=str(output.parent),
                                   task__negative_columns=names)  # fmt: skip
        self.assertIn("mrr", tiny_tasks.run(config, self.folder / "run")["test"]["en"])

    def test_a_student_learns_the_vectors_of_its_teacher(self):
        data = str(learned().parent / "data")
        config = tiny_tasks.config(
            "embeddings", task__root=data, task__teacher=str(learned()), train__batch_size=16,
            train__epochs=30.0, optimizer__learning_rate=3e-3,
        )  # fmt: skip
        tiny_tasks.run(config, self.folder / "run")
        texts = pairs(16, 16)
        with tiny_tasks.quick():
            teacher, student = map(encoding.TextEncoder, (learned(), self.folder / "run"))
            of_teacher = teacher([one for one, _ in texts], "query")
            found = [(student([one[side] for one in texts]) * of_teacher).sum(axis=1).mean()
                     for side in (0, 1)]  # fmt: skip
        self.assertGreater(min(found), 0.8)
        config = tiny_tasks.config("xnli", task__teacher=str(learned()))
        with self.assertRaisesRegex(ValueError, "task.teacher .* xnli trains no vectors"):
            tiny_tasks.run(config, self.folder / "other")

    @absltest.skipUnless(HAS_LIBRARY, "sentence-transformers is not installed")
    def test_exported_vectors_are_those_of_the_run(self):
        with warnings.catch_warnings(action="ignore"):  # theirs, about each other
            from sentence_transformers import SentenceTransformer
        output = self.folder / "model"
        flags = f"--workdir={learned()}", f"--output={output}", "--format=sentence_transformers"
        self.run_command("export_model", *flags)
        model, texts = SentenceTransformer(str(output), device="cpu"), [a for a, _ in pairs(9, 2)]
        with tiny_tasks.quick():
            encoder = encoding.TextEncoder(learned())
            expected = encoder(texts, "query"), encoder(texts)
        found = model.encode_query(texts), model.encode_document(texts)
        np.testing.assert_allclose(found, expected, rtol=0, atol=1e-5)
        self.assertGreater(np.abs(found[0] - found[1]).max(), 1e-3)


TASK = TASKS["text_similarity"].with_labels((), Columns(("query",), ("passage",), ("score",)))


class LossTest(folders.FolderTest):
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

    def test_a_teacher_has_one_vector_for_both_texts(self):
        rng = np.random.default_rng(0)
        vectors, teacher = rng.normal(size=(3, 2, 8)), rng.normal(size=(3, 8))
        weights = np.array([1.0, 0.5, 0.0])
        expected = 0.0
        for one, of_teacher, weight in zip(vectors, teacher, weights, strict=True):
            for size in (4, 8):
                t = of_teacher[:size] / np.linalg.norm(of_teacher[:size])
                units = [x[:size] / np.linalg.norm(x[:size]) for x in one]
                expected += weight * sum(((x - t) ** 2).sum() for x in units) / 4
        batch = {"teacher": teacher, "weights": weights}
        total, weight = distillation_loss(vectors, batch, dimensions=(4, 8))["loss"]
        self.assertAlmostEqual(float(total), expected, places=5)
        self.assertAlmostEqual(float(weight), 1.5)

    def test_vectors_of_a_wider_and_of_a_narrower_teacher(self):
        rng = np.random.default_rng(0)
        rows = rng.normal(size=(9, 4)) @ rng.normal(size=(4, 6))
        rows /= np.linalg.norm(rows, axis=1, keepdims=True)
        feature = embeddings.EmbeddingFeature(0, (), np.zeros(2), reads_first=False)
        data = [TaskData("de", [EmbeddingExample("", ("a", "b"))] * 9, [feature] * 9)]
        options = TaskSettings(
            "text_pairs", text_column="query", pair_column="passage", teacher="t"
        )
        for width in (4, 6, 7):
            folder = self.new_folder()
            with mock.patch.object(encoding, "TextEncoder") as made:
                made.return_value.return_value = rows.astype(np.float32)
                first = encoding.taught(options, data, width, folder)
                (again,) = encoding.taught(options, data, width, folder)  # from its file
            made.assert_called_once()
            found = np.stack([one.teacher for one in first[0].features])
            self.assertEqual(found.shape, (9, width))
            np.testing.assert_allclose(found @ found.T, rows @ rows.T, atol=1e-6)
            np.testing.assert_array_equal(found, [one.teacher for one in again.features])


class MinedTest(absltest.TestCase):
    def test_a_plain_search_finds_the_same(self):
        rng = np.random.default_rng(0)
        texts = [f"p{i}" for i in range(12)]
        of = {name: rng.normal(size=3) for name in [*texts, "q0", "q1", "q2", "q3"]}
        of = {name: one / np.linalg.norm(one) for name, one in of.items()}
        pairs = [(f"q{i % 4}", text) for i, text in enumerate(texts[:11])] + [("p1", "p11")]

        def encoder(some, role="passage"):
            return np.array([of[one] for one in some], np.float32)

        for number in (3, 9):
            found = list(encoding.mined_negatives(encoder, pairs, number, 0.9))
            for (query, passage), wrong in zip(pairs, found, strict=True):
                own = {b for a, b in pairs if a == query} | {query}
                cosine = of[query] @ of[passage]
                ranked = sorted(set(texts) - own, key=lambda one: -(of[one] @ of[query]))
                near = [one for one in ranked if of[one] @ of[query] <= cosine - 0.1 * abs(cosine)]
                self.assertEqual(wrong[: len(near)], near[:number])
                self.assertLen(set(wrong) - own, number)
        with self.assertRaisesRegex(ValueError, "needs 13 different passages, and there are 12"):
            list(encoding.mined_negatives(encoder, pairs, 10, 0.9))


class SimilarityRunTest(folders.FolderTest):
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
