"""Presets for one GPU: numbers that follow from the budget and the text."""

import dataclasses
from unittest import mock

import jax
from absl.testing import parameterized

import xlm
from configs import mmbert, one_gpu
from tests import processes
from tests.folders import FolderTest
from tests.interop.xlm_roberta_test import SETTINGS, params_of, tokenizer
from xlm.experiment import costs, data, memory, phase_runs
from xlm.interop import model_folder


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
