"""Faults of a task's config and data that are told before the folder of its run is claimed."""

import pathlib
import tempfile

from absl.testing import absltest, parameterized
from ml_collections import ConfigDict

from builders import task_data, task_runs
from builders.task_settings import Tokenizer, task_settings
from evaluation.metrics import retrieval
from tests import tiny_tasks


class Case(parameterized.TestCase):
    def setUp(self):
        super().setUp()
        self.folder = pathlib.Path(self.enter_context(tempfile.TemporaryDirectory()))

    def check(self, config: ConfigDict, error: str) -> None:
        with self.assertRaisesRegex(ValueError, error):
            tiny_tasks.run(task_runs.checked(config), self.folder / "run")
        self.assertFalse((self.folder / "run").exists())


class LanguagesTest(Case):
    @parameterized.parameters("validation", "test")
    def test_a_language_that_no_rule_scores(self, split):
        for language in ("de", "fr"):
            text = tiny_tasks.squad([("q", "cat ?", "the cat", "cat")])
            tiny_tasks.write(self.folder / f"{language}.json", text)
        config = tiny_tasks.config("mlqa", task__selection="all_languages")
        config.task.validation_languages = ("en",) if split == "test" else ()
        config.task[split] = (f"{self.folder}/{{language}}.json",)
        self.check(
            config,
            "mlqa has no normalisation for 'fr'; its languages are en, .*zh; name languages of "
            f"these in task.{split}_languages, or remove",
        )
        config.task[f"{split}_languages"] = ("de",)
        tokenizer = Tokenizer(tiny_tasks.tokenizer())
        (found,) = task_data.read_split(task_settings(config), tokenizer, split)
        self.assertEqual(found.language, "de")
        # What is trained on needs no rule.
        config.task.update(train=config.task[split], train_languages=("fr",))
        (found,) = task_data.read_split(task_settings(config), tokenizer, "train")
        self.assertEqual(found.language, "fr")


class SettingsTest(Case):
    def test_margins(self):
        self.check(
            tiny_tasks.config("bucc", task__margin="cosine"),
            "task.margin is 'cosine', must be one of ratio, distance, absolute",
        )
        for margin in retrieval.MARGINS:
            task_settings(tiny_tasks.config("bucc", task__margin=margin))


if __name__ == "__main__":
    absltest.main()
