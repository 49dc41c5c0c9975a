"""Stages of a run: the first trains a part, like a run of its own, and resumes are exact."""

import dataclasses
import functools
import pathlib

import jax
import numpy as np
from absl.testing import parameterized

from tests import factories, folders
from tests.toy_objective import INPUT, OUTPUT, SkipGram
from tests.training import toy_runs
from xlm.objectives.objective import Batch
from xlm.training.accumulation import Accumulation
from xlm.training.checkpoint import restore_latest, restore_latest_params
from xlm.training.loop import train
from xlm.training.memory import state_bytes
from xlm.training.metrics import read_metrics
from xlm.training.settings import OptimizerSettings, TrainSettings
from xlm.training.signals import Stopped
from xlm.training.stages import stages_of
from xlm.training.state import TrainState
from xlm.training.step import TrainFunctions

V, NUM_STEPS, SWITCH = 30, 8, 3
OPTIMIZER = factories.optimizer_settings(
    learning_rate=0.05, warmup_steps=2, weight_decay=0.1, clip_norm=0.5
)
STAGED = dataclasses.replace(OPTIMIZER, stages=(("input", SWITCH),))
SETTINGS = TrainSettings(
    num_steps=NUM_STEPS, batch_size=4, log_every=1, evaluate_every=100, checkpoint_every=100
)


@functools.cache
def functions_of(
    settings: OptimizerSettings, num_steps: int = NUM_STEPS, num_parts: int = 1, of=SkipGram
) -> TrainFunctions:
    parts = Accumulation(num_parts, 0)
    return factories.train_functions(of(V, 4), settings, num_steps=num_steps, accumulation=parts)


@functools.cache
def initial_params():
    return jax.device_get(functions_of(STAGED).init(np.int32(0)).params)


def first_state(functions: TrainFunctions) -> TrainState:
    """The result of `init` for seed 0, without compiling it for each."""
    return factories.first_state(functions, initial_params())


def tearDownModule():
    functions_of.cache_clear()
    initial_params.cache_clear()


class Data(toy_runs.Data):
    def batches(self, steps: range):
        for step in steps:
            yield "packed", {"tokens": np.random.default_rng(step).integers(0, V, (4, 6), np.int32)}


def steps_taken(functions: TrainFunctions, state, steps: range):
    for kind, arrays in Data().batches(steps):
        batch = Batch(jax.device_put(arrays), kind)
        state, _ = functions.train_step(functions.objective, state, batch)
    return state


def assert_equal(found, expected):
    jax.tree.map(np.testing.assert_array_equal, found, expected)


class TestCase(folders.FolderTest):
    def train(self, settings: OptimizerSettings, folder: pathlib.Path, **kwargs):
        return train(functions_of(settings), SETTINGS, folder, Data(), **kwargs)

    def stopped(self, settings: OptimizerSettings, folder: pathlib.Path, after: int) -> None:
        with self.assertRaises(Stopped):
            self.train(settings, folder, should_stop=lambda step: step == after)


class ResumeTest(TestCase):
    def test_before_at_and_after_the_switch(self):
        settings, whole = dataclasses.replace(STAGED, embedding_update="rows"), self.new_folder()
        expected = self.train(settings, whole)
        first = functions_of(settings)
        for after in (SWITCH - 1, SWITCH, SWITCH + 1):
            with self.subTest(after):
                folder = self.new_folder()
                self.stopped(settings, folder, after)
                _, saved = restore_latest(folder / "checkpoints", first.abstract_after)
                there = first if after <= SWITCH else first.following
                self.assertEqual(
                    jax.tree.structure(saved), jax.tree.structure(there.abstract_state)
                )
                # Parameters are read in the same way from checkpoints of all stages.
                step, params = restore_latest_params(folder / "checkpoints", first)
                self.assertEqual(step, after)
                assert_equal(params, there.apply_pending_updates(saved).params)
                assert_equal(self.train(settings, folder), expected)
                found, metrics = ((f / "metrics.jsonl").read_bytes() for f in (folder, whole))
                self.assertEqual(found, metrics)


class StageTest(TestCase):
    @parameterized.parameters(("rows", 1), ("dense", 2))
    def test_the_first_trains_its_part_as_if_the_others_were_frozen(self, update, num_parts):
        settings = dataclasses.replace(STAGED, embedding_update=update)
        frozen = dataclasses.replace(OPTIMIZER, frozen=("output", "scale"))
        functions = functions_of(settings, num_parts=num_parts)
        # As many steps, so the schedule equals that of the stage.
        reference = functions_of(frozen, SWITCH, num_parts)
        first = initial_params()
        expected = steps_taken(reference, first_state(reference), range(SWITCH))
        found = steps_taken(functions, first_state(functions), range(SWITCH))
        found = functions.apply_pending_updates(found)
        for name in ("output", "scale"):
            assert_equal(found.params[name], first[name])
        # Rows differ from dense updates in missed steps, see `row_adamw`.
        table, of_reference, start = (
            one["input"]["table"] for one in (found.params, expected.params, first)
        )
        tolerance = 1e-6 if update == "dense" else 2e-3
        np.testing.assert_allclose(table, of_reference, atol=tolerance)
        self.assertGreater(np.abs(table - start).max(), 0.02)
        assert_equal(found.aux_state, expected.aux_state)

    def test_the_second_is_a_run_from_the_parameters_of_the_first(self):
        settings = dataclasses.replace(STAGED, embedding_update="rows")
        alone = functions_of(dataclasses.replace(settings, stages=()), num_steps=NUM_STEPS - SWITCH)
        folder = self.new_folder()
        self.stopped(settings, folder, SWITCH)
        functions = functions_of(settings)
        _, state = restore_latest(folder / "checkpoints", functions.abstract_after)
        state = functions.apply_pending_updates(state)
        params = jax.device_get(state.params)
        start = dataclasses.replace(state, opt_state=first_state(alone).opt_state)
        expected = steps_taken(alone, start, range(SWITCH, NUM_STEPS))
        found = self.train(settings, folder)
        assert_equal(found, alone.apply_pending_updates(expected))
        jax.tree.map(
            lambda x, y: self.assertGreater(np.abs(x - y).max(), 1e-3), found.params, params
        )

    def test_what_is_not_trained_has_no_moments_and_no_gradient(self):
        settings = dataclasses.replace(STAGED, embedding_update="rows")
        first = functions_of(settings)
        second = first.following
        self.assertEqual(set(first.abstract_state.opt_state.tables), {INPUT})
        self.assertEqual(set(second.abstract_state.opt_state.tables), {INPUT, OUTPUT})
        found, later = (state_bytes(one) for one in (first, second))
        self.assertEqual((found["gradients"], later["gradients"]), (4 * V * 4, 4 * (2 * V + 1) * 4))
        self.assertEqual(found["parameters"], later["parameters"])
        by_row = 4 * (4 + 4 + 1 + 1) * V  # two moments of four, and two numbers
        self.assertBetween(found["optimizer"], by_row, by_row + 20)
        self.assertBetween(later["optimizer"], 2 * by_row + 2 * 16, 2 * by_row + 2 * 16 + 30)


class Held(SkipGram):
    """Skip-gram without a gradient of the output table."""

    def loss(self, params, rows, plan, key):
        return super().loss(
            params, {**rows, OUTPUT: jax.lax.stop_gradient(rows[OUTPUT])}, plan, key
        )


class FrozenTest(TestCase):
    @parameterized.parameters(("rows", 1), ("dense", 2))
    def test_others_are_trained_as_if_it_had_no_gradient(self, update, num_parts):
        # Weight decay would move the output table of the reference.
        settings = dataclasses.replace(OPTIMIZER, embedding_update=update, weight_decay=0.0)
        frozen = dataclasses.replace(settings, frozen=("output",))
        found, expected = (
            one.apply_pending_updates(steps_taken(one, first_state(one), range(3))).params
            for one in (
                functions_of(frozen, num_parts=num_parts),
                functions_of(settings, num_parts=num_parts, of=Held),
            )
        )
        jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, atol=1e-7), found, expected)
        moved = np.abs(found["input"]["table"] - initial_params()["input"]["table"])
        self.assertGreater(moved.max(), 0.02)

    @parameterized.parameters("dense", "rows")
    def test_it_stays_without_moments_and_gradient(self, update):
        settings = dataclasses.replace(OPTIMIZER, embedding_update=update, frozen=("output",))
        functions = functions_of(settings)
        moments = jax.tree.leaves(functions.abstract_state.opt_state)
        self.assertEqual(sum(one.shape == (V, 4) for one in moments), 2)
        found = state_bytes(functions)
        self.assertEqual(found["gradients"], 4 * (V + 1) * 4)
        self.assertEqual(str(functions.stage), "all parameters but 'output', steps 0 to 8")
        state = steps_taken(functions, first_state(functions), range(3))
        output = functions.apply_pending_updates(state).params["output"]
        assert_equal(output, initial_params()["output"])  # no decay either


class ScheduleTest(TestCase):
    @parameterized.parameters(True, False)
    def test_rates(self, restart):
        settings = dataclasses.replace(STAGED, restart_schedule=restart)
        folder = self.new_folder()
        self.train(settings, folder)
        records = read_metrics(folder / "metrics.jsonl")
        found = [r["train/learning_rate"] for r in records if "train/learning_rate" in r]
        whole = [0.025, 0.05, *np.linspace(0.05, 0, NUM_STEPS - 1)[1:]]
        each = [0.025, 0.05, 0.0, 0.025, 0.05, *np.linspace(0.05, 0, 4)[1:]]
        np.testing.assert_allclose(found, each if restart else whole, atol=1e-8)

    def test_one_schedule_is_also_the_optimizers(self):
        """Not only in the metric: at rate 0 without weight decay, nothing moves."""
        settings = dataclasses.replace(STAGED, restart_schedule=False)
        settings = dataclasses.replace(settings, stages=(("input", NUM_STEPS - 1),))
        functions = functions_of(settings)
        state = steps_taken(functions, first_state(functions), range(NUM_STEPS - 1))
        state = functions.following.begin(functions.apply_pending_updates(state))
        before = jax.device_get(state.params)
        found = steps_taken(functions.following, state, range(NUM_STEPS - 1, NUM_STEPS))
        assert_equal(found.params, before)


class SettingsTest(parameterized.TestCase):
    @parameterized.parameters(
        ((("input", 0),), "pairs of a part"),
        ((("", 3),), "pairs of a part"),
        (("input", 3), "pairs of a part"),
        ((("input", 2.5),), "pairs of a part"),
        ((("input", 5), ("output", 3)), "have 8 steps, must have fewer than train.num_steps 8"),
        ((("input", 2),), "'input' alone, steps 0 to 2, must be more than .*warmup_steps 2"),
        ((("input", 6),), "all parameters, steps 6 to 8, must be more than .*warmup_steps 2"),
        ((("other", 4),), "'other', which no .* are input/table, output/table, scale"),
    )
    def test_what_cannot_be(self, stages, message):
        with self.assertRaisesRegex(ValueError, message):
            functions_of(dataclasses.replace(OPTIMIZER, stages=stages))

    def test_a_stage_too_short_for_its_warm_up_and_decay(self):
        settings = dataclasses.replace(STAGED, schedule="wsd", decay_fraction=0.5)
        message = (
            "'input' alone, steps 0 to 3, must be at least optimizer.warmup_steps 2 and the 2 "
            "steps of optimizer.decay_fraction 0.5; change either, or set"
        )
        with self.assertRaisesRegex(ValueError, message):
            stages_of(settings, NUM_STEPS)
        stages_of(dataclasses.replace(settings, decay_fraction=0.4), NUM_STEPS)
        stages_of(dataclasses.replace(settings, restart_schedule=False), NUM_STEPS)
