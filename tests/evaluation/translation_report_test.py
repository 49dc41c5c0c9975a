"""The report of a run that translates."""

import json
import pathlib

from absl.testing import absltest

from tests import golden
from xlm.evaluation import translation_report


class TranslationReportTest(absltest.TestCase):
    def test_the_report(self):
        scores = {"en-de": {"bleu": 0.25, "chrf": 0.5}, "en-fr": {"bleu": 0.125, "chrf": 0.375}}
        counts = {"en-de": 1200, "en-fr": 12}
        results = {
            "test": scores,
            "validation": {"en-de": scores["en-de"]},
            "examples": {"test": counts, "validation": counts},
            "selected": {"averaged_steps": [1000, 2000], "step": 2000},
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
