"""Jobs one after the other on this machine: order, failures, stops."""

import os
import signal
import threading

from absl.testing import absltest, parameterized

from xlm.launch import jobs, local

FOUND = jobs.expand(
    jobs.Job("run", "configs/finetune/xnli.py:D", "/runs/a", ("finetune",)),
    {"train.seed": ("0", "1", "2")},
)


class LocalTest(parameterized.TestCase):
    def setUp(self):
        super().setUp()
        self.started: list[str] = []

    def run_with(self, *statuses: int, keep_going: bool = False, found=FOUND) -> None:
        left = iter(statuses)

        def execute(command: str) -> int:
            self.started.append(command)
            return next(left)

        local.run(found, "py", execute, keep_going=keep_going)

    def test_all_jobs_in_order(self):
        self.run_with(0, 0, 0)
        self.assertEqual(self.started, [job.command("finetune", "py") for job in FOUND])

    def test_rows_are_linked_before_a_stage_that_needs_them(self):
        job = jobs.Job("run", "configs/quickstart.py", "/runs/a", ("train", "evaluate"))
        self.run_with(*[0] * 4, found=jobs.expand(job, {"train.seed": ("1",)}))
        self.assertEqual(
            [command.split()[:2] for command in self.started],
            [["mkdir", "-p"], ["ln", "-sf"], ["py", "train.py"], ["py", "evaluate.py"]],
        )

    def test_a_failure_ends_it(self):
        with self.assertRaisesRegex(ValueError, r"train.seed=1 \(status 1\); see above"):
            self.run_with(0, 1)
        self.assertLen(self.started, 2)

    def test_a_failure_is_told_at_the_end(self):
        with self.assertRaisesRegex(ValueError, r"train.seed=0 \(status 1\); see above"):
            self.run_with(1, 0, 0, keep_going=True)
        self.assertLen(self.started, 3)

    def test_a_job_that_was_stopped_stops_all(self):
        with self.assertRaises(SystemExit) as stopped:
            self.run_with(0, jobs.EXIT_STOPPED, keep_going=True)
        self.assertEqual(stopped.exception.code, jobs.EXIT_STOPPED)
        self.assertLen(self.started, 2)

    def test_commands_are_those_of_a_shell(self):
        self.assertEqual(local._execute("bash -c 'exit 3'"), 3)
        self.assertEqual(local._execute("test -f finetune.py"), 0)  # in the repository

    @parameterized.parameters(
        ("sleep 60", signal.SIGTERM, 128 + signal.SIGTERM),
        ("bash -c 'trap \"exit 75\" TERM; sleep 60 & wait'", signal.SIGTERM, jobs.EXIT_STOPPED),
        # Ctrl-C goes to all processes of a terminal, so this command does not get it.
        ("sleep 1", signal.SIGINT, 128 + signal.SIGINT),
    )
    def test_a_stop_is_no_failure(self, command, number, status):
        before = [signal.getsignal(one) for one in (signal.SIGTERM, signal.SIGINT)]
        threading.Timer(0.5, os.kill, (os.getpid(), number)).start()
        started = []

        def execute(stage: str) -> int:
            started.append(stage)
            return local._execute(command)

        with self.assertRaises(SystemExit) as stopped:
            local.run(FOUND, "py", execute, keep_going=True)
        self.assertEqual(stopped.exception.code, status)
        self.assertLen(started, 1)
        after = [signal.getsignal(one) for one in (signal.SIGTERM, signal.SIGINT)]
        self.assertEqual(after, before)


if __name__ == "__main__":
    absltest.main()
