"""Jobs one after the other: commands, order, failures, stops."""

import contextlib
import os
import shlex
import signal
import threading

from absl.testing import parameterized

from tests.malformed import harness
from xlm.launch import jobs, start
from xlm.training import signals

JOB = jobs.Job("run", "configs/base.py", "/runs/a b%", ("train", "evaluate"), {"k": "it's $(x)"})
FLAGS = ["--config=configs/base.py", "--workdir=/runs/a b%", "--config.k=it's $(x)"]
TWO = {"/runs/a": [["a1"], ["a2"]], "/runs/b": [["b1"]], "/runs/c": [["c1"]]}


class CommandsTest(parameterized.TestCase):
    def commands(self, where: str, job: jobs.Job = JOB, *options: str) -> list[list[str]]:
        return start.commands(job, where, "x.sh", python="py", name="all", options=options)

    def test_the_status_of_a_stopped_run_is_that_of_training(self):
        self.assertEqual(start.EXIT_STOPPED, signals.EXIT_STOPPED)

    def test_every_value_is_an_argument_as_it_was_given(self):
        here = [["py", "train.py", *FLAGS], ["py", "evaluate.py", *FLAGS]]
        self.assertEqual(self.commands("local"), here)
        output = "--output=/runs/a b%%/run-%j.out"
        submit = ["env", "PYTHON=py", "sbatch", "--job-name=run", output, "--comment=a b"]
        self.assertEqual(
            self.commands("slurm", JOB, "--comment=a b"),
            [["mkdir", "-p", "/runs/a b%"], [*submit, "x.sh", "train,evaluate", *FLAGS]],
        )
        self.assertEqual(
            self.commands("tpu_pod"),
            [["env", "NAME=all", "bash", "x.sh", "train,evaluate", *FLAGS]],
        )

    def test_a_job_in_a_bucket_needs_no_folder_here(self):
        job = jobs.Job("run", "configs/base.py", "s3://b/a", ("train",))
        flags = ["--config=configs/base.py", "--workdir=s3://b/a"]
        self.assertEqual(self.commands("local", job), [["py", "train.py", *flags]])
        submit = ["env", "PYTHON=py", "sbatch", "--job-name=run", "--output=run-%j.out"]
        self.assertEqual(self.commands("slurm", job), [[*submit, "x.sh", "train", *flags]])

    def test_a_job_of_a_sweep_finds_its_rows(self):
        (swept,) = jobs.expand(JOB, {"train.seed": ("1",)})
        folder = "/runs/a b%/sweep/train.seed=1"
        link = [
            ["mkdir", "-p", folder],
            ["ln", "-sf", "/runs/a b%/vocab", "/runs/a b%/rows", f"{folder}/"],
        ]
        for where in ("local", "slurm"):
            self.assertEqual(self.commands(where, swept)[:2], link)
        ((*call,),) = self.commands("tpu_pod", swept)
        self.assertEqual(call[2:4], [f"WORKDIR={folder}", "SHARED=/runs/a b%"])

    def test_a_dry_run_prints_the_commands(self):
        given = ["--config=configs/quickstart.py", "--workdir=/runs/a", "--seeds=2", "--dry_run"]
        done = harness.run("xlm.launch.start", [*given, "--on=slurm", "--", "--nodes=4"])
        self.assertEqual(done.status, 0, done.errors)
        lines = [shlex.split(line) for line in done.output.splitlines()]
        self.assertEqual([line[0] for line in lines], ["mkdir", "ln", "env"] * 2)
        self.assertEqual(lines[5][5], "--nodes=4")
        self.assertEqual(lines[5][6], str(jobs.ROOT / "xlm/launch/slurm.sh"))
        done = harness.run("xlm.launch.start", [*given, "--", "--nodes=4"])
        self.assertIn("'--nodes=4' is for sbatch", done.errors)


class RunTest(parameterized.TestCase):
    @parameterized.parameters(
        ((0, 0, 0, 0), "a1 a2 b1 c1", False, ""),
        ((0, 0, 1), "a1 a2 b1", False, r"failed: /runs/b \(status 1\); see above"),
        ((1, 0, 4), "a1 b1 c1", True, r"/runs/a \(status 1\), /runs/c \(status 4\); see"),
    )
    def test_jobs_follow_each_other_and_failures_are_told(self, statuses, names, go_on, message):
        left, started = iter(statuses), []

        def execute(command: list[str]) -> int:
            started.append(command[0])
            return next(left)

        told = self.assertRaisesRegex(ValueError, message) if message else contextlib.nullcontext()
        with told:
            start.run(TWO, execute, keep_going=go_on)
        self.assertEqual(started, names.split())

    def test_commands_run_in_the_repository(self):
        self.assertEqual(start._execute(["bash", "-c", "exit 3"]), 3)
        self.assertEqual(start._execute(["test", "-f", "finetune.py"]), 0)

    @parameterized.parameters(
        ("exec sleep 60", signal.SIGTERM, 128 + signal.SIGTERM),
        ('trap "exit 75" TERM; sleep 60 & wait', signal.SIGTERM, start.EXIT_STOPPED),
        # Ctrl-C goes to all processes of a terminal, so this command does not get it.
        ("sleep 1", signal.SIGINT, 128 + signal.SIGINT),
    )
    def test_a_stop_is_no_failure(self, command, number, status):
        before = [signal.getsignal(one) for one in (signal.SIGTERM, signal.SIGINT)]
        threading.Timer(0.5, os.kill, (os.getpid(), number)).start()
        started = []

        def execute(stage: list[str]) -> int:
            started.append(stage)
            return start._execute(["bash", "-c", command])

        with self.assertRaises(SystemExit) as stopped:
            start.run(TWO, execute, keep_going=True)
        self.assertEqual(stopped.exception.code, status)
        self.assertLen(started, 1)
        after = [signal.getsignal(one) for one in (signal.SIGTERM, signal.SIGINT)]
        self.assertEqual(after, before)
