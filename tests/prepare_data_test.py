"""prepare_data.py and the working directory: what is read again, and what is refused."""

import os
import pathlib
import random
import re
import shutil
import tempfile
from unittest import mock

from input_pipeline import text_files
from input_pipeline.corpus import load_corpus
from input_pipeline.packed_dataset import PackedDataset
from input_pipeline.sources import CorpusSpec
from tests import commands, folders, tiny_tasks
from tests.malformed import templates
from xlm.common import artifacts, executors, processes
from xlm.experiment import training


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
            r"for evaluation only are \S*flores\.en-sw\.tsv \(corpus\.parallel_eval",
            r"1 sources .* left out: \S*text/en-fr\.tsv \(en, fr\)\n",
            r"no file below \S*text is \*\.xz\n",
        )
        with self.assert_told(*told, level="INFO"):
            self.assert_ends_well(corpus__parallel_eval="('flores.en-sw.tsv',)", **changes)
        dataset = PackedDataset.open(self.rows)
        self.assertEqual(list(dataset.bitexts), ["en-sw"])
        self.assertEqual(list(dataset.parallel), ["en-sw", "flores.en-sw"])
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


VOCABULARY = {
    "vocab__target_size": "120", "vocab__sizes": "(20,40,60)", "vocab__compare": "()",
    "vocab__num_workers": "1",
}  # fmt: skip
STAGES = ("build_vocab", "prepare_data", "train")


def write_text(folder: pathlib.Path) -> None:
    rng = random.Random(0)
    for language, letters in (("en", "abcdefg"), ("sw", "hijklmn")):
        words = ["".join(rng.choices(letters, k=rng.randint(1, 6))) for _ in range(2000)]
        sentences = (" ".join(words[at : at + 6]) for at in range(0, len(words), 6))
        tiny_tasks.write(folder / f"{language}.txt", "\n\n".join(sentences) + "\n")


class WorkingDirectoryTest(folders.FolderTest):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.made = pathlib.Path(cls.enterClassContext(tempfile.TemporaryDirectory())) / "made"
        write_text(cls.made / "text")
        cls.logs = {stage: cls.execute(cls.made, stage) for stage in STAGES}

    def setUp(self):
        super().setUp()
        shutil.copytree(self.made / "work", self.folder / "work")

    @classmethod
    def execute(cls, folder: pathlib.Path, stage: str, **changes: str) -> str:
        """Warnings of a stage that ends well, on the text of all tests unless changes say other."""
        keys = {**VOCABULARY, "corpus__root": str(cls.made / "text"), **changes}
        arguments = [one.replace("DIR", str(folder)) for one in templates.run_config(**keys)]
        with mock.patch.object(training, "train"):  # its stage, without steps
            done = commands.execute(stage, *arguments)
        if done.returncode:
            raise AssertionError(done.stderr)
        return done.stderr

    def files(self) -> dict[pathlib.Path, bytes]:
        found = (path for path in self.folder.rglob("*") if path.is_file())
        return {path: path.read_bytes() for path in found}

    def test_text_that_has_moved_is_the_same_text(self):
        shutil.copytree(self.made / "text", self.folder / "moved")
        before = self.files()
        for stage in STAGES:
            self.execute(self.folder, stage, corpus__root=str(self.folder / "moved"))
        self.assertEqual(self.files(), before)
        # Nor does it matter where the text was that the rows were made of anew.
        shutil.rmtree(self.folder / "work/rows")
        for stage in STAGES[1:]:
            self.execute(self.folder, stage, corpus__root=str(self.folder / "moved"))
        with self.assertRaisesRegex(AssertionError, r"corpus\.seed: there 0, now 1\n.*Choose"):
            self.execute(self.folder, "prepare_data", corpus__seed="1")
        (self.folder / "moved/sw.txt").write_text("the fox\n\nruns .\n", encoding="utf-8")
        for stage in STAGES[:2]:
            with self.assertRaisesRegex(AssertionError, r"another config:\n  text: there"):
                self.execute(self.folder, stage, corpus__root=str(self.folder / "moved"))

    def test_a_vocabulary_is_not_replaced_where_rows_are_prepared(self):
        shutil.rmtree(self.folder / "work/rows")
        vocab, before = self.folder / "work/vocab", self.files()
        busy = self.assertRaisesRegex(AssertionError, f"another process is at work in {vocab}")
        with artifacts.locked(vocab, is_shared=True):  # as prepare_data does
            self.execute(self.folder, "build_vocab")
            with busy:
                self.execute(self.folder, "build_vocab", vocab__target_size="110")
        with artifacts.locked(vocab), busy:
            self.execute(self.folder, "prepare_data")
        locked = artifacts.Stage.locked

        def locked_late(stage: artifacts.Stage, **options):  # behind another's preparation
            artifacts.write_text(self.folder / "work/rows/meta.json", "{}")
            return locked(stage, **options)

        with (
            mock.patch.object(artifacts.Stage, "locked", locked_late),
            self.assertRaisesRegex(AssertionError, "target_size: there 120, now 110"),
        ):
            self.execute(self.folder, "build_vocab", vocab__target_size="110")
        after = self.files()
        self.assertEqual({path: after[path] for path in before}, before)

    def test_a_lost_vocabulary_is_built_again(self):
        path = self.folder / "work/vocab/spm.model"
        content = path.read_bytes()
        path.unlink()
        with self.assertRaisesRegex(AssertionError, "spm.model does not exist; run build_vocab.py"):
            self.execute(self.folder, "prepare_data")
        self.execute(self.folder, "build_vocab")
        self.assertEqual(path.read_bytes(), content)
        self.execute(self.folder, "prepare_data")
        # And a lost tokenizer is taken again.
        given = self.folder / "given.model"
        given.write_bytes(content)
        shutil.rmtree(self.folder / "work")
        for _ in range(2):
            self.execute(self.folder, "build_vocab", vocab__tokenizer=str(given))
            self.assertEqual(path.read_bytes(), content)
            path.unlink()

    def test_other_sections_of_earlier_stages_are_warned_of(self):
        told = "differs from those of earlier stages, whose results stay in use:\n"
        for stage in STAGES:
            self.assertNotIn(told, self.logs[stage])
        vocab, rows = (f"{re.escape(str(self.folder))}/work/{name}:" for name in ("vocab", "rows"))
        for changes, lines in (
            ({"store__length": "64"}, rf"{rows}\n  store\.length: there 32, now 64\n"),
            ({"corpus__seed": "9"}, rf"{rows}\n  corpus\.seed: there 0, now 9\n"),
            (
                {"vocab__target_size": "700", "corpus__seed": "9"},
                rf"{vocab}\n  vocab\.target_size: there 120, now 700\n"
                rf"{rows}\n  corpus\.seed: there 0, now 9\n",
            ),
        ):
            self.assertRegex(
                self.execute(self.folder, "train", **changes), told + lines + "If keys of corpus"
            )
        # What changes no vocabulary is no difference, nor are keys that its record does not have.
        unchanging = {"vocab__compare": "('joint',)", "vocab__num_workers": "3"}
        path = self.folder / "work/vocab/settings.json"
        recorded = artifacts.read_object(path)
        del recorded["vocab"]["em_iterations"]
        artifacts.write_json(path, recorded)
        self.assertNotIn(told, self.execute(self.folder, "train", **unchanging))

        shutil.rmtree(self.folder / "work/rows")
        changes = {
            "corpus__seed": "1", "corpus__heldout_fraction": "0.3", "vocab__target_size": "700",
            "corpus__languages": "('en',)",
        }  # fmt: skip
        self.assertRegex(
            self.execute(self.folder, "prepare_data", **changes),
            rf"{told}{vocab}\n  corpus\.heldout_fraction: there \S+, now 0\.3\n"
            r"  corpus\.languages: there \['en', 'sw'\], now \['en'\]\n"
            r"  corpus\.seed: there 0, now 1\n  vocab\.target_size: there 120, now 700\nIf keys of",
        )
