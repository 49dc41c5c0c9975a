"""Stages on Dask and Beam: equal files to local processes, byte for byte.

Tests of missing packages are skipped. To run those of Beam, in an environment with the extra
[beam]:

    PYTHONPATH=. python tests/executors_test.py
"""

import contextlib
import importlib.util
import itertools
import unittest
from unittest import mock

import numpy as np
from absl.testing import absltest, parameterized

from input_pipeline import packed_dataset, preparation, preparation_plan
from input_pipeline.cleaning import tasks
from input_pipeline.preparation import Job
from input_pipeline.sources import CorpusSpec
from input_pipeline.tokenization import PackedDatasetSettings
from tests import commands
from tests.folders import FolderTest
from tests.input_pipeline.inspection_test import made_up
from vocap import merge, pretoken_tables
from xlm.common import executors
from xlm.common.processes import Workers
from xlm.experiment import counting

# The runner of DirectRunner, after its search for another one to download.
BEAM = "--runner=FnApiRunner"
_LETTERS = "▁abcdefghijklmnopqrstuvwxyz0123456789<>/"
_MODEL = merge.write_model(list(_LETTERS), -np.arange(1.0, len(_LETTERS) + 1))
_SETTINGS = PackedDatasetSettings(length=32, parallel_length=16, num_workers=1, shard_bytes=4000)


class Here(Workers):
    """Runs the tasks of several workers in this process; loses `lost` tasks per round."""

    lost = 0

    def run(self, function, jobs):
        return itertools.starmap(function, jobs[: len(jobs) - self.lost])


class _ExecutorTest(FolderTest):
    def setUp(self):
        super().setUp()
        for seed, language in enumerate(("de", "en", "sw")):
            lines = made_up(seed, 300)
            lines[20:40], lines[7] = lines[:20], "<b>keep me</b>"
            text = ["\n".join(lines[i : i + 12]) for i in range(0, 300, 12)]
            self.write(f"text/{language}.txt", "\n\n".join(text) + "\n")
        pairs = "".join(f"one {i}\ttwo {i}\n\n" for i in range(60))
        self.write("text/en-sw.tsv", pairs)
        for owner, name, size in ((tasks, "_PART_BYTES", 4000), (counting, "_PART_BYTES", 3000),
                                  (counting, "_MERGED_AT_ONCE", 4),
                                  (preparation_plan, "_BYTES_A_PROCESS", 0)):  # fmt: skip
            self.enterContext(mock.patch.object(owner, name, size))

    def prepare(self, name: str, executor: executors.Executor) -> None:
        spec = CorpusSpec(
            root=str(self.folder / "text"), parallel=("*.tsv",), heldout_fraction=0.1,
            parallel_heldout_fraction=0.1,
        )  # fmt: skip
        digest = packed_dataset.tokenizer_hash(_MODEL)
        job = Job(self.folder / name / "rows", spec, _SETTINGS, digest)
        found = preparation.find(job)
        with executor:
            preparation.run(job, found, _MODEL, executor)
        preparation.finish(job, found)

    def execute(self, command: str, name: str, *arguments: str) -> None:
        output = f"--output={self.folder / name / command}"
        done = commands.execute(command, *arguments, output)
        if done.returncode:
            raise ValueError(done.stderr)

    def count(self, name: str, *arguments: str) -> None:
        held = f"--heldout_output={self.folder / name / 'aside'}"
        self.execute("count_text", name, f"--input={self.folder}/text/*.txt", "--block_bytes=200",
                     "--heldout_fraction=0.2", held, *arguments)  # fmt: skip

    def run_all(self, name: str, executor: executors.Executor, *flags: str) -> None:
        text = str(self.folder / "text")
        self.prepare(name, executor)
        self.execute("clean_text", name, text, "--html", "--repeated_lines=1", *flags)
        self.execute("inspect_text", name, text, *flags)
        self.count(name, *flags)

    def contents(self, name: str) -> dict[str, bytes]:
        files = (path for path in (self.folder / name).rglob("*") if path.is_file())
        found = {str(path.relative_to(self.folder / name)): path.read_bytes() for path in files
                 if path.name != "LOCK" and "work" not in path.parts}  # fmt: skip
        self.assertGreater(len(found), 30)
        return found

    def assert_same(self, name: str) -> None:
        self.run_all("local", Workers(1, ""))
        expected, found = self.contents("local"), self.contents(name)
        self.assertEqual(sorted(found), sorted(expected))
        for path, content in found.items():
            self.assertTrue(content == expected[path], path)


class LocalTest(_ExecutorTest):
    def setUp(self):
        super().setUp()
        self.enterContext(mock.patch.object(executors, "Workers", Here))

    @parameterized.parameters("text", "sentence")
    def test_tables_do_not_depend_on_who_counts(self, heldout_by):
        by = f"--heldout_by={heldout_by}"
        self.count("local", by)
        self.count("two", by, "--num_workers=2")
        for name in ("count_text", "aside"):
            tables = [(self.folder / one / name).read_bytes() for one in ("local", "two")]
            self.assertEqual(*tables)
            self.assertGreater(
                pretoken_tables.read_table(self.folder / "two" / name).num_sentences, 9
            )

    @parameterized.parameters("clean_text", "inspect_text", "count_text")
    def test_a_lost_task_is_missed(self, command):
        text = [str(self.folder / "text")]
        flags = {"clean_text": [*text, "--html"], "inspect_text": text,
                 "count_text": [f"--input={self.folder}/text/*.txt"]}  # fmt: skip
        self.enterContext(mock.patch.object(Here, "lost", 1))
        with self.assertRaisesRegex(ValueError, r": 1 of \d+ tasks have left no results"):
            self.execute(command, "lost", *flags[command], "--num_workers=2")
        self.assertFalse((self.folder / "lost" / command).exists())

    def test_lost_sentences_are_missed(self):
        merge_tables = pretoken_tables.merge_tables

        def losing(tables, out):
            return merge_tables(tables[1:] or tables, out)

        message = r"the table has \d+ sentences, and its parts in .* have \d+"
        lost = mock.patch.object(pretoken_tables, "merge_tables", losing)
        with lost, self.assertRaisesRegex(ValueError, message):
            self.count("lost", "--num_workers=2")
        self.assertFalse((self.folder / "lost/count_text").exists())

    def test_refusals(self):
        missing = {"distributed": None, "apache_beam": None}
        self.enterContext(mock.patch.dict("sys.modules", missing))
        for flags, message in (
            (["--dask=a", "--beam=b"], "--dask and --beam are both given"),
            (["--dask=a", "--output=s3://b/c"], "s3://b/c has a local copy"),
            (["--dask=a"], r"--dask: .* pip install '\.\[dask"),
            (["--beam=a"], r"--beam: .* pip install '\.\[beam"),
        ):
            out = f"--output={self.folder}/out"
            done = commands.execute("clean_text", f"{self.folder}/text", "--html", out, *flags)
            self.assertRegex(done.stderr, message)


class DaskTest(_ExecutorTest):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        from tests import clusters

        cls.clusters = clusters
        cls.address = cls.enterClassContext(clusters.dask())

    def killing(self, number: int, *numbers: int) -> contextlib.AbstractContextManager[None]:
        return self.clusters.killing(self.address, self.folder / f"killed{number}", *numbers)

    def test_workers_that_are_killed_change_no_byte(self):
        text, flag = str(self.folder / "text"), f"--dask={self.address}"
        with self.killing(0, 5, 80):
            self.prepare("dask", executors.Dask(self.address))
        with self.killing(1, 3):
            self.execute("clean_text", "dask", text, "--html", "--repeated_lines=1", flag)
        with self.killing(2, 1):
            self.execute("inspect_text", "dask", text, flag)
        with self.killing(3, 4, 20):
            self.count("dask", flag)
        self.assert_same("dask")

    def test_what_a_task_raises_ends_the_stage(self):
        self.write("text/sw.txt", b"one\n\xff\n")
        with self.assertRaisesRegex(ValueError, "sw.txt, line 2: not UTF-8"):
            self.count("bad", f"--dask={self.address}")
        self.assertFalse((self.folder / "bad/count_text").exists())

    def test_no_scheduler(self):
        with mock.patch.object(executors, "_WAIT", 0.5):
            for name in ("tcp://127.0.0.1:9", "nowhere"):
                with self.assertRaisesRegex(ValueError, f"--dask is {name}: .*; start 'dask sch"):
                    executors.Dask(name)


@unittest.skipUnless(importlib.util.find_spec("apache_beam"), "no Apache Beam (extra [beam])")
class BeamTest(_ExecutorTest):
    def test_pipelines(self):
        self.run_all("beam", executors.Beam([BEAM]), f"--beam={BEAM}")
        self.assert_same("beam")


if __name__ == "__main__":
    absltest.main()
