"""A working directory from stage to stage: text that has moved, lost files, other sections."""

import pathlib
import random
import re
import shutil
import tempfile
from unittest import mock

from tests import commands, folders, tiny_tasks
from tests.malformed import templates
from xlm.common import artifacts
from xlm.experiment import training

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
        held = artifacts.Stage.held

        def held_late(stage: artifacts.Stage, **options):  # behind another's preparation
            artifacts.write_text(self.folder / "work/rows/meta.json", "{}")
            return held(stage, **options)

        with (
            mock.patch.object(artifacts.Stage, "held", held_late),
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
        told = "differs from those of earlier stages, whose results are used as they are:\n"
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
            self.assertRegex(self.execute(self.folder, "train", **changes), told + lines + "Where")
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
            r"  corpus\.seed: there 0, now 1\n  vocab\.target_size: there 120, now 700\nWhere",
        )
