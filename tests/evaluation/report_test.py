"""The numbers of the table, and the pages and plots of a report."""

import dataclasses
import functools
import json
import math
import pathlib
import tempfile
import types
from unittest import mock

import numpy as np
from absl.testing import absltest, parameterized

from input_pipeline.packed_dataset import PackedDataset
from tests import factories
from xlm.evaluation import report
from xlm.evaluation.examples import Example, examples_table
from xlm.evaluation.masked_lm import LanguageLoss
from xlm.evaluation.replaced_token import Detection
from xlm.evaluation.retrieval import RetrievalResult

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
            "bytes": num_bytes,
            "amount": num_bytes,
            "resource": "all",
            "probability": 0.5,
            "sizes": [100, 200, 300],
            "alp": [-250.0, -210.0, -200.0],
            "allocated": allocated,
            "not_concave": [],
            "at_largest": allocated == 300,
        }
        for language, num_bytes, allocated in (("en", 60_000, 200), ("sw", 20_000, 300))
    },
    "clusters": {},
}
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
METRICS = [
    {"step": 1, "train/loss": 6.0, "train/candidates": 150.0, "train/overflow": 0.0},
    {"step": 2, "train/loss": 5.0, "train/candidates": 170.0, "train/overflow": 20.0},
    {"step": 2, "eval/loss": 5.5, "eval/loss/en": 5.0, "eval/loss/sw": 6.0},
]


def results(
    retrieval=RETRIEVAL, losses=LOSSES, examples=EXAMPLES, detection=types.MappingProxyType({})
) -> report.Results:
    return report.Results(10, losses, retrieval, examples, dict(detection))


def store() -> PackedDataset:
    counts = {"en": (9000, 2), "ka": (2000, 0), "sw": (1000, 1)}
    statistics = {
        language: {
            "train": {"tokens": train},
            "heldout": {"tokens": LOSSES[language].tokens, "unknown": unknown},
        }
        for language, (train, unknown) in counts.items()
    }
    return PackedDataset(pathlib.Path("rows"), 600, 16, "", factories.SPECIAL_IDS, statistics, {})


def cells(table: str) -> dict[str, list[str]]:
    """First cell of each row -> its other cells."""
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()]
    assert len({len(row) for row in rows}) == 1, "rows of unequal length are no table"
    return {row[0]: row[1:] for row in rows}


class EvaluationTableTest(absltest.TestCase):
    def test_values(self):
        table = cells(report.evaluation_table(results(), store()))
        self.assertEqual(list(table)[2:], ["en", "ka", "sw", "**mean**"])
        self.assertEqual(
            table["en"], ["9000", "500", "0.40", "3.000", "5.000", "1.000", "", "", ""]
        )
        self.assertEqual(
            table["ka"],
            ["2000", "0", "0.00", "2.500", "4.000", "0.500", "12.5 %", "75.0 %", "5.0 %"],
        )
        # Averaged over the two sets it is in.
        self.assertEqual(
            table["sw"],
            ["1000", "300", "0.33", "4.000", "6.000", "1.500", "75.0 %", "50.0 %", "3.0 %"],
        )
        # The pivot is no part of the mean of retrieval.
        self.assertEqual(
            table["**mean**"],
            ["", "", "", "3.167", "5.000", "1.000", "43.8 %", "62.5 %", "4.0 %"],
        )

    def test_without_parallel_text(self):
        for retrieval in ({}, {"core": {}}):
            table = cells(report.evaluation_table(results(retrieval), store()))
            for language in ("en", "ka", "sw", "**mean**"):
                self.assertEqual(table[language][-3:], ["", "", ""])
            self.assertEqual(table["**mean**"][3:6], ["3.167", "5.000", "1.000"])


class DetectionTest(absltest.TestCase):
    def test_table(self):
        table = cells(report.detection_table(DETECTION))
        scores = ["precision", "recall", "replaced"]
        header = ["own: auc", *scores, "unigram: auc", *scores]
        self.assertEqual(table["language"], header)
        self.assertEqual(list(table)[2:], ["en", "sw", "**mean**"])
        # No token of Swahili was called replaced, or none was.
        self.assertEqual(
            table["sw"],
            ["60.0 %", "", "0.0 %", "10.0 %", "", "", "", "0.0 %"],
        )
        self.assertEqual(
            table["**mean**"],
            ["70.0 %", "75.0 %", "12.5 %", "15.0 %", "90.0 %", "50.0 %", "75.0 %", "7.0 %"],
        )

    def test_plot_has_the_curves_that_were_recorded(self):
        metrics = [
            {"step": 2, "rtd/own/auc": 0.5, "rtd/unigram/auc": 0.6},
            {"step": 3, "train/loss": 1.0},
            {"step": 4, "rtd/own/auc": 0.55, "rtd/unigram/auc": 0.7},
        ]
        drawn = {}
        with mock.patch.object(
            report.figures, "save", lambda figure, _: drawn.update(figure=figure)
        ):
            report.plot_detection(metrics, pathlib.Path("detection.png"))
        lines = {line.get_label(): line for line in drawn["figure"].axes[0].get_lines()}
        self.assertEqual(set(lines), {"unigram samples", "samples of its own generator", "chance"})
        for label, expected in (
            ("unigram samples", [0.6, 0.7]), ("samples of its own generator", [0.5, 0.55]),
        ):  # fmt: skip
            np.testing.assert_allclose(lines[label].get_xdata(), [2, 4])
            np.testing.assert_allclose(lines[label].get_ydata(), expected)


class PlotsOfTrainingTest(parameterized.TestCase):
    # A record of step n is of the n-th step, which is exact if n is above `exact_from`.
    metrics = (
        *({"step": step, "train/loss": 6.0 - step, "train/candidates": 100.0 + step,
           "train/overflow": 10.0 * step} for step in (1, 2, 3, 4)),
        {"step": 4, "eval/loss": 1.5, "eval/loss/en": 1.0, "eval/loss/sw": 2.0},
    )  # fmt: skip

    def drawn(self, plot, *arguments):
        found = {}
        with mock.patch.object(
            report.figures, "save", lambda figure, _: found.update(figure=figure)
        ):
            plot(self.metrics, *arguments, pathlib.Path("plot.png"))
        return found["figure"].axes[0]

    def lines(self, axes) -> dict[str, list[list[float]]]:
        return {
            line.get_label().partition(" (")[0]: [list(one) for one in line.get_data()]
            for line in axes.get_lines()
        }

    def shaded(self, axes) -> list[tuple[float, float]]:
        return [
            (patch.get_x(), patch.get_x() + patch.get_width())
            for patch in axes.patches
            if patch.get_label() == "steps with the exact softmax"
        ]

    def test_losses(self):
        axes = self.drawn(report.plot_loss, 5.0, 3)
        lines = self.lines(axes)
        self.assertEqual(lines["training"], [[1, 2, 3, 4], [5.0, 4.0, 3.0, 2.0]])
        self.assertEqual(lines["exact, held-out rows, mean of languages"], [[4], [1.5]])
        self.assertEqual(lines["unigram, mean of languages"][1], [5.0, 5.0])

    def test_candidates_end_where_exact_steps_begin(self):
        axes = self.drawn(report.plot_candidates, 200, 3)
        lines = self.lines(axes)
        self.assertEqual(lines["|V'|, before the cut"], [[1, 2, 3], [101.0, 102.0, 103.0]])
        self.assertEqual(lines["overflow"], [[1, 2, 3], [10.0, 20.0, 30.0]])

    @parameterized.parameters((3, [(3, 4)]), (4, []), (9, []))
    def test_exact_steps_are_shaded(self, exact_from, expected):
        # 9: of a run that was stopped before it came to them.
        for plot, first in ((report.plot_loss, 5.0), (report.plot_candidates, 200)):
            self.assertEqual(self.shaded(self.drawn(plot, first, exact_from)), expected)

    def test_they_are_those_of_the_run(self):
        found = []
        for plot in ("plot_loss", "plot_candidates"):
            keep = lambda *arguments: found.append(arguments[2])  # noqa: E731
            self.enter_context(mock.patch.object(report, plot, keep))
        for start in (9, 40):
            report.write_report(
                pathlib.Path(self.enter_context(tempfile.TemporaryDirectory())),
                results(),
                store=store(),
                output_layer=factories.output_layer_settings(kind="knn", full_softmax_fraction=0.1),
                allocation=None,
                metrics=self.metrics,
                full_softmax_from=start,
            )
        self.assertEqual(found, [9, 9, 40, 40])


def written(
    kind: str, metrics=METRICS, allocation=ALLOCATION, **found
) -> tuple[str, dict[str, bytes]]:
    """The page of a report, and all its files by name; without an allocation, two plots fewer."""
    with tempfile.TemporaryDirectory() as parent:
        folder = pathlib.Path(parent) / "report"
        path = report.write_report(
            folder,
            results(**found),
            store=store(),
            output_layer=factories.output_layer_settings(kind=kind, full_softmax_fraction=0.1),
            allocation=allocation,
            metrics=metrics,
            full_softmax_from=9 if kind == "knn" else None,
        )
        assert path == folder / "report.md"
        page = path.read_text(encoding="utf-8")
        return page, {path.name: path.read_bytes() for path in folder.iterdir()}


@functools.cache
def whole_report(kind: str) -> tuple[str, dict[str, bytes]]:
    """The page and the files of all that a run can have, but for a discriminator."""
    return written(kind)


class WriteReportTest(parameterized.TestCase):
    @parameterized.product(kind=("knn", "full"), retrieval=(RETRIEVAL, {}))
    def test_all_that_the_page_shows_is_there(self, kind, retrieval):
        page, files = whole_report(kind) if retrieval else written(kind, retrieval={})
        plots = {"alp.png", "sizes.png", "loss.png"}
        if kind == "knn":
            plots.add("candidates.png")
        self.assertEqual(set(files), plots | {"report.md", "results.json"})
        for plot in plots:
            self.assertIn(f"]({plot})", page)
            self.assertTrue(files[plot].startswith(b"\x89PNG"))
        self.assertEqual(page.count("]("), len(plots))
        self.assertIn(report.evaluation_table(results(retrieval), store()), page)
        self.assertIn("| en | 60 | 0.500 | 100 to 300 | 200 | -210.0 |", page)
        self.assertIn("Means over 3 languages, 600 pieces, 10 steps.", page)
        self.assertIn("1.000 bits a character", page)

    def test_a_tokenizer_that_was_given_has_no_build_to_show(self):
        page, files = written("full", allocation=None)
        self.assertNotIn("## Vocabulary", page)
        self.assertEqual([name for name in files if name.endswith(".png")], ["loss.png"])

    def test_page_of_a_discriminator(self):
        page, files = written("full", allocation=None, detection=DETECTION)
        self.assertIn(report.detection_table(DETECTION), page)
        self.assertIn("](detection.png)", page)
        self.assertTrue(files["detection.png"].startswith(b"\x89PNG"))

    def test_it_opens_with_what_was_learned(self):
        page, _ = whole_report("knn")
        opening = (
            "# Report",
            "The model predicts masked pieces better than their frequencies do: its exact held-out "
            "loss is 3.167 nats a token, 1.833 below the unigram level of 5.000, and 3 of 3 "
            "languages are below theirs. 53.1 % of held-out sentences find their translation, 13.3 "
            "times the 4.0 % of chance.",
            "](loss.png)",
            examples_table(EXAMPLES),
            "## Evaluation",
        )
        places = [page.find(part) for part in opening]
        self.assertNotIn(-1, places)
        self.assertEqual(places, sorted(places))

    def test_nothing_learned_is_said(self):
        worse = {
            language: dataclasses.replace(
                loss, loss=loss.unigram + (-0.5 if language == "en" else 1)
            )
            for language, loss in LOSSES.items()
        }
        page, _ = written("full", allocation=None, losses=worse, retrieval={})
        self.assertIn(
            "The model predicts masked pieces no better than their frequencies do: its exact "
            "held-out loss is 5.500 nats a token, 0.500 above the unigram level of 5.000, and 1 of "
            "3 languages are below theirs.\n",
            page,
        )
        self.assertNotIn("chance.", page)

    def test_means_are_over_the_languages_with_held_out_rows(self):
        english = {"en": LOSSES["en"]}
        page, _ = written("full", allocation=None, losses=english, retrieval={})
        self.assertIn("and 1 of 1 languages are below theirs.", page)
        self.assertIn(
            "Means over 1 languages, 600 pieces, 10 steps. 1.000 bits a character. Without "
            "held-out rows, and in no mean: ka, sw.\n",
            page,
        )
        page, _ = whole_report("full")
        self.assertNotIn("Without held-out rows", page)

    def test_without_examples(self):
        page, _ = written("full", allocation=None, examples=[])
        self.assertNotIn("## Examples", page)

    def test_a_vocabulary_that_gave_no_language_a_size(self):
        languages = {
            language: {**one, "allocated": None}
            for language, one in ALLOCATION["languages"].items()
        }
        page, files = written("full", allocation={**ALLOCATION, "languages": languages})
        self.assertNotIn("sizes.png", files)
        self.assertNotIn("sizes.png", page)
        self.assertIn("| en | 60 | 0.500 | 100 to 300 |\n", page)

    def test_results_can_be_read_back(self):
        _, files = whole_report("knn")
        found = json.loads(files["results.json"])
        self.assertEqual(found["step"], 10)
        self.assertEqual(found["losses"]["sw"]["loss"], 4.0)
        self.assertEqual(found["retrieval"]["news"]["sw"]["sentences"], 100)
        self.assertEqual(found["examples"][0]["likeliest"], [["▁d", 0.5], ["▁c", 0.25]])
        self.assertEqual(found["examples"][1]["rank"], 1)

    def test_a_run_without_evaluations_so_far(self):
        page, _ = written("knn", allocation=None, metrics=METRICS[:2])
        self.assertIn("loss.png", page)
        written("knn", allocation=None, metrics=[])

    def test_metrics_change_the_plots(self):
        pages = []
        for loss in (5.0, 3.0):
            _, files = written("knn", metrics=[METRICS[0], {**METRICS[1], "train/loss": loss}])
            pages.append(files)
        changed = {name for name in pages[0] if pages[0][name] != pages[1][name]}
        self.assertEqual(changed, {"loss.png"})

    def test_the_plot_of_a_mixture_is_of_its_masked_lm(self):
        plots = []
        for other in (5.0, 50.0):
            own = {**METRICS[0], "train/mlm_loss": 6.0}
            contrast = {"step": 2, "train/loss": other, "train/contrast_loss": other}
            _, files = written("full", allocation=None, metrics=[own, contrast, METRICS[2]])
            plots.append(files["loss.png"])
        self.assertEqual(*plots)

    def test_the_plot_has_the_unigram_level(self):
        losses = {"en": dataclasses.replace(LOSSES["en"], unigram=7.0)}
        plots = [
            written("full", allocation=None, **changes)[1]["loss.png"]
            for changes in ({}, {}, {"losses": losses})
        ]
        self.assertEqual(plots[0], plots[1])
        self.assertNotEqual(plots[0], plots[2])


if __name__ == "__main__":
    absltest.main()
