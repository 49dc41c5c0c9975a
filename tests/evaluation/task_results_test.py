"""Predictions on disk, and the table of a run."""

import json

from absl.testing import parameterized

from input_pipeline.tasks.tasks import TASKS
from tests import folders, golden
from xlm.evaluation import task_results


class TaskResultsTest(folders.FolderTest):
    def test_lines_are_read_as_written(self):
        path = self.folder / "predictions" / "test.en.jsonl"
        for found in ([], [{"id": "0", "prediction": "a\u2028b\x85c\nd猫"}, {"id": "1"}]):
            task_results.write_lines(path, found)
            self.assertEqual(task_results.read_lines(path, dict[str, str]), found)
        self.assertIn("猫", path.read_text(encoding="utf-8"))
        for content, message in (
            ('{"id": "0"}\n{"id"', ": its last line is truncated"),
            ('{"id": 0}\n', ", line 1: id is 0, must be text"),
        ):
            path.write_text(content, encoding="utf-8")
            with self.assertRaisesRegex(ValueError, f"test.en.jsonl{message}.*; rerun the eval"):
                task_results.read_lines(path, dict[str, str])

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

    def test_the_table_of_a_run(self):
        scores = {"en": {"f1": 0.5, "accuracy": 0.25}, "sw": {"f1": 0.25, "accuracy": 1.0}}
        results = {
            "test": scores, "validation": {"en": scores["en"]},
            "examples": {"test": {"en": 1200, "sw": 3}},
            "selected": {"step": 1200, "metric": "f1", "on": ["en"]}, "selected_on_test": ["en"],
            "held_out": 0.1, "seen_in_training": {"sw": 1},
        }  # fmt: skip
        table = task_results.table(TASKS["udpos"], results)
        golden.check(self, __file__, "task_results", table + "\n")
        of_file = json.loads(json.dumps(results, sort_keys=True))
        self.assertEqual(task_results.table(TASKS["udpos"], of_file), table)

    @parameterized.parameters([1000, 2000, 3000], [3000], None)
    def test_the_table_of_translations(self, *averaged):
        averaged = averaged[0] if averaged == (None,) else list(averaged)
        results = {
            "test": {"en-de": {"bleu": 0.25}},
            "examples": {"test": {"en-de": 4}},
            "selected": {
                "step": 3000, "averaged_steps": averaged, "metric": "bleu", "on": ["en-de"],
            },
            "signatures": {"en-de": {"bleu": "nrefs:1|tok:13a", "chrf": "nrefs:1|nc:6"}},
            "ceilings": {"test": {"en-de": 0.98}, "validation": {"en-de": 1.0}},
        }  # fmt: skip
        golden.check(
            self, __file__, f"task_results_{len(averaged or [])}",
            task_results.table(TASKS["translation"], results) + "\n",
        )  # fmt: skip
