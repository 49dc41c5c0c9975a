"""Tests of the Beam pipeline: the tables of `xlm count`, byte for byte.

Where Apache Beam is missing, its tests are skipped. To run them all, in an environment with
the extra [beam]:

    PYTHONPATH=. python tests/vocap/count_beam_test.py
"""

import gzip
import importlib.util
import json
import os
import pathlib
import subprocess
import sys
import unittest
from unittest import mock

from absl.testing import absltest, parameterized

from tests import commands
from tests.folders import FolderTest
from vocap import count_beam, run_tables, runs

ROOT = pathlib.Path(__file__).resolve().parents[2]
LINES = (ROOT / "corpus" / "sw.txt").read_text(encoding="utf-8").split("\n")
HAS_BEAM = importlib.util.find_spec("apache_beam") is not None
# What DirectRunner runs on, after it has looked for another runner to download.
RUNNER = ("--runner=FnApiRunner",)


class _FolderTest(FolderTest):
    def write(self, name: str, data: bytes | str) -> pathlib.Path:
        data = data.encode() if isinstance(data, str) else data
        path = self.folder / name
        path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
        return path

    def table_of(self, sentences) -> bytes:
        path = self.folder / "expected"
        run_tables.write_table(path, runs.count_runs(sentences))
        return path.read_bytes()

    def merged(self, folder: pathlib.Path) -> bytes:
        path = self.folder / "merged"
        run_tables.merge_tables(sorted(folder.glob("*.runs.gz")), path)
        return path.read_bytes()


class WithoutBeamTest(_FolderTest):
    def test_the_way_to_install_it_is_named(self):
        self.enterContext(mock.patch.dict(sys.modules, {"apache_beam": None}))
        job = count_beam.Job(inputs=("a",), output=str(self.folder / "out"))
        with self.assertRaisesRegex(ValueError, "pip install '\\.\\[beam"):
            count_beam.count(job, RUNNER)
        with commands.error("pip install '\\.\\[beam"):
            count_beam.main(["--input=a", "--output=b"])

    @parameterized.parameters(
        ({"num_parts": 0}, "num_parts is 0"),
        ({"heldout_fraction": 0.1}, "belong together"),
        ({"heldout_output": "a"}, "belong together"),
    )
    def test_impossible_jobs(self, settings, message):
        with self.assertRaisesRegex(ValueError, message):
            count_beam.Job(inputs=("a",), output="b", **settings)

    @parameterized.parameters(1, 2, 7, 1000)
    def test_blocks_are_parts_of_the_table(self, num_parts):
        counter = runs.RunCounter()
        counter.add(LINES)
        paths, parts_of_run = [], {}
        for (text, part), table in count_beam._blocks("kept", counter, num_parts):
            self.assertEqual(text, "kept")
            self.assertBetween(part, 0, num_parts - 1)
            paths.append(self.folder / f"{part}.runs.gz")
            paths[-1].write_bytes(table)
            for run in run_tables.read_table(paths[-1]).runs():
                self.assertEqual(parts_of_run.setdefault(run, part), part)
        self.assertLessEqual(len(paths), num_parts)
        self.assertEqual(self.merged(self.folder), self.table_of(LINES))
        if num_parts == 7:
            sizes = [list(parts_of_run.values()).count(part) for part in range(7)]
            self.assertLess(max(sizes), 1.5 * min(sizes))

    def test_sentences_are_those_of_the_files(self):
        self.assertEqual(count_beam._sentences("\ta b \r", is_json=False), ["a b"])
        self.assertEqual(
            count_beam._sentences(' {"text": "a\\n\\n b"}\r', is_json=True), ["a", "b"]
        )
        for is_json in (True, False):
            self.assertEqual(count_beam._sentences(" ", is_json), [])
        for line in ("[1]", '{"text": 1}', "{}", "text"):
            with self.assertRaises(ValueError):
                count_beam._sentences(line, is_json=True)


@unittest.skipUnless(HAS_BEAM, "Apache Beam is not installed; it is the extra [beam]")
class CountBeamTest(_FolderTest):
    def count(self, *args: str) -> pathlib.Path:
        out = self.folder / "parts"
        count_beam.main([f"--output={out}", *args, *RUNNER])
        return out

    def write_shards(self) -> str:
        """The text in three files; a pattern for all of them."""
        self.write("sw-0.txt", "\r\n".join(LINES[::3]))
        self.write("sw-1.txt.gz", "\n".join(LINES[1::3]) + "\n")
        self.write("sw-2.jsonl.gz", json.dumps({"text": "\n".join(LINES[2::3])}))
        return f"--input={self.folder}/sw-*.txt*"

    @parameterized.product(num_parts=(1, 5), max_runs=(1, 10**6))
    def test_the_parts_make_the_table_of_the_text(self, num_parts, max_runs):
        overlapping = f"--input={self.folder}/sw-*.gz"
        with mock.patch.object(count_beam, "_RANGE_BYTES", 5000):
            out = self.count(self.write_shards(), overlapping, f"--num_parts={num_parts}",
                             f"--max_runs={max_runs}")  # fmt: skip
        self.assertEqual(self.merged(out), self.table_of(LINES))
        names = [f"part-{i:05d}-of-{num_parts:05d}.runs.gz" for i in range(num_parts)]
        self.assertEqual(sorted(os.listdir(out)), names)

    def test_text_is_held_out_as_elsewhere(self):
        aside = self.folder / "aside"
        pattern = self.write_shards()
        out = self.count(pattern, "--heldout_fraction=0.3", f"--heldout_output={aside}",
                         "--heldout_seed=5", "--num_parts=3")  # fmt: skip
        lines = LINES[::3] + LINES[1::3]
        kept, held_out = run_tables.HeldOut(0.3, 5).split(lines)
        self.assertEqual(self.merged(out), self.table_of(kept))
        self.assertEqual(self.merged(aside), self.table_of(held_out))

    def test_a_runner_that_loses_text_is_an_error(self):
        pattern = self.write_shards()
        for lost in ("_blocks", "_write_part", "_count"):
            with (
                self.subTest(lost),
                mock.patch.object(count_beam, lost, lambda *_: []),
                commands.error("the runner has lost some"),
            ):
                self.count(pattern, "--num_parts=2")
            self.assertEmpty(os.listdir(self.folder / "parts"))

    def test_parts_that_no_run_falls_into_are_there(self):
        self.write("sw.txt", "a\n\n a\n")
        out = self.count(f"--input={self.folder}/sw.txt", "--num_parts=40")
        self.assertLen(os.listdir(out), 40)
        self.assertEqual(self.merged(out), self.table_of(["a", "a"]))

    def test_the_program_runs_in_processes_of_its_own(self):
        """Workers of a real runner import and unpickle what this process only uses."""
        command = [sys.executable, "-m", "vocap.count_beam", self.write_shards(), "--num_parts=2",
                   f"--output={self.folder}/parts", *RUNNER,
                   "--direct_running_mode=multi_processing", "--direct_num_workers=2"]  # fmt: skip
        result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertIn("xlm count --merge=", result.stdout)
        expected = self.table_of(LINES[::3] + LINES[1::3])
        self.assertEqual(self.merged(self.folder / "parts"), expected)
        first, second = (
            run_tables.read_table(path).runs() for path in (self.folder / "parts").iterdir()
        )
        self.assertNoCommonElements(first, second)

    def test_refusals(self):
        pattern = self.write_shards()
        with commands.error("xx-.*: no such file"):
            self.count(f"--input={self.folder}/xx-*")
        self.write("sw.csv", "a")
        with commands.error("sw.csv: not a text file"):
            self.count(pattern, f"--input={self.folder}/*.csv")
        self.assertFalse((self.folder / "parts").exists())
        out = self.count(pattern, "--num_parts=2")
        before = self.merged(out)
        with commands.error("parts holds tables already"):
            self.count(pattern)
        self.assertEqual(self.merged(out), before)


if __name__ == "__main__":
    absltest.main()
