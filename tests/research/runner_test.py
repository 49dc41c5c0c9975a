"""The runner, with small programs as runs."""

import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import tempfile
import time
from unittest import mock

from absl.testing import absltest

from research import results, runner, study
from research.results import ROOT, Results
from research.study import Run, Step, Study
from tests.folders import FolderTest
from xlm.common import artifacts

# Writes a number to a new file, and a log of its work.
_WORK = """
import pathlib, sys, time
folder, value = pathlib.Path(sys.argv[1]), sys.argv[2]
folder.mkdir(parents=True, exist_ok=True)
with open(f"{sys.argv[5]}/began.txt", "a") as file:
    file.write(f"{sys.argv[3]}\\n")
if value == "bad":
    sys.exit("no such value")
time.sleep(float(sys.argv[4]))
(folder / "value.txt").write_text(value)
"""


def program(name: str, seed: int, value: str, needs=(), is_measured=True, seconds=0.0) -> Run:
    folder = f"WORKDIR/{name}/seed{seed}"
    words = ("-c", _WORK, folder, value, f"{name} {seed}", str(seconds), "WORKDIR")

    def measure(folder: pathlib.Path) -> dict[str, int]:
        return {"value": int((folder / "value.txt").read_text())}

    steps = (Step(words, has_config=False),)
    return Run(name, seed, steps, needs=needs, measure=measure if is_measured else None)


def runs(plan):
    """Encoders, one per task; other seeds use the best choice of the first."""
    for seed in plan.seeds:
        data = program("data/a", seed, "0", is_measured=False)
        encoder = program("runs/a", seed, "5", needs=(data,))
        yield encoder
        names = {value: f"tasks/{value}/a" for value in plan.chosen["values"]}
        best = plan.best(names, "value")
        for value in names if seed == plan.first_seed else [best] if best else []:
            yield program(names[value], seed, value, needs=(encoder,))


STUDY = Study(
    "Small programs", "configs/quickstart.py", runs, lambda plan: [],
    {"values": ("1", "3", "2")},
)  # fmt: skip


class RunnerTest(FolderTest):
    def setUp(self):
        super().setUp()
        self.enter_context(mock.patch.object(study, "find", lambda name: STUDY))

    def run_study(self, *arguments: str, workdir: pathlib.Path | None = None, **options) -> None:
        own = workdir or self.folder
        runner.run("study", arguments, data=own, workdir=own, pin=False, **options)

    def began(self) -> list[str]:
        return (self.folder / "began.txt").read_text().split("\n")[:-1]

    def values(self, workdir: pathlib.Path) -> dict[str, object]:
        """Values by run and seed, without their origin."""
        rows = results.read(workdir / results.RESULTS)
        return {f"{one.run} {one.seed}": one.value for one in rows}

    def test_needs_come_first_and_choices_wait(self):
        self.run_study("seeds=0,1")
        before = self.began()
        self.run_study("seeds=0,1")
        self.assertEqual(self.began(), before)  # a second call does nothing
        order = {name: place for place, name in enumerate(self.began())}
        self.assertLen(order, 8)
        self.assertNotIn("tasks/1/a 1", order)
        self.assertIn("tasks/3/a 1", order)
        for seed in (0, 1):
            self.assertLess(order[f"data/a {seed}"], order[f"runs/a {seed}"])
            self.assertLess(order[f"runs/a {seed}"], order[f"tasks/3/a {seed}"])
        self.assertGreater(order["tasks/3/a 1"], max(order[f"tasks/{v}/a 0"] for v in (1, 2, 3)))

    def test_resumed_equals_uninterrupted(self):
        self.run_study("seeds=0,1")
        other = pathlib.Path(self.enter_context(tempfile.TemporaryDirectory()))
        code = f"""
import sys
sys.path.insert(0, {str(ROOT)!r})
from unittest import mock
from tests.research import runner_test as own
from research import runner, study
with mock.patch.object(study, "find", lambda name: own.STUDY):
    path = own.pathlib.Path({str(other)!r})
    runner.run("study", ["seeds=0,1"], data=path, workdir=path, workers=1, pin=False)
"""
        process = subprocess.Popen([sys.executable, "-c", code], cwd=ROOT)
        while not (other / "runs/a/seed0" / results.MEASURED).exists():
            self.assertIsNone(process.poll())
            time.sleep(0.05)
        process.send_signal(signal.SIGKILL)
        process.wait()
        self.assertFalse((other / results.RESULTS).exists())
        self.run_study("seeds=0,1", workdir=other)
        self.assertEqual(self.values(other), self.values(self.folder))

    def test_a_failure_stops_what_needs_it_alone(self):
        with self.assertRaisesRegex(ValueError, "(?s)1 runs of study failed.*no such value"):
            self.run_study("seeds=0", "values=bad,2")
        self.assertIn("tasks/2/a 0", self.values(self.folder))
        self.assertNotIn("tasks/bad/a 0", self.values(self.folder))

    def test_recorded_runs_are_done_and_missing_needs_made(self):
        record = {"path": "runs/a/seed0/record.json", "commit": "", "time": ""}
        lines = [{**record, "content": {"value": 7}}]
        lines += [
            {**record, "path": f"tasks/{value}/a/seed0/results.json", "content": {"value": value}}
            for value in (1, 3)
        ]
        artifacts.write_text(
            self.folder / "records" / "study.jsonl", "".join(json.dumps(x) + "\n" for x in lines)
        )
        folder = self.folder / "records"
        self.enter_context(mock.patch.object(results, "RECORDS", folder))
        self.run_study("seeds=0", "values=1,3", with_records=True)
        self.assertFalse((self.folder / "began.txt").exists())
        self.run_study("seeds=0", with_records=True)
        self.assertEqual(self.began(), ["data/a 0", "runs/a 0", "tasks/2/a 0"])

    def test_another_config_is_refused(self):
        self.run_study("seeds=0")
        with self.assertRaisesRegex(ValueError, "train.num_steps: there 1200, now 30"):
            self.run_study("seeds=0", "config.train.num_steps=30")

    def test_sigterm_stops_what_runs(self):
        log, begin = self.folder / "log.txt", time.monotonic()
        code = f"import os, signal, time; os.kill({os.getpid()}, signal.SIGTERM); time.sleep(60)"
        with self.assertRaises(SystemExit) as caught:
            runner.execute([sys.executable, "-c", code], log)
        self.assertEqual(caught.exception.code, 75)
        self.assertLess(time.monotonic() - begin, 30)


class OptionsTest(absltest.TestCase):
    def test_what_is_unknown_is_refused(self):
        for arguments, message in (
            (["figures=alfa"], "figures: no alfa; there are languages, alpha"),
            (["grid=alpha"], "'grid=alpha' is not an option of xlm_r; give figures, runs"),
            (["config.train.num_step=3"], "configs/xlm_r.py:reference,DATA has no such key"),
            (["config.corpus.languages=de"], "only single values can be set"),
        ):
            with self.assertRaisesRegex(ValueError, re.compile(message, re.S)):
                study.plan("xlm_r", arguments, results=Results([]))
        with self.assertRaisesRegex(ValueError, "no study 'xlmr'; there are ablation"):
            study.plan("xlmr", [], results=Results([]))
