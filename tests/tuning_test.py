"""Searches of settings by finetune.py --tune, and its runs of several seeds."""

import pathlib
from typing import Any
from unittest import mock

import numpy as np
from absl.testing import parameterized

from tests import commands, own_task_test, tiny_tasks
from xlm.common import artifacts
from xlm.evaluation import task_results
from xlm.experiment import task_data, task_runs, tuning
from xlm.experiment.task_settings import task_settings
from xlm.training.signals import Stopped

RATES = ["learning_rate_0.03", "learning_rate_0.003", "learning_rate_0.1"]


class Runs:
    """Runs in no time: of so many seconds, and with scores by the value of a key."""

    def __init__(self, seconds: float = 60.0, **scores: Any):
        self.now, self.seconds, self.scores, self.names = 0.0, seconds, scores, []

    def __call__(self, config, folder, stopping=None, notes=None) -> dict[str, Any]:
        self.names.append(folder.name)
        assert folder.name in (folder.parent / tuning.TRIALS).read_text()  # in case it is killed
        self.now += self.seconds
        found = {"learning_rate": config.optimizer.learning_rate or 0.01}
        settings = {"optimizer": found, "task": config.task.to_dict()}
        artifacts.write_json(folder / "settings.json", settings)
        score = self.scores.get(folder.name, 0.5)
        if isinstance(score, Exception):
            raise score
        return {"selected": {"value": score}}


class SearchTest(own_task_test.Case):
    def search(self, runs: Runs, minutes: float = 100.0, name: str = "text", **overrides):
        config = self.config(name, **{"optimizer__learning_rate": 0.01, **overrides})
        clock = mock.patch.object(tuning.time, "monotonic", lambda: runs.now)
        with mock.patch.object(task_runs, "run", runs), clock:
            return tuning.search(config, self.folder / "run", minutes)

    @parameterized.parameters(
        ("text", ["text_pooling_first"]), ("tags", ["pooling_mean"]),
        ("embeddings", ["text_pooling_first"]), ("xquad", []),
    )  # fmt: skip
    def test_the_order_is_fixed_and_ties_leave_the_defaults(self, name, pooling):
        runs, given = Runs(), {"task__text_pooling": "mean", "optimizer__learning_rate": 0.0}
        found, notes = self.search(runs, name=name, **given)
        more = [*pooling, "epochs_24.0", "warmup_share_0.3"]
        self.assertEqual(runs.names, ["defaults", *RATES, *more])
        self.assertEqual([one["name"] for one in notes["tuning"] if one["chosen"]], ["defaults"])
        self.assertEqual(found.optimizer.learning_rate, 0.0)  # of the width, as before

    def test_each_change_is_to_the_best_before_it(self):
        best = "learning_rate_0.003+text_pooling_mean"
        scores = {"learning_rate_0.03": FloatingPointError("the loss is nan"),
                  "learning_rate_0.003": 0.6, best: 0.7, f"{best}+epochs_24.0": 0.7}  # fmt: skip
        runs = Runs(**scores)
        found, notes = self.search(runs, task__text_pooling="first")
        more = [best, f"{best}+epochs_24.0", f"{best}+warmup_share_0.3"]
        self.assertEqual(runs.names, ["defaults", *RATES, *more])
        self.assertEqual((found.optimizer.learning_rate, found.task.text_pooling), (0.003, "mean"))
        self.assertEqual(notes["tuning"][1]["error"], "the loss is nan")
        self.assertEqual(self.search(again := Runs(), task__text_pooling="first"), (found, notes))
        self.assertEqual(again.names, ["defaults"])

    def test_minutes_are_those_of_all_trials(self):
        runs = Runs(seconds=60.0)
        self.search(runs, minutes=1.5)
        self.search(runs, minutes=2.0)  # spent
        self.assertEqual(runs.names, ["defaults", RATES[0], "defaults"])
        _, notes = self.search(runs, minutes=2.5)
        self.assertEqual(runs.names[3:], ["defaults", RATES[1]])
        self.assertEqual([one["seconds"] for one in notes["tuning"]], [60.0, 60.0, 60.0])

    def test_an_interrupted_trial_is_resumed_even_if_the_minutes_are_spent(self):
        runs = Runs(**{RATES[0]: Stopped(3)})
        with self.assertRaises(Stopped):
            self.search(runs, minutes=1.5)
        runs.scores = {RATES[0]: 0.9}
        _, notes = self.search(runs, minutes=1.5)
        found = [(one["seconds"], one["chosen"]) for one in notes["tuning"]]
        self.assertEqual(found, [(60.0, False), (120.0, True)])

    def test_a_run_ends_the_search(self):
        self.search(Runs(), minutes=0.5)
        self.write("run/seed0/settings.json", "{}")
        self.assertLen(self.search(Runs())[1]["tuning"], 1)
        (self.folder / "run/tuning/trials.json").unlink()
        with self.assertRaisesRegex(ValueError, "run has a run without --tune"):
            self.search(Runs())
        with self.assertRaisesRegex(
            ValueError, "--tune is of fine-tuning on one host, not of bucc"
        ):
            tuning.search(tiny_tasks.run_config("bucc"), self.folder, 1.0)

    def test_a_shipped_task_has_trials_without_test_data_too(self):
        options = task_settings(tiny_tasks.run_config("udpos", task__test=()))
        self.assertEmpty(task_data.read_split(options, own_task_test.TOKENIZER, "test"))


class RunsTest(own_task_test.Case):
    def command(self, *more: str):
        given = (
            f"--config={commands.ROOT}/configs/finetune/text.py:{self.folder}",
            f"--config.init_from={tiny_tasks.encoder_folder(0)}",
            f"--workdir={self.folder / 'run'}", "--config.task.max_length=24",
            "--config.task.buckets=()", "--config.train.epochs=2.0",
            "--config.train.evaluations=1", "--config.optimizer.learning_rate=1e-8",
        )  # fmt: skip
        with tiny_tasks.quick():
            return commands.execute("finetune", *given, *more)

    def test_the_best_settings_are_trained_and_only_they_see_test_data(self):
        self.write_texts("train.en.csv", 64, seed=0)
        self.write("test.en.csv", "text,label\nthe cat,no such label\n")
        done = self.command("--tune=0.0001")
        self.assertIn("test.en.csv", done.stderr)
        data = artifacts.read_object((where := self.folder / "run/tuning/defaults") / "data.json")
        self.assertEqual([pathlib.Path(one).name for one in data], ["train.en.csv"])
        self.assertEmpty([*where.glob("predictions/test.*"), *where.glob("checkpoints")])
        self.assertEqual(task_results.read_results(where / "results.json")["test"], {})

        self.write_texts("test.en.csv", 20, seed=1)
        one = artifacts.read_json(trials := self.folder / "run/tuning/trials.json")
        keys = {"optimizer.learning_rate": 0.01}
        more = {"name": "learning_rate_3e-08", "keys": keys, "seconds": 1.0, "development": 1.0}
        artifacts.write_json(trials, [*one, more])
        done = self.command("--tune=0.0001")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("--tune chose learning_rate_3e-08, of 2 trials", done.stdout)
        results = task_results.read_results(self.folder / "run/results.json")
        self.assertEqual(results["hyperparameters"]["learning_rate"], 0.01)
        self.assertEqual([trial["chosen"] for trial in results["tuning"]], [False, True])
        self.assertEqual(list(results["test"]), ["en"])
        self.assertEqual(self.command("--tune=9").stdout, done.stdout)

    def test_seeds_have_their_mean_and_spread(self):
        for name, count in (("train.en.csv", 64), ("test.en.csv", 20), ("test.de.csv", 30)):
            self.write_texts(name, count, seed=count)
        done = self.command(rate := "--config.optimizer.learning_rate=1e-2", "--seeds=2")
        self.assertEqual(done.returncode, 0, done.stderr)
        written = artifacts.read_object(self.folder / "run/seeds.json")
        folders = [self.folder / f"run/seed{i}" for i in range(2)]
        results = [task_results.read_results(one / "results.json") for one in folders]
        self.assertEqual([one["seed"] for one in results], [0, 1])
        found = {name: [one["test"][name]["accuracy"] for one in results] for name in ("de", "en")}
        for name, values in {**found, "mean": np.mean([*found.values()], axis=0)}.items():
            mean, spread = written["scores"][name]["accuracy"]
            self.assertAlmostEqual(mean, np.mean(values))
            self.assertAlmostEqual(spread, np.std(values, ddof=1))
            self.assertRegex(done.stdout, rf"{name} .* {100 * mean:.1f} ± {100 * spread:.1f} \|")
        times = [(one / "DONE").stat().st_mtime_ns for one in folders]
        self.assertEqual(self.command(rate, "--seeds=3").returncode, 0)
        self.assertEqual([(one / "DONE").stat().st_mtime_ns for one in folders], times)
        self.assertEqual(artifacts.read_object(self.folder / "run/seeds.json")["seeds"], [0, 1, 2])
