"""Translations of a user's files by predict.py and `xlm translate`: in order, resumed, refused."""

import itertools
import json
from unittest import mock

from absl.testing import parameterized

from tests import commands, folders, tiny_tasks, tiny_translation
from tests.translation_test import learned, short
from xlm.experiment import translation_pairs, translation_prediction
from xlm.experiment.task_settings import task_settings
from xlm.experiment.translation_prediction import TranslationRun
from xlm.training.signals import Stopped

COMMANDS = {name: commands.load(name) for name in ("predict", "translate")}


class TranslateTest(folders.FolderTest):
    def execute(self, command: str, *flags: str, **decoding) -> str:
        """Output for the file `mine`, by chunks of two lines."""
        files = f"--input={self.folder / 'mine'}", f"--output={self.folder / 'out'}"
        # Overrides of a config are defined once, when a process starts.
        changed = mock.patch.object(
            COMMANDS["translate"].config_flags, "get_override_values", return_value=decoding
        )
        with (
            tiny_tasks.quick(), changed, mock.patch.object(translation_prediction, "CHUNK", 2),
            commands.parsed(command, *files, "--overwrite", *flags) as rest,
        ):  # fmt: skip
            COMMANDS[command].main(rest)
        return (self.folder / "out").read_text()

    def translate(self, text: str, *flags: str) -> str:
        self.write("mine", text)
        return self.execute("predict", f"--workdir={learned()}", *flags)

    def interrupted(self, text: str, *found: list[str]) -> None:
        """Translate chunks as `found`, and stop in the next one."""
        call = mock.patch.object(
            TranslationRun, "__call__", side_effect=[*found, KeyboardInterrupt]
        )
        with call, self.assertRaises(KeyboardInterrupt):
            self.translate(text)

    def names(self) -> set[str]:
        return {path.name for path in self.folder.iterdir()}

    def test_an_unfinished_run_translates_with_its_newest_checkpoint(self):
        with self.assertRaises(Stopped):
            tiny_tasks.run(short(), self.folder / "run", stops_after=6)
        self.write("mine", "the cat\n\nthe dog runs .\n")
        self.write("given", "dog\n\nthe cat\n")

        def output(*flags: str, **decoding) -> list[str]:
            given = (str(self.folder / "run"), "--language=en-fr", *flags)
            return self.execute("translate", *given, **decoding).splitlines()

        with self.assert_told("those of step 6", level="INFO"):
            text = output()
        best = output("--n_best=2")
        self.assertEqual([json.loads(one)[0]["text"] if one else "" for one in best], text)
        self.assertLen(json.loads(best[0]), 2)
        samples = {"samples": 4, "temperature": 2.0}
        drawn = output("--n_best=4", **samples)
        self.assertEqual(output("--n_best=4", **samples), drawn)
        self.assertNotEqual(output("--n_best=4", **samples, seed=1), drawn)
        self.assertIn(output(**samples, mbr=True)[0], [x["text"] for x in json.loads(drawn[0])])
        given = f"--prefixes={self.folder / 'given'}"
        begun = output(given)
        self.assertRegex(begun[0], "^dog")
        self.assertRegex(begun[2], "^the cat")
        scored = [json.loads(one) for one in output(f"--references={self.folder / 'given'}")[::2]]
        for one in scored:
            self.assertEqual(one["tokens"][-1][0], "</s>")
            self.assertAlmostEqual(one["log_prob"], sum(p for _, p in one["tokens"]), places=4)
        self.write("mine", "the cat\n")
        with self.assertRaisesRegex(
            ValueError, "given has 3 lines, but .*mine 1; give one for each"
        ):
            output(given)

    def test_lines_keep_their_order_and_empty_ones_stay(self):
        sources = (tiny_translation.data_folder() / "test.en").read_text().splitlines()
        lines = (learned() / "predictions" / "test.en-de.jsonl").read_text().splitlines()
        expected = [json.loads(line)["prediction"] for line in lines]
        found = self.translate("\n" + "\n\n".join(sources) + "\n \n")
        self.assertEqual(found, "\n" + "\n\n".join(expected) + "\n\n")

    def test_it_goes_on_where_it_stopped(self):
        text = "the cat\ndog\nruns .\nsleeps\nthe\n"
        expected = self.translate(text)
        (self.folder / "out").unlink()
        (self.folder / "out.parts").mkdir()  # a user's
        for found in ["x\ny", "z"], ["x"]:  # of byte pieces; of other chunks
            self.interrupted(text, found)
            (part,) = self.folder.glob(".out.*/parts/*/0.txt")
            self.assertLen(part.read_text().splitlines(), len(found))
            part.write_text("x\n")  # a part without all its lines is made again
        self.assertFalse((self.folder / "out").exists())
        self.assertEqual(self.translate(text), expected)
        # What was done is not done again; of another input it is not taken.
        self.interrupted(text, ["x", "y"])
        resumed = self.translate(text).splitlines()
        self.assertEqual(resumed, ["x", "y", *expected.splitlines()[2:]])
        self.assertEqual(self.translate(text[:-4]).splitlines(), expected.splitlines()[:4])
        self.assertEqual(self.names(), {"mine", "out", "out.parts"})

    def test_synthetic_pairs_are_those_of_a_round_that_nothing_stopped(self):
        text = "the cat\n\ndog\tthe\nruns . the dog sleeps\nsleeps\n"
        output, call = self.folder / "bt.tsv", TranslationRun.__call__

        def pairs(*flags: str, dies_after: int = -1) -> list[list[str]]:
            calls = itertools.count()

            def dying(*args, **wanted):
                if next(calls) == dies_after:
                    raise KeyboardInterrupt
                return call(*args, **wanted)

            given = (str(learned()), f"--output={output}", "--back_translate", *flags)
            with mock.patch.object(TranslationRun, "__call__", dying):
                self.execute("translate", *given)
            return [line.split("\t") for line in output.read_text().splitlines()]

        expected = self.translate(text).splitlines()
        whole = pairs("--max_ratio=100")
        lines = [" ".join(line.split()) for line in text.splitlines()]
        found = [[f"<bt>{one}", line] for one, line in zip(expected, lines, strict=True) if one]
        self.assertEqual(whole, [["de", "en"], *found])
        for moment in range(3):
            output.unlink()
            self.assertRaises(KeyboardInterrupt, pairs, "--max_ratio=100", dies_after=moment)
            self.assertFalse(output.exists())
            self.assertEqual(pairs("--max_ratio=100"), whole)
        self.assertEqual(pairs("--min_score=0.1"), [["de", "en"]])
        near = [pair for pair in found if 1 / 1.2 <= (len(pair[0]) - 4) / len(pair[1]) <= 1.2]
        self.assertEqual(pairs("--max_ratio=1.2"), [["de", "en"], *near])
        config = tiny_translation.config("de-en", task__root=str(self.folder),
                                         task__train=("bt.tsv",))  # fmt: skip
        (texts,) = translation_pairs.texts(task_settings(config)).values()
        self.assertEqual([list(pair) for one in texts for pair in one], near)

    def test_a_line_too_long_is_cut_and_named_by_its_number(self):
        with self.assertLogs() as logs:
            found = self.translate(f"dog\n\n\n{'the cat ' * tiny_tasks.LENGTH}\nruns .\n")
        (warning,) = (line for line in logs.output if line.startswith("WARNING"))
        self.assertRegex(warning, r"1 of 1 sources have more than 22 .*\(line 4\); split them")
        self.assertLen(found.splitlines(), 5)
        self.assertEqual(self.names(), {"mine", "out"})

    @parameterized.parameters(
        ("--language=en-fr", "no symbol for 'fr', only for de; choose"),
        ("--language=german", "translation direction 'german' must be two codes"),
        ("--input=/gone", "/gone: no such file; correct --input"),
        ("--output=.", "Is a directory"),
    )
    @mock.patch.object(TranslationRun, "__call__", mock.Mock(side_effect=AssertionError))
    def test_what_cannot_be_is_refused_before_anything_is_translated(self, flag, error):
        with self.assertRaisesRegex((ValueError, IsADirectoryError), error):
            self.translate("the cat\n", flag)
        self.assertEqual(self.names(), {"mine"})
