"""Phases of a run: each continues the state of another one, and one run has them all."""

from unittest import mock

import jax
import numpy as np
from absl.testing import parameterized

import xlm
from configs import small
from tests import factories, folders
from tests.training.toy_runs import SETTINGS, Data, Toy
from xlm.experiment import model, phase_runs
from xlm.interop import model_folder
from xlm.training.loop import train

KEPT = {"final_rate_ratio": 1.0, "max_norm_ratio": 9.0}  # a constant rate


class ContinueTest(folders.FolderTest):
    @parameterized.parameters(
        {"kind": "adamw"}, {"kind": "muon"}, {"kind": "stable_adamw", "ema_decay": 0.5}
    )
    def test_two_runs_at_a_constant_rate_are_one_of_twice_the_steps(self, **changes):
        """Parameters, moments and counts: of what the steps depend on, nothing is lost."""
        toy = Toy(exact=True)
        first = factories.optimizer_settings(**KEPT, **changes)
        second = factories.optimizer_settings(**KEPT, **changes, steps_before=10)
        once = factories.train_functions(toy, first)
        again = factories.train_functions(toy, second)
        whole = factories.train_functions(toy, first, num_steps=20)
        train(once, SETTINGS, self.folder / "one", Data())
        before = self.folder / "one" / "checkpoints"
        state = train(again, SETTINGS, self.folder / "two", Data(), continued_from=before)
        longer = SETTINGS.__class__(**{**vars(SETTINGS), "num_steps": 20})
        expected = train(whole, longer, self.folder / "whole", Data())
        self.assertEqual((int(state.step), int(expected.step)), (10, 20))
        jax.tree.map(
            np.testing.assert_array_equal,
            (state.params, state.opt_state), (expected.params, expected.opt_state),
        )  # fmt: skip

    def test_the_schedule_is_that_of_the_run(self):
        """A rate that falls to zero within the second run, whose count begins at ten."""
        settings = factories.optimizer_settings(
            **{**KEPT, "final_rate_ratio": 0.0}, steps_before=10
        )
        first = factories.train_functions(Toy(exact=True), factories.optimizer_settings(**KEPT))
        functions = factories.train_functions(Toy(exact=True), settings)
        params = train(first, SETTINGS, self.folder / "one", Data()).params
        before = self.folder / "one" / "checkpoints"
        found = []
        train(
            functions, SETTINGS, self.folder / "two", Data(), continued_from=before,
            evaluators=[lambda state: found.append(np.asarray(state.params["w"])) or {}],
        )  # fmt: skip
        # Adam moves by about the rate: 0.1 (1 - n / 9) at step n, of which the last is zero.
        rates = 0.1 * (1 - np.arange(10) / 9)
        moved = [params["w"][0] - one[0] for one in found]
        expected = [rates[:4].sum(), rates[:8].sum(), rates.sum()]
        np.testing.assert_allclose(moved, expected, rtol=0.02)


def config(*phases):
    found = small.runlocal()
    found.output_layer.kind = "full"
    found.optimizer.update(warmup_steps=0, final_rate_ratio=1.0)
    found.phases = phases
    return found


class PhasesTest(folders.FolderTest):
    def setUp(self):
        super().setUp()
        self.enter_context(mock.patch.object(model, "mesh", factories.one_device))

    def test_one_config_has_them_all(self):
        recipe = config(
            {"name": "first"},
            {"name": "late", "corpus.languages": ("en", "sw"), "mask.rate": 0.1},
            {"name": "a", "optimizer.final_rate_ratio": 0.0},
            {"name": "b", "after": "late", "store.length": 64},
            {"name": "both", "after": "late", "merge": ("a", "b"), "method": "ties"},
        )
        work = self.folder / "work"
        experiment = xlm.Experiment(recipe, work).build_vocab().prepare()
        with mock.patch.object(
            phase_runs.PhasedExperiment, "_merge", side_effect=KeyboardInterrupt
        ):
            self.assertRaises(KeyboardInterrupt, experiment.train)
        files = {path: path.read_bytes() for path in work.rglob("metrics.jsonl")}
        experiment = xlm.Experiment(recipe, work).train()  # resumes, and trains nothing again
        self.assertEqual({path: path.read_bytes() for path in files}, files)
        self.assertLen(files, 4)
        # Text and rows of a phase are its own, and shared where they are the same.
        of = {name: work / "phases" / name for name in ("first", "late", "a", "b", "both")}
        rows = {name: np.load(of[name] / "rows" / "en.train.npy") for name in ("first", "b")}
        self.assertEqual([one.shape[1] for one in rows.values()], [128, 64])
        self.assertFalse((of["late"] / "rows" / "ka.train.npy").exists())
        self.assertTrue((of["a"] / "rows").samefile(of["first"] / "rows"))
        self.assertTrue((work / "train").samefile(of["b"] / "train"))
        # The optimizer goes on by its own count, along the chain of each phase.
        steps = {
            phase.name: experiment._phased._continuing(phase).optimizer.steps_before
            for phase in phase_runs.phases_of(recipe)
        }
        self.assertEqual(steps, {"first": 0, "late": 2, "a": 4, "b": 4, "both": 4})
        # Each has its own random streams.
        seeds = [phase.config.train.seed for phase in phase_runs.phases_of(recipe)]
        self.assertLen(set(seeds), 5)
        self.assertTrue((of["both"] / "config.json").exists())
        model_folder.read_model(of["both"])
        report = experiment.evaluate()
        self.assertTrue(report.samefile(work / "report" / "report.md"))
        vectors = xlm.Encoder.load(work).encode(["a text"])
        np.testing.assert_array_equal(xlm.Encoder.load(of["b"]).encode(["a text"]), vectors)

    def test_what_is_refused(self):
        for phases, message in (
            (({"name": "a"}, {"name": "a"}), "two are called 'a'"),
            (({"mask.rate": 0.1},), "the name of phase 1"),
            (({"name": "a", "mask.rat": 0.1},), "a sets mask.rat, which is no key"),
            (({"name": "a", "vocab.beta": 0.1},), "a sets vocab.beta, which is the same in all"),
            (({"name": "a"}, {"name": "b", "after": "c"}), "b names 'c', which is no earlier"),
            (({"name": "a", "mask.rate": 2.0},), "phases: a: mask.rate is 2.0"),
            (({"name": "a", "merge": ("a",)},), "no earlier phase"),
            (({"name": "a"}, {"name": "b", "merge": ("a",)}), "b merges 1 phases by 'mean'"),
            (
                ({"name": "a"}, {"name": "b"}, {"name": "c", "merge": ("a", "b"), "method": "tie"}),
                "c merges 2 phases by 'tie'",
            ),
        ):  # fmt: skip
            with self.subTest(message), self.assertRaisesRegex(ValueError, message):
                xlm.Experiment(config(*phases), self.folder)
        with self.assertRaisesRegex(ValueError, "continue_from is 3, but the config has phases"):
            xlm.Experiment(config({"name": "a"}), self.folder).train(continue_from=3)
