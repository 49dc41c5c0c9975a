"""The loop with a toy objective: intervals, refreshes, schedules, and what a run records."""

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
from absl.testing import absltest, parameterized

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
from xlm.training.checkpoint import Checkpoints
from xlm.training.loop import train
from xlm.training.metrics import read_metrics
from xlm.training.signals import Stopped
from xlm.training.step import TrainFunctions


class ByRows(Objective):
    """Learns in each step one row of w, which is a table; keeps a copy of w."""

    tables = ("w",)

    def init(self, key):
        return {"w": jnp.zeros((4, 1))}

    def init_extra(self):
        return {"copy": jnp.zeros((4, 1))}

    def due(self, step):
        return ("copy",) if step % 2 == 0 and step < 8 else ()

    def refresh(self, params, extra, names, step):
        return {"copy": params["w"]}, {}

    def plan(self, extra, batch, key, step):
        return batch["x"], {"w": jax.random.randint(key, (1,), 0, 4)}

    def loss(self, params, rows, plan, key):
        losses = jnp.sqrt(plan * (rows["w"].sum() + 100))
        return {"loss": (losses.sum(), jnp.float32(4))}, None


class Root(Objective):
    """Learns one number, in one phase and without anything else to learn."""

    def init(self, key):
        return {"w": jnp.zeros(())}

    def loss(self, params, rows, plan, key):
        return {"loss": (jnp.sqrt(plan["x"] * (params["w"] + 100)).sum(), 4.0)}, None


class TokenData(Data):
    """Two shapes in turn."""

    def batches(self, steps: range) -> Iterator[tuple[str, dict[str, np.ndarray]]]:
        for step in steps:
            yield "tokens", {"tokens": np.ones((2 if step % 2 else 4, 7), np.int32)}


def events(path: pathlib.Path) -> list[tuple[int, str, np.float32]]:
    """Step, name and value of each scalar of an event file, read by TensorFlow; and its start."""
    import tensorflow as tf

    found = []
    for record in tf.data.TFRecordDataset(str(path)).as_numpy_iterator():
        event = tf.compat.v1.Event.FromString(record)
        found += [(event.step, v.tag, np.float32(v.simple_value)) for v in event.summary.value]
        if event.session_log.status == event.session_log.START and event.step:
            found.append((event.step, "start", np.float32(1)))
    return found


def tearDownModule():
    toy_functions.cache_clear()  # or its programs would stay loaded


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
        # What the older file says of later steps is taken back.
        self.assertEqual(second[0], (7, "start", 1))
        recorded = [
            (record["step"], prefix + name, np.float32(value))
            for prefix, path in (("", "metrics.jsonl"), ("speed/", "speed.jsonl"))
            for record in read_metrics(self.folder / path)
            for name, value in record.items()
            if name != "step"
        ]
        self.assertCountEqual([one for one in first + second if one[1] != "start"], recorded)

    def test_extra_state_is_renewed_when_due_and_from_the_parameters(self):
        steps = []

        def train_step(objective, state, batch):
            copied_at = int(state.extra["copied_at"])
            steps.append((int(state.step), copied_at, objective.exact))
            if copied_at == state.step:
                np.testing.assert_array_equal(state.extra["copy"], state.params["w"])
            return self.functions.train_step(objective, state, batch)

        state = self.train(functions=dataclasses.replace(self.functions, train_step=train_step))
        # The last two steps are another phase, so step 9 renews nothing.
        expected = [(step, min(step - step % 3, 6), step >= 8) for step in range(10)]
        self.assertEqual(steps, expected)
        self.assertEqual((int(state.step), int(state.extra["copied_at"])), (10, 6))

    def test_refreshes_are_recorded_with_the_step_that_follows(self):
        state = self.train()
        self.assertEqual(self.steps_with("index/moved"), [1, 4, 7])
        moved = [r["index/moved"] for r in self.records() if "index/moved" in r]
        self.assertEqual(moved[0], 4)  # from -1 to 0, for the copy begins elsewhere
        with Checkpoints(self.folder / "checkpoints", keep=2) as checkpoints:
            last = checkpoints.restore(9, self.functions.abstract_state)
        self.assertAlmostEqual(sum(moved[1:]), -float(last.extra["copy"].sum()), places=5)
        np.testing.assert_array_equal(state.extra["copy"], last.extra["copy"])

    def test_a_refresh_sees_parameters_that_are_up_to_date(self):
        by_rows = factories.optimizer_settings(embedding_update="rows")
        functions = factories.train_functions(ByRows(), by_rows)
        behind = []

        def refresh(names, state):
            self.assertEqual(names, ("copy",))
            behind.append(bool((state.opt_state.tables["w"].last_step < state.step).any()))
            state, report = functions.refresh(names, state)
            np.testing.assert_array_equal(state.opt_state.tables["w"].last_step, state.step)
            np.testing.assert_array_equal(state.extra["copy"], state.params["w"])
            return state, report

        self.train(functions=dataclasses.replace(functions, refresh=refresh))
        self.assertNotIn(["step"], [list(one) for one in self.records()])  # nothing to report
        # Before steps 4 and 6 an evaluation or a checkpoint has seen to it.
        self.assertEqual(behind, [False, True, False, False])

    def test_parameters_are_up_to_date_where_others_read_them(self):
        applied = []

        def apply_pending_updates(state):
            applied.append(int(state.step))
            state = self.functions.apply_pending_updates(state)
            return dataclasses.replace(state, key_data=state.key_data + np.uint32(1))

        seen = []
        state = self.train(
            functions=dataclasses.replace(
                self.functions, apply_pending_updates=apply_pending_updates
            ),
            evaluators=[lambda state: seen.append(state.key_data[1]) or {}],
        )
        self.assertEqual(applied, [3, 4, 6, 8, 9, 10])  # checkpoints, evaluations
        self.assertEqual(seen, [2, 4, 6])
        self.assertEqual(state.key_data[1], 6)
        self.assertEqual(self.latest()[1].key_data[1], 6)

    def test_values_of_the_data_that_depend_on_the_step_are_recorded_with_it(self):
        records = read_metrics(whole_run()[0] / "metrics.jsonl")
        found = {r["step"]: r["train/values_of"] for r in records if "train/loss" in r}
        self.assertEqual(found, {step: step - 1 for step in (2, 4, 6, 8, 10)})

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

    def test_parameters_are_told_at_the_start(self):
        with self.assertLogs(level="INFO") as logs:
            self.train()
        self.assertRegex("\n".join(logs.output), r"parameter +shape .*\nw +\[4\] +float32 ")


class ScheduleTest(TestCase):
    @parameterized.parameters(
        ({}, np.linspace(1, 0, 10)),
        ({"decay_power": 2.0}, np.linspace(1, 0, 10) ** 2),
        ({"schedule": "cosine"}, (1 + np.cos(np.pi * np.linspace(0, 1, 10))) / 2),
        ({"schedule": "wsd", "decay_fraction": 0.4}, [1] * 6 + [0.75, 0.5, 0.25, 0]),
        ({"final_rate_ratio": 0.5}, np.linspace(1, 0.5, 10)),
        ({"warmup_steps": 4}, [0.25, 0.5, 0.75, *np.linspace(1, 0, 7)]),
    )
    def test_the_metrics_tell_the_rate(self, changes, expected):
        functions = factories.train_functions(Root(), factories.optimizer_settings(**changes))
        settings = dataclasses.replace(SETTINGS, log_every=1, checkpoint_every=NUM_STEPS)
        train(functions, settings, self.folder, Data())
        found = [r["train/learning_rate"] for r in self.records() if "train/learning_rate" in r]
        self.assertLen(found, NUM_STEPS)
        np.testing.assert_allclose(found, 0.1 * np.array(expected), rtol=1e-5, atol=1e-8)


if __name__ == "__main__":
    absltest.main()
