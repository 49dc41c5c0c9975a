"""Stopped, repeated and repaired runs of finetune.py, and runs that find other data."""

import dataclasses
import pathlib
import shutil
from unittest import mock

import jax
from absl.testing import parameterized
from ml_collections import ConfigDict

from input_pipeline.tasks import files
from tests import folders, tiny_tasks
from xlm.common import artifacts
from xlm.experiment import prediction, task_data, task_runs
from xlm.experiment.pretrained import read_pretrained
from xlm.experiment.task_settings import task_settings
from xlm.training.signals import Stopped


class ResumeTest(folders.FolderTest):
    def snapshot(self, folder: pathlib.Path) -> dict[str, bytes]:
        paths = [folder / "results.json", folder / "best.safetensors", folder / "metrics.jsonl"]
        paths += sorted((folder / "predictions").iterdir())
        return {str(path.relative_to(folder)): path.read_bytes() for path in paths}

    @parameterized.parameters(2, 6, 8)  # before and after a checkpoint, and in the evaluation
    def test_a_run_that_was_stopped_ends_as_if_it_had_not_been(self, step):
        config = tiny_tasks.run_config("cola")
        with self.assertRaisesRegex(Stopped, f"after step {step} "):
            tiny_tasks.run(config, self.folder, stops_after=step)
        self.assertFalse((self.folder / "results.json").exists())
        tiny_tasks.run(config, self.folder)
        self.assertEqual(self.snapshot(self.folder), self.snapshot(tiny_tasks.finished("cola")))

    def test_a_finished_run_does_nothing_and_another_config_is_refused(self):
        folder = tiny_tasks.finished("cola")
        before = self.snapshot(folder)
        config = tiny_tasks.run_config("cola")
        start = task_runs._start(folder, config, read_pretrained(config.init_from))
        settings = task_runs._settings(config) | start
        with (
            artifacts.open_stage(self.folder, settings).locked(),
            self.assertRaisesRegex(ValueError, "another process is at work"),
        ):
            tiny_tasks.run(config, self.folder)
        with mock.patch.object(task_runs, "train", side_effect=AssertionError):
            # Logging changes no result.
            again = tiny_tasks.run(tiny_tasks.run_config("cola", train__log_every=3), folder)
            self.assertEqual(again, artifacts.read_json(folder / "results.json"))
            with self.assertRaisesRegex(ValueError, "train.seed: there 0, now 1"):
                tiny_tasks.run(tiny_tasks.run_config("cola", train__seed=1), folder)
        self.assertEqual(self.snapshot(folder), before)

    @parameterized.parameters("does not exist", "cannot be read")
    def test_lost_parameters_are_made_anew_as_the_error_says(self, fault):
        folder = self.folder / "run"
        shutil.copytree(tiny_tasks.finished("cola"), folder)
        best = folder / "best.safetensors"
        best.unlink() if fault == "does not exist" else best.write_bytes(b"cut")
        remedy = (
            "or move it, DONE and checkpoints out of the folder of the run, and rerun finetune.py"
        )
        with self.assertRaisesRegex(ValueError, f"{fault}.* {remedy}"):
            prediction.FineTuned(folder)
        best.unlink(missing_ok=True)
        (folder / "DONE").unlink()
        shutil.rmtree(folder / "checkpoints")
        tiny_tasks.run(tiny_tasks.run_config("cola"), folder)
        self.assertEqual(self.snapshot(folder), self.snapshot(tiny_tasks.finished("cola")))
        prediction.FineTuned(folder)


class StartTest(folders.FolderTest):
    def run_from(self, step: int, factor: float = 1.0, name: str = "cola", stops_after: int = -1):
        """Run on the common encoder, scaled, as the checkpoint of a step of 400."""
        config = tiny_tasks.run_config(name)
        found = read_pretrained(config.init_from)
        params = jax.tree.map(lambda x: factor * x, found.params)
        found = dataclasses.replace(found, params=params, step=step, num_steps=400)
        with mock.patch.object(task_runs, "read_pretrained", return_value=found):
            return tiny_tasks.run(config, self.folder, stops_after=stops_after)

    def test_a_run_resumes_from_its_own_start(self):
        source = tiny_tasks.run_config("cola").init_from
        started = rf"starts from {source} at step 301 of 400 \(unfinished\)"
        with self.assert_told(started, level="INFO"), self.assertRaises(Stopped):
            self.run_from(301, stops_after=6)
        with self.assert_told("step 301; its parameters of step 400 change nothing", level="INFO"):
            results = self.run_from(400, factor=0.5)
        whole = artifacts.read_json(tiny_tasks.finished("cola") / "results.json")
        self.assertEqual(results, whole)
        with mock.patch.object(task_runs, "train", side_effect=AssertionError):
            self.assertEqual(self.run_from(400, factor=0.5), results)
        self.assertEqual(artifacts.read_json(self.folder / "settings.json")["start_step"], 301)
        # An earlier step belongs to another run.
        with self.assertRaisesRegex(ValueError, "at step 301, .* now at step 300; choose another"):
            self.run_from(300, factor=0.5)
        # Before its first checkpoint it starts from the present encoder.
        shutil.rmtree(self.folder / "checkpoints")
        for name in ("best.safetensors", "results.json"):
            (self.folder / name).unlink()
        with self.assert_told("at step 400 of 400\n", level="INFO"), self.assertRaises(Stopped):
            self.run_from(400, factor=0.5, stops_after=2)
        self.assertEqual(artifacts.read_json(self.folder / "settings.json")["start_step"], 400)

    def test_a_search_has_the_scores_of_one_step(self):
        self.run_from(301, name="bucc")
        with self.assertRaisesRegex(ValueError, "at step 301, which holds .* now at step 400; "):
            self.run_from(400, factor=0.5, name="bucc")


class RunDataTest(folders.FolderTest):
    @parameterized.parameters(
        ("udpos", {}, ["dev/en", "test/en", "test/sw", "train/en"]),
        ("udpos", {"task__test": ("tfds:a:b",), "task__test_languages": ("sw",)},
         ["dev/en", "train/en"]),
        ("tatoeba", {}, ["tatoeba_retrieval/af-en", "tatoeba_retrieval/sw-en"]),
        ("bucc", {}, [f"bucc2018/zh-en.dev.{name}" for name in ("en", "gold", "zh")]),
    )  # fmt: skip
    def test_the_files_of_a_run(self, name, changes, expected):
        found = task_data.data_files(task_settings(tiny_tasks.config(name, **changes)))
        stems = {"/".join(path.parts[-2:]).removesuffix(".tsv.xz") for path in found}
        self.assertEqual(sorted(stems), expected)

    def cola(self) -> tuple[ConfigDict, pathlib.Path]:
        """Config of a run on its own data, and their training file."""
        shutil.copytree(tiny_tasks.data_folder() / "glue/cola", self.folder / "data/glue/cola")
        config = tiny_tasks.run_config("cola", task__root=str(self.folder / "data"))
        return config, self.folder / "data/glue/cola/train.tsv.xz"

    def flip(self, path: pathlib.Path) -> None:
        lines = files.read_text(path).split("\n")
        flipped = (line.translate(str.maketrans("01", "10")) for line in lines)
        tiny_tasks.write(path, "\n".join(flipped))

    def test_other_data_are_refused(self):
        config, path = self.cola()
        run, data = self.folder / "run", path.read_bytes()
        message = f"run was made from other data:\n  {path}: changed\nRestore these files, or cho"
        with self.assertRaises(Stopped):
            tiny_tasks.run(config, run, stops_after=6)
        self.flip(path)
        with self.assertRaisesRegex(ValueError, message):
            tiny_tasks.run(config, run)
        path.write_bytes(data)
        results, whole = tiny_tasks.run(config, run), tiny_tasks.finished("cola")
        self.assertEqual(results["test"], artifacts.read_json(whole / "results.json")["test"])
        self.flip(path)
        with self.assertRaisesRegex(ValueError, message):
            tiny_tasks.run(config, run)
        with self.assertRaises(Stopped):  # another folder takes them
            tiny_tasks.run(config, self.folder / "other", stops_after=2)
        path.unlink()
        with self.assert_told("run has ended, and 1 of the", level="INFO"):
            self.assertEqual(tiny_tasks.run(config, run), results)
        self.flip(path.with_name("dev.tsv.xz"))
        with self.assertRaisesRegex(ValueError, r"other data:\n  \S*dev.tsv.xz: changed\nRestore"):
            tiny_tasks.run(config, run)

    def test_data_of_a_start_that_was_cut_off_are_recorded(self):
        config, path = self.cola()
        run = self.folder / "run"
        with self.assertRaises(Stopped):
            tiny_tasks.run(config, run, stops_after=2)
        (run / "data.json").unlink()
        shutil.rmtree(run / "checkpoints")
        with self.assertRaises(Stopped):
            tiny_tasks.run(config, run, stops_after=2)
        self.flip(path)
        with self.assertRaisesRegex(ValueError, "was made from other data"):
            tiny_tasks.run(config, run)

    def test_a_run_of_before_data_were_recorded_goes_on(self):
        config, path = self.cola()
        with self.assertRaises(Stopped):
            tiny_tasks.run(config, self.folder / "run", stops_after=6)
        for _ in range(2):  # stopped, and ended
            (self.folder / "run/data.json").unlink(missing_ok=True)
            self.flip(path)
            tiny_tasks.run(config, self.folder / "run")
        self.assertFalse((self.folder / "run/data.json").exists())
