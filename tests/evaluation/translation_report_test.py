"""The report of a run that translates."""

import json
import pathlib

import sacrebleu
from absl.testing import absltest

from tests import folders, golden
from xlm.evaluation import translation_report

REFERENCES = [f"the dog number {i} sleeps in the house ." for i in range(20)]


class TranslationReportTest(absltest.TestCase):
    def test_the_report(self):
        scores = {"en-de": {"bleu": 0.25, "chrf": 0.5}, "en-fr": {"bleu": 0.125, "chrf": 0.375}}
        counts = {"en-de": 1200, "en-fr": 12}
        results = {
            "test": scores,
            "validation": {"en-de": scores["en-de"]},
            "examples": {"test": counts, "validation": counts},
            "selected": {"averaged_steps": [1000, 2000], "step": 2000},
            "zero_shot": [],
            "decoding": {"beams": 4, "length_penalty": 0.6},
            "signatures": {"en-de": {"bleu": "nrefs:1|tok:13a"}},
            "ceilings": {"test": {"en-de": 0.98, "en-fr": 1.0}, "validation": {"en-de": 1.0}},
            "unknown": {"test": {"en-fr": {"sources": 3, "lost": 2, "examples": ["*", "字"]}}},
        }
        metadata = {
            "task": "translation", "model": "a_b", "hyperparameters": {"epochs": 5}, "seed": 1,
        }  # fmt: skip
        records = [
            {"step": 1000, "validation/bleu/en-de": 0.125},
            {"step": 2000, "validation/bleu/en-de": 0.25, "validation/bleu/en-fr": 0.1},
        ]

        def write(folder: pathlib.Path) -> None:
            for direction in scores:
                path = folder / "predictions" / f"test.{direction}.jsonl"
                path.parent.mkdir(parents=True, exist_ok=True)
                lines = [
                    {"id": str(i), "source": f"{i} | b", "reference": "c", "prediction": "*d*"}
                    for i in range(25)
                ]
                path.write_text("".join(json.dumps(line) + "\n" for line in lines))
            translation_report.write(folder, metadata, results, records)

        golden.check_report(self, __file__, "translation", write)


class ComparisonTest(folders.FolderTest):
    def run_folder(self, name: str, **outputs: list[str]) -> pathlib.Path:
        for direction, texts in outputs.items():
            lines = [
                {"id": str(i), "source": str(i), "reference": reference, "prediction": text}
                for i, (reference, text) in enumerate(zip(REFERENCES, texts, strict=True))
            ]
            text = "".join(json.dumps(line) + "\n" for line in lines)
            self.write(f"{name}/predictions/test.{direction.replace('_', '-')}.jsonl", text)
        return self.folder / name

    def test_systems_on_common_test_sets(self):
        bad = ["the cat ."] * 20
        one = self.run_folder("one", en_de=bad, en_fr=bad)
        two = self.run_folder("two", en_de=REFERENCES, en_cs=bad)
        title, table, note = translation_report.comparison({"one": one, "two|": two})
        self.assertEqual(title, "## Translation of en-de, test")
        _, _, first, second = table.splitlines()
        cells = [[cell.strip() for cell in row.split(" | ")] for row in (first, second)]
        expected = sacrebleu.corpus_chrf(bad, [REFERENCES], word_order=2).score
        self.assertEqual(cells[0][5], f"{expected:.1f}")
        # The least p-value of 1,000 samples.
        self.assertEqual(cells[1][1:3], ["100.0", "0.001"])
        self.assertIn("bootstrap", note)
        same = translation_report.comparison({"one": one, "also": one})
        self.assertRegex(same[1], r"\| also \| 0.0 \|  \|")

    def test_runs_that_cannot_be_compared(self):
        one = self.run_folder("one", en_de=REFERENCES)
        two = self.run_folder("two", en_de=REFERENCES)
        self.assertEqual(translation_report.comparison({"one": one}), [])
        self.assertEqual(translation_report.comparison({"one": one, "empty": self.folder}), [])
        path = two / "predictions" / "test.en-de.jsonl"
        path.write_text(path.read_text().replace('"source": "3"', '"source": "x"'))
        self.assertEqual(translation_report.comparison({"one": one, "two": two}), [])
        for folder in (one, two):
            self.write(f"{folder.name}/predictions/test.en-de.jsonl", '{"prediction": "a"}\n')
        self.assertEqual(translation_report.comparison({"one": one, "two": two}), [])
