"""Settings of training data: what is run on what, and the table of made-up results."""

import importlib
import lzma
import pathlib
import statistics
import tempfile
from typing import Any
from unittest import mock

import matplotlib.pyplot as plt
from absl.testing import absltest
from scipy import stats

from common import artifacts
from configs import grids
from studies import downstream, grid, splits, supervision, supervision_report
from studies.supervision_settings import ONE, ONE_WIKIPEDIA, SETTINGS, Run
from tests.task_results import task_results

LANGUAGES = ("de", "en", "sw")


class DetectableTest(absltest.TestCase):
    def test_the_least_change_is_significant_at_5_per_cent(self):
        changes = [1.5, 1.4, 0.6]
        least = downstream.least_detectable_change(changes)
        moved = [one - statistics.fmean(changes) + least for one in changes]
        self.assertAlmostEqual(stats.ttest_1samp(moved, 0).pvalue, 0.05)
        self.assertIsNone(downstream.least_detectable_change([1.0]))


class SupervisionTest(absltest.TestCase):
    def setUp(self):
        super().setUp()
        folder = pathlib.Path(self.enter_context(tempfile.TemporaryDirectory()))
        self.data, self.workdir = folder / "data", folder / "work"
        for language in LANGUAGES:
            path = self.data / f"wikiann_ner/dev/{language}.tsv.xz"
            text = "".join(f"{language}{n}\tO\n\n" for n in range(10))
            artifacts.write_bytes(path, lzma.compress(text.encode()))
        self.argument = f"configs/xlm_r.py:small,{self.data}"
        self.calls: list[tuple[str, str]] = []
        self.enter_context(mock.patch.object(grid.runs, "call", self.call))
        own = [f"--config={self.argument}"]
        self.enter_context(mock.patch.object(grid.runs, "own_config", lambda: own))

    def call(self, script, config, change, workdir, **_):
        """Stands for the stages; scores are by setting, language and seed."""
        place = workdir.relative_to(self.workdir)
        self.calls.append((script[0], str(place)))
        if script[0] == "train.py":
            artifacts.write_json(workdir / "train" / "DONE", {})
            artifacts.write_text(workdir / "train" / "speed.jsonl", "")
        if script[0] == "prepare_data.py":
            artifacts.write_json(workdir / "rows" / "meta.json", {"vocab_size": 8000})
        if script[0] == "evaluate.py":
            one = {"loss": 4.0, "unigram": 6.0, "bits_per_character": 2.0 + ("only" in str(place))}
            losses = dict.fromkeys(("de", "en", "fr", "ru", "sw", "tr", "ur"), one)
            artifacts.write_json(workdir / "report" / "results.json", {"losses": losses})
        if script[0] == "finetune.py":
            scores = {"en": 0.1, "en_one": 0.15, "en_each": 0.17}
            scores |= {"all": 0.4, "each": 0.2, "alone": 0.3, "wikipedia": 0.28, "random": 0.25}
            scores |= {"wikipedia_random": 0.22, "all_wikipedia": 0.35, "all_random": 0.32}
            score = scores[change["model_name"]]
            step = 0.03 if change["model_name"] == "en_each" else 0.02
            score += step * change["train.seed"]
            test = {name: score + (name == "sw") * 0.3 for name in change["task.test_languages"]}
            results = task_results("wikiann", test)
            results["examples"] = {"test": dict.fromkeys(test, 10)}
            artifacts.write_json(workdir / "results.json", results)

    def study(self, *seeds: int, **overrides: Any) -> grid.Study:
        names = [ONE, ONE_WIKIPEDIA, *(f"only_{name}" for name in (*LANGUAGES, "wikipedia_sw"))]
        found = grids.choose(self.argument, "languages")
        return grid.Study(
            *(self.argument, overrides, found, names, self.workdir, seeds, ("wikiann",)),
            workers=1,
            pin=False,
        )

    def test_runs_and_table(self):
        study = self.study(0, 1)
        supervision.do_study(study)
        tuned = [place for script, place in self.calls if script == "finetune.py"]
        self.assertLen(tuned, 2 * (6 + 2 * 3 + 3))
        self.assertIn("supervision/wikiann/alone-sw/seed1", tuned)
        text = supervision_report.write_report(study)
        label = SETTINGS["alone"].label
        # 30 and 32 %, Swahili 30 more.
        self.assertIn(f"| {label} | 2 | 31.0 | 31.0 | 61.0 | 41.0 (40.0 to 42.0) |", text)
        label = SETTINGS["en"].label
        self.assertIn(f"| {label} | 2 | 11.0 | 11.0 | 41.0 | 21.0 (20.0 to 22.0) |", text)
        # Of Swahili alone, which has no mean.
        label = SETTINGS["wikipedia"].label
        self.assertIn(f"| {label} | 2 |  |  | 59.0 |  |", text)
        # Two seeds two points apart in each setting: a deviation of 2 ** 0.5, sqrt(2 / 2) times t
        # of five and of eight degrees of freedom, 2.571 and 2.306, without those of English.
        self.assertIn("| detectable | | 3.6 | 3.6 | 3.3 | 3.6 |", text)
        # By selection for each language seeds change by seven and eight points: a deviation of
        # 0.5 ** 0.5, sqrt(1 / 2) times t of one degree of freedom, 12.71.
        self.assertIn("| detectable, selection | | 6.4 | 6.4 | 6.4 | 6.4 |", text)
        self.assertIn("| examples | | 10 | 10 | 10 | 30 |", text)
        self.assertIn("| NER, F1 | seeds | de | en | sw | mean |\n", text)
        found = {"wikiann": supervision_report.complete(study, "wikiann")}
        figure = supervision_report.plot_settings(study, found)
        self.addCleanup(plt.close, figure)
        titles = [axes.get_title() for axes in figure.axes]
        self.assertEqual(titles, ["NER, F1: de, en, sw", "NER, F1: sw"])
        self.assertIn("| one encoder | 2.000 | 2.000 |", text)
        self.assertIn("| one encoder, of as much text as Wikipedia has | 2.000 | 2.000 |", text)
        self.assertIn("| an encoder for each language | 3.000 | 3.000 |  |", text)
        self.assertIn("| an encoder for each language | -2.00 | -2.00 |  |", text)  # of unigram's 6

        trained = ("build_vocab.py", "prepare_data.py")
        self.calls.clear()
        supervision.do_study(study)
        self.assertLessEqual({script for script, _ in self.calls}, set(trained))

    def test_low_resource_languages_have_a_mean_and_a_panel(self):
        study = self.study(0, 1)
        found = {
            "en": [{"de": 1.0, "sw": 2.0, "ur": 6.0}, {"de": 3.0, "sw": 4.0, "ur": 8.0}],
            "random": [{"sw": 1.0, "ur": 2.0}, {"sw": 2.0, "ur": 3.0}],
        }
        low = supervision_report.means(found, ("sw", "ur"))
        self.assertEqual(low, {"en": [4.0, 6.0], "random": [1.5, 2.5]})
        self.assertEqual(supervision_report.means(found, ("de", "sw", "ur")), {"en": [3.0, 5.0]})
        names = ("de", "sw", "ur")
        with mock.patch.object(supervision_report, "languages_of", lambda *_: names):
            table = supervision_report.score_table(study, "wikiann", found)
            figure = supervision_report.plot_settings(study, {"wikiann": found})
        self.addCleanup(plt.close, figure)
        self.assertStartsWith(table, "| NER, F1 | seeds | de | sw | ur | mean | mean of sw, ur |")
        random = SETTINGS["random"].label
        self.assertIn(f"| {random} | 2 |  | 1.5 | 2.5 |  | 2.0 (1.5 to 2.5) |", table)
        every, few = figure.axes
        self.assertEqual(
            [label.get_text() for label in few.get_yticklabels()], [SETTINGS["en"].label, random]
        )
        self.assertEqual(
            [list(line.get_xdata()) for line in every.get_lines()], [[3.0, 5.0], [4.0]]
        )
        self.assertEqual(
            [list(line.get_xdata()) for line in few.get_lines()],
            [[4.0, 6.0], [5.0], [1.5, 2.5], [2.0]],
        )

    def test_each_setting_has_its_data(self):
        study = self.study(4)
        sw, everything = ("sw",), (LANGUAGES, "all_languages")
        for setting, language, trained, selection in (
            ("en", "", ("en",), (("en",), "all_languages")),
            ("en_one", "", ("en",), everything),
            ("en_each", "", ("en",), (LANGUAGES, "each_language")),
            ("all", "", LANGUAGES, everything),
            ("all_wikipedia", "", LANGUAGES, everything),
            ("all_random", "", LANGUAGES, everything),
            ("each", "sw", sw, (sw, "all_languages")),
            ("alone", "sw", sw, (sw, "all_languages")),
            ("wikipedia", "sw", sw, (sw, "all_languages")),
            ("random", "sw", sw, (sw, "all_languages")),
            ("wikipedia_random", "sw", sw, (sw, "all_languages")),
        ):
            run = Run("wikiann", setting, language, 4)
            change = supervision.change_of(study, run)
            self.assertEqual(change["task.train_languages"], trained)
            selected = (change["task.validation_languages"], change["task.selection"])
            self.assertEqual(selected, selection)
            self.assertEqual(change["task.test_languages"], sw if language else LANGUAGES)
            encoders = {"alone": "only_sw", "random": "only_sw", "all_wikipedia": "wikipedia_7"}
            encoders |= dict.fromkeys(("wikipedia", "wikipedia_random"), "only_wikipedia_sw")
            encoder = encoders.get(setting, "languages_7")
            self.assertEqual(change["init_from"], study.encoder(encoder, 4).absolute())
            self.assertEqual(change["random_init"], "random" in setting)
            frozen = ("embeddings",) if setting.startswith("en") else ()
            self.assertEqual(change["optimizer.frozen"], frozen)
            self.assertEqual(change["task.text_pooling"], "mean")
            config = importlib.import_module("configs.finetune.wikiann").get_config("DATA")
            config.update_from_flattened_dict({**change, "task.root": "", "init_from": ""})

    def test_flags_of_the_config_hold_for_fine_tuning(self):
        run = Run("wikiann", "all", "", 4)
        self.assertEqual(supervision.change_of(self.study(4), run)["task.max_length"], 64)
        languages = ("fr", "sw", "tr", "de")
        study = self.study(4, **{"store.length": 128, "corpus.languages": languages})
        change = supervision.change_of(study, run)
        self.assertEqual(change["task.max_length"], 128)
        self.assertEqual(change["task.test_languages"], ("sw", "de"))

    def test_training_data_are_not_tested_on(self):
        supervision.do_study(self.study(0))
        root = splits.split_folder(self.workdir / "supervision") / "wikiann"
        texts = [(root / split / "sw.tsv").read_text() for split in ("train", "validation", "test")]
        self.assertEqual([text.count("\tO") for text in texts], [6, 1, 3])
        self.assertLen({word for text in texts for word in text.split()}, 11)

    def test_translations_are_in_one_split(self):
        names, count = ("de", "en"), 30
        for language in names:
            # Three hypotheses for each premise, and a line separator within some rows.
            end = "\u2028" if language == "de" else ""
            rows = [f"{language}{n // 3}\t{n}{end * (n < 9)}\tneutral" for n in range(count)]
            text = "\n".join(["premise\thypothesis\tlabel", *rows, ""])
            path = self.data / f"xnli/dev/{language}.tsv.xz"
            artifacts.write_bytes(path, lzma.compress(text.encode()))
        splits.write_splits(self.data, self.workdir, {"xnli": names})
        seen: dict[str, set[str]] = {}
        for split, size in (("train", 18), ("validation", 3), ("test", 9)):
            premises = {}
            for language in names:
                path = splits.split_folder(self.workdir) / "xnli" / split / f"{language}.tsv"
                header, *rows = path.read_text().rstrip("\n").split("\n")
                self.assertEqual(header, "premise\thypothesis\tlabel")
                self.assertLen(rows, size)
                premises[language] = {row.partition("\t")[0][2:] for row in rows}
            self.assertEqual(premises["de"], premises["en"])
            seen[split] = premises["en"]
        self.assertLen(set().union(*seen.values()), count // 3)
        self.assertEqual(sum(map(len, seen.values())), count // 3)  # none is in two

    def test_an_unfinished_setting_has_no_line(self):
        study = self.study(0)
        supervision.do_study(study)
        Run("wikiann", "each", "de", 0).results(self.workdir).unlink()
        found = supervision_report.complete(study, "wikiann")
        text = supervision_report.score_table(study, "wikiann", found)
        self.assertNotIn(SETTINGS["each"].label, text)
        self.assertIn(SETTINGS["all"].label, text)


if __name__ == "__main__":
    absltest.main()
