"""Results of studies: formats, statistics and tables."""

import json
import math
from unittest import mock

import numpy as np
import scipy.stats
from absl.testing import absltest, parameterized

from research import pivot, results, stats
from research.pivot import Column, Line
from research.results import Result, Results, Row, mean
from tests.folders import FolderTest
from xlm.common import artifacts


def row(run: str, seed: int | None, metric: str, item: str, value) -> Row:
    return Row("study", run, seed, metric, item, value, {}, "abc", "command", "2026-11-29T00:00Z")


class FormsTest(FolderTest):
    @parameterized.parameters(
        ({"losses": {"en": {"loss": 3.0}}, "minutes": 2},
         [("losses/loss", "en", 3.0), ("minutes", "", 2)]),
        ({"test": {"de": {"f1": 0.5}}, "examples": {"test": {"de": 7}}},
         [("test/f1", "de", 0.5), ("examples/test", "de", 7)]),
        ({"test": {"bleu": 0.3}}, [("test/bleu", "", 0.3)]),
        ({"loss": {"en": 3.0}, "alp": -1.0}, [("loss", "en", 3.0), ("alp", "", -1.0)]),
        ({"curve": [[200, 0.1], [400, 0.2]]}, [("curve", "200", 0.1), ("curve", "400", 0.2)]),
        ({"retrieval": {"ntrex": {"de": {"forward": 0.4}}}},
         [("retrieval/forward", "ntrex/de", 0.4)]),
        ([{"split": "test", "beams": 5, "averaged": 3, "bleu": 0.2}], [("bleu", "test/3/5", 0.2)]),
        ({"changes": [{"data": "rows", "measure": "loss", "before": {"en": 3}}]},
         [("changes/before", "rows/loss/en", 3)]),
    )  # fmt: skip
    def test_content_is_rows(self, content, expected):
        self.assertEqual(list(results.flat(content)), expected)

    @parameterized.parameters(
        ("runs/a/seed2/record.json", ("runs/a", 2)),
        ("encoders/ar/500/seed0/udpos/results.json", ("encoders/ar/500/udpos", 0)),
        ("encoders/seed1/report/results.json", ("encoders", 1)),
        ("runs/a/seed0/report/pairs/pair_weights.json", ("runs/a", 0)),
        ("runs/a/seed0/train/pair_weights.json", ("", None)),
    )
    def test_paths_are_runs(self, path, expected):
        self.assertEqual(results.run_of(path), expected)

    def test_what_is_written_is_read(self):
        rows = [row("runs/a", 0, "loss", "en", 3.5), row("speed", None, "text", "", "a\u2028b")]
        results.write(self.folder / "runs" / "a" / results.MEASURED, rows)
        self.assertEqual(results.in_folder(self.folder), rows)

    def test_kept_results_stay_and_new_ones_join_them(self):
        self.enter_context(mock.patch.object(results, "RECORDS", self.folder / "records"))
        old = {"path": "runs/a/seed0/record.json", "commit": "x", "time": "", "content": {"m": 1}}
        artifacts.write_text(self.folder / "records" / "study.jsonl", json.dumps(old) + "\n")
        for run, value in (("a", 2), ("b", 3)):
            rows = [row(f"runs/{run}", 0, "m", "", value)]
            results.write(self.folder / "work" / "runs" / run / results.MEASURED, rows)
        self.assertEqual(results.keep("study", self.folder / "work"), 1)
        self.assertEqual(results.keep("study", self.folder / "work"), 0)
        found = Results(results.read(self.folder / "records" / "study.jsonl"))
        values = {run: found.of(run)[0].one("m") for run in ("runs/a", "runs/b")}
        self.assertEqual(values, {"runs/a": 1, "runs/b": 3})

    def test_every_line_of_the_records_is_read(self):
        for path in results.RECORDS.glob("*.jsonl"):
            rows = list(results.read(path))
            lines = map(json.loads, filter(None, path.read_text("utf-8").split("\n")))
            runs = {
                results.run_of(one["path"]) if "path" in one else (one["run"], one["seed"])
                for one in lines
            }
            self.assertEqual({(one.run, one.seed) for one in rows}, runs - {("", None)}, path)


class SelectionTest(absltest.TestCase):
    def setUp(self):
        super().setUp()
        self.results = Results(
            row(run, seed, "f1", item, value + seed)
            for run, items in (("all", ("de", "en")), ("only", ("fi",)))
            for seed in (1, 0)
            for value, item in enumerate(items)
        )

    def test_mean(self):
        result = self.results.of("all")[1]
        self.assertEqual(results.mean("f1")(result), 1.5)
        self.assertEqual(results.mean("f1", ["en"], scale=100)(result), 200)
        self.assertIsNone(results.mean("f1", ["en", "fr"])(result))
        self.assertIsNone(results.mean("accuracy")(result))

    def test_runs_together(self):
        merged = self.results.merged(["all", "only"], [0])
        self.assertEqual(merged, {0: {"f1": {"de": 0, "en": 1, "fi": 0}}})
        joined = self.results.joined({"": "all", "x:": "only"})
        self.assertEqual(list(joined), [0, 1])
        self.assertEqual(joined[1], {"f1": {"de": 1, "en": 2}, "x:f1": {"fi": 1}})
        self.assertEqual(
            results.shared_items([*self.results.of("all").values()], "f1"), ["de", "en"]
        )


def by_seed(*values: float | None) -> dict[int, Result]:
    return {
        seed: Result(f1={} if value is None else {"de": value, "en": 9.0})
        for seed, value in enumerate(values)
    }


DE = mean("f1", ["de"])


class TableTest(absltest.TestCase):
    def test_table(self):
        first, second = by_seed(1.0, 2.0, 6.0), by_seed(2.0, 4.0, None)
        lines = [Line(("one", "3"), first), Line(("two", "3"), second, first)]
        columns = [
            Column("mean", DE),
            Column("F1", DE, "{:.2f}", show="range"),
            Column("in one", DE, show="cell", has_least=False),
            Column("less one", DE, show="change"),
            Column("SD", DE, show="deviation", has_least=False),
        ]
        least = stats.least_detectable([[1.0, 2.0, 6.0], [2.0, 4.0]])
        self.assertEqual(
            pivot.table(["run", "seeds"], lines, columns, more=[["examples", "7"]]),
            "| run | seeds | mean | F1 | least to largest | in one | less one | least to largest "
            "| SD |\n"
            "|---|---:|---:|---:|---:|---:|---:|---:|---:|\n"
            "| one | 3 | 3.0 | 3.00 | 1.00 to 6.00 | 3.0 (1.0 to 6.0) |  |  | 3.0 ± 2.6 (3) |\n"
            "| two | 3 | 3.0 | 3.00 | 2.00 to 4.00 | 3.0 (2.0 to 4.0; 2 seeds) | +1.5 "
            "| +1.0 to +2.0 | 3.0 ± 1.4 (2) |\n"
            f"| detectable |  | {least:.1f} | {least:.2f} |  |  |  |  |  |\n"
            "| examples | 7 |",
        )

    def test_matrix_leaves_out_what_has_not_all(self):
        runs = {"whole": by_seed(1.0), "part": {0: Result(f1={"en": 1.0})}}
        found = pivot.matrix("f1", runs, [Column("de", DE), Column("en", mean("f1", ["en"]))])
        self.assertEqual(found, "| f1 | de | en |\n|---|---:|---:|\n| whole | 1.0 | 9.0 |")


class StatsTest(absltest.TestCase):
    def setUp(self):
        super().setUp()
        self.rng = np.random.default_rng(0)

    def test_a_least_difference_has_a_p_value_of_5_per_cent(self):
        one, two = self.rng.normal(size=4), self.rng.normal(size=4)
        least = stats.least_detectable([list(one), list(two)])
        shifted = two - two.mean() + one.mean() + least
        self.assertAlmostEqual(scipy.stats.ttest_ind(one, shifted).pvalue, 0.05)

    def test_unequal_numbers_of_seeds(self):
        # One seed adds no spread, but counts in n: 2 / n is the mean of 1 / n_a + 1 / n_b.
        some = [1.0, 2.0, 4.0]
        spread = np.std(some, ddof=1) * scipy.stats.t.ppf(0.975, 2)
        least = stats.least_detectable([some, [7.0], []])
        self.assertAlmostEqual(least, spread * math.sqrt(2 * (1 / 3 + 1) / 2))
        self.assertIsNone(stats.least_detectable([[1.0], [2.0]]))

    def test_a_least_change_has_a_p_value_of_5_per_cent(self):
        changes = self.rng.normal(size=5)
        least = stats.least_detectable_change(list(changes))
        found = scipy.stats.ttest_1samp(changes - changes.mean() + least, 0)
        self.assertAlmostEqual(found.pvalue, 0.05)
        self.assertIsNone(stats.least_detectable_change([1.0]))

    def test_correlation(self):
        x, y = self.rng.normal(size=(2, 7))
        found = scipy.stats.pearsonr(x, y)
        self.assertAlmostEqual(stats.correlation(list(x), list(y)), found.statistic)
        self.assertTrue(math.isnan(stats.correlation([1, 2, 3], [5, 5, 5])))

    def test_a_significant_correlation_has_a_p_value_of_5_per_cent(self):
        least = stats.significant_correlation(9)
        x = np.linspace(-1, 1, 9)
        noise = self.rng.normal(size=9)
        noise -= noise.mean() + x * (noise @ x) / (x @ x)
        y = least * x / np.linalg.norm(x)
        y += math.sqrt(1 - least**2) * noise / np.linalg.norm(noise)
        self.assertAlmostEqual(scipy.stats.pearsonr(x, y).pvalue, 0.05)

    def test_pooled_deviation(self):
        groups = [[1.0, 2.0, 4.0], [3.0, 3.5, 9.0], [1.0]]
        wanted = math.sqrt(np.mean([np.var(one, ddof=1) for one in groups[:2]]))
        self.assertAlmostEqual(stats.pooled_deviation(groups), wanted)
        self.assertTrue(math.isnan(stats.pooled_deviation([[1.0]])))
