"""Predictions on disk, and the table of a run."""

import pathlib
import tempfile

from absl.testing import absltest, parameterized

from input_pipeline.tasks.tasks import TASKS
from xlm.evaluation import task_results


class TaskResultsTest(parameterized.TestCase):
    def test_lines_of_any_script_in_order(self):
        folder = pathlib.Path(self.enter_context(tempfile.TemporaryDirectory()))
        path = folder / "predictions" / "test.zh.jsonl"
        task_results.write_lines(path, [{"id": "1", "prediction": "猫"}, {"id": "0"}])
        self.assertEqual(
            path.read_text(encoding="utf-8"), '{"id": "1", "prediction": "猫"}\n{"id": "0"}\n'
        )

    def test_lines_are_read_as_written(self):
        folder = pathlib.Path(self.enter_context(tempfile.TemporaryDirectory()))
        path = folder / "test.en.jsonl"
        for found in ([], [{"id": "0", "prediction": "a\u2028b\x85c\nd"}, {"id": "1"}]):
            task_results.write_lines(path, found)
            self.assertEqual(task_results.read_lines(path, dict[str, str]), found)
        for content, message in (
            ('{"id": "0"}\n{"id"', ": its last line is cut off"),
            ('{"id": "0"}\n{"id"\n', ", line 2: not JSON"),
            ('{"id": 0}\n', ", line 1: id is 0, must be text"),
        ):
            path.write_text(content, encoding="utf-8")
            with self.assertRaisesRegex(ValueError, f"test.en.jsonl{message}.*; run the eval"):
                task_results.read_lines(path, dict[str, str])

    def test_the_table_has_every_language_and_the_mean(self):
        results = {
            "test": {"de": {"f1": 0.5, "accuracy": 0.25}, "en": {"f1": 0.25, "accuracy": 1.0}},
            "examples": {"test": {"de": 1200, "en": 3}},
        }
        self.assertEqual(
            task_results.table(TASKS["udpos"], results).splitlines(),
            [
                "| udpos, test | examples | f1 | accuracy |",
                "|---|---:|---:|---:|",
                "| de | 1,200 | 50.0 | 25.0 |",
                "| en | 3 | 25.0 | 100.0 |",
                "| mean | | 37.5 | 62.5 |",
            ],
        )

    def test_both_splits(self):
        scores = {"en": {"accuracy": 0.5}}
        results = {
            "test": scores,
            "validation": scores,
            "examples": {"test": {"en": 2}, "validation": {"en": 4}},
        }
        printed = task_results.table(TASKS["xnli"], results)
        self.assertStartsWith(printed, "| xnli, validation |")
        self.assertIn("\n\n| xnli, test |", printed)

    def test_development_data_are_reported_where_nothing_else_is_scored(self):
        scores = {"validation": {"en": {"matthews": 0.5, "a": 1.0}}}
        for results, split, reported in (
            (scores, "validation", {"en": 0.5}),
            (scores | {"test": {}}, "validation", {"en": 0.5}),
            (scores | {"test": {"en": {"matthews": 0.25}}}, "test", {"en": 0.25}),
        ):
            found = results | {"task": "cola"}
            self.assertEqual(task_results.reported_split(found), split)
            self.assertEqual(task_results.reported_scores(found), reported)

    def test_what_scores_were_chosen_on_is_printed(self):
        scores = {"en": {"accuracy": 0.5}, "sw": {"accuracy": 0.25}}
        results = {
            "test": scores,
            "examples": {"test": {"en": 2, "sw": 2}},
            "selected": {"step": 1200, "metric": "accuracy", "on": ["en"]},
            "selected_on_test": ["en"],
            "held_out": 0.1,
            "seen_in_training": {"sw": 1},
        }
        printed = task_results.table(TASKS["xnli"], results)
        for line in (
            "| en | 2 | 50.0† |", "| sw | 2 | 25.0 |",
            "checkpoint of step 1,200, the best by accuracy of the development data in en",
            "no development files: 10 % of the training examples were held out",
            "test examples with a text of the training data, by language: sw 1",
            "† scores of the data that chose the checkpoint or a threshold",
        ):  # fmt: skip
            self.assertIn(line, printed)

    @parameterized.parameters(
        ([1000, 2000, 3000], "mean of 3 checkpoints, of steps 1,000 to 3,000"),
        ([3000], "checkpoint of step 3,000, the last"),
        (None, "checkpoint of step 3,000, the best by bleu of the development data in en-de"),
    )
    def test_translations_are_of_an_average_or_of_the_best(self, averaged, expected):
        selected = {"step": 3000, "averaged_steps": averaged, "metric": "bleu", "on": ["en-de"]}
        results = {
            "test": {"en-de": {"bleu": 0.25}},
            "examples": {"test": {"en-de": 4}},
            "selected": selected,
            "signatures": {"en-de": {"bleu": "nrefs:1|tok:13a", "chrf": "nrefs:1|nc:6"}},
        }
        lines = task_results.table(TASKS["translation"], results).splitlines()
        self.assertEqual(
            lines[-4:],
            ["", expected, "en-de, bleu: nrefs:1|tok:13a", "en-de, chrf: nrefs:1|nc:6"],
        )


if __name__ == "__main__":
    absltest.main()
