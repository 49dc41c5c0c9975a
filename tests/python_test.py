"""The ways in from Python: those of README.md as printed, and how they relate to the commands."""

import contextlib
import io
import os
import re
from unittest import mock

import numpy as np
from absl.testing import absltest

import vocap
import xlm
from tests import commands, factories, folders, tiny_tasks
from vocap.building import build_vocabulary
from vocap.settings import VocabularySettings
from xlm.common import artifacts
from xlm.experiment import model

TEXTS = {
    language: (commands.ROOT / f"corpus/{language}.txt").read_text("utf-8").splitlines()
    for language in ("en", "sw")
}


class PythonTest(folders.FolderTest):
    def setUp(self):
        super().setUp()
        self.enter_context(mock.patch.object(model, "mesh", factories.one_device))

    def test_the_readme_as_printed_and_the_commands_find_nothing_left_to_do(self):
        text = (commands.ROOT / "README.md").read_text(encoding="utf-8")
        code = "".join(re.findall(r"^```python\n(.*?)^```", text, re.M | re.S))
        self.assertIn("xlm.Encoder.load", code)
        (self.folder / "corpus").symlink_to(commands.ROOT / "corpus")
        printed = io.StringIO()
        with contextlib.chdir(self.folder), contextlib.redirect_stdout(printed):
            found: dict = {}
            exec(compile(code, "README.md", "exec"), found)
        self.assertEqual(found["vectors"].shape[0], 2)
        self.assertIn("# Report", printed.getvalue())
        work = self.folder / "runs/python"
        before = {path: path.read_bytes() for path in work.rglob("*.jsonl")}
        recipe = ("--config=configs/quickstart.py:runlocal", "--config.train.seed=1")
        root = f"--config.corpus.root={self.folder / 'corpus'}"
        for command in ("build_vocab", "prepare_data", "train"):
            done = commands.execute(command, *recipe, root, f"--workdir={work}")
            self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual({path: path.read_bytes() for path in before}, before)

    def test_a_wrong_key_of_an_experiment(self):
        for key in ("train__step", "trian__seed", "seed"):
            with self.assertRaisesRegex(ValueError, f"{key}: no such key"):
                xlm.Experiment("configs/quickstart.py:runlocal", self.folder, **{key: 1})
        with self.assertRaisesRegex(ValueError, "none.py: no such config file"):
            xlm.Experiment("none.py", self.folder)
        self.assertEmpty(os.listdir(self.folder))

    def test_a_task_is_an_experiment_too(self):
        config = tiny_tasks.run_config("cola")
        with tiny_tasks.quick():
            tuned = xlm.Experiment(config, self.folder / "cola")
            results = artifacts.read_json(tuned.train().evaluate())
        self.assertEqual(results, artifacts.read_json(tiny_tasks.finished("cola") / "results.json"))
        with self.assertRaisesRegex(ValueError, "build_vocab: the config is of the task cola"):
            tuned.build_vocab()

    def test_a_vocabulary_is_that_of_a_build(self):
        found = vocap.build(TEXTS, size=700, sizes=(100, 300, 500))
        settings = VocabularySettings(target_size=700, sizes=(100, 300, 500), num_workers=1)
        built = build_vocabulary(TEXTS, {}, settings, self.folder / "cache")
        self.assertEqual(found.model, built.model)
        self.assertLen(found, 700)
        self.assertEqual(found.curves["en"][0], (100, 300, 500))
        self.assertEqual(found.decode(found.encode("the river")), "the river")
        found.save(self.folder / "spm.model")
        self.assertEqual((self.folder / "spm.model").read_bytes(), built.model)


class EncoderTest(absltest.TestCase):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.encoder = xlm.Encoder.load(tiny_tasks.encoder_folder(1))

    def test_vectors_do_not_depend_on_the_other_texts(self):
        texts = ["the cat", "the cat sees the dog near the old house", ""]
        together = self.encoder.encode(texts, batch_size=4)
        for text, vector in zip(texts, together, strict=True):
            (alone,) = self.encoder.encode([text], batch_size=1)
            np.testing.assert_allclose(alone, vector, rtol=0, atol=1e-5)
        self.assertEqual(together[2].tolist(), [0] * together.shape[1])
        none = self.encoder.encode([])
        self.assertEqual((none.shape, none.dtype), ((0, together.shape[1]), np.float32))
        self.assertGreater(np.abs(together[0] - together[1]).max(), 1e-3)

    def test_the_loss_is_that_of_the_probabilities_that_fill_finds(self):
        row = self.encoder._row("the cat")
        texts = [self.encoder._tokenizer.id_to_piece(one) for one in row[1:-1]]
        losses = []
        for place, piece in enumerate(texts):
            masked = "".join("<mask>" if i == place else one for i, one in enumerate(texts))
            (found,) = self.encoder.fill(masked.replace("\u2581", " ").strip(), top=10**6)
            self.assertAlmostEqual(sum(one.probability for one in found), 1, places=5)
            losses.append(-np.log({one.piece: one.probability for one in found}[piece]))
        found = self.encoder.loss(["the cat"], num_folds=len(texts))  # each masks one token
        self.assertAlmostEqual(found, float(np.mean(losses)), places=4)

    def test_a_text_without_a_mask(self):
        with self.assertRaisesRegex(ValueError, "has no <mask>"):
            self.encoder.fill("the cat")
        with self.assertRaisesRegex(ValueError, "have no tokens"):
            self.encoder.loss([""])
