"""A task's record is the one place that knows it."""

import ast
import importlib
import pathlib

from absl.testing import parameterized

from input_pipeline.tasks.tasks import TASKS
from xlm.evaluation.metrics import questions, tagging
from xlm.experiment.task_kinds import KINDS, SEARCHES

ROOT = pathlib.Path(__file__).resolve().parents[3]
# The record, and the folder of a task's own configs. Studies and benchmarks are of chosen tasks.
KNOW_NAMES = ("input_pipeline/tasks/tasks.py", "configs/", "research/", "benchmarks/", "tests/")
# In a report retrieval is a column; in the last one "regression" is a value of transformers'.
KNOW_KINDS = (
    *KNOW_NAMES, "xlm/experiment/task_kinds.py", "xlm/evaluation/report.py", "xlm/cli/endings.py",
    "xlm/evaluation/xtreme_submission.py", "xlm/interop/task_heads.py",
)  # fmt: skip


class TasksTest(parameterized.TestCase):
    @parameterized.parameters(
        # Two are names of rules, too, and one is that of its kind.
        (set(TASKS) - {"squad", "mlqa", "translation"}, KNOW_NAMES),
        ({*KINDS, *SEARCHES}, KNOW_KINDS),
    )
    def test_nothing_else_goes_by_the_name_of_a_task_or_kind(self, names, know):
        for path in sorted(ROOT.glob("[a-z]*/**/*.py")) + sorted(ROOT.glob("*.py")):
            relative = str(path.relative_to(ROOT))
            if relative.startswith(know):
                continue
            strings = {
                node.value
                for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
                if isinstance(node, ast.Constant) and isinstance(node.value, str)
            }
            self.assertEmpty(names & strings, relative)

    @parameterized.parameters(*TASKS.values())
    def test_a_record_is_whole(self, task):
        self.assertIn(task.kind, {*KINDS, *SEARCHES, "translation"})
        self.assertNotEmpty(task.metrics)
        self.assertEqual(
            (TASKS[task.name], list(task.languages)), (task, sorted({*task.languages}))
        )
        self.assertEqual(task.columns is not None, task.is_of_texts)
        if task.is_of_texts:
            # As many texts from tensorflow-datasets as from files.
            self.assertEqual(bool(task.columns.pair), task.tfds_texts[1] is not None)
            for names in task.headerless:
                self.assertTrue(set(names) & set(task.columns.text))
        has_labels = task.kind in ("classification", "tagging") and not task.is_own
        self.assertEqual(bool(task.labels), has_labels)
        self.assertIn(task.scorer, tagging.SCORERS)
        self.assertTrue(callable(questions.normalizer(task.normalizer, "en")))

    def test_every_task_has_a_config(self):
        configs = {
            path.stem: importlib.import_module(f"configs.finetune.{path.stem}")
            for path in (ROOT / "configs" / "finetune").glob("*.py")
        }
        several = {name for one in configs.values() for name in getattr(one, "TASKS", ())}
        several |= {name for one in configs.values() if isinstance(getattr(one, "TASKS", ()), dict)
                    for name in one.TASKS.values()}  # fmt: skip
        self.assertEmpty(set(TASKS) - set(configs) - several)
