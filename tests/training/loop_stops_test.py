"""Runs that end early or resume from an earlier checkpoint: stops, signals, full disks."""

import dataclasses
import errno
import json
import shutil
from unittest import mock

import jax
import numpy as np
import pytest
from absl.testing import parameterized

from tests import factories
from tests.training.toy_runs import (
    GOOD,
    NAN_GRADIENT,
    NAN_LOSS,
    NUM_STEPS,
    SETTINGS,
    Data,
    TestCase,
    Toy,
    toy_functions,
    whole_run,
)  # fmt: skip
from xlm.objectives.objective import Batch
from xlm.training.checkpoint import Checkpoints, SaveError, restore_latest
from xlm.training.loop import train
from xlm.training.rewind import advice, rewind
from xlm.training.signals import Stopped


def tearDownModule():
    toy_functions.cache_clear()  # otherwise its programs would stay loaded


class StopTest(TestCase):
    def stop_at(self, step: int, **kwargs):
        with self.assertRaisesRegex(Stopped, f"after step {step} ") as raised:
            self.train(should_stop=lambda now: now == step, **kwargs)
        self.assertEqual(raised.exception.step, step)

    @parameterized.parameters(1, 3, 5, 9)
    def test_it_saves_and_goes_on_from_there(self, step):
        self.stop_at(step)
        self.assertEqual(self.latest()[0], step)
        self.assert_is_whole_run(self.train())

    def test_what_is_due_is_done_first_and_nothing_else(self):
        applied, evaluated = [], []
        functions = dataclasses.replace(
            self.functions,
            apply_pending_updates=lambda state: applied.append(int(state.step)) or state,
        )
        evaluators = [lambda state: evaluated.append(int(state.step)) or {}]
        for step in (2, 4, 5):
            self.stop_at(step, functions=functions, evaluators=evaluators)
        self.assertEqual((applied, evaluated), ([3, 4], [4]))

    def test_a_state_that_is_not_finite_is_not_saved(self):
        with self.assertRaisesRegex(FloatingPointError, "step 5 "):
            self.train(*[GOOD] * 4, NAN_LOSS, should_stop=lambda step: step == 5)
        self.assertEqual(self.latest()[0], 3)
        # It resumes from the last good checkpoint.
        self.assert_is_whole_run(self.train())


class UnwritableTest(TestCase):
    def test_a_checkpoint_that_cannot_be_written_stops_the_run_soon(self):
        steps = []

        def check(checkpoints):
            steps.append(checkpoints.steps())
            if len(steps) == 4:
                raise SaveError("the checkpoint of step 3")

        stopped = self.assertRaisesRegex(SaveError, "step 3")
        with mock.patch.object(Checkpoints, "check", check), stopped:
            self.train()
        self.assertLen(steps, 4)

    def test_metrics_that_cannot_be_written_are_named(self):
        full = OSError(errno.ENOSPC, "No space left on device")
        error = f"{self.folder / 'metrics.jsonl'} could not be .*No space.*the last checkpoint"
        with (
            mock.patch("xlm.training.metrics.open", side_effect=full, create=True),
            self.assertRaisesRegex(OSError, error),
        ):
            self.train()


class NotFiniteTest(TestCase):
    def test_what_the_batch_was_made_of_is_written_down(self):
        path = self.folder / "not_finite_6.json"
        with self.assertRaisesRegex(FloatingPointError, f"its batch is in {path}"):
            self.train(*[GOOD] * 5, NAN_LOSS)
        dump = json.loads(path.read_text())
        self.assertEqual((dump["step"], dump["batch"]), (6, [["en", 50]]))
        self.assertEqual(dump["metrics"]["loss"], "nan")
        self.assertAlmostEqual(float(dump["metrics"]["learning_rate"]), 0.1 * 4 / 9, places=5)

    @parameterized.parameters((4, NAN_LOSS), (5, NAN_GRADIENT), (6, NAN_LOSS), (10, NAN_GRADIENT))
    def test_it_stops_the_run_and_leaves_good_checkpoints(self, step, bad):
        what = "loss" if np.isnan(bad) else "grad_norm"
        with self.assertRaisesRegex(FloatingPointError, f"the {what} of step {step} is nan"):
            self.train(*[GOOD] * (step - 1), bad)
        saved_at, state = self.latest()
        self.assertEqual(saved_at, 3 * ((step - 1) // 3))
        self.assertTrue(all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(state)))
        self.assertLess(max(self.steps_with("train/loss")), step)

    def test_it_is_noticed_one_step_later(self):
        settings, seen = dataclasses.replace(SETTINGS, evaluate_every=10, checkpoint_every=10), []
        data = Data(GOOD, NAN_LOSS)
        with self.assertRaisesRegex(FloatingPointError, "the loss of step 2 is nan"):
            train(self.functions, settings, self.folder, data, should_stop=seen.append)
        self.assertEqual(seen, [1, 2])

    @parameterized.parameters(1, 10)
    @pytest.mark.filterwarnings("ignore:overflow encountered in cast")  # of the rate
    def test_a_state_that_is_not_finite_is_not_evaluated_nor_saved(self, num_steps):
        rates = factories.optimizer_settings(learning_rate=1e39)
        settings = dataclasses.replace(SETTINGS, num_steps=num_steps, checkpoint_every=1)
        error = "the state after step 1 holds numbers that are not finite, in params.w; earlier"
        with self.assertRaisesRegex(FloatingPointError, error):
            functions = factories.train_functions(Toy(), rates)
            train(functions, settings, self.folder, Data(), [lambda state: self.fail()])
        for folder in (self.folder, self.folder / "nothing"):
            with self.assertRaisesRegex(ValueError, "holds no checkpoint; run train.py"):
                restore_latest(folder / "checkpoints", self.functions.abstract_after)


class RewindTest(TestCase):
    def setUp(self):
        super().setUp()
        shutil.copytree(whole_run()[0], self.folder, dirs_exist_ok=True)

    def rewind(self, step: int) -> None:
        rewind(self.folder, step, self.functions, by_rows=False)

    def test_with_the_same_settings_the_run_is_that_of_before(self):
        for name in ("abandoned-9", "abandoned-9-2"):
            self.rewind(9)
            self.assertEqual(self.latest()[0], 9)
            metrics = [one / "metrics.jsonl" for one in (self.folder / name, whole_run()[0])]
            self.assertEqual(*(one.read_bytes() for one in metrics))
            self.assertTrue((self.folder / name / "10").is_dir())
            self.assert_is_whole_run(self.train())

    def test_with_another_rate_the_steps_are_those_of_its_optimizer(self):
        # The last step has rate 0 under the first settings.
        rates = factories.optimizer_settings(learning_rate=1e-3, final_rate_ratio=0.5)
        functions = factories.train_functions(Toy(), rates)
        self.rewind(9)
        _, state = self.latest()
        found = self.train(functions=functions)
        ((kind, arrays),) = Data().batches(range(9, NUM_STEPS))
        exact = functions.objective.at_step(9)
        expected, _ = functions.train_step(exact, state, Batch(jax.device_put(arrays), kind))
        jax.tree.map(np.testing.assert_array_equal, found, expected)
        self.assertFalse((found.params["w"] == whole_run()[1].params["w"]).all())

    def test_nothing_moves_for_a_missing_or_damaged_checkpoint(self):
        (self.folder / "checkpoints/9/state/manifest.ocdbt").write_bytes(b"")
        for step, error in (
            (3, "--continue_from is 3, must be a step of a checkpoint in .*: 9, 10"),
            (9, "is 9, but that checkpoint is damaged: .*; choose another one of 9, 10"),
        ):
            with self.assertRaisesRegex(ValueError, error):
                self.rewind(step)
        self.assertEmpty(list(self.folder.glob("abandoned*")))
        self.assertIn("--continue_from=10 to resume", advice(self.folder))
