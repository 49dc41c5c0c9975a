"""Checks for a lent accelerator, those that a CPU can run in this process; and what fails."""

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
