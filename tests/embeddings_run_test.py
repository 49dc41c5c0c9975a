"""Sentence vectors from files of pairs to a search, and to sentence-transformers."""

import functools
import json
import pathlib
import warnings
from unittest import mock

import numpy as np
from absl.testing import absltest

from tests import commands, folders, tiny_tasks
from tests.interop.sentence_folder_test import HAS_LIBRARY
from xlm.common import artifacts
from xlm.experiment import encoding

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
        self.assertIn("none has no queries", self.run_command("search", run, *asked, status=2))
        told = self.run_command(*encode, "--overwrite", "--dimension=17", status=2)
        self.assertIn("--dimension is 17, must be at most 16", told)
        told = self.run_command("predict", *encode[1:], "--overwrite", status=2)
        self.assertIn("predicts no labels; xlm encode gives its vectors", told)

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
