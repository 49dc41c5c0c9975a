"""Tests of counting and merging from the command line, and of being stopped in between."""

import bz2
import gzip
import json
import lzma
import os
import pathlib
import signal
import subprocess
import sys
import time
from unittest import mock

from absl import flags
from absl.testing import flagsaver, parameterized

from input_pipeline.corpus import load_corpus
from input_pipeline.sources import CorpusSpec
from tests.folders import FolderTest
from vocap import pretoken_tables, pretokens
from xlm.cli import count_text
from xlm.experiment import counting

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
LINES = (ROOT / "corpus" / "sw.txt").read_text(encoding="utf-8").split("\n")


# Whoever runs the tests may ignore the interrupt, and children inherit that.
START = """
import runpy, signal
signal.signal(signal.SIGINT, signal.default_int_handler)
runpy.run_module("xlm", run_name="__main__")
"""


class CountTextTest(FolderTest):
    def setUp(self):
        super().setUp()
        self.text, self.out = self.folder / "text", self.folder / "out"
        self.text.mkdir()

    def count(self, *args: str) -> None:
        with flagsaver.flagsaver():
            count_text.main(flags.FLAGS(["count_text", *args]))

    def start(self, *args: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-c", START, "count", *args]
        return subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True)

    def table_of(self, sentences) -> bytes:
        path = self.folder / "expected"
        pretoken_tables.write_table(path, pretokens.count_pretokens(sentences))
        return path.read_bytes()

    def write_shards(self) -> None:
        """The text in files of all kinds; one is a document a line."""
        parts = ["\n".join(LINES[i::5]) + "\n" for i in range(4)]
        self.write("text/sw-0.txt", parts[0])
        self.write("text/sw-1.txt.gz", gzip.compress(parts[1].encode()))
        self.write("text/sw-2.txt.xz", lzma.compress(parts[2].encode()))
        self.write("text/sw-3.txt.bz2", bz2.compress(parts[3].encode()))
        self.write("text/sw-4.jsonl", json.dumps({"text": "\n".join(LINES[4::5])}))

    def test_shards_of_all_kinds_count_as_the_text_that_they_hold(self):
        self.write_shards()
        out, aside = self.out / "sw.runs.gz", self.out / "sw.heldout.runs.gz"
        spelled = os.path.relpath(self.text / "sw-0.txt", ROOT)  # a file counts once
        overlapping = (f"--input={self.text}/sw-*", f"--input={self.text}/../text/*.gz",
                       f"--input={spelled}")  # fmt: skip
        process = self.start(*overlapping, f"--output={out}", "--heldout_fraction=0.2",
                             "--heldout_by=sentence", f"--heldout_output={aside}",
                             "--heldout_seed=7", "--max_runs=500")  # fmt: skip
        errors = process.communicate()[1]
        self.assertEqual(process.returncode, 0, errors)
        kept, held_out = pretoken_tables.HeldOut(0.2, 7).split(LINES)
        self.assertEqual(out.read_bytes(), self.table_of(kept))
        self.assertEqual(aside.read_bytes(), self.table_of(held_out))
        self.assertEqual(sorted(os.listdir(self.out)), [aside.name, out.name])

    def test_tables_of_shards_merge_into_the_table_of_all(self):
        self.write_shards()
        self.count(f"--input={self.text}/*", f"--output={self.out}/all")
        self.assertEqual((self.out / "all").read_bytes(), self.table_of(LINES))
        for i, path in enumerate(self.text.iterdir()):
            self.count(f"--input={path}", f"--output={self.out}/part-{i}-of-5")
        self.count(f"--merge={self.out}/part-[0-2]-*", f"--merge={self.out}/part-[2-4]-*",
                   f"--output={self.out}/merged")  # fmt: skip
        self.assertEqual((self.out / "merged").read_bytes(), self.table_of(LINES))
        with self.assertRaisesRegex(ValueError, r"parts \[4\] are missing"):
            self.count(f"--merge={self.out}/part-[0-3]-*", f"--output={self.out}/other")

    def test_a_pattern_never_merges_what_the_command_wrote_before(self):
        self.write_shards()
        for i, path in enumerate(sorted(self.text.iterdir())):
            self.count(f"--input={path}", f"--output={self.out}/{i}.runs.gz")
        table, spelled = self.out / "sw.runs.gz", f"{self.text}/../out/sw.runs.gz"
        self.count(f"--merge={self.out}/*.runs.gz", f"--output={table}")
        self.assertEqual(table.read_bytes(), self.table_of(LINES))
        for pattern, output in (("*.runs.gz", table), ("[a-z]?.runs.gz", spelled)):
            with self.assertRaisesRegex(ValueError, "out/sw.runs.gz is an input, .*; choose ano"):
                both = (f"--merge={self.out}/{one}" for one in ("0.runs.gz", pattern))
                self.count(*both, f"--output={output}")
        self.assertEqual(table.read_bytes(), self.table_of(LINES))

    def test_text_is_added_to_a_table_that_is_named(self):
        self.write("text/old.txt", "\n".join(LINES[::2]))
        self.write("text/new.txt", "\n".join(LINES[1::2]))
        table, new = self.out / "sw.runs.gz", self.folder / "new.runs.gz"
        self.count(f"--input={self.text}/old.txt", f"--output={table}")
        self.count(f"--input={self.text}/new.txt", f"--output={new}")
        both = (f"--merge={table}", f"--merge={self.folder}/n*.gz", f"--output={table}")
        with self.assertRaisesRegex(ValueError, "sw.runs.gz exists; .* add --overwrite"):
            self.count(*both)
        self.count(*both, "--overwrite")
        self.assertEqual(table.read_bytes(), self.table_of(LINES))

    def test_the_blocks_held_out_are_those_of_a_corpus(self):
        self.write_shards()
        for path in list(self.text.iterdir()):
            path.rename(path.with_name(path.name.replace("sw-", "sw_")))
        codes = {f"sw_{i}": "sw" for i in range(5)}
        spec = CorpusSpec(root=str(self.text), language_codes=codes, heldout_fraction=0.3, seed=5,
                          block_bytes=500)  # fmt: skip
        corpus = load_corpus(spec)
        self.count(f"--input={self.text}/*", f"--output={self.out}/kept", "--heldout_fraction=0.3",
                   f"--heldout_output={self.out}/aside", "--heldout_seed=5",
                   "--block_bytes=500")  # fmt: skip
        for name, split in (("kept", "train"), ("aside", "heldout")):
            expected = self.table_of(corpus.sentences("sw", split))
            self.assertEqual((self.out / name).read_bytes(), expected)
        self.assertGreater(len(corpus.heldout["sw"]), 1)

    @parameterized.parameters("output", "heldout_output")
    def test_a_text_is_never_an_output(self, flag: str):
        self.write_shards()
        outs = {"output": f"{self.out}/kept", "heldout_output": f"{self.out}/aside"}
        outs[flag] = f"{self.text}/../text/sw-0.txt"
        for name in ("_sentences", "_blocks"):
            self.enterContext(mock.patch.object(counting, name, side_effect=AssertionError))
        flags = (f"--input={self.text}/sw-*", "--heldout_fraction=0.5", "--overwrite")
        with self.assertRaisesRegex(ValueError, "is an input, .*sw-0"):
            self.count(*flags, *(f"--{name}={path}" for name, path in outs.items()))
        self.assertFalse(self.out.exists())

    @parameterized.parameters(
        ((), "give either text with --input or tables with --merge"),
        (("--input=a", "--merge=b"), "give either text with --input or tables with --merge"),
        (("--input=FOLDER/en-*.txt",), "en-.*: no such file"),
        (("--merge=FOLDER/en.runs.gz",), "en.runs.gz: no such file"),
        (("--input=FOLDER/../x.csv",), "x.csv: not a text file"),
        (("--input=a", "b", "c"), r"unexpected \['b', 'c'\]; put patterns in quotes"),
        (("--input=FOLDER/sw-0.txt", "--heldout_fraction=0.1"), "belong together"),
        (("--input=FOLDER/sw-0.txt", "--heldout_output=a"), "belong together"),
        (("--input=FOLDER/sw-0.txt", "--heldout_fraction=0.1",
          "--heldout_output=FOLDER/../text/../out/t"),
         "--output and --heldout_output are both .*/out/t, where one table would replace"),
        (("--merge=FOLDER/*", "--heldout_fraction=0.1"), "cannot be split"),
        (("--merge=FOLDER/*", "--heldout_output=a"), "cannot be split"),
        (("--input=FOLDER/*", "--max_runs=0"), "max_runs is 0"),
    )  # fmt: skip
    def test_refusals(self, args, message):
        self.write_shards()
        (self.folder / "x.csv").write_text("a,b\n")
        with self.assertRaisesRegex(ValueError, message):
            self.count(
                *(arg.replace("FOLDER", str(self.text)) for arg in args), f"--output={self.out}/t"
            )
        self.assertFalse(self.out.exists() and os.listdir(self.out))

    @parameterized.parameters(signal.SIGINT, signal.SIGKILL)
    def test_stopped_in_the_middle_there_is_no_table(self, signal_number):
        text = self.text / "sw.txt"
        with text.open("w", encoding="utf-8") as file:
            file.writelines(f"{i:x} {i * i:x}\n" for i in range(1_000_000))
        process = self.start(f"--input={text}", f"--output={self.out}/sw.gz", "--max_runs=100000")
        with process:
            while not self.out.exists() or not any(self.out.glob(".sw.gz.*/new/*/*")):
                self.assertIsNone(process.poll())
                time.sleep(0.01)
            process.send_signal(signal_number)
            process.communicate()
        self.assertNotEqual(process.returncode, 0)
        # What only a kill leaves is hidden and ends in no table's name.
        self.assertEqual(self.out.exists(), signal_number == signal.SIGKILL)
        self.assertEqual(list(self.out.glob("*")), [*self.out.glob(".*")])
        text.write_text("moja\n")
        self.count(f"--input={text}", f"--output={self.out}/sw.gz")
        self.assertEqual(os.listdir(self.out), ["sw.gz"])
