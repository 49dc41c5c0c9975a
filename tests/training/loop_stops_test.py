"""Runs of the loop that end early: stops, full disks, losses that are not finite."""

import dataclasses
import errno
import json
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
    SETTINGS,
    Data,
    TestCase,
    Toy,
    toy_functions,
)  # fmt: skip
from xlm.training.checkpoint import Checkpoints, SaveError, restore_latest
from xlm.training.loop import train
from xlm.training.signals import Stopped


def tearDownModule():
    toy_functions.cache_clear()  # or its programs would stay loaded


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
        # It goes on from the last good checkpoint.
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
        with self.assertRaisesRegex(FloatingPointError, f"made of is in {path}"):
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
        error = "the state after step 1 holds numbers that are not finite, in params.w; the check"
        with self.assertRaisesRegex(FloatingPointError, error):
            functions = factories.train_functions(Toy(), rates)
            train(functions, settings, self.folder, Data(), [lambda state: self.fail()])
        for folder in (self.folder, self.folder / "nothing"):
            with self.assertRaisesRegex(ValueError, "holds no checkpoint; run train.py"):
                restore_latest(folder / "checkpoints", self.functions.abstract_after)
