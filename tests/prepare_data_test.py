"""Tests of prepare_data.py: what it reads when it is run again, and its other flags."""

import os
import pathlib
import shutil
from unittest import mock

from input_pipeline import text_files
from input_pipeline.corpus import load_corpus
from input_pipeline.packed_dataset import PackedDataset
from input_pipeline.sources import CorpusSpec
from tests import commands, folders, tiny_tasks
from tests.malformed import templates
from xlm.common import artifacts, executors, processes


class PrepareDataTest(folders.FolderTest):
    def setUp(self):
        super().setUp()
        templates.text(self.folder)
        self.rows = self.folder / "work/rows"
        self.assert_ends_well()

    def run_command(self, *flags: str, **changes: str):
        arguments = [*templates.config(**changes), *flags]
        arguments = [one.replace("DIR", str(self.folder)) for one in arguments]
        return commands.execute("prepare_data", *arguments)

    def assert_ends_well(self, *flags: str, **changes: str) -> list[str]:
        """Names of the files of text that were read."""
        names, read_lines = [], text_files.read_lines

        def recorded(path: pathlib.Path, *arguments):
            names.append(path.name)
            yield from read_lines(path, *arguments)

        with mock.patch.object(text_files, "read_lines", recorded):
            done = self.run_command(*flags, **changes)
        self.assertEqual(done.returncode, 0, done.stderr)
        return names

    def assert_refused(self, message: str, *flags: str, **changes: str) -> None:
        done = self.run_command(*flags, **changes)
        self.assertEqual(done.returncode, 2)
        self.assertRegex(done.stderr, message)

    def test_a_finished_run_reads_no_text(self):
        before = {path: path.stat().st_mtime_ns for path in self.rows.iterdir()}
        self.assertEqual(self.assert_ends_well(), [])
        after = {path: path.stat().st_mtime_ns for path in self.rows.iterdir()}
        self.assertEqual(after, before)
        self.assertNotIn(self.rows / "work", before)
        # Of files that were touched only those are.
        os.utime(self.folder / "text/sw.txt", (1, 1))
        self.assertEqual(self.assert_ends_well(), ["sw.txt"])

    def test_parallel_text_that_is_not_trained_on_is_told(self):
        tiny_tasks.write(self.folder / "text/flores.en-sw.tsv", "one\ttwo\n")
        tiny_tasks.write(self.folder / "text/en-fr.tsv", "the cat\tle chat\n")
        shutil.rmtree(self.rows)
        changes = {"corpus__parallel": "('*.tsv*','*.xz')", "data__pair_share": "0.5"}
        told = (
            r"not trained on are \S*flores\.en-sw\.tsv \(corpus\.parallel_eval",
            r"1 sources .* left out: \S*text/en-fr\.tsv \(en, fr\)\n",
            r"no file below \S*text is \*\.xz\n",
        )
        with self.assert_told(*told, level="INFO"):
            self.assert_ends_well(corpus__parallel_eval="('flores.en-sw.tsv',)", **changes)
        store = PackedDataset.open(self.rows)
        self.assertEqual(list(store.bitexts), ["en-sw"])
        self.assertEqual(list(store.parallel), ["en-sw", "flores.en-sw"])
        shutil.rmtree(self.rows)
        refusal = r"left out are .*text/en-sw\.tsv.* \(corpus\.parallel_eval\).*: correct"
        self.assert_refused(refusal, corpus__parallel_eval="('*.tsv',)", **changes)

    def test_a_run_on_pairs_without_parallel_text_is_refused(self):
        shutil.rmtree(self.rows)
        refusal = r"contrast_share 0\.5, but corpus\.parallel, \(\) below .* set both shares to 0"
        changes = {"corpus__parallel": "()"}
        self.assert_refused(refusal, data__contrast_share="0.5", **changes)
        self.assertEqual(self.run_command(**changes).returncode, 0)

    def test_other_text_is_refused(self):
        message = "rows was made under another config:\n  text: there '.*', now '"
        path = self.folder / "text/sw-00000-of-00001.txt"
        tiny_tasks.write(path, "more\n")
        self.assert_refused(message)
        path.unlink()
        with (self.folder / "text/sw.txt").open("a") as file:
            file.write("\nmore\n")
        self.assert_refused(message)
        # Other settings are refused before anything is read.
        (self.folder / "text/sw.txt").write_bytes(b"\xff")
        message = "made under another config:\n  corpus.seed: there 0, now 1\n"
        self.assert_refused(message, corpus__seed="1")

    def test_a_dataset_of_the_version_before_is_known(self):
        settings = artifacts.read_object(self.rows / "settings.json")
        of_then = {"heldout_by": "position", "deduplicate": False, "block_bytes": 0}
        settings["text"] = load_corpus(CorpusSpec(**settings["corpus"] | of_then)).digest()
        for key in of_then:
            del settings["corpus"][key]
        del settings["store"]["shard_bytes"]
        artifacts.write_json(self.rows / "settings.json", settings)
        (self.rows / "inputs.json").unlink()
        (self.rows / "manifest.json").unlink()
        changes = {f"corpus__{key}": str(value) for key, value in of_then.items()}
        self.assert_ends_well(**changes)
        self.assert_refused("manifest.json does not exist.*run prepare_data.py", "--verify")
        with (self.folder / "text/sw.txt").open("a") as file:
            file.write("\nmore\n")
        self.assert_refused("text: there", **changes)

    def test_checksums_are_compared(self):
        self.assertEqual(self.assert_ends_well("--verify"), [])
        path = self.rows / "en.train.npy"
        content = bytearray(path.read_bytes())
        content[-1] ^= 1
        path.write_bytes(content)
        self.assert_refused("en.train.npy: the MiB from byte 0 on has another checksum", "--verify")
        path.write_bytes(content[:-1])
        self.assert_refused("en.train.npy: [0-9]+ bytes, must have", "--verify")

    def test_workers_of_other_machines_read_text_at_an_absolute_path(self):
        whole = {path.name: path.read_bytes() for path in self.rows.glob("*.npy")}
        for path in self.rows.iterdir():
            path.unlink()
        remote = processes.Workers(1, "")
        remote.is_local = False
        self.enterContext(mock.patch.object(executors, "remote", lambda _: remote))
        self.assert_refused("corpus.root is corpus, must be an abs", corpus__root="corpus")
        with mock.patch.object(remote, "run", side_effect=remote.run) as run:
            self.assert_ends_well()
        self.assertEqual(run.call_count, 6)
        self.assertEqual({path.name: path.read_bytes() for path in self.rows.glob("*.npy")}, whole)
