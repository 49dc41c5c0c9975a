"""Faults of a task's config and data that are told before the folder of its run is claimed."""

import dataclasses
from unittest import mock

from absl.testing import parameterized
from ml_collections import ConfigDict

from input_pipeline.tasks.tasks import TASKS
from tests import folders, tiny_tasks, tiny_translation
from xlm.evaluation.metrics import retrieval
from xlm.experiment import task_data, task_schema
from xlm.experiment.task_settings import Tokenizer, task_settings


class Case(folders.FolderTest):
    def check(self, config: ConfigDict, error: str) -> None:
        with self.assertRaisesRegex(ValueError, error):
            tiny_tasks.run(task_schema.checked(config), self.folder / "run")
        self.assertFalse((self.folder / "run").exists())


class ClassWeightsTest(Case):
    def test_a_class_of_one_row_is_named_if_weights_are_balanced(self):
        task = dataclasses.replace(TASKS["text_classes"], labels=("a", "b"))
        options = mock.Mock(class_weights=("balanced",), task=task)
        examples = [mock.Mock(label=label) for label in (0, 0, 1)]
        with self.assert_told("class 'b' is there once in the training data"):
            found = task_data.class_weights(options, [mock.Mock(examples=examples)])
        self.assertEqual(found, (3 / 4, 3 / 2))
        with self.assertNoLogs(level="WARNING"):
            task_data.class_weights(options, [mock.Mock(examples=2 * examples)])


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
    def test_buckets_and_margins(self):
        for wrong in ((0, 16), (-8, 16)):
            error = rf"task.buckets is \({wrong[0]}, 16\), in which {wrong[0]} must be at least 1"
            self.check(tiny_translation.config(task__buckets=wrong), error)
        self.check(tiny_tasks.config("udpos", task__buckets=(0, 16)), "task.buckets is .* least 1")
        for least in ((1, 16), ()):
            task_settings(task_schema.checked(tiny_translation.config(task__buckets=least)))
        for margin in retrieval.MARGINS:
            task_settings(tiny_tasks.config("bucc", task__margin=margin))

    @parameterized.parameters("tatoeba", "bucc", "translation")
    def test_weights_of_what_has_no_classes(self, name):
        config = tiny_translation.config() if name == "translation" else tiny_tasks.config(name)
        config.task.class_weights = (1.0, 2.0)
        self.check(
            config,
            rf"task.class_weights is \(1.0, 2.0\), but {name} has no classes; set it to \(\)",
        )

    def test_rules_that_select_nothing(self):
        for name in ("tatoeba", "bucc"):
            config = tiny_tasks.config(name, task__selection="each_language")
            self.check(config, f"but {name} trains no model for any language; set it to english")
        for rule in ("english", "each_language"):
            config = tiny_translation.config(task__selection=rule)
            self.check(config, f"selection is '{rule}', but .* the mean over its directions; set")
