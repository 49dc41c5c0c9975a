"""The whole job by its entry points, each in a process of its own: stopped, repeated, misused."""

import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile

from absl.testing import absltest, parameterized

from tests import processes
from training.metrics import read_metrics
from training.signals import EXIT_STOPPED

ROOT = pathlib.Path(__file__).resolve().parent.parent
STAGES = ("build_vocab", "prepare_data", "train", "evaluate")
CONFIG = (
    "--config=configs/quickstart.py:runlocal",
    "--config.train.num_steps=60",
    "--config.train.checkpoint_every=20",
    "--config.train.evaluate_every=30",
)
# Runs train.py and sends it a signal where it asks for the batch of step 50.
INTERRUPTED_TRAIN = """
import os, runpy, signal
from input_pipeline import dataset

whole = dataset.batches

def batches(stream, steps, **kwargs):
    for step, batch in zip(steps, whole(stream, steps, **kwargs)):
        if step == 50:
            os.kill(os.getpid(), signal.NUMBER)
        yield batch

dataset.batches = batches
runpy.run_path("train.py", run_name="__main__")
"""


def snapshot(folder: pathlib.Path) -> dict[pathlib.Path, tuple[int, bytes]]:
    """When each file was written, and what is in it."""
    files = (path for path in folder.rglob("*") if path.is_file())
    return {path: (path.stat().st_mtime_ns, path.read_bytes()) for path in files}


class EndToEndTest(parameterized.TestCase):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        temporary = pathlib.Path(cls.enterClassContext(tempfile.TemporaryDirectory()))
        cls.workdir = temporary / "work"
        case = cls()
        cls.finished = {stage: case.succeed(f"{stage}.py", cls.workdir) for stage in STAGES}

    def run_python(
        self, *command: str, workdir: pathlib.Path, overrides: tuple[str, ...] = ()
    ) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, *command, *CONFIG, *overrides, f"--workdir={workdir}"],
            cwd=ROOT,
            env=processes.environment(),
            capture_output=True,
            text=True,
        )

    def succeed(self, script: str, workdir: pathlib.Path) -> subprocess.CompletedProcess[str]:
        result = self.run_python(script, workdir=workdir)
        self.assertEqual(result.returncode, 0, result.stderr)
        return result

    def assert_refused(self, error: str, stage: str, workdir: pathlib.Path, *overrides: str):
        """The stage must fail with a plain message at the end, and leave all files as they are."""
        before = snapshot(workdir)
        result = self.run_python(f"{stage}.py", workdir=workdir, overrides=overrides)
        self.assertEqual(result.returncode, 1, result.stderr)
        self.assertNotIn("Traceback", result.stderr)
        self.assertRegex(result.stderr, rf"(\A|\n)error \([^\n]*{error}[^\n]*\n\Z")
        self.assertEqual(snapshot(workdir), before)

    def new_workdir(self, *copied: str) -> pathlib.Path:
        """A folder with the results of some stages."""
        workdir = pathlib.Path(self.enter_context(tempfile.TemporaryDirectory()))
        for name in copied:
            shutil.copytree(self.workdir / name, workdir / name)
        return workdir

    def test_the_report_is_there(self):
        path = self.workdir / "report" / "report.md"
        page = path.read_text(encoding="utf-8")
        for language in ("en", "ka", "sw"):
            self.assertRegex(page, rf"(?m)^\| {language} \| [0-9]")
            self.assertRegex(page, rf"(?m)^\| {language} \| [^|]*\[____\].* % \| [0-9]+ \|$")
        self.assertIn("3 languages, 600 pieces, 60 steps.", page)
        self.assertTrue((self.workdir / "report" / "loss.png").exists())
        printed = self.finished["evaluate"].stdout
        self.assertIn(page, printed)
        self.assertEqual(printed.splitlines()[-1], f"report: {path}")

    @parameterized.parameters("build_vocab", "prepare_data")
    def test_a_finished_stage_does_nothing(self, stage):
        before = snapshot(self.workdir)
        result = self.succeed(f"{stage}.py", self.workdir)
        self.assertIn("is up to date", result.stderr)
        self.assertEqual(snapshot(self.workdir), before)

    @parameterized.parameters(
        ("build_vocab", "vocab.alpha", "0.5"),
        ("prepare_data", "store.length", "64"),
        ("train", "train.seed", "1"),
        ("evaluate", "model.num_heads", "4"),
    )
    def test_another_config_is_refused(self, stage, key, value):
        error = rf"was made under another config:\n *{key}: there \S+, now {value}\n"
        self.assert_refused(error, stage, self.workdir, f"--config.{key}={value}")

    def test_a_vocabulary_without_rows_is_made_anew_from_the_cache(self):
        workdir = self.new_workdir("vocab")
        trained = snapshot(workdir / "vocab" / "cache" / "v1" / "vocabularies")
        for alpha, remade in (("0.1", True), ("0.1", False), ("0.7", True)):
            before = (workdir / "vocab" / "spm.model").read_bytes()
            result = self.run_python(
                "build_vocab.py", workdir=workdir, overrides=(f"--config.vocab.alpha={alpha}",)
            )
            self.assertEqual(result.returncode, 0, result.stderr)
            self.assertEqual("is up to date" not in result.stderr, remade)
            model = (workdir / "vocab" / "spm.model").read_bytes()
            self.assertEqual(model != before, remade)
        self.assertEqual(model, (self.workdir / "vocab" / "spm.model").read_bytes())
        self.assertEqual(snapshot(workdir / "vocab" / "cache" / "v1" / "vocabularies"), trained)

    def test_stages_out_of_order(self):
        empty = self.new_workdir()
        self.assert_refused("run build_vocab.py", "prepare_data", empty)
        self.assert_refused("run prepare_data.py", "train", empty)
        self.assert_refused("run train.py", "evaluate", self.new_workdir("vocab", "rows"))

    def test_another_tokenizer_is_refused(self):
        workdir = self.new_workdir("vocab", "rows")
        with open(workdir / "vocab" / "spm.model", "ab") as file:
            file.write(b"\0")
        self.assert_refused("made with tokenizer .* run prepare_data.py again", "train", workdir)

    def interrupt(
        self, number: signal.Signals, workdir: pathlib.Path
    ) -> subprocess.CompletedProcess[str]:
        program = INTERRUPTED_TRAIN.replace("NUMBER", number.name)
        return self.run_python("-c", program, workdir=workdir)

    def test_a_run_that_is_asked_to_stop_saves_and_goes_on(self):
        workdir = self.new_workdir("vocab", "rows")
        stopped = self.interrupt(signal.SIGTERM, workdir)
        self.assertEqual(stopped.returncode, EXIT_STOPPED, stopped.stderr)
        self.assertNotIn("Traceback", stopped.stderr)
        # It was told between two steps, and took one more.
        self.assertIn("stopped after step 51 and saved", stopped.stderr)
        self.assertFalse((workdir / "train" / "DONE").exists())

        resumed = self.succeed("train.py", workdir)
        self.assertIn("resumed after step 51\n", resumed.stderr)
        uninterrupted = self.workdir / "train" / "metrics.jsonl"
        path = workdir / "train" / "metrics.jsonl"
        self.assertEqual(path.read_bytes(), uninterrupted.read_bytes())

    def test_a_killed_run_goes_on_as_if_nothing_had_happened(self):
        workdir = self.new_workdir("vocab", "rows")
        killed = self.interrupt(signal.SIGKILL, workdir)
        self.assertEqual(killed.returncode, -signal.SIGKILL, killed.stderr)
        path = workdir / "train" / "metrics.jsonl"
        self.assertBetween(read_metrics(path)[-1]["step"], 41, 50)

        resumed = self.succeed("train.py", workdir)
        # The checkpoint of step 40 was being written when the run was killed.
        self.assertRegex(resumed.stderr, "resumed after step (20|40)\n")
        uninterrupted = self.workdir / "train" / "metrics.jsonl"
        self.assertEqual(path.read_bytes(), uninterrupted.read_bytes())


if __name__ == "__main__":
    absltest.main()
