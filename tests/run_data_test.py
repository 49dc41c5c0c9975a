"""Data files of runs of finetune.py: recorded, and others refused."""

import pathlib
import shutil
import tempfile

from absl.testing import absltest, parameterized
from ml_collections import ConfigDict

from builders import task_data
from builders.task_settings import task_settings
from common import artifacts
from input_pipeline.tasks import files
from tests import tiny_tasks
from training.signals import Stopped


class RunDataTest(parameterized.TestCase):
    def setUp(self):
        super().setUp()
        self.folder = pathlib.Path(self.enter_context(tempfile.TemporaryDirectory()))

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
        """The config of a run on data of its own, and their training file."""
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
        message = (
            f"run was made from other data:\n  {path}: changed\nRestore these files, or choose"
        )
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
        with self.assertLogs(level="INFO") as logs:
            self.assertEqual(tiny_tasks.run(config, run), results)
        self.assertRegex(
            "\n".join(logs.output), "run has ended, and its data are not read: 1 of its"
        )
        self.flip(path.with_name("dev.tsv.xz"))
        with self.assertRaisesRegex(ValueError, r"other data:\n  \S*dev.tsv.xz: changed\nRestore"):
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


if __name__ == "__main__":
    absltest.main()
