"""The loop with a toy objective: intervals, refreshes and records."""

import contextlib
import dataclasses
import pathlib
import re
import shutil
import time
import types
from collections.abc import Iterator
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np

from tests import factories
from tests.training.toy_runs import (
    NAN_LOSS,
    NUM_STEPS,
    SETTINGS,
    Data,
    TestCase,
    toy_functions,
    whole_run,
)  # fmt: skip
from xlm.objectives.objective import Objective
from xlm.training import progress
from xlm.training.checkpoint import restore_latest_params
from xlm.training.loop import train
from xlm.training.metrics import read_metrics
from xlm.training.signals import Stopped
from xlm.training.step import TrainFunctions


class ByRows(Objective):
    """Learns one row of the table w in each step; keeps a copy of w."""

    tables = ("w",)

    def init(self, key):
        return {"w": jnp.zeros((4, 1))}

    def init_aux_state(self):
        return {"copy": jnp.zeros((4, 1))}

    def due(self, step):
        return ("copy",) if step % 2 == 0 and step < 8 else ()

    def refresh(self, params, aux_state, names, step):
        return {"copy": params["w"]}, {}

    def plan(self, aux_state, batch, key, step):
        return batch["x"], {"w": jax.random.randint(key, (1,), 0, 4)}

    def loss(self, params, rows, plan, key):
        losses = jnp.sqrt(plan * (rows["w"].sum() + 100))
        return {"loss": (losses.sum(), jnp.float32(4))}, None


class TokenData(Data):
    def batches(self, steps: range) -> Iterator[tuple[str, dict[str, np.ndarray]]]:
        for step in steps:
            yield "tokens", {"tokens": np.ones((2 if step % 2 else 4, 7), np.int32)}


def events(path: pathlib.Path) -> list[tuple[int, str, np.float32]]:
    """Step, name and value of the scalars and the start of an event file, read by TensorFlow."""
    import tensorflow as tf

    found = []
    for record in tf.data.TFRecordDataset(str(path)).as_numpy_iterator():
        event = tf.compat.v1.Event.FromString(record)
        found += [(event.step, v.tag, np.float32(v.simple_value)) for v in event.summary.value]
        if event.session_log.status == event.session_log.START and event.step:
            found.append((event.step, "start", np.float32(1)))
    return found


def tearDownModule():
    toy_functions.cache_clear()  # otherwise its programs would stay loaded


class IntervalsTest(TestCase):
    def test_each_thing_happens_when_it_is_due_and_at_the_end(self):
        sums = []

        def evaluator(state):
            sums.append(float(state.params["w"].sum()))
            return {"eval/sum": sums[-1]}

        with self.assertLogs(level="DEBUG") as logs:
            state = self.train(evaluators=[evaluator])
        shown = "\n".join(logs.output)
        self.assertRegex(shown, r"parameter +shape .*\nw +\[4\] +float32 ")
        self.assertEqual(re.findall(r"step (\d+): from now on the loss is", shown), ["9"])
        self.assertEqual(self.steps_with("train/loss"), [2, 4, 6, 8, 10])
        self.assertEqual(self.steps_with("eval/sum"), [4, 8, 10])
        self.assertEqual(sums[-1], float(state.params["w"].sum()))
        # Records have the data's values at their step.
        found = [r["train/values_of"] for r in self.records() if "train/loss" in r]
        self.assertEqual(found, [1, 3, 5, 7, 9])
        kept = [path.name for path in (self.folder / "checkpoints").iterdir()]
        self.assertCountEqual(kept, ["9", "10"])

    def test_metrics_and_speed_for_tensorboard(self):
        settings = dataclasses.replace(SETTINGS, tensorboard=True, checkpoint_every=NUM_STEPS)

        def run(stop_at: int = NUM_STEPS):
            with contextlib.suppress(Stopped):
                train(
                    self.functions, settings, self.folder, Data(),
                    evaluators=[lambda state: {"eval/sum": float(state.params["w"].sum())}],
                    should_stop=lambda step: step == stop_at,
                )  # fmt: skip

        run(stop_at=6)
        run()
        first, second = (events(path) for path in sorted((self.folder / "tensorboard").iterdir()))
        self.assertEqual(max(step for step, _, _ in first), 6)
        # The new file withdraws later steps of the old one.
        self.assertEqual(second[0], (7, "start", 1))
        recorded = [
            (record["step"], prefix + name, np.float32(value))
            for prefix, path in (("", "metrics.jsonl"), ("speed/", "speed.jsonl"))
            for record in read_metrics(self.folder / path)
            for name, value in record.items()
            if name != "step"
        ]
        shares = [one for one in first + second if one[1].startswith("goodput/")]
        self.assertEqual({step for step, _, _ in shares}, {2, 4, 6, 8, 10})
        found = {*first, *second} - {*shares}
        self.assertCountEqual([one for one in found if one[1] != "start"], recorded)

    def test_auxiliary_state_is_renewed_when_due_and_from_the_parameters(self):
        steps = []

        def train_step(objective, state, batch):
            copied_at = int(state.aux_state["copied_at"])
            steps.append((int(state.step), copied_at, objective.exact))
            if copied_at == state.step:
                np.testing.assert_array_equal(state.aux_state["copy"], state.params["w"])
            return self.functions.train_step(objective, state, batch)

        state = self.train(functions=dataclasses.replace(self.functions, train_step=train_step))
        # The last two steps are another phase, so step 9 refreshes nothing.
        expected = [(step, min(step - step % 3, 6), step >= 8) for step in range(10)]
        self.assertEqual(steps, expected)
        self.assertEqual((int(state.step), int(state.aux_state["copied_at"])), (10, 6))
        # The record of a refresh is that of the next step.
        self.assertEqual(self.steps_with("index/moved"), [1, 4, 7])
        moved = [r["index/moved"] for r in self.records() if "index/moved" in r]
        self.assertEqual(moved[0], 4)  # from -1, the initial copy, to 0
        self.assertAlmostEqual(sum(moved[1:]), -float(state.aux_state["copy"].sum()), places=5)

    def test_a_refresh_sees_parameters_that_are_up_to_date(self):
        by_rows = factories.optimizer_settings(embedding_update="rows")
        functions = factories.train_functions(ByRows(), by_rows)
        behind = []

        def refresh(names, state):
            self.assertEqual(names, ("copy",))
            behind.append(bool((state.opt_state.tables["w"].last_step < state.step).any()))
            state, report = functions.refresh(names, state)
            np.testing.assert_array_equal(state.opt_state.tables["w"].last_step, state.step)
            np.testing.assert_array_equal(state.aux_state["copy"], state.params["w"])
            return state, report

        self.train(functions=dataclasses.replace(functions, refresh=refresh))
        self.assertNotIn(["step"], [list(one) for one in self.records()])  # nothing to report
        # Before steps 4 and 6 an evaluation or a checkpoint has applied them.
        self.assertEqual(behind, [False, True, False, False])

    def test_parameters_are_up_to_date_where_others_read_them(self):
        applied, seen = [], []

        def apply_pending_updates(state):
            applied.append(int(state.step))
            state = self.functions.apply_pending_updates(state)
            return dataclasses.replace(state, key_data=state.key_data + np.uint32(1))

        functions = dataclasses.replace(
            self.functions, apply_pending_updates=apply_pending_updates,
            gathered=lambda params: {**params, "all of it": True},
        )  # fmt: skip
        evaluators = [
            lambda state: (state.params["all of it"] and seen.append(state.key_data[1])) or {}
        ]
        state = self.train(functions=functions, evaluators=evaluators)
        self.assertEqual(applied, [3, 4, 6, 8, 9, 10])  # checkpoints, evaluations
        self.assertEqual(seen, [2, 4, 6])
        self.assertEqual(state.key_data[1], 6)
        self.assertEqual(self.latest()[1].key_data[1], 6)

    def test_others_read_the_average_and_training_does_not(self):
        settings = factories.optimizer_settings(ema_decay=0.5, max_norm_ratio=9.0)
        functions = factories.train_functions(toy_functions().objective, settings)
        seen = []

        def evaluator(state):
            seen.append(np.asarray(state.params["w"]))
            return {}

        with self.assertRaises(Stopped):  # once more, since the average is part of a checkpoint
            self.train(functions=functions, should_stop=lambda step: step == 6)
        state = self.train(functions=functions, evaluators=[evaluator])
        self.assertEqual(len(seen), 2)
        np.testing.assert_allclose(state.params["w"], whole_run()[1].params["w"], rtol=1e-5)
        step, read = restore_latest_params(self.folder / "checkpoints", functions)
        self.assertEqual(step, NUM_STEPS)
        np.testing.assert_array_equal(read["w"], seen[-1])
        self.assertGreater(np.abs(read["w"] - state.params["w"]).min(), 0.001)
        # An uninterrupted run has the same state.
        whole = train(functions, SETTINGS, self.folder / "whole", Data())
        jax.tree.map(np.testing.assert_array_equal, state, whole)

    def test_a_run_starts_from_the_parameters_it_is_given(self):
        seen = []

        def train_step(objective, state, batch):
            seen.append(np.asarray(state.params["w"]))
            return self.functions.train_step(objective, state, batch)

        watched, given = dataclasses.replace(self.functions, train_step=train_step), np.arange(4.0)
        self.train(functions=watched, initial_params=lambda: {"w": given})
        np.testing.assert_array_equal(seen[0], given.astype(np.float32))
        self.train(initial_params=self.fail)  # a resumed run has parameters

    def test_a_finished_run_is_left_as_it_is(self):
        shutil.copytree(whole_run()[0], self.folder, dirs_exist_ok=True)
        files = {p: p.read_bytes() for p in self.folder.rglob("*") if p.is_file()}
        again = self.train(NAN_LOSS, NAN_LOSS)
        self.assert_is_whole_run(again)
        self.assertEqual(files, {p: p.read_bytes() for p in self.folder.rglob("*") if p.is_file()})


class RecordsTest(TestCase):
    def train_with(self, functions: TrainFunctions | None = None, **settings):
        settings = dataclasses.replace(SETTINGS, **{"checkpoint_every": NUM_STEPS, **settings})
        return train(functions or self.functions, settings, self.folder, TokenData())

    def test_of_steps_that_are_not_logged_only_what_is_checked_leaves_the_device(self):
        fetched = []

        def device_get(metrics):
            fetched.append(list(metrics))
            return jax.device_get(metrics)

        fetching = types.SimpleNamespace(device_get=device_get, process_index=jax.process_index)
        with mock.patch.object(progress, "jax", fetching):
            self.train_with(log_every=4)
        checked = [["loss", "grad_norm"]] * NUM_STEPS
        logged = [one for one in fetched if "learning_rate" in one]
        self.assertLen(logged, 2)
        self.assertCountEqual([x for x in fetched if x not in logged and x != ["moved"]], checked)

    def test_speed(self):
        before = time.monotonic()
        self.train_with(peak_flops=1e9)
        seconds = time.monotonic() - before
        records = read_metrics(self.folder / "speed.jsonl")
        self.assertEqual([record["step"] for record in records], [2, 4, 6, 8, 10])
        for record in records:
            rate = record["steps_per_second"]
            self.assertGreater(rate, 2 / seconds)
            self.assertAlmostEqual(record["tokens_per_second"], 3 * 7 * rate)
            # The toy has one matrix product, and two in exact steps.
            flops = 2 * (4 * 4 + 2 * 2) / 2 * 7 * (2 if record["step"] > 8 else 1)
            self.assertAlmostEqual(record["flop_utilization"] / rate, flops / 1e9)

    def test_speed_is_without_evaluations(self):
        now = [0.0]

        class Clocked(Data):
            def batches(self, steps: range):
                for batch in super().batches(steps):
                    now[0] += 1
                    yield batch

        def evaluator(state):
            now[0] += 100
            return {}

        clock = types.SimpleNamespace(monotonic=lambda: now[0])
        with mock.patch.object(progress, "time", clock):
            train(self.functions, SETTINGS, self.folder, Clocked(), [evaluator])
        records = read_metrics(self.folder / "speed.jsonl")
        self.assertNotIn("flop_utilization", records[0])  # without a peak
        found = [record["steps_per_second"] for record in records]
        # Step 2 is read one step late, the others before an evaluation or a save.
        np.testing.assert_allclose(found, [2 / 3, 2, 1, 1, 1])

    def test_a_profile_of_the_steps_asked_for(self):
        with (
            mock.patch.object(jax.profiler, "start_trace") as start,
            mock.patch.object(jax.profiler, "stop_trace") as stop,
        ):
            seen = []

            def train_step(*args):
                seen.append((start.call_count, stop.call_count))
                return self.functions.train_step(*args)

            functions = dataclasses.replace(self.functions, train_step=train_step)
            self.train_with(functions, profile_from=3, profile_steps=2)
        start.assert_called_once_with(self.folder / "profile")
        self.assertEqual(seen, [(0, 0)] * 3 + [(1, 0)] * 2 + [(1, 1)] * 5)

    def test_a_profile_has_the_names_of_programs(self):
        self.train_with(profile_steps=3)
        (path,) = (self.folder / "profile").rglob("*.xplane.pb")
        programs = re.findall(rb"jit_(\w+)\(", path.read_bytes())
        self.assertContainsSubset({b"train_step", b"refresh"}, programs)
