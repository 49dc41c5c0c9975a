"""Checks for a lent accelerator, those that a CPU can run in this process; and what fails."""

import json
import pathlib
import subprocess
import sys
import tempfile
from unittest import mock

import numpy as np
from absl.testing import parameterized

from tests import commands

commands.load("benchmarks.train_step")  # whose flags it shares
checks = commands.load("benchmarks.accelerator_checks")


class ChecksTest(parameterized.TestCase):
    @parameterized.parameters("softmax", "neighbours", "row_adamw")
    def test_passes_here(self, name):
        outcome = checks.CHECKS[name]()
        self.assertTrue(outcome.passed, outcome.detail)

    def test_a_difference_is_seen(self):
        ones = np.ones(3, np.float32)
        self.assertTrue(checks._agree([ones, np.arange(3)], [ones, np.arange(3)], 1e-6).passed)
        self.assertFalse(checks._agree([ones * 1.01], [ones], 1e-3).passed)
        self.assertFalse(checks._agree([ones * np.nan], [ones], 1e-3).passed)
        self.assertFalse(checks._agree([np.arange(3)], [np.arange(1, 4)], 1e-3).passed)

    def test_a_table_whose_rows_are_not_updated_fails(self):
        row_adamw = checks.row_adamw
        broken = lambda *a, **k: row_adamw(*a, **k)._replace(  # noqa: E731
            apply_pending_updates=lambda table, state: (table, state)
        )
        with mock.patch.object(checks, "row_adamw", broken):
            self.assertFalse(checks.check_row_adamw().passed)


class ProcessesTest(parameterized.TestCase):
    """Fate of a check's process, with another one in its place."""

    def found(self, code: str) -> dict:
        path = pathlib.Path(self.enter_context(tempfile.TemporaryDirectory())) / "found.json"
        run = subprocess.run

        def other(command, **kwargs):
            code_of = "print('[true, \"a machine\"]')" if "--only=machine" in command else code
            return run([sys.executable, "-S", "-c", code_of], **kwargs)

        flags = ("--checks=softmax,export", f"--results={path}", "--seconds=2")
        with (
            commands.parsed("benchmarks.accelerator_checks", *flags) as rest,
            mock.patch.object(subprocess, "run", other),
            self.assertRaises(SystemExit) as ended,
        ):
            checks.main(rest)
        found = json.loads(path.read_text())
        self.assertEqual(found["machine"], "a machine")
        self.assertEqual(list(found["checks"]), ["export", "softmax"])
        return {"status": ended.exception.code, **found["checks"]["softmax"]}

    @parameterized.parameters(
        ("print('a line'); print('[true, \"fine\"]')", 0, True, "fine"),
        ("print('[null, \"needs a GPU\"]')", 0, None, "needs a GPU"),
        ("import sys; sys.exit('out of memory')", 1, False, "status 1: out of memory"),
        ("import time; time.sleep(60)", 1, False, "did not end within 2 s"),
    )
    def test_each_ends_as_it_may(self, code, status, passed, detail):
        found = self.found(code)
        self.assertEqual((found["status"], found["passed"]), (status, passed))
        self.assertStartsWith(found["detail"], detail)
