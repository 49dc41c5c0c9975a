import pathlib
import tempfile

from absl.testing import absltest

from common import artifacts
from studies import records


class RecordsTest(absltest.TestCase):
    def setUp(self):
        super().setUp()
        folder = pathlib.Path(self.enter_context(tempfile.TemporaryDirectory()))
        self.workdir, self.record = folder / "work", folder / "records" / "study.jsonl"

    def write(self, place: str, value) -> None:
        artifacts.write_json(self.workdir / place, value)

    def test_results_return_where_they_were(self):
        one = {"loss": 4.5, "languages": {"sw": [1, 2.25]}, "text": "n\u2028äh\x85", "none": None}
        self.write("runs/a/seed0/report/results.json", one)
        self.write("runs/a/seed0/settings.json", {"not": "a result"})
        self.write("results.json", {"not": "of a run"})
        self.assertEqual(records.keep(self.record, self.workdir, "abc"), 1)

        other = self.workdir.parent / "other"
        self.assertEqual(records.restore(self.record, other), 1)
        restored = artifacts.read_json(other / "runs/a/seed0/report/results.json")
        self.assertEqual(restored, one)
        self.assertEqual(records.restore(self.record, other), 0)

    def test_record_grows_and_keeps_what_it_has(self):
        self.write("runs/b/results.json", {"loss": 1})
        records.keep(self.record, self.workdir, "first")
        self.write("runs/b/results.json", {"loss": 2})
        self.write("runs/a/record.json", {"loss": 3})
        self.assertEqual(records.keep(self.record, self.workdir, "second"), 1)
        lines = records.read(self.record)
        self.assertEqual(list(lines), ["runs/a/record.json", "runs/b/results.json"])
        self.assertEqual(
            [(line["commit"], line["content"]["loss"]) for line in lines.values()],
            [("second", 3), ("first", 1)],
        )

    def test_a_report_beside_a_record_is_left_out(self):
        self.write("runs/a/record.json", {"loss": 1})
        self.write("runs/a/report/results.json", {"loss": 1, "examples": ["text"]})
        self.write("runs/b/report/results.json", {"loss": 2})
        records.keep(self.record, self.workdir, "abc")
        self.assertEqual(
            list(records.read(self.record)), ["runs/a/record.json", "runs/b/report/results.json"]
        )

    def test_no_sentence_of_a_corpus_is_kept(self):
        self.write("runs/a/report/results.json", {"loss": 1, "examples": [{"text": "Bom dia."}]})
        self.write("runs/b/results.json", {"loss": 2, "examples": {"test": {"en": 7}}})
        of_pairs = {"up": ["de-fr"], "examples": {"de-fr": [["Bom dia.", "Guten Tag."]]}}
        self.write("runs/c/report/pairs/pair_weights.json", of_pairs)
        records.keep(self.record, self.workdir, "abc")
        contents = [line["content"] for line in records.read(self.record).values()]
        self.assertEqual(
            contents,
            [{"loss": 1}, {"loss": 2, "examples": {"test": {"en": 7}}}, {"up": ["de-fr"]}],
        )

    def test_own_results_win_over_recorded_ones(self):
        self.write("runs/a/results.json", {"loss": 1})
        records.keep(self.record, self.workdir, "abc")
        self.write("runs/a/results.json", {"loss": 2})
        records.restore(self.record, self.workdir)
        self.assertEqual(artifacts.read_json(self.workdir / "runs/a/results.json"), {"loss": 2})

    def test_numbers_are_rounded(self):
        value = {"a": [1.23456789, 12345678, "x"], "b": {"c": 1.23456789e-9, "d": True}}
        self.assertEqual(
            records.rounded(value),
            {"a": [1.23457, 12345678, "x"], "b": {"c": 1.23457e-9, "d": True}},
        )


if __name__ == "__main__":
    absltest.main()
