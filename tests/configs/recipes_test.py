"""Recipes in phases, on one GPU, and from a published model: sizes, budgets, miniatures."""

import dataclasses
import subprocess
from unittest import mock

import jax
import numpy as np
from absl.testing import absltest, parameterized

import xlm
from configs import mmbert, one_gpu
from tests import commands, factories, folders, processes
from tests.folders import FolderTest
from tests.interop.xlm_roberta_parity_test import HAS_TORCH, transformers
from tests.interop.xlm_roberta_test import SETTINGS, params_of, tokenizer
from tests.interop.xlm_roberta_test import FolderTest as ModelFolderTest
from tests.models.factories import boxed_shapes
from xlm.experiment import costs, data, memory, phase_runs
from xlm.experiment import model as builders
from xlm.experiment.pretrained import read_pretrained
from xlm.interop import model_folder
from xlm.models.settings import EncoderSettings


class ModelsTest(parameterized.TestCase):
    @parameterized.parameters(("base", 256_000, 307e6), ("small", 256_000, 140e6))
    def test_sizes_are_the_published_ones(self, name, vocab_size, published):
        model = mmbert.get_config(name).model.to_dict()
        settings = EncoderSettings(**model, vocab_size=vocab_size)
        self.assertEqual(model_folder.why_not_transformers(vars(settings)), "")
        count = sum(np.prod(x.shape) for x in jax.tree.leaves(boxed_shapes(settings)))
        self.assertAlmostEqual(count / published, 1, delta=0.01)

    @parameterized.parameters(*mmbert.MODELS)
    def test_phases(self, name):
        """Their tokens, masks, shares and rates, which fall, at lengths that rise."""
        config = mmbert.get_config(name)
        phases = [one.config for one in phase_runs.phases_of(config)]
        self.assertEqual([one.mask.rate for one in phases], [0.3, 0.15, 0.05])
        self.assertEqual([one.data.alpha for one in phases], [0.7, 0.5, 0.3])
        self.assertEqual([one.store.length for one in phases], [1024, 8192, 8192])
        self.assertEqual([one.train.num_tokens / 1e9 for one in phases], [2000, 600, 100])
        self.assertEqual([one.optimizer.final_rate_ratio for one in phases], [1, 1, 0.02])
        xlm.Experiment(config, "nowhere")  # checks all of them

    def test_another_name(self):
        with self.assertRaisesRegex(ValueError, "mmbert has no 'large'; there are base, small"):
            mmbert.get_config("large")


@absltest.skipUnless(HAS_TORCH, "torch and transformers are not installed")
class MiniatureTest(folders.FolderTest):
    def test_from_text_through_three_phases_to_transformers(self):
        import torch

        self.enter_context(mock.patch.object(builders, "mesh", factories.one_device))
        config = mmbert.get_config("runlocal")
        work, output = self.folder / "work", self.folder / "hf"
        xlm.Experiment(config, work).build_vocab().prepare().train()
        found = read_pretrained(str(work))
        sizes = dataclasses.asdict(found.settings)
        model_folder.write_model(output, found.params, sizes, found.tokenizer)
        model = transformers().AutoModel.from_pretrained(output).eval()
        self.assertEqual(type(model).__name__, "ModernBertModel")
        tokenizer = transformers().AutoTokenizer.from_pretrained(output)
        text = "In the beginning there was a word, and it was long. " * 3  # beyond the window
        row = tokenizer([text], return_tensors="pt")
        with torch.no_grad():
            states = model(**row).last_hidden_state[0].numpy()
        self.assertGreater(len(states), 16)
        mean = states[1:-1].mean(0)  # without special tokens
        np.testing.assert_allclose(xlm.Encoder.load(work).encode([text])[0], mean, atol=1e-4)


def phases_of(config):
    return [one.config for one in phase_runs.phases_of(config)] or [config]


class BudgetTest(FolderTest):
    def test_the_amount_of_text_is_found_without_jax(self):
        """As build_vocab.py may run where jax is not installed."""
        (self.folder / "en.txt").write_text("a line\n" * 100, encoding="utf-8")
        code = "import sys; from configs import one_gpu; one_gpu.get_config(sys.argv[1]); "
        done = processes.run_python(
            "-c", code + "print('jax' in sys.modules)", f"24gb_day,{self.folder}"
        )
        self.assertEqual((done.returncode, done.stdout), (0, "False\n"), done.stderr)

    @parameterized.parameters(*one_gpu.BUDGETS)
    def test_the_run_takes_the_budget(self, name):
        budget = one_gpu.BUDGETS[name]
        config = one_gpu.get_config(name)
        xlm.Experiment(config, "nowhere")  # checks all phases
        whole = 0.0
        for phase in phases_of(config):
            steps, _ = costs.seen(phase, {})
            flops, layers = costs.sizes(phase, 1)
            whole += steps * flops
            table = config.vocab.target_size * config.model.hidden_size
            self.assertAlmostEqual(table / layers, 1, delta=0.02)
        # Attention and Muon add to it, and lower mask rates of later phases take.
        self.assertBetween(whole / (budget.hours * 3600 * budget.flops), 1, 1.25)
        with mock.patch.object(jax, "default_backend", return_value="gpu"):
            for phase in phases_of(config):
                needed = sum(memory.estimate(phase, 1).bytes().values())
                self.assertLess(needed, 0.8 * budget.memory)

    def test_phases_are_those_of_mmbert(self):
        found, whole = phases_of(one_gpu.get_config("80gb_week")), 2.7e12
        for one, there in zip(found, mmbert.PHASES, strict=True):
            self.assertEqual(one.mask.rate, there.get("mask.rate", 0.3))
            share = one.train.num_tokens / sum(each.train.num_tokens for each in found)
            self.assertAlmostEqual(share, there["train.num_tokens"] / whole)
            self.assertEqual(one.corpus.text, (".",))
        of_step = {one.train.batch_size * one.store.length for one in found}
        self.assertLen(of_step, 1)

    def test_more_text_makes_larger_encoders_to_the_budget_of_any_text(self):
        sizes = []
        for size in (10**7, 10**8, 10**9, 10**12):
            tokens = {"en": size // 4, "sw": size // 4}
            with mock.patch.object(data, "text_tokens", return_value=tokens):
                config = one_gpu.get_config(f"24gb_day,{self.folder}")
            self.assertLessEqual(config.train.num_tokens, 16 * size / 2)
            layers = costs.sizes(phases_of(config)[0], 1)[1]
            sizes.append(layers)
            if layers > 1e6:
                self.assertGreater(config.train.num_tokens, 49 * layers)
        self.assertEqual(sizes, sorted(sizes))
        self.assertGreater(sizes[2], sizes[0])
        self.assertEqual(config.train.num_tokens, one_gpu.get_config("24gb_day").train.num_tokens)

    def test_a_continued_model_keeps_its_sizes(self):
        start, text = self.folder / "start", self.folder / "text"
        model_folder.write_model(
            start, params_of(SETTINGS), dataclasses.asdict(SETTINGS), tokenizer()
        )
        text.mkdir()
        (text / "en.txt").write_text("the thing\n" * 10_000)
        config = one_gpu.get_config(f"24gb_day,{text},{start}")
        xlm.Experiment(config, self.folder / "work")
        self.assertEqual(config.model.hidden_size, SETTINGS.hidden_size)
        self.assertEqual(config.train.init_from, str(start))
        self.assertEqual(config.train.num_tokens, 4 * 25_000)

    def test_another_name(self):
        with self.assertRaisesRegex(ValueError, "no '12gb'; there are laptop_night, 24gb_day"):
            one_gpu.get_config("12gb")


class ContinueTest(ModelFolderTest):
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
