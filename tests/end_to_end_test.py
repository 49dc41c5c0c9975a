"""The whole job by its entry points: stopped, repeated, misused.

Also the commands of README.md in miniature. The first of them makes the run of all tests.

Processes run the script on the embedded corpus, killed, stopped and resumed runs, and one refused
command. Other commands run in this process.
"""

import functools
import pathlib
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
from unittest import mock

from absl import logging
from absl.testing import absltest, parameterized

from tests import commands, factories, processes, tiny_tasks
from xlm.experiment import model
from xlm.training.metrics import read_metrics
from xlm.training.signals import EXIT_STOPPED

ROOT = pathlib.Path(__file__).resolve().parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
CONFIG = (
    "--config=configs/quickstart.py:runlocal", "--config.train.num_steps=60",
    "--config.train.checkpoint_every=20", "--config.train.evaluate_every=30",
)  # fmt: skip
QUICKSTART = "bash scripts/quickstart.sh"
# Flags for small commands; the last of a repeated flag counts.
SMALL = {
    # The run of the other tests.
    QUICKSTART: (*CONFIG[0].split("=", 1), *CONFIG[1:], "--workdir", "runs/quickstart"),
    f"{QUICKSTART} --corpus FOLDER": (
        "--config", "configs/quickstart.py:runlocal", "--config.corpus.languages=('en','sw')",
        "--config.model.num_layers=0", "--config.output_layer.kind=full", "--workdir", "runs/own",
        "--config.vocab.target_size=600", "--config.vocab.sizes=(100,200,300,400,500)",
        "--config.vocab.compare=()", "--config.vocab.num_workers=1",
    ),
}  # fmt: skip
# Runs train.py and sends it a signal when it asks for the batch of step 50.
INTERRUPTED_TRAIN = """
import os, runpy, signal
from input_pipeline import dataset

whole = dataset.StreamedData.batches

def batches(data, steps):
    for step, batch in zip(steps, whole(data, steps)):
        if step == 50:
            os.kill(os.getpid(), signal.NUMBER)
        yield batch

dataset.StreamedData.batches = batches
runpy.run_path("train.py", run_name="__main__")
"""


@functools.cache
def scratch() -> pathlib.Path:
    """Folder of the commands of README.md, with text; removed after the tests."""
    folder = tiny_tasks.scratch() / "readme"
    (folder / "own").mkdir(parents=True)
    for name in ("en", "sw"):
        shutil.copy(ROOT / "corpus" / f"{name}.txt", folder / "own")
    return folder


@functools.cache
def execute(command: str) -> str:
    """Output of a command of README.md, run in miniature."""
    full = shlex.join([*shlex.split(command), *SMALL[command]])
    full = full.replace("FOLDER", str(scratch() / "own")).replace(" runs/", f" {scratch()}/runs/")
    if command == QUICKSTART:
        return execute_script(*shlex.split(full))
    # Commands of the script, in order; the other run starts it as processes.
    printed = execute_script(*shlex.split(full), python="echo")
    for stage in re.findall(r"^(\w+\.py --config=.*)$", printed, re.M):
        printed += execute_here(*stage.split(" "))
    return printed


def execute_here(script: str, *arguments: str) -> str:
    """Output of a command run in this process, on one device."""
    with tiny_tasks.quick(), mock.patch.object(model, "mesh", factories.one_device):
        return output(commands.execute(script.removesuffix(".py"), *arguments))


def execute_script(*command: str, python: str = sys.executable) -> str:
    """Output of a script; `python` is its interpreter."""
    # Otherwise the scripts would create an environment.
    environment = {**processes.environment(), "PYTHON": python}
    return output(
        subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    )


def output(done: subprocess.CompletedProcess[str]) -> str:
    if done.returncode:
        raise AssertionError(f"{done.args}\n{done.stdout}\n{done.stderr}")
    return done.stdout


def snapshot(folder: pathlib.Path) -> dict[pathlib.Path, tuple[int, bytes]]:
    """Time and content of each file."""
    files = (path for path in folder.rglob("*") if path.is_file())
    return {path: (path.stat().st_mtime_ns, path.read_bytes()) for path in files}


class EndToEndTest(parameterized.TestCase):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.printed = execute(QUICKSTART)
        cls.workdir = scratch() / "runs" / "quickstart"

    def run_python(self, *command: str, workdir: pathlib.Path) -> subprocess.CompletedProcess[str]:
        return processes.run_python(*command, *CONFIG, f"--workdir={workdir}", cwd=ROOT)

    def log_of(self, stage: str, workdir: pathlib.Path, *overrides: str) -> str:
        """Log of a successful command."""
        with self.assertLogs("absl", "INFO") as logs:
            logging.info("begun")  # a command may log nothing
            result = commands.execute(stage, *CONFIG, *overrides, f"--workdir={workdir}")
        self.assertEqual(result.returncode, 0, result.stderr)
        return "\n".join(logs.output)

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
        self.assertIn("3 languages, 600 pieces, 60 steps.", page)
        self.assertTrue((self.workdir / "report" / "loss.svg").exists())
        after = re.split(r"(?m)^\$ .*evaluate\.py .*$", self.printed)[1]
        printed = after.partition("\nTime taken")[0]
        loss = re.search(r"loss is (\S+) nats a token, (\S+ \w+) the unigram level of (\S+),", page)
        assert loss
        said = f"held-out loss: +{loss[1]} nats a token, {loss[2]} unigram's {loss[3]}\n"
        self.assertRegex(printed, rf"(?i){said}")
        self.assertRegex(printed.splitlines()[-1], f"^report: +{path.with_suffix('.html')}$")

    def test_a_vocabulary_without_rows_is_made_anew_from_the_cache(self):
        workdir = self.new_workdir("vocab")
        trained = snapshot(workdir / "vocab" / "cache" / "v2" / "vocabularies")
        for alpha, remade in (("0.1", True), ("0.1", False), ("0.7", True)):
            before = (workdir / "vocab" / "spm.model").read_bytes()
            log = self.log_of("build_vocab", workdir, f"--config.vocab.alpha={alpha}")
            self.assertEqual("is up to date" not in log, remade)
            model = (workdir / "vocab" / "spm.model").read_bytes()
            self.assertEqual(model != before, remade)
        self.assertEqual(model, (self.workdir / "vocab" / "spm.model").read_bytes())
        self.assertEqual(snapshot(workdir / "vocab" / "cache" / "v2" / "vocabularies"), trained)

    def interrupt(self, number: signal.Signals, workdir: pathlib.Path):
        program = INTERRUPTED_TRAIN.replace("NUMBER", number.name)
        return self.run_python("-c", program, workdir=workdir)

    def test_a_run_that_is_killed_and_then_stopped_goes_on_as_if_nothing_had_happened(self):
        workdir = self.new_workdir("vocab", "rows")
        killed = self.interrupt(signal.SIGKILL, workdir)
        self.assertEqual(killed.returncode, -signal.SIGKILL, killed.stderr)
        path = workdir / "train" / "metrics.jsonl"
        self.assertBetween(read_metrics(path)[-1]["step"], 41, 50)

        stopped = self.interrupt(signal.SIGTERM, workdir)
        # The kill interrupted the checkpoint of step 40.
        self.assertRegex(stopped.stderr, "resumed after step (20|40)\n")
        self.assertEqual(stopped.returncode, EXIT_STOPPED, stopped.stderr)
        self.assertNotIn("Traceback", stopped.stderr)
        # The signal came between two steps, and it took one more.
        self.assertIn("stopped after step 51 and saved", stopped.stderr)
        self.assertFalse((workdir / "train" / "DONE").exists())

        resumed = self.run_python("train.py", workdir=workdir)
        self.assertEqual(resumed.returncode, 0, resumed.stderr)
        self.assertIn("resumed after step 51\n", resumed.stderr)
        uninterrupted = self.workdir / "train" / "metrics.jsonl"
        self.assertEqual(path.read_bytes(), uninterrupted.read_bytes())


class ReadmeTest(absltest.TestCase):
    def test_the_commands_do_what_is_said_of_them(self):
        blocks = re.findall(r"```bash\n(.*?)```", README, re.DOTALL)
        lines = [line.partition(" #")[0].strip() for line in "".join(blocks).splitlines()]
        self.assertEqual(lines, [QUICKSTART, "bash scripts/test.sh"])
        for command, name in zip(SMALL, ("runs/quickstart", "runs/own"), strict=True):
            self.assertIn(f"`{command}`" if "FOLDER" in command else command, README)
            stages = re.findall(r"^\$ \S+ (\w+)\.py ", execute(command), re.M)
            self.assertEqual(stages, ["build_vocab", "prepare_data", "train", "evaluate"])
            self.assertTrue((scratch() / name / "report" / "report.html").exists())
        self.assertIn("`runs/quickstart/report/report.html`", README)
