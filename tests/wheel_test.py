"""The wheel, installed aside: what it has, and the miniature job from another folder."""

import os
import pathlib
import pkgutil
import shutil
import subprocess
import sys
import tempfile
import zipfile

from absl.testing import absltest

from tests import processes

ROOT = pathlib.Path(__file__).resolve().parent.parent
SOURCES = ("vocap", "knn_sampling", "input_pipeline", "xlm", "configs", "corpus")
# Imports all modules but commands, which define the same flags.
IMPORT_ALL = """
import importlib, pkgutil, sys, xlm.experiment
for room in ("vocap", "knn_sampling", "input_pipeline", "xlm"):
    package = importlib.import_module(room)
    for found in pkgutil.walk_packages(package.__path__, room + "."):
        if not found.name.startswith("xlm.cli.") and not found.name.endswith("__main__"):
            assert importlib.import_module(found.name).__file__.startswith(sys.argv[1]), found
"""


class WheelTest(absltest.TestCase):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.folder = pathlib.Path(cls.enterClassContext(tempfile.TemporaryDirectory()))
        source = cls.folder / "source"
        for name in SOURCES:
            shutil.copytree(ROOT / name, source / name)
        for name in ("pyproject.toml", "README.md", "LICENSE"):
            shutil.copy(ROOT / name, source)
        pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
        wheels, cls.site = cls.folder / "wheels", cls.folder / "site"
        for command in (
            ["wheel", "--no-deps", "--no-build-isolation", f"--wheel-dir={wheels}", str(source)],
            ["install", "--no-deps", "--no-index", f"--find-links={wheels}", f"--target={cls.site}",
             "vocap-jax"],
        ):  # fmt: skip
            subprocess.run([*pip, *command], check=True)
        cls.wheel = next(wheels.iterdir())
        cls.here = cls.folder / "here"
        cls.here.mkdir()

    def run_python(self, *arguments: str) -> str:
        done = processes.run_python(*arguments, cwd=self.here, PYTHONPATH=str(self.site))
        self.assertEqual(done.returncode, 0, done.stderr)
        return done.stdout

    def test_it_has_every_package_and_no_other_name(self):
        names = zipfile.ZipFile(self.wheel).namelist()
        top = {name.split("/")[0] for name in names}
        self.assertEqual({name for name in top if ".dist-info" not in name},
                         {"vocap", "knn_sampling", "input_pipeline", "xlm"})  # fmt: skip
        for room in ("vocap", "knn_sampling", "input_pipeline", "xlm"):
            for found in pkgutil.walk_packages([str(ROOT / room)], f"{room}."):
                path = found.name.replace(".", "/")
                self.assertIn(f"{path}/__init__.py" if found.ispkg else f"{path}.py", names)
        for path in [*ROOT.glob("configs/**/*.py"), *ROOT.glob("corpus/*")]:
            self.assertIn(f"xlm/{path.relative_to(ROOT)}", names)

    def test_every_module_can_be_imported(self):
        self.run_python("-c", IMPORT_ALL, str(self.site))

    def test_the_miniature_job_in_an_empty_folder(self):
        for verb in ("build-vocab", "prepare", "train", "evaluate"):
            printed = self.run_python(
                "-m", "xlm", verb, "--config=configs/quickstart.py:runlocal", "--workdir=job"
            )
        self.assertIn("report: ", printed)
        self.assertEqual(os.listdir(self.here), ["job"])
