"""Kinds of tasks: the table of the project's, and one that this project does not have."""

import json
import pathlib
from unittest import mock

import numpy as np
from absl.testing import absltest

from input_pipeline.tasks.tasks import TASKS
from tests import commands, folders, tiny_tasks, toy_kind
from xlm.common import artifacts
from xlm.experiment import task_runs
from xlm.experiment.task_kinds import KINDS, SEARCHES
from xlm.experiment.task_settings import task_settings
from xlm.models.heads import ClassificationHead, SpanHead, TaggingHead
from xlm.models.settings import EncoderSettings

predict = commands.load("predict")


class KindsTest(absltest.TestCase):
    def test_a_head_for_each_kind(self):
        def head(name, arg="", keys=(), **overrides):
            options = task_settings(tiny_tasks.config(name, arg, **overrides))
            encoder = EncoderSettings(vocab_size=9, dropout_rate=0.1, **dict(keys))
            return KINDS[options.task.kind].head(options, encoder)

        self.assertEqual(head("xnli"), ClassificationHead(3, 0.1))
        self.assertEqual(head("glue", "stsb,"), ClassificationHead(1, 0.1))
        of_mean = head("xnli", task__text_pooling="mean")
        self.assertEqual(of_mean, ClassificationHead(3, 0.1, "mean"))
        modern = {"norm": "layer_no_bias", "bias": False, "norm_epsilon": 1e-3}
        for task in (("xnli",), ("glue", "stsb,")):
            self.assertEqual(head(*task, keys=modern).norm_epsilon, 1e-3)
        of_mean = head("glue", "stsb,", task__text_pooling="mean")
        self.assertEqual(of_mean, ClassificationHead(1, 0.1, "mean"))
        self.assertEqual(head("wikiann", task__pooling="first"), TaggingHead(7, 0.1, "first"))
        self.assertEqual(head("xquad"), SpanHead())
        with self.assertRaisesRegex(ValueError, "task.text_pooling is 'mean', .* first states"):
            head("xnli", task__text_pooling="mean", task__cross_attention=True)

    def test_a_kind_is_tuned_or_searches(self):
        self.assertEmpty(KINDS.keys() & SEARCHES.keys())
        for task in TASKS.values():
            self.assertEqual(task.is_search, task.kind in SEARCHES)
            self.assertEqual(task.is_translation, task.kind not in {*KINDS, *SEARCHES})
        kinds = {*KINDS, *SEARCHES, "translation"}
        self.assertEqual(kinds, {task.kind for task in TASKS.values()})


class OwnKindTest(folders.FolderTest):
    def setUp(self):
        super().setUp()
        self.enter_context(mock.patch.dict(KINDS, {toy_kind.TASK.kind: toy_kind.KIND}))
        self.enter_context(mock.patch.dict(TASKS, {toy_kind.TASK.name: toy_kind.TASK}))

    def write(self, name: str, count: int, odd: str, seed: int) -> None:
        """Sentences of one word, but for another one somewhere."""
        rng, lines = np.random.default_rng(seed), []
        for size in rng.integers(2, 7, count):
            words, place = ["cat"] * size, rng.integers(size)
            words[place] = odd
            lines.append(f"{' '.join(words)}\t{place}\n")
        tiny_tasks.write(self.folder / name, "".join(lines))

    def test_from_files_to_results_and_predictions(self):
        for name, count, odd in (
            ("train.en", 64, "dog"), ("dev.en", 16, "dog"), ("test.en", 13, "dog"),
            ("test.sw", 7, "sleeps"),
        ):  # fmt: skip
            self.write(name, count, odd, seed=count)
        config = tiny_tasks.config(
            "udpos", num_layers=0, task__name="toy", task__root=str(self.folder),
            task__train=("train.{language}",), task__validation=("dev.{language}",),
            task__test=("test.{language}",), train__epochs=16.0, optimizer__learning_rate=1e-2,
        )  # fmt: skip
        run = self.folder / "run"
        results = tiny_tasks.run(config, run)
        self.assertEqual(results["task"], "toy")
        self.assertEqual(results["examples"]["test"], {"en": 13, "sw": 7})
        self.assertEqual(results["selected"]["metric"], "found")
        self.assertEqual(results["selected"]["value"], results["validation"]["en"]["found"])
        self.assertEqual(results["test"]["en"], {"found": 1.0})
        self.assertEqual(artifacts.read_json(run / task_runs.RESULTS), results)
        (self.folder / "mine").write_text("cat cat dog\ndog cat cat cat\n")
        self.assertEqual(self.predict(run), [("1", "dog"), ("2", "dog")])
        (self.folder / "test.sw").write_text("cat cat\n")
        with self.assertRaisesRegex(ValueError, "toy, sw: 1 of 1 .* have no odd word, .* '0'"):
            tiny_tasks.run(config, self.folder / "other")

    def predict(self, run: pathlib.Path) -> list[tuple[str, str]]:
        """Ids and predictions that predict.py writes."""
        output = self.folder / "out.jsonl"
        given = (f"--workdir={run}", f"--input={self.folder / 'mine'}", f"--output={output}")
        with tiny_tasks.quick(), commands.parsed("predict", *given) as rest:
            predict.main(rest)
        lines = map(json.loads, output.read_text().splitlines())
        return [(line["id"], line["prediction"]) for line in lines]
