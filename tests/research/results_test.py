"""Results: both forms of records, and what is read from them."""

import json
import pathlib
import tempfile
from unittest import mock

from absl.testing import absltest, parameterized

from research import results
from research.results import Results, Row
from xlm.common import artifacts


def row(run: str, seed: int | None, metric: str, item: str, value) -> Row:
    return Row("study", run, seed, metric, item, value, {}, "abc", "command", "2026-11-29T00:00Z")


class FormsTest(parameterized.TestCase):
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
        folder = pathlib.Path(self.enter_context(tempfile.TemporaryDirectory()))
        rows = [row("runs/a", 0, "loss", "en", 3.5), row("speed", None, "text", "", "a\u2028b")]
        results.write(folder / "runs" / "a" / results.MEASURED, rows)
        self.assertEqual(results.in_folder(folder), rows)

    def test_kept_results_stay_and_new_ones_join_them(self):
        folder = pathlib.Path(self.enter_context(tempfile.TemporaryDirectory()))
        self.enter_context(mock.patch.object(results, "RECORDS", folder / "records"))
        old = {"path": "runs/a/seed0/record.json", "commit": "x", "time": "", "content": {"m": 1}}
        artifacts.write_text(folder / "records" / "study.jsonl", json.dumps(old) + "\n")
        for run, value in (("a", 2), ("b", 3)):
            rows = [row(f"runs/{run}", 0, "m", "", value)]
            results.write(folder / "work" / "runs" / run / results.MEASURED, rows)
        self.assertEqual(results.keep("study", folder / "work"), 1)
        self.assertEqual(results.keep("study", folder / "work"), 0)
        found = Results(results.read(folder / "records" / "study.jsonl"))
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
