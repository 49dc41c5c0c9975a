"""Reports of runs of each kind, compared with golden files checked by hand."""

import dataclasses
import math
import pathlib
import tempfile
from unittest import mock

from absl.testing import absltest

from input_pipeline.packed_dataset import PackedDataset
from tests import factories, golden
from xlm.evaluation import report
from xlm.evaluation.examples import Example
from xlm.evaluation.masked_lm import LanguageLoss
from xlm.evaluation.replaced_token import Detection, PairDetection
from xlm.evaluation.retrieval import RetrievalResult
from xlm.evaluation.translation_gain import Gain

LOSSES = {
    "sw": LanguageLoss(loss=4.0, bits_per_character=1.5, unigram=6.0, tokens=300),
    "en": LanguageLoss(loss=3.0, bits_per_character=1.0, unigram=5.0, tokens=500),
    "ka": LanguageLoss(loss=2.5, bits_per_character=0.5, unigram=4.0, tokens=0),
}
RETRIEVAL = {
    "core": {
        "sw": RetrievalResult(forward=0.5, backward=0.25, chance=0.05, sentences=20),
        "ka": RetrievalResult(forward=0.125, backward=0.75, chance=0.05, sentences=20),
    },
    "news": {"sw": RetrievalResult(forward=1.0, backward=0.75, chance=0.01, sentences=100)},
}
EXAMPLES = [
    Example("sw", "a [____] | b", "▁c", 0.25, 2, [("▁d", 0.5), ("▁c", 0.25)]),
    Example("en", "[____]s it", "▁i", 0.75, 1, [("▁i", 0.75), ("▁wa", 0.125)]),
]
ALLOCATION = {
    "pieces": 600,
    "languages": {
        language: {
            "bytes": num_bytes, "amount": num_bytes, "resource": "all", "probability": 0.5,
            "sizes": [100, 200, 300], "alp": [-250.0, -210.0, -200.0], "allocated": allocated,
            "not_concave": [], "at_largest": allocated == 300,
        }
        for language, num_bytes, allocated in (("en", 60_000, 200), ("sw", 20_000, 300))
    },
    "clusters": {},
}  # fmt: skip
DETECTION = {
    "own": {
        "en": Detection(0.8, 0.75, 0.25, 0.2, 0.4, 100),
        "sw": Detection(0.6, math.nan, 0.0, 0.1, 0.5, 50),
    },
    "unigram": {
        "en": Detection(0.9, 0.5, 0.75, 0.14, 0.3, 100),
        "sw": Detection(math.nan, math.nan, math.nan, 0.0, 0.2, 50),
    },
}
TRANSLATIONS = {"core": {"sw": Gain(3.0, 2.5, 0.125, 40), "ka": Gain(2.0, 2.25, 0.5, 30)}}
# The record of step n describes the n-th step.
METRICS = [
    *(
        {"step": step, "train/loss": 6.0 - step, "train/candidates": 100.0 + step,
         "train/overflow": 10.0 * step}
        for step in (1, 2, 3, 4)
    ),
    {"step": 4, "eval/loss": 1.5, "eval/loss/en": 1.0, "eval/loss/sw": 2.0},
]  # fmt: skip


def small_dataset(**measured) -> PackedDataset:
    counts = {"en": (9000, 2), "ka": (2000, 0), "sw": (1000, 1)}
    statistics = {
        language: {
            "train": {"tokens": train},
            "heldout": {"tokens": LOSSES[language].tokens, "unknown": unknown},
        }
        for language, (train, unknown) in counts.items()
    }
    return PackedDataset(
        pathlib.Path("rows"), 600, 16, "", factories.SPECIAL_IDS, statistics, {}, **measured
    )


class ReportTest(absltest.TestCase):
    def check(self, name: str, kind: str = "full", **changes) -> str:
        """Compare the report of a run with its golden file."""
        given = {"losses": LOSSES, "retrieval": RETRIEVAL, "examples": EXAMPLES, "detection": {},
                 "translations": {}, "pair_detection": {}}  # fmt: skip
        found = report.Results(10, **{key: changes.pop(key, one) for key, one in given.items()})
        settings = {"allocation": ALLOCATION, "metrics": METRICS, "full_softmax_from": None}
        output_layer = factories.output_layer_settings(kind=kind, full_softmax_fraction=0.1)
        dataset = changes.pop("dataset", small_dataset())

        def write(folder: pathlib.Path) -> None:
            path = report.write_report(
                folder, found, dataset=dataset, output_layer=output_layer, **settings | changes
            )
            assert path == folder / "report.md"

        return golden.check_report(self, __file__, name, write)

    def test_an_unfinished_run_says_so_at_the_top(self):
        with (
            tempfile.TemporaryDirectory() as name,
            mock.patch.object(golden, "check_report", lambda case, file, name, write: write),
        ):
            self.check("", title="a_b", num_steps=400)(folder := pathlib.Path(name))
            text = (folder / "report.md").read_text(encoding="utf-8")
            self.assertStartsWith(text, "# Report of a\\_b\n\n**Unfinished: 10 of 400 steps.**\n")

    def test_a_run_with_everything(self):
        # Step 4 is exact. Retrieval is the mean over a language's sets, without the pivot.
        overlap = {
            language: {"ngrams": 100, "share": share, "length": 13, "example": [5]}
            for language, share in (("en", 0.015), ("sw", 0.37))
        }
        shares = {
            "ka": "2.10% is held out for 0.10% asked: a reason",
            "sw": "0.05% is held out for 0.10% asked: of two: parts",
        }
        dataset = small_dataset(overlap=overlap, shares=shares)
        self.check("report", "knn", full_softmax_from=3, dataset=dataset, translations=TRANSLATIONS)

    def test_a_discriminator_that_learned_nothing(self):
        metrics = [
            {"step": 2, "train/mrtd/generator_loss": 5.0, "rtd/own/auc": 0.5},
            {"step": 3, "train/loss": 1.0},
            {"step": 4, "rtd/own/auc": 0.55, "rtd/unigram/auc": 0.7},
            *METRICS[-1:],
        ]
        worse = {
            language: dataclasses.replace(one, loss=one.unigram + (-0.5 if language == "en" else 1))
            for language, one in LOSSES.items()
        }
        self.check(
            "report_detection", losses=worse, retrieval={"core": {}}, examples=[],
            detection=DETECTION, metrics=metrics, allocation=None,
            pair_detection={"core": {"sw-en": PairDetection(0.7, 0.5, 0.25, 0.2, 0.4, 90, 3.5)}},
        )  # fmt: skip

    def test_a_run_that_was_stopped_before_its_first_evaluation(self):
        # It did not reach its exact steps, and no vocabulary was allocated.
        languages = {
            language: {**one, "allocated": None}
            for language, one in ALLOCATION["languages"].items()
        }
        self.check(
            "report_early", "knn", losses={"en": LOSSES["en"]}, retrieval={}, metrics=METRICS[:2],
            allocation={**ALLOCATION, "languages": languages}, full_softmax_from=9,
        )  # fmt: skip
        self.check("report_at_once", "knn", metrics=[], allocation=None)

    def test_the_plot_of_a_mixture_is_of_its_masked_lm(self):
        contrast = {"step": 2, "train/loss": 50.0, "train/contrast_loss": 50.0}
        metrics = [{**METRICS[0], "train/mlm_loss": 6.0}, contrast, METRICS[-1]]
        self.check("report_mixture", metrics=metrics, allocation=None)
