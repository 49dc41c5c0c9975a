"""Runs of finetune.py that say what their models are worth: baselines, collapse, early stops."""

import dataclasses
import pathlib
from typing import Any

from absl.testing import parameterized

from input_pipeline.tasks.tasks import TASKS
from tests import commands, folders, tiny_tasks
from xlm.evaluation import task_results
from xlm.experiment import fine_tuning as builders
from xlm.experiment import tuned_export
from xlm.training.metrics import read_metrics
from xlm.training.signals import Stopped


class TrustTest(folders.FolderTest):
    def predictions(self, folder: pathlib.Path, name: str) -> list[dict[str, Any]]:
        return task_results.read_lines(folder / "predictions" / f"{name}.jsonl", dict[str, Any])

    def test_what_results_say_agrees_with_the_predictions(self):
        folder = tiny_tasks.finished("udpos")
        results = task_results.read_results(folder / "results.json")
        self.assertEqual(results["collapse"], [])
        self.assertLess(results["training_loss"], 0.5 * results["label_entropy"])
        for language, scores in results["test"].items():
            counts = results["confusion"][language]
            predicted: dict[str, int] = {}
            for line in self.predictions(folder, f"test.{language}"):
                for tag in line["prediction"]:
                    predicted[tag] = predicted.get(tag, 0) + 1
            found = {tag: sum(row.get(tag, 0) for row in counts.values()) for tag in predicted}
            self.assertEqual(found, predicted)
            total = sum(predicted.values())
            right = sum(row.get(tag, 0) for tag, row in counts.items())
            self.assertAlmostEqual(right / total, scores["accuracy"])
            support = {tag: one["support"] for tag, one in results["classes"][language].items()}
            gold = {tag: sum(row.values()) for tag, row in counts.items()}
            self.assertEqual(support, {**dict.fromkeys(support, 0), **gold})
            # NOUN is the most frequent tag of the training data.
            of_noun = results["baselines"]["majority"][language]["accuracy"]
            self.assertAlmostEqual(of_noun, support["NOUN"] / total)
            self.assertEqual(set(results["baselines"]["random"][language]), set(scores))
        printed = task_results.table(TASKS["udpos"], results)
        self.assertRegex(printed, r"\| f1 \| accuracy \| .* \| majority f1 \| random f1 \|")
        page = (folder / "report.html").read_text()
        self.assertEqual(page.count("<svg"), 4)
        self.assertNotIn("collapsed", page)

    def test_the_report_shows_the_most_confident_errors(self):
        folder = tiny_tasks.finished("udpos")
        text = (folder / "report.md").read_text()
        _, _, errors = text.partition("most confident errors")
        rows = [line.split(" | ") for line in errors.splitlines() if line.startswith("| sw |")]
        self.assertNotEmpty(rows)
        shares = [float(row[-1].rstrip(" |")) for row in rows]
        self.assertEqual(shares, sorted(shares, reverse=True))
        lines = {line["id"]: line for line in self.predictions(folder, "test.sw")}
        for _, name, words, gold, predicted, share in rows:
            line = lines[name]
            place = [one[0] == "\\" for one in words.split()].index(True)  # the word in brackets
            self.assertEqual(line["prediction"][place], predicted)
            self.assertNotEqual(gold, predicted)
            shown = float(share.rstrip(" |"))
            self.assertAlmostEqual(100 * line["probabilities"][place], shown, delta=0.06)

    def test_a_collapsed_model_is_named_everywhere(self):
        config = tiny_tasks.run_config("cola")
        folder = self.folder / "run"
        with self.assert_told("cola has collapsed: .*; try another optimizer.learning_rate"):
            results = tiny_tasks.run(config, folder)
        found = results["collapse"]
        self.assertLen(found, 2)
        self.assertRegex(found[0], "training loss is 0.6.., no better than that of label .*0.693")
        self.assertRegex(found[1], "test, en: '[01]' is 100.0% of the predictions, but 50.0%")
        self.assertIn(f"COLLAPSED: {found[1]}", task_results.table(TASKS["cola"], results))
        self.assertIn(
            "<strong>This model has collapsed.</strong>", (folder / "report.html").read_text()
        )
        tuned_export.export(folder, self.folder / "exported")
        card = (self.folder / "exported" / "README.md").read_text()
        self.assertIn("**This model has collapsed**: the training loss is", card)
        self.assertIn(f"by {results['calibration']['temperature']:.3g} before the softmax", card)

    def test_the_status_of_a_collapse_is_a_key(self):
        given = (
            f"--config={commands.ROOT}/configs/finetune/glue.py:cola,{tiny_tasks.data_folder()}",
            f"--config.init_from={tiny_tasks.encoder_folder(0)}",
            f"--workdir={self.folder / 'run'}",
            "--config.task.max_length=24", "--config.task.buckets=()", "--config.train.epochs=1.0",
            "--config.train.evaluations=1",
        )  # fmt: skip
        with tiny_tasks.quick():
            for more, status in (((), 0), (("--config.evaluation.collapse_status=4",), 4)):
                done = commands.execute("finetune", *given, *more)
                self.assertEqual(done.returncode, status, done.stderr)
                self.assertIn("warning: the model has collapsed; try another", done.stderr)

    def snapshot(self, folder: pathlib.Path) -> dict[str, bytes]:
        names = ("results.json", "best.safetensors", "metrics.jsonl", "report.html")
        return {name: (folder / name).read_bytes() for name in names}

    def test_patience_ends_training_and_a_stopped_run_ends_alike(self):
        # At this rate no score changes, so that the first evaluation stays the best.
        rate = {"optimizer__learning_rate": 1e-9, "train__evaluations": 8, "train__patience": 2}
        config = tiny_tasks.run_config("cola", **rate)
        results = tiny_tasks.run(config, self.folder / "whole")
        self.assertEqual(results["selected"]["step"], 1)
        self.assertEqual(results["selected"]["stopped_early"], 3)
        records = read_metrics(self.folder / "whole" / "metrics.jsonl")
        self.assertEqual(
            [one["step"] for one in records if "validation/loss" in one], [1, 2, 3]
        )  # fmt: skip
        printed = task_results.table(TASKS["cola"], results)
        self.assertIn("training ended early, after step 3 (train.patience)", printed)
        for step in (2, 8):  # in training, and in the evaluation after it
            folder = self.folder / str(step)
            with self.assertRaises(Stopped):
                tiny_tasks.run(config, folder, stops_after=step)
            tiny_tasks.run(config, folder)
            self.assertEqual(self.snapshot(folder), self.snapshot(self.folder / "whole"))


class DefaultsTest(parameterized.TestCase):
    @parameterized.parameters(
        (1024, 2e-5, "first"), (768, 2e-5, "first"), (384, 8e-5, "mean"), (128, 7.2e-4, "mean"),
        (16, 1e-3, "mean"),
    )  # fmt: skip
    def test_rate_and_pooling_by_width(self, width, rate, pooling):
        config = tiny_tasks.config("text")
        encoder = dataclasses.replace(tiny_tasks.SETTINGS, hidden_size=width)
        found = builders.by_width(config, encoder)
        self.assertEqual(found.optimizer.learning_rate, rate)
        self.assertEqual(found.task.text_pooling, pooling)
        self.assertEqual(config.optimizer.learning_rate, 0)  # the given one stays
        given = tiny_tasks.config("text", optimizer__learning_rate=3e-5, task__text_pooling="first")
        self.assertEqual(builders.by_width(given, encoder), given)
        crossed = tiny_tasks.config("text", task__pair_column="b", task__cross_attention=True)
        self.assertEqual(builders.by_width(crossed, encoder).task.text_pooling, "first")

    def test_other_tasks_keep_theirs(self):
        config = tiny_tasks.config("xnli")
        self.assertEqual(builders.by_width(config, tiny_tasks.SETTINGS), config)
