"""Rounds of back-translation: what each run learns from, a stop in the middle, and refusals."""

import math
import pathlib
from unittest import mock

from absl.testing import parameterized

from tests import folders, tiny_tasks, tiny_translation
from xlm.common import artifacts
from xlm.experiment import back_translation
from xlm.experiment.translation_prediction import TranslationRun


class BackTranslationTest(folders.FolderTest):
    def run_rounds(self, name: str, rounds: int = 2, **overrides) -> list[pathlib.Path]:
        texts = {code: self.folder / f"mine.{code}" for code in ("en", "de")}
        config = tiny_translation.config("en-de", **overrides)
        with tiny_tasks.quick():
            return back_translation.run(
                config, self.folder / name, texts, rounds, (-math.inf, 100.0), {"beams": 1}
            )

    def test_two_rounds_that_stop_in_between_are_those_of_one_go(self):
        for code, lines in (("en", "the cat\ndog .\n"), ("de", "cat runs\nthe\n")):
            self.write(f"mine.{code}", lines)
        results = self.run_rounds("whole")
        folder = self.folder / "whole"
        self.assertEqual(results, [folder / f"round{i}/en-de/results.json" for i in (1, 2)])
        of = {path.parent.relative_to(folder): artifacts.read_object(path)
              for path in folder.glob("round*/*/settings.json")}  # fmt: skip
        self.assertLen(of, 4)
        plain = ("train.{source}", "train.{target}")
        first, second, *_ = (of[pathlib.Path(f"round{i}/en-de")] for i in (1, 2))
        self.assertEqual(second["init_from"], str(folder / "round1/en-de"))
        self.assertFalse(second["random_init"])
        self.assertEqual(first["task"]["train"][2], str(folder / "round1/en-de.tsv"))
        self.assertEqual(second["task"]["train"][2], str(folder / "round2/en-de.tsv"))
        self.assertEqual(tuple(of[pathlib.Path("round1/de-en")]["task"]["train"]), plain)
        backward = of[pathlib.Path("round2/de-en")]
        self.assertEqual(backward["task"]["train"][2], str(folder / "round1/de-en.tsv"))
        self.assertEqual(backward["init_from"], str(folder / "round1/de-en"))
        pairs = (folder / "round2/en-de.tsv").read_text().splitlines()
        self.assertEqual([pairs[0], *(one.split("\t")[1] for one in pairs[1:])],
                         ["en\tde", "cat runs", "the"])  # fmt: skip

        write, done = TranslationRun.write, []

        def stopping(*args, **wanted):
            done.append(1)
            if len(done) == 2:
                raise KeyboardInterrupt
            return write(*args, **wanted)

        with (
            mock.patch.object(TranslationRun, "write", stopping),
            self.assertRaises(KeyboardInterrupt),
        ):
            self.run_rounds("stopped")
        self.assertLen(list((self.folder / "stopped").glob("round*/*/results.json")), 2)
        self.run_rounds("stopped")
        for path in (*folder.glob("round*/*.tsv"), *folder.glob("round*/*/best.safetensors")):
            other = self.folder / "stopped" / path.relative_to(folder)
            self.assertEqual(path.read_bytes(), other.read_bytes(), path)
        with self.assertRaisesRegex(ValueError, "decoding.beams"):
            self.run_rounds("whole", decoding__beams=3)

    @parameterized.parameters(
        ({"task__train_languages": ("en-de", "de-en")}, 1, "has en-de, de-en; name one"),
        ({"task__train_languages": ("de-en",)}, 2, "no file in 'de', which 2 rounds translate"),
        ({"task__train_languages": ("en-fr",)}, 1, "no file in 'fr'"),
    )
    def test_refused(self, changes, rounds, message):
        config = tiny_translation.config(**changes)
        texts = {"en": pathlib.Path("mine.en")}
        with self.assertRaisesRegex(ValueError, message):
            back_translation.run(config, self.folder, texts, rounds, (0.0, 3.0), {})
