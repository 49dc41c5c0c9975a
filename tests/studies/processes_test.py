"""A study that is asked to stop, with real processes and signals."""

import os
import pathlib
import signal
import tempfile
import threading
import time
from unittest import mock

from absl.testing import absltest, parameterized

from studies import processes, runs
from studies.runs import Job
from training.signals import EXIT_STOPPED

# Says that it runs, and saves when it is asked to stop, unless it is Ctrl-C.
_STAGE = """
import pathlib, signal, sys, time
def save(*_):
    pathlib.Path("{0}.saved").touch()
    sys.exit({1})
signal.signal(signal.SIGTERM, save)
pathlib.Path("{0}.began").touch()
time.sleep(60)
"""
_PLAIN = 'import pathlib, time; pathlib.Path("{0}.began").touch(); time.sleep(60)'


class ProcessesTest(parameterized.TestCase):
    def setUp(self):
        super().setUp()
        self.folder = pathlib.Path(self.enter_context(tempfile.TemporaryDirectory()))

    def execute(self, name: str, program: str = _STAGE, status: int = EXIT_STOPPED) -> bool:
        code = program.format(self.folder / name, status)
        runs.execute(["-c", code], name=name, log=self.folder / f"{name}.txt")
        return True

    def signal_when_they_run(self, number: int, *names: str) -> None:
        def send() -> None:
            while not all((self.folder / f"{name}.began").exists() for name in names):
                time.sleep(0.01)
            os.kill(os.getpid(), number)

        threading.Thread(target=send, daemon=True).start()

    def made(self, ending: str) -> set[str]:
        return {path.stem for path in self.folder.glob(f"*.{ending}")}

    @parameterized.parameters(signal.SIGTERM, signal.SIGINT)
    def test_all_that_run_save_and_nothing_else_begins(self, number):
        before = [signal.getsignal(one) for one in (signal.SIGTERM, signal.SIGINT)]
        self.signal_when_they_run(number, "a", "b")
        jobs = [Job(name, lambda name=name: self.execute(name)) for name in "abcd"]
        with self.assertRaises(SystemExit) as stopped:
            runs.do_all(jobs, workers=2, pin=False)
        self.assertEqual(stopped.exception.code, EXIT_STOPPED)
        self.assertEqual(self.made("began"), {"a", "b"})
        self.assertEqual(self.made("saved"), {"a", "b"})
        after = [signal.getsignal(one) for one in (signal.SIGTERM, signal.SIGINT)]
        self.assertEqual(after, before)

    @parameterized.parameters((_PLAIN, 0), (_STAGE, 1), (_STAGE, 0))
    def test_a_stop_is_no_failure_whatever_status_a_stage_ends_with(self, program, status):
        self.signal_when_they_run(signal.SIGTERM, "a")
        with self.assertRaises(SystemExit) as stopped:
            self.execute("a", program, status)
        self.assertEqual(stopped.exception.code, EXIT_STOPPED)

    def test_what_ends_well_is_kept_and_the_next_stage_does_not_begin(self):
        kept = []
        self.signal_when_they_run(signal.SIGTERM, "a")
        with self.assertRaises(SystemExit), processes.stopped_together():
            self.execute("a", status=0)
            kept.append("a")
            with mock.patch.object(processes.subprocess, "Popen") as popen:
                self.execute("b")
        popen.assert_not_called()
        self.assertEqual(kept, ["a"])
        self.assertEqual(self.made("began"), {"a"})
        # A stop is of one block: what is run again runs.
        self.execute("c", 'import pathlib; pathlib.Path("{0}.began").touch()')
        self.assertEqual(self.made("began"), {"a", "c"})

    def test_a_signal_just_after_the_start_is_not_lost(self):
        # As if it came before the process was among those running.
        with self.assertRaises(SystemExit) as stopped, processes.stopped_together():
            popen = processes.subprocess.Popen

            def start(*arguments, **options):
                process = popen(*arguments, **options)
                while not (self.folder / "a.began").exists():
                    time.sleep(0.01)
                os.kill(os.getpid(), signal.SIGTERM)
                return process

            with mock.patch.object(processes.subprocess, "Popen", start):
                self.execute("a")
        self.assertEqual(stopped.exception.code, EXIT_STOPPED)
        self.assertEqual(self.made("saved"), {"a"})


if __name__ == "__main__":
    absltest.main()
