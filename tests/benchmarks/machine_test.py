"""Tables of the benchmarks, printed and as JSON."""

import contextlib
import io
import json
import pathlib
import tempfile

from absl.testing import absltest

from benchmarks import machine


class ReportTest(absltest.TestCase):
    def test_a_table_is_printed_and_kept(self):
        folder = self.enter_context(tempfile.TemporaryDirectory())
        path = pathlib.Path(folder) / "found.json"
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
