"""A model continued on own text: the same model, moved a little, in its own format."""

import dataclasses
import subprocess
from unittest import mock

import jax
import numpy as np
from absl.testing import parameterized

import xlm
from tests import commands, factories, processes
from tests.interop.xlm_roberta_test import SETTINGS, FolderTest, params_of, tokenizer
from xlm.experiment import model as builders
from xlm.experiment.pretrained import read_pretrained
from xlm.interop import model_folder


class ContinueTest(FolderTest):
    def test_the_script_runs_each_stage_once(self):
        command = ("bash", "scripts/continue.sh", "m", "t", str(self.parent / "w"))
        flags = ("--vocabulary=v.model", "--config.train.seed=1")
        environment = {**processes.environment(), "PYTHON": "echo"}
        done = subprocess.run(
            [*command, *flags], cwd=commands.ROOT, env=environment, capture_output=True, text=True
        )
        self.assertEqual(done.returncode, 0, done.stderr)
        verbs = [line.split()[2] for line in done.stdout.splitlines() if line.startswith("-m xlm")]
        stages = ["build-vocab", "prepare", "train", "evaluate"]
        self.assertEqual(verbs, ["import", *stages, "export"])
        self.assertEqual(done.stdout.count("--vocabulary=v.model"), 1)
        self.assertEqual(done.stdout.count("--config.train.seed=1"), len(stages))
        wrong = subprocess.run([*command, "--vocab=1"], cwd=commands.ROOT, capture_output=True)
        self.assertEqual(wrong.returncode, 2)

    @parameterized.parameters(
        {}, {"norm_position": "pre", "norm": "layer_no_bias", "bias": False, "mlp": "geglu",
             "position": "rotary", "local_window": 4, "global_every": 2, "first_norm": False,
             "initializer": "megatron"},
    )  # fmt: skip
    def test_from_folder_to_folder(self, **changes):
        self.enter_context(mock.patch.object(builders, "mesh", factories.one_device))
        settings = dataclasses.replace(SETTINGS, **changes)
        start, text, work = (self.parent / name for name in ("start", "text", "work"))
        params = params_of(settings)
        model_folder.write_model(start, params, dataclasses.asdict(settings), tokenizer())
        text.mkdir()
        words = [f"the thing is {a}{b} and {b}{a}" for a in "abcdefgh" for b in "ijklmnop"]
        documents = [" a \n".join(words[i : i + 8]) for i in range(0, 64, 8)]
        (text / "en.txt").write_text("\n\n".join(documents) + "\n")
        experiment = xlm.Experiment(
            f"configs/continue.py:{start},{text}", work, corpus__heldout_fraction=0.2,
            train__batch_size=4, optimizer__warmup_steps=1, optimizer__learning_rate=1e-5,
        )  # fmt: skip
        experiment.build_vocab().prepare().train()
        found = read_pretrained(str(work))
        same = dataclasses.replace(found.settings, vocab_size=settings.vocab_size)
        self.assertEqual(same, dataclasses.replace(settings, dtype=same.dtype))
        kernels = [one["layers"]["mlp"]["wide"]["kernel"] for one in (found.params, params)]
        moved = np.abs(kernels[0] - kernels[1])
        self.assertBetween(moved.max(), 1e-6, 1e-2)
        self.assertEqual(found.tokenizer, tokenizer())
        jax.tree.map(lambda x: self.assertTrue(np.isfinite(x).all()), found.params)
