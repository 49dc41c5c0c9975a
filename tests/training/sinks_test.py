"""Metrics on disk after kills and resumes, in files of other packages, and failing sinks."""

import contextlib
import dataclasses
import json
import math
import os
import threading
from unittest import mock

import pytest
from absl.testing import parameterized

from tests import folders
from tests.training import toy_runs
from xlm.training import sinks
from xlm.training.loop import train
from xlm.training.metrics import MetricsWriter, read_metrics
from xlm.training.signals import Stopped

CONFIG = {"data": {"alpha": 0.7}, "train": {"num_steps": 10}, "": {f"k{i}": i for i in range(150)}}


def tearDownModule():
    toy_runs.toy_functions.cache_clear()


class SinksTest(toy_runs.TestCase):
    def setUp(self):
        super().setUp()
        self.enter_context(mock.patch.object(sinks, "_LAST_SECONDS", 600))  # on a busy machine

    def train_twice(self, kind: str) -> list[tuple[str, float, float]]:
        """Stop a run after step 5 and resume it; return name, step and value of its metrics."""
        (self.folder / "settings.json").write_text(json.dumps(CONFIG))
        settings = dataclasses.replace(toy_runs.SETTINGS, **{kind: True})
        for stop in (5, None):
            with contextlib.suppress(Stopped):
                train(
                    self.functions, settings, self.folder, toy_runs.Data(),
                    should_stop=lambda step, stop=stop: step == stop,
                )  # fmt: skip
        return [
            (name, record["step"], value)
            for record in read_metrics(self.folder / "metrics.jsonl")
            for name, value in record.items()
            if name != "step"
        ]

    def test_mlflow_has_one_run_of_all_starts(self):
        mlflow = pytest.importorskip("mlflow")
        uri = f"file://{self.folder}/mlruns"
        environment = {"MLFLOW_TRACKING_URI": uri, "MLFLOW_ALLOW_FILE_STORE": "true"}
        with mock.patch.dict(os.environ, environment):
            expected = self.train_twice("mlflow")
            client = mlflow.MlflowClient(uri)
            (run,) = client.search_runs(["0"])
            found = [
                (name, one.step, one.value)
                for name in run.data.metrics
                if name.startswith(("train/", "index/"))
                for one in client.get_metric_history(run.info.run_id, name)
            ]
        self.assertCountEqual(found, expected)
        self.assertEqual(run.data.params["data.alpha"], "0.7")
        self.assertLen(run.data.params, 152)
        self.assertContainsSubset({"goodput/steps", "speed/steps_per_second"}, run.data.metrics)

    def test_wandb_has_one_run_of_all_starts(self):
        pytest.importorskip("wandb")
        with mock.patch.dict(os.environ, {"WANDB_MODE": "offline", "WANDB_SILENT": "true"}):
            expected = self.train_twice("wandb")
        paths = sorted(self.folder.glob("wandb/offline-run-*/*.wandb"))
        self.assertLen(paths, 2)
        self.assertLen({path.name for path in paths}, 1)  # run-ID.wandb
        for name, step, value in expected:
            content = paths[step > 5].read_bytes()
            self.assertIn(name.encode(), content)
            self.assertIn(repr(value).removesuffix(".0").encode(), content)

    def test_a_sink_that_fails_warns_once_and_ends_no_run(self):
        def write(values, step):
            if step > 2:
                raise ConnectionError("no route")

        opened = mock.Mock(side_effect=lambda *_: contextlib.nullcontext(write))
        broken = mock.patch.dict(sinks.SINKS, tensorboard=opened)
        with broken, self.assertLogs(level="WARNING") as logs:
            self.train_twice("tensorboard")
        found = [line for line in logs.output if "keep its metrics" in line]
        self.assertLen(found, opened.call_count)  # one per start
        self.assertIn("tensorboard failed (ConnectionError: no route)", found[0])

    def test_a_sink_that_hangs_holds_up_no_run(self):
        ends = threading.Event()
        self.addCleanup(ends.set)
        never = mock.patch.dict(sinks.SINKS, tensorboard=lambda *_: ends.wait())
        with never, mock.patch.object(sinks, "_LAST_SECONDS", 0.01):
            self.train_twice("tensorboard")

    def test_a_missing_package_is_named_with_its_extra(self):
        with mock.patch.dict("sys.modules", wandb=None), self.assertLogs(level="WARNING") as logs:
            sinks.Sink("wandb", self.folder, 0).close()
        self.assertIn("pip install '.[wandb]'", logs.output[0])


class MetricsTest(folders.FolderTest):
    def setUp(self):
        super().setUp()
        self.path = self.folder / "train" / "metrics.jsonl"

    def write_steps(self, steps: range, resume_step: int = 0) -> None:
        writer = MetricsWriter(self.path, resume_step)
        for step in steps:
            writer.write(step, {"loss": 1 / step})
            writer.write(step, {"eval": step * 0.1})

    def test_each_record_is_on_disk_at_once(self):
        self.assertEmpty(read_metrics(self.path))
        writer = MetricsWriter(self.path)
        self.assertEmpty(read_metrics(self.path))
        writer.write(1, {"loss": 0.5, "none": math.nan, "much": math.inf})
        self.assertEqual(self.path.read_text(), '{"step": 1, "loss": 0.5}\n')
        writer.write(1, {"eval": 0.1})
        records = [{"step": 1, "loss": 0.5}, {"step": 1, "eval": 0.1}]
        self.assertEqual(read_metrics(self.path), records)

    def test_a_resumed_run_writes_the_same_bytes(self):
        self.write_steps(range(1, 11))
        uninterrupted = self.path.read_bytes()
        for resume_step in (9, 4, 0):
            self.write_steps(range(resume_step + 1, 11), resume_step)
            self.assertEqual(self.path.read_bytes(), uninterrupted)
        MetricsWriter(self.path)  # another run starts without any
        self.assertEqual(self.path.read_bytes(), b"")

    def test_a_line_that_was_cut_off_is_left_out(self):
        self.write_steps(range(1, 4))
        whole = self.path.read_bytes()
        lines = whole.splitlines(keepends=True)
        for cut in range(len(lines[-1])):
            self.path.write_bytes(b"".join(lines[:-1]) + lines[-1][:cut])
            self.assertLen(read_metrics(self.path), len(lines) - 1)
        self.write_steps(range(3, 4), resume_step=2)
        self.assertEqual(self.path.read_bytes(), whole)

    def test_not_finite_numbers_of_earlier_releases_are_left_out(self):
        self.path.parent.mkdir()
        self.path.write_text('{"step": 1, "none": NaN, "much": Infinity, "loss": 2}\n')
        self.assertEqual(read_metrics(self.path), [{"step": 1, "loss": 2}])

    @parameterized.parameters(
        (b"{\n", "not JSON"), (b"\xff\n", "not JSON"), (b'{"loss": 1}\n', "step must be a whole"),
        (b'{"step": "1"}\n', "step is"), (b'{"step": 2, "loss": [1]}\n', "loss is"),
        (b"5\n", "is 5"), (b'{"step": 0.5}\n', "step must be a whole"),
    )  # fmt: skip
    def test_a_damaged_line_is_named(self, line, error):
        self.write_steps(range(1, 3))
        content = self.path.read_bytes()
        self.path.write_bytes(content + line + content)
        error = rf"metrics.jsonl, line 5: .*{error}.*; move the file away"
        with self.assertRaisesRegex(ValueError, error):
            MetricsWriter(self.path, resume_step=1)
        self.assertEqual(self.path.read_bytes(), content + line + content)
