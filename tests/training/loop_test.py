"""The loop with a toy objective: intervals, refreshes, checkpoints, losses that are not finite."""

import dataclasses
import errno
import json
import pathlib
import tempfile
import time
from collections.abc import Callable, Iterator
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from absl.testing import absltest, parameterized

from training.checkpoint import Checkpoints, SaveError, restore_latest
from training.loop import train
from training.metrics import read_metrics
from training.optimizer import OptimizerSettings
from training.settings import TrainSettings
from training.sharding import MeshSettings, make_mesh
from training.signals import Stopped
from training.step import Program, make_program

NUM_STEPS = 10
SETTINGS = TrainSettings(
    num_steps=NUM_STEPS,
    batch_size=4,
    seed=0,
    log_every=2,
    evaluate_every=4,
    checkpoint_every=3,
    keep_checkpoints=2,
)
OPTIMIZER = OptimizerSettings(
    learning_rate=0.1,
    warmup_steps=0,
    decay_power=1.0,
    beta1=0.9,
    beta2=0.98,
    epsilon=1e-6,
    weight_decay=0.0,
    clip_norm=0.0,
    embedding_update="dense",
)
MESH = MeshSettings(data=1, fsdp=1, model=1, vocab_multiple=1, rules=())
GOOD, NAN_LOSS, NAN_GRADIENT = 1.0, np.nan, 0.0


class Toy:
    """Learns sqrt(x (100 + sum of w)); its "index" is a copy of w, of which a part is a number."""

    table = None
    refresh_every = 3
    rolling_refresh = False
    exact_fraction = 0.2

    def init(self, key, length):
        return {"w": jnp.zeros(length)}

    def empty_index(self):
        return jnp.full(4, -1.0)

    def refresh(self, params, index, part):
        fresh = params["w"] if part is None else index.at[part].set(params["w"][part])
        return fresh, {"moved": (jnp.abs(fresh - index).sum(), jnp.float32(1))}

    def prepare(self, index, batch, key, *, exact):
        if "tokens" in batch:
            x = batch["tokens"].astype(jnp.float32)
            product = x @ x.T
            return {"product": product + x @ x.T if exact else product}, None
        return (batch["x"], jnp.float32(exact)), None

    def sums(self, params, prepared):
        if isinstance(prepared, dict):  # of batches of tokens
            return {"loss": ((params["w"] + 100).sum() * prepared["product"].sum(), 1.0)}
        x, exact = prepared
        losses = jnp.sqrt(x * (params["w"].sum() + 100))
        return {"loss": (losses.sum(), jnp.float32(4)), "exact": (exact, 1.0)}


class Rolling(Toy):
    rolling_refresh = True


class ByRows(Toy):
    """Learns in each step one row of w, which is a table."""

    table = ("w",)
    refresh_every = 2

    def init(self, key, length):
        return {"w": jnp.zeros((length, 1))}

    def empty_index(self):
        return jnp.zeros((4, 1))

    def prepare(self, index, batch, key, *, exact):
        prepared, _ = super().prepare(index, batch, key, exact=exact)
        return prepared, jax.random.randint(key, (1,), 0, 4)


def program_of(
    objective, embedding_update: str = "dense", optimizer: OptimizerSettings = OPTIMIZER
) -> Program:
    mesh = make_mesh(MESH, jax.devices()[:1])
    optimizer = dataclasses.replace(optimizer, embedding_update=embedding_update)
    return make_program(objective, optimizer, MESH, mesh, num_steps=NUM_STEPS, length=4)


def batches(*values: float) -> Callable[[range], Iterator[dict[str, np.ndarray]]]:
    """The first batches as given, good ones after that."""

    def make(steps: range) -> Iterator[dict[str, np.ndarray]]:
        for step in steps:
            value = values[step] if step < len(values) else GOOD
            yield {"x": np.full(4, value, np.float32)}

    return make


def token_batches(steps: range) -> Iterator[dict[str, np.ndarray]]:
    """Two kinds in turn."""
    for step in steps:
        yield {"tokens": np.ones((2 if step % 2 else 4, 7), np.int32)}


class TestCase(parameterized.TestCase):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.program = program_of(Toy())

    def setUp(self):
        super().setUp()
        self.folder = pathlib.Path(self.enter_context(tempfile.TemporaryDirectory()))

    def train(self, *values: float, program: Program | None = None, **kwargs):
        return train(program or self.program, SETTINGS, self.folder, batches(*values), **kwargs)

    def steps_with(self, metric: str) -> list[float]:
        return [record["step"] for record in self.records() if metric in record]

    def records(self) -> list[dict[str, float]]:
        return read_metrics(self.folder / "metrics.jsonl")

    def latest(self):
        return restore_latest(self.folder / "checkpoints", self.program.abstract_state)


class IntervalsTest(TestCase):
    def test_each_thing_happens_when_it_is_due_and_at_the_end(self):
        seen = []

        def evaluator(state):
            seen.append(float(state.params["w"].sum()))
            return {"eval/sum": seen[-1]}

        state = self.train(evaluators=[evaluator])
        self.assertEqual(self.steps_with("train/loss"), [2, 4, 6, 8, 10])
        self.assertEqual(self.steps_with("eval/sum"), [4, 8, 10])
        self.assertEqual(seen[-1], float(state.params["w"].sum()))
        with Checkpoints(self.folder / "checkpoints", keep=2) as checkpoints:
            self.assertEqual(checkpoints.steps(), [9, 10])
        kept = [path.name for path in (self.folder / "checkpoints").iterdir()]
        self.assertCountEqual(kept, ["9", "10"])

    def test_metrics_are_those_of_the_step(self):
        self.train(GOOD, 4 * GOOD)
        records = [record for record in self.records() if "train/loss" in record]
        schedule = [0.1 * (1 - step / NUM_STEPS) for step in range(NUM_STEPS)]
        # Adam's first steps move each of the four weights by the learning rate.
        expected = 2 * np.sqrt(100 - 4 * schedule[0])
        self.assertAlmostEqual(records[0]["train/loss"], expected, delta=1e-4)
        found = [record["train/learning_rate"] for record in records]
        np.testing.assert_allclose(found, schedule[1::2], rtol=1e-5)
        gradient = 0.5 * 2 / np.sqrt(100 - 4 * schedule[0])
        self.assertAlmostEqual(records[0]["train/grad_norm"], 2 * gradient, delta=1e-4)

    def test_the_index_is_refreshed_at_multiples_only_and_from_the_parameters(self):
        steps = []

        def train_step(state, batch, exact):
            steps.append((int(state.step), int(state.index_step), exact))
            if state.index_step == state.step:
                np.testing.assert_array_equal(state.index, state.params["w"])
            return self.program.train_step(state, batch, exact)

        state = self.train(program=dataclasses.replace(self.program, train_step=train_step))
        # The last two steps are exact, so step 9 needs no index.
        expected = [(step, min(step - step % 3, 6), step >= 8) for step in range(10)]
        self.assertEqual(steps, expected)
        self.assertEqual((int(state.step), int(state.index_step)), (10, 6))

    def test_refreshes_are_recorded_with_the_step_that_follows(self):
        state = self.train()
        self.assertEqual(self.steps_with("index/moved"), [1, 4, 7])
        moved = [r["index/moved"] for r in self.records() if "index/moved" in r]
        self.assertEqual(moved[0], 4)  # from -1 to 0, for the index begins empty
        with Checkpoints(self.folder / "checkpoints", keep=2) as checkpoints:
            last = checkpoints.restore(9, self.program.abstract_state)
        self.assertAlmostEqual(sum(moved[1:]), -float(last.index.sum()), places=5)
        np.testing.assert_array_equal(state.index, last.index)

    def test_a_rolling_refresh_takes_a_part_before_every_step(self):
        program = program_of(Rolling())
        weights, refreshed = [], []

        def train_step(state, batch, exact):
            step = int(state.step)
            weights.append(np.asarray(state.params["w"]))
            expected = weights[0].copy()  # whole before the first step
            last = min(step, 7)  # the last two steps are exact
            for past in range(1, last + 1):
                expected[past % 3] = weights[past][past % 3]
            np.testing.assert_array_equal(state.index, expected)
            self.assertEqual(state.index_step, last)
            return program.train_step(state, batch, exact)

        def refresh(state, whole):
            refreshed.append((int(state.step), whole))
            return program.refresh(state, whole)

        self.train(program=dataclasses.replace(program, train_step=train_step, refresh=refresh))
        self.assertEqual(refreshed, [(step, step == 0) for step in range(8)])
        # Recorded as often as the metrics of steps are.
        self.assertEqual(self.steps_with("index/moved"), [1, 3, 5, 7])
        self.assertLen({tuple(w) for w in weights}, NUM_STEPS)

    def test_a_whole_refresh_sees_parameters_that_are_up_to_date(self):
        program = program_of(ByRows(), embedding_update="rows")
        behind = []

        def refresh(state, whole):
            behind.append(bool((state.opt_state.table.last_step < state.step).any()))
            state, sums = program.refresh(state, whole)
            np.testing.assert_array_equal(state.opt_state.table.last_step, state.step)
            np.testing.assert_array_equal(state.index, state.params["w"])
            return state, sums

        self.train(program=dataclasses.replace(program, refresh=refresh))
        # Before steps 4 and 6 an evaluation or a checkpoint has seen to it.
        self.assertEqual(behind, [False, True, False, False])

    def test_parameters_are_up_to_date_where_others_read_them(self):
        flushed = []

        def flush(state):
            flushed.append(int(state.step))
            state = self.program.flush(state)
            return dataclasses.replace(state, key_data=state.key_data + np.uint32(1))

        seen = []
        state = self.train(
            program=dataclasses.replace(self.program, flush=flush),
            evaluators=[lambda state: seen.append(state.key_data[1]) or {}],
        )
        self.assertEqual(flushed, [3, 4, 6, 8, 9, 10])  # checkpoints, evaluations
        self.assertEqual(seen, [2, 4, 6])
        self.assertEqual(state.key_data[1], 6)
        self.assertEqual(self.latest()[1].key_data[1], 6)

    def test_without_an_index_nothing_is_refreshed(self):
        class NoIndex(Toy):
            refresh_every = 0

            def empty_index(self):
                return None

        state = self.train(program=program_of(NoIndex()))
        self.assertIsNone(state.index)
        self.assertIsNone(state.index_step)

    def test_a_finished_run_is_left_as_it_is(self):
        state = self.train()
        files = {p: p.read_bytes() for p in self.folder.rglob("*") if p.is_file()}
        again = self.train(NAN_LOSS, NAN_LOSS)
        jax.tree.map(np.testing.assert_array_equal, again, state)
        self.assertEqual(files, {p: p.read_bytes() for p in self.folder.rglob("*") if p.is_file()})


class StopTest(TestCase):
    def stop_at(self, step: int, **kwargs):
        with self.assertRaisesRegex(Stopped, f"after step {step} ") as raised:
            self.train(should_stop=lambda now: now == step, **kwargs)
        self.assertEqual(raised.exception.step, step)

    @parameterized.parameters(1, 3, 4, 5, 9)
    def test_it_saves_and_goes_on_from_there(self, step):
        expected = self.train()
        metrics = (self.folder / "metrics.jsonl").read_bytes()
        self.setUp()
        self.stop_at(step)
        self.assertEqual(self.latest()[0], step)
        jax.tree.map(np.testing.assert_array_equal, self.train(), expected)
        self.assertEqual((self.folder / "metrics.jsonl").read_bytes(), metrics)

    def test_what_is_due_is_done_first_and_nothing_else(self):
        flushed, evaluated = [], []

        def flush(state):
            flushed.append(int(state.step))
            return state

        program = dataclasses.replace(self.program, flush=flush)
        for step in (2, 4, 5):
            self.stop_at(
                step,
                program=program,
                evaluators=[lambda state: evaluated.append(int(state.step)) or {}],
            )
        self.assertEqual((flushed, evaluated), ([3, 4], [4]))

    def test_at_the_last_step_it_is_done(self):
        state = self.train(should_stop=lambda step: step == NUM_STEPS)
        self.assertEqual(state.step, NUM_STEPS)

    def test_a_state_that_is_not_finite_is_not_saved(self):
        with self.assertRaisesRegex(FloatingPointError, "step 5 "):
            self.train(*[GOOD] * 4, NAN_LOSS, should_stop=lambda step: step == 5)
        self.assertEqual(self.latest()[0], 3)


class DamageTest(TestCase):
    # Orbax drops the reads that were under way when one failed.
    @pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
    def test_the_run_goes_on_from_the_checkpoint_before(self):
        expected = self.train()
        for path in (self.folder / "checkpoints" / "10").rglob("manifest.ocdbt"):
            path.write_bytes(path.read_bytes()[:50])
        with self.assertLogs(level="INFO") as logs:
            state = self.train()
        self.assertIn("resumed after step 9", "\n".join(logs.output))
        jax.tree.map(np.testing.assert_array_equal, state, expected)
        self.assertEqual(self.latest()[0], 10)

    def test_a_checkpoint_that_cannot_be_written_stops_the_run_soon(self):
        steps = []

        def check(checkpoints):
            steps.append(checkpoints.steps())
            if len(steps) == 4:
                raise SaveError("the checkpoint of step 3")

        with (
            mock.patch.object(Checkpoints, "check", check),
            self.assertRaisesRegex(SaveError, "step 3"),
        ):
            self.train()
        self.assertLen(steps, 4)

    def test_metrics_that_cannot_be_written_are_named(self):
        path = self.folder / "metrics.jsonl"
        full = OSError(errno.ENOSPC, "No space left on device")
        with (
            mock.patch("training.metrics.open", side_effect=full, create=True),
            self.assertRaisesRegex(OSError, f"{path} could not be .*No space.*the last checkpoint"),
        ):
            self.train()


class RecordsTest(TestCase):
    def train_with(self, program: Program | None = None, **settings):
        settings = dataclasses.replace(SETTINGS, **settings)
        return train(program or self.program, settings, self.folder, token_batches)

    @parameterized.parameters((0.0, False), (1e9, True))
    def test_speed(self, peak_flops, has_utilization):
        before = time.monotonic()
        self.train_with(peak_flops=peak_flops)
        seconds = time.monotonic() - before
        records = read_metrics(self.folder / "speed.jsonl")
        self.assertEqual([record["step"] for record in records], [2, 4, 6, 8, 10])
        for record in records:
            rate = record["steps_per_second"]
            self.assertGreater(rate, 2 / seconds)
            self.assertAlmostEqual(record["tokens_per_second"], 3 * 7 * rate)
            self.assertEqual("flop_utilization" in record, has_utilization)
            if has_utilization:
                # The toy has one product of matrices, in exact steps two.
                flops = 2 * (4 * 4 + 2 * 2) / 2 * 7 * (2 if record["step"] > 8 else 1)
                self.assertAlmostEqual(record["flop_utilization"] / rate, flops / 1e9)

    def test_a_profile_of_the_steps_asked_for(self):
        with (
            mock.patch.object(jax.profiler, "start_trace") as start,
            mock.patch.object(jax.profiler, "stop_trace") as stop,
        ):
            seen = []

            def train_step(state, batch, exact):
                seen.append((start.call_count, stop.call_count))
                return self.program.train_step(state, batch, exact)

            program = dataclasses.replace(self.program, train_step=train_step)
            self.train_with(program, profile_from=3, profile_steps=2)
        start.assert_called_once_with(self.folder / "profile")
        self.assertEqual(seen, [(0, 0)] * 3 + [(1, 0)] * 2 + [(1, 1)] * 5)

    def test_a_profile_is_a_file(self):
        self.train_with(profile_steps=1)
        self.assertNotEmpty(list((self.folder / "profile").rglob("*.xplane.pb")))

    def test_a_profile_ends_with_the_run(self):
        with (
            mock.patch.object(jax.profiler, "start_trace"),
            mock.patch.object(jax.profiler, "stop_trace") as stop,
        ):
            self.train_with(profile_from=8, profile_steps=5)
        stop.assert_called_once_with()

    def test_parameters_are_told_at_the_start(self):
        with self.assertLogs(level="INFO") as logs:
            self.train()
        self.assertRegex("\n".join(logs.output), r"parameter +shape .*\nw +\[4\] +float32 ")

    def test_checkpoints_that_stay(self):
        self.train_with(keep_every=6, keep_checkpoints=1)
        names = [path.name for path in (self.folder / "checkpoints").iterdir()]
        self.assertCountEqual(names, ["6", "10"])


class ScheduleTest(TestCase):
    @parameterized.parameters(
        ({}, [1.0, 0.8, 0.6, 0.4, 0.2]),
        ({"decay_power": 2.0}, [1.0, 0.64, 0.36, 0.16, 0.04]),
        ({"schedule": "cosine"}, [(1 + np.cos(np.pi * x)) / 2 for x in (0, 0.2, 0.4, 0.6, 0.8)]),
        ({"schedule": "wsd", "decay_fraction": 0.4}, [1, 1, 1, 1, 0.5]),
        ({"final_rate_ratio": 0.5}, [1.0, 0.9, 0.8, 0.7, 0.6]),
        ({"warmup_steps": 4}, [0, 0.5, 1, 2 / 3, 1 / 3]),
    )
    def test_the_metrics_tell_the_rate(self, changes, expected):
        program = program_of(Toy(), optimizer=dataclasses.replace(OPTIMIZER, **changes))
        settings = dataclasses.replace(SETTINGS, log_every=1, checkpoint_every=NUM_STEPS)
        train(program, settings, self.folder, batches())
        found = [r["train/learning_rate"] for r in self.records() if "train/learning_rate" in r]
        self.assertLen(found, NUM_STEPS)
        np.testing.assert_allclose(found[::2], 0.1 * np.array(expected), rtol=1e-5, atol=1e-8)


class NotFiniteTest(TestCase):
    def test_what_the_batch_was_made_of_is_written_down(self):
        path = self.folder / "not_finite_6.json"
        with self.assertRaisesRegex(FloatingPointError, f"made of is in {path}"):
            self.train(*[GOOD] * 5, NAN_LOSS, batch_contents=lambda step: [["en", 10 * step]])
        dump = json.loads(path.read_text())
        self.assertEqual((dump["step"], dump["batch"]), (6, [["en", 50]]))
        self.assertEqual(dump["metrics"]["loss"], "nan")
        self.assertAlmostEqual(float(dump["metrics"]["learning_rate"]), 0.05, places=5)

    @parameterized.product(step=(4, 5, 6, 10), bad=(NAN_LOSS, NAN_GRADIENT))
    def test_it_stops_the_run_and_leaves_good_checkpoints(self, step, bad):
        what = "loss" if np.isnan(bad) else "grad_norm"
        with self.assertRaisesRegex(FloatingPointError, f"the {what} of step {step} is nan"):
            self.train(*[GOOD] * (step - 1), bad)
        saved_at, state = self.latest()
        self.assertEqual(saved_at, 3 * ((step - 1) // 3))
        for leaf in jax.tree.leaves(state):
            self.assertTrue(np.isfinite(leaf).all())
        self.assertLess(max(self.steps_with("train/loss")), step)

    def test_it_goes_on_from_the_last_good_checkpoint(self):
        expected = self.train()
        expected_metrics = (self.folder / "metrics.jsonl").read_bytes()
        self.setUp()
        with self.assertRaises(FloatingPointError):
            self.train(*[GOOD] * 5, NAN_LOSS)
        jax.tree.map(np.testing.assert_array_equal, self.train(), expected)
        self.assertEqual((self.folder / "metrics.jsonl").read_bytes(), expected_metrics)

    def test_no_checkpoint_before_the_first(self):
        with self.assertRaisesRegex(FloatingPointError, "step 1 "):
            self.train(NAN_LOSS)
        with self.assertRaisesRegex(ValueError, "holds no checkpoint; run train.py"):
            self.latest()
        with self.assertRaisesRegex(ValueError, "holds no checkpoint; run train.py"):
            restore_latest(self.folder / "nothing", self.program.abstract_state)


class TrainSettingsTest(parameterized.TestCase):
    @parameterized.parameters(
        "num_steps", "batch_size", "log_every", "evaluate_every", "checkpoint_every",
        "keep_checkpoints",
    )  # fmt: skip
    def test_lengths_are_positive(self, name):
        self.assert_smallest(name, 1)

    @parameterized.parameters("keep_every", "peak_flops", "profile_from", "profile_steps")
    def test_what_may_be_off(self, name):
        self.assert_smallest(name, 0)

    def assert_smallest(self, name: str, smallest: int):
        dataclasses.replace(SETTINGS, **{name: smallest})
        with self.assertRaisesRegex(
            ValueError, f"train.{name} is {smallest - 1}, must be at least {smallest}"
        ):
            dataclasses.replace(SETTINGS, **{name: smallest - 1})


if __name__ == "__main__":
    absltest.main()
