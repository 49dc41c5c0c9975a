"""Tables against one made by hand."""

from absl.testing import absltest

from research import pivot, stats
from research.pivot import Column, Line
from research.results import Result, mean


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
