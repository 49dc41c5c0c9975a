"""Plans, measures, checks and reports of benchmarks, and stages of an interrupted job."""

import collections
import contextlib
import io
import json
import warnings
from unittest import mock

import jax
import numpy as np
from absl import app
from absl.testing import absltest, parameterized

from benchmarks import hostile_table, hostile_world, machine
from benchmarks.step_results import FULL, KNN, NONE, Cell, Results, Row, goals, saved, tables
from tests import commands
from tests.folders import FolderTest

train_step = commands.load("benchmarks.train_step")
MODES, SIZES = (FULL, KNN, "blockwise"), (100, 200, 400)


def row(mode: str, vocab_size: int, seconds: float, refresh: float | None = 0.0) -> Row:
    return Row(mode, vocab_size, 8, seconds, refresh, 10, 50.0, 0.0, 1e9)


class PlanTest(absltest.TestCase):
    def test_the_most_informative_cells_come_first(self):
        groups = train_step.plan(MODES, SIZES, (8, 4), is_interleaved=False)
        self.assertEqual({len(group) for group in groups}, {1})
        cells = [group[0] for group in groups]
        named = [(cell.mode, cell.vocab_size) for cell in cells if cell.width == 8]
        self.assertEqual(
            named[:7],
            [(NONE, train_step.TINY), (FULL, 200), (KNN, 200), (KNN, 400), (KNN, 100), (FULL, 400),
             (FULL, 100)],
        )  # fmt: skip
        self.assertLen(set(cells), 2 * (1 + len(MODES) * len(SIZES)))
        self.assertEqual([cell.width for cell in cells], [8] * 10 + [4] * 10)


class Stub:
    """A case without cost; one layer and size runs out of memory."""

    def __init__(self, preset, mode, vocab_size, width, *, searches):
        if (mode, vocab_size) == (FULL, 400):
            raise jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: Out of memory\nmore lines")
        self.uses_index, self.candidates, self.overflow = mode == KNN, 7.0, 0.0

    def run(self):
        return None

    def refresh(self):
        return 0.5


class MeasureTest(FolderTest):
    def setUp(self):
        super().setUp()
        self.path = self.folder / "found.json"
        self.enter_context(commands.parsed("benchmarks.train_step"))
        self.enter_context(mock.patch.object(train_step, "Case", Stub))

    def measured(self, is_interleaved: bool) -> Results:
        results = Results(str(self.path), {"machine": "m"})
        for group in train_step.plan(MODES, SIZES, (8,), is_interleaved=is_interleaved):
            train_step.measure(train_step.PRESETS["base"], group, results)
        return results

    def test_what_runs_out_of_memory_costs_itself_alone(self):
        for is_interleaved in (False, True):
            results = self.measured(is_interleaved)
            self.assertEqual(
                results.failed, {Cell(FULL, 400, 8): "RESOURCE_EXHAUSTED: Out of memory"}
            )
            self.assertLen(results.rows, 1 + len(MODES) * len(SIZES) - 1)
            self.assertIn("400, E = 8 was not measured", tables(results, 100, 0.0))
            written = json.loads(self.path.read_text())
            self.assertEqual(written["failed"][0]["mode"], FULL)
            self.assertLen(written["rows"], len(results.rows))
            self.path.unlink()

    def test_the_same_command_goes_on(self):
        first = Results(str(self.path), {"machine": "m"})
        group = [Cell(KNN, 100, 8)]
        with mock.patch.object(Stub, "refresh", side_effect=jax.errors.JaxRuntimeError("lost")):
            train_step.measure(train_step.PRESETS["base"], group, first)
        self.assertEqual(first.row(*group[0]).refresh, None)  # the step is kept
        again = Results(str(self.path), {"machine": "m"})
        self.assertFalse(again.has(group[0]))
        train_step.measure(train_step.PRESETS["base"], group, again)
        self.assertTrue(Results(str(self.path), {"machine": "m"}).has(group[0]))
        self.assertEqual(again.row(*group[0]).refresh, 0.5)
        with self.assertRaisesRegex(ValueError, "another machine or other settings"):
            Results(str(self.path), {"machine": "other"})


class GoalsTest(absltest.TestCase):
    def test_goals_beside_what_was_measured(self):
        results = Results(None, {})
        for one in (row(NONE, 1, 1.0), row(FULL, 200, 3.0), row(KNN, 200, 1.0, refresh=1.0),
                    row(KNN, 100, 1.0), row(KNN, 400, 1.5)):  # fmt: skip
            results.add(one)
        self.assertAlmostEqual(saved(results, KNN, 200, 8), 0.95)
        shown = goals(results, SIZES, 8, peak_tflops=1e-3)
        self.assertIn("| R at 200 | >= 0.9 | 0.950 | met |", shown)
        self.assertIn("| T(400) / T(100) | <= 1.15 | 1.500 | missed |", shown)
        results.add(row(NONE, 1, 4.0))  # noise
        self.assertIsNone(saved(results, KNN, 200, 8))


class ReportTest(FolderTest):
    def test_a_table_is_printed_and_kept(self):
        path = self.folder / "found.json"
        with contextlib.redirect_stdout(io.StringIO()) as shown:
            report = machine.Report(str(path))
            report.table("V = 8", {"what": "", "ms": ".1f"})
            report.row("full", 2.04)
            report.row("none", None)
        lines = shown.getvalue().splitlines()
        expected = ["V = 8", "", "| what | ms |", "|---|---:|", "| full | 2.0 |", "| none |  |"]
        self.assertEqual(lines[2:], expected)
        found = json.loads(path.read_text())
        rows = [{"what": "full", "ms": 2.04}, {"what": "none", "ms": None}]
        self.assertEqual(found, {"machine": lines[0], "tables": [{"title": "V = 8", "rows": rows}]})


class TableTest(absltest.TestCase):
    def test_conditions_have_own_titles_and_known_commands(self):
        found = hostile_table.conditions()
        counts = collections.Counter(one.title for one in found)
        self.assertEqual([title for title, count in counts.items() if count > 1], [])
        self.assertGreaterEqual(len(counts), 300)
        self.assertContainsSubset({one.command for one in found}, hostile_world.commands())


class InterruptedTest(absltest.TestCase):
    def setUp(self):
        super().setUp()
        # ml_collections reads a config file in this way, and the default at import.
        self.enter_context(warnings.catch_warnings())
        warnings.filterwarnings("ignore", r"the load_module", DeprecationWarning)
        self.command = commands.load("benchmarks.kill_and_resume")

    def flags(self, *arguments: str) -> None:
        config = "--config=configs/xy_lent.py:runlocal"
        self.enter_context(commands.parsed("benchmarks.kill_and_resume", config, *arguments))

    def test_stages_have_the_keys_of_the_command(self):
        self.flags("--config.robust.num_phases=2", "--config.optimizer.embedding_update=dense",
                   "--steps=90", "--stages=evaluate,train")  # fmt: skip
        known, names = self.command.wanted_stages()
        self.assertEqual(names, ["train", "evaluate"])
        script, *found = known["train"].command("JOB")
        self.assertEqual(script, "train.py")
        self.assertContainsSubset(
            ["--config=configs/xy_lent.py:runlocal", "--workdir=JOB/work",
             "--config.train.num_steps=90", "--config.train.checkpoint_every=15",
             "--config.optimizer.embedding_update=dense", "--config.robust.num_phases=2"],
            found,
        )  # fmt: skip

    def test_workers_are_looked_for_in_the_stages_that_have_some(self):
        self.flags("--kill=worker")
        self.assertEqual(self.command.wanted_stages()[1], ["count", "build_vocab", "prepare_data"])
        self.flags("--stages=tune")
        with self.assertRaisesRegex(app.UsageError, "no 'tune', only count, build_vocab"):
            self.command.wanted_stages()


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
