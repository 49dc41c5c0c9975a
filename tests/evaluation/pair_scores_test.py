"""Scores of pairs by an encoder, with known vectors and losses."""

import json

import numpy as np

from tests import commands, tiny_tasks
from tests.folders import FolderTest
from xlm.evaluation.metrics.retrieval import mine
from xlm.evaluation.pair_scores import pair_scores


class PairScoresTest(FolderTest):
    def test_translations_are_nearer_than_others(self):
        rng = np.random.default_rng(0)
        meaning = rng.normal(size=(40, 16))
        vectors = {f"{side}{i}": meaning[i] + 0.1 * rng.normal(size=16)
                   for side in "ab" for i in range(40)}  # fmt: skip
        wrong = [(f"a{i}", f"b{i + 1 if i in (3, 20) else i}") for i in range(39)]

        def encode(texts):
            return np.stack([vectors[text] for text in texts])

        def loss(texts):
            return float(np.mean([text.split()[0][1:] != text.split()[1][1:] for text in texts]))

        found, margins = pair_scores(wrong, encode, loss)
        self.assertCountEqual(np.argsort(margins)[:2], (3, 20))
        self.assertAlmostEqual(found["loss_gain"], 1 - 4 / 39, delta=0.06)
        self.assertBetween(found["not_nearest"], 2 / 39, 4.01 / 39)
        self.assertGreater(found["margin"], found["shuffled_margin"] + 0.5)
        right, margins = pair_scores([(f"a{i}", f"b{i}") for i in range(40)], encode, loss)
        self.assertEqual((right["not_nearest"], right["loss_gain"]), (0.0, 1.0))
        names = [[f"{side}{i}" for i in range(40)] for side in "ab"]
        mined = mine(*map(encode, names))
        np.testing.assert_allclose(margins[mined.sources], mined.scores, rtol=1e-5)
        self.assertEqual(pair_scores(wrong[:7], encode, loss)[0], {})

    def test_the_command_adds_them(self):
        lines = [f"the cat sees {i} dogs.\tda kato vidas {i} hundo." for i in range(20)]
        self.write("text/en-eo.tsv", "\n".join(lines) + "\n")
        done = commands.execute(
            "inspect_text", str(self.folder / "text"), f"--output={self.folder / 'out'}",
            f"--encoder={tiny_tasks.encoder_folder(1)}",
        )  # fmt: skip
        self.assertEqual(done.returncode, 0, done.stderr)
        record = json.loads((self.folder / "out/inspection.json").read_text())["pairs"][0]
        self.assertContainsSubset(
            ("margin", "shuffled_margin", "not_nearest", "loss_gain"), record["encoder"]
        )
        self.assertLen(record["least_margins"], 5)
        self.assertIn("shuffled margin", (self.folder / "out/report.html").read_text())
