"""Tables of rows: columns, formats, means, and text that must not break a cell."""

import math

from absl.testing import absltest

from xlm.common import tables


class TablesTest(absltest.TestCase):
    def test_a_table(self):
        rows = [
            {"name": "a|b", "loss": 1.25, "n": 1200},
            {"name": "<b> **c** \\|", "loss": math.nan, "share": 0.5},
            {"name": "", "loss": 2.5, "share": None, "n": "many"},
        ]
        formats = {"loss": ".1f", "n": ",", "share": "+.0%"}
        self.assertEqual(
            tables.markdown(rows, formats, mean=("loss", "share")).splitlines(),
            ["| name | loss | n | share |", "|---|---:|---:|---:|", r"| a\|b | 1.2 | 1,200 |  |",
             r"| \<b\> **c** \| |  |  | +50% |", "|  | 2.5 | many |  |",
             "| **mean** | 1.9 |  | +50% |"],
        )  # fmt: skip
        self.assertEqual(tables.markdown([]), "")
        self.assertEqual(tables.markdown([{"x": 1.0}], ".2f", left=0), "| x |\n|---:|\n| 1.00 |")

    def test_numbers_and_names(self):
        found = [tables.signed(value, ".1f") for value in (0.04, -0.04, 0.05001, -2.0)]
        self.assertEqual(found, ["0.0", "0.0", "+0.1", "-2.0"])
        self.assertTrue(math.isnan(tables.mean_of([None, math.nan])))
        self.assertEqual(tables.named(["a", "b", "c"], 2), "a, b and 1 more")
        self.assertEqual(tables.named(["a", "b"], 2), "a, b")

    def test_separated_by_commas(self):
        rows = [{"a": 'x,"y"', "b": None}, {"a": "", "b": 0.1}]
        self.assertEqual(tables.comma_separated(rows), 'a,b\n"x,""y""",\n,0.1\n')
