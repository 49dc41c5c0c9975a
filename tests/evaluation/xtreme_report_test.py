"""Runs with known scores, through averages, tables and comparisons."""

import json

from absl.testing import parameterized

from tests import golden
from tests.evaluation.xtreme_cases import Case, answers
from xlm.evaluation import published, xtreme_report, xtreme_runs

PUBLISHED = published.read()


class ReadTest(Case):
    def test_files_beside_runs_are_no_runs(self):
        self.write("seed0", {"en": 0.5})
        (self.folder / "seeds.json").write_text("{}", encoding="utf-8")
        (run,) = xtreme_runs.find_runs([str(self.folder / "seed*")])
        self.assertEqual(run.folder.name, "seed0")

    def test_folders_that_are_no_runs_are_named(self):
        with self.assertRaisesRegex(ValueError, "nowhere: no such run folder"):
            xtreme_runs.find_runs([str(self.folder / "nowhere")])
        path = self.write("broken", {"en": 0.5}) / "results.json"
        path.write_text(path.read_text(encoding="utf-8")[:-5], encoding="utf-8")
        with self.assertRaisesRegex(ValueError, "broken/results.json: not JSON"):
            self.variants()
        path.unlink()
        with self.assertRaisesRegex(ValueError, r"broken: no results.json; .* not finished"):
            self.variants()

    @parameterized.parameters(
        ({"task": "xnlii"}, "task is 'xnlii', must be one of xnli, pawsx"),
        ({"seed": "1"}, 'seed is "1", must be a whole number'),
        ({"test": {"de": {"accuracy": 48.0}}}, "test.de.accuracy is 48.0, must be a number <= 1"),
        ({"test": {"de": {"f1": 0.5}}}, "test.de lacks accuracy"),
        ({"test": {}}, "there are no scores"),
        ({"task": "cola", "test": {"en": {"matthews": -1.5}}}, "test.en.matthews is -1.5, must be"),
        ({"task": "xquad", "test": {"en": {"f1": 0.5}}}, "test.en lacks exact_match"),
        ({"found": 1}, "the object has the unknown field found"),
    )
    def test_wrong_results_are_named(self, changes, message):
        self.write("wrong", {"en": 0.5}, **changes)
        with self.assertRaisesRegex(ValueError, f"wrong/results.json: {message}"):
            self.variants()

    def test_a_score_may_be_beyond_its_range_by_rounding(self):
        self.write("above", {"en": 1.0000000000000004})
        self.write("below", {"en": {"matthews": -1 - 2**-50}}, task="cola")
        self.assertLen(self.variants(), 2)
        for value in (1 + 1e-6, -1e-6, float("nan")):
            with self.subTest(value):
                self.write(f"wrong {value}", {"en": value}, seed=1)
                with self.assertRaisesRegex(ValueError, "en.accuracy is .*, must be|not JSON"):
                    self.variants(of=f"wrong {value}")

    def test_seeds_that_cannot_be_put_together_are_told(self):
        self.write("a", {"en": 0.5, "de": 0.4})
        self.write("b", {"en": 0.5}, seed=1)
        with self.assertRaisesRegex(ValueError, r"a and .*b .* languages differ: .*de"):
            self.variants()
        self.write("c", {"en": 0.5, "de": 0.4}, seed=2, examples={"test": {"en": 7, "de": 1}})
        with self.assertRaisesRegex(ValueError, r"examples differ: {} and {'en': 7, 'de': 1}"):
            self.variants(of="[ac]")
        self.write("d", {"en": 0.6})
        with self.assertRaisesRegex(ValueError, "a and .*d have the same task"):
            self.variants(of="[ad]")

    def test_different_data_of_ones_own_are_different_tasks(self):
        self.own("a", 0.9, "/x/intents/data", dataset="data")
        self.own("b", 0.1, "/x/topics/data", dataset="data")
        self.own("c", 0.5, "/x/mood", seed=1)  # from before data had names
        self.own("d", 0.7, "/x/mood", seed=2)
        variants = self.variants()
        tables = sorted({one.table for one in variants})
        names = ("data […intents/data ['test.]", "data […topics/data ['test.{]", "mood")
        self.assertEqual(tables, [f"text_classes: {name}" for name in names])

    def test_tables_hold_no_other_labels_nor_other_test_files(self):
        of_all = {"en": "1", "de": "2"}
        for name, scored, labels in (
            ("a", of_all, "xy"), ("b", {"en": "1"}, "xy"), ("c", {"en": "9"}, "xy"),
            ("d", of_all, "xyz"),
        ):  # fmt: skip
            self.own(name, 0.5, f"/{name}/data", dataset="data", model=name, scored=scored)
            settings = {"task": {"dataset": "data", "labels": [*labels]}}
            (self.folder / name / "settings.json").write_text(json.dumps(settings))
        found = {one.model: one.table for one in self.variants()}
        self.assertLen(set(found.values()), 3)
        self.assertEqual(found["a"], found["b"])  # for the languages that both score
        self.assertRegex(found["c"], r"^text_classes: data \[labels x, y, files \w+\]$")
        self.assertRegex(found["d"], r"^text_classes: data \[labels x, y, z, files \w+\]$")
        self.assertEqual({one.table for one in self.variants(of="[ab]")}, {"text_classes: data"})


class AverageTest(Case):
    def test_seeds_are_put_together(self):
        # Averages .4, .5, .9; the average of the languages' medians would be .6.
        scores = [(0.6, 0.2), (0.4, 0.6), (0.9, 0.9)]
        for seed, (en, de) in enumerate(scores):
            self.write(f"{seed}", {"de": de, "en": en}, seed=seed)
        (mean,), (median,) = self.variants("mean"), self.variants("median")
        found = mean.over_seeds(xtreme_runs.average)
        self.assertAlmostEqual(found.center, 0.6)
        # Deviations -.2, -.1, .3: squares .04 + .01 + .09, over 2.
        self.assertAlmostEqual(found.spread, 0.07**0.5)
        self.assertEqual((found.count, mean.languages), (3, ["en", "de"]))
        self.assertAlmostEqual(median.over_seeds(xtreme_runs.average).center, 0.5)
        (one,) = self.variants(of="0")
        expected = xtreme_runs.Statistic(0.4, None, 1)
        self.assertEqual(one.over_seeds(xtreme_runs.average), expected)

    def test_transfer_gap(self):
        # XY-LENT Base on MLQA, from its Table 12. Table 4 has 19.9.
        match = {"en": 70.3, "ar": 43.9, "de": 54.0, "es": 55.1, "hi": 51.7, "vi": 52.0, "zh": 45.2}
        scores = {language: answers(0.9, value / 100) for language, value in match.items()}
        self.write("a", scores, task="mlqa")
        self.write("b", scores, task="mlqa", setting="translate_train_all")
        self.write("c", {"de": 0.5, "fr": 0.4}, model="c")
        self.write("d", {"en": 0.5}, model="d")
        self.write("e", {"en": 0.5, "de": 0.4, "fr": 0.2}, model="e")
        gaps = {
            one.runs[0].folder.name: xtreme_runs.transfer_gap(one.runs[0])
            for one in self.variants()
        }
        self.assertAlmostEqual(100 * gaps.pop("a"), 19.9, delta=0.1)
        self.assertAlmostEqual(gaps.pop("e"), 0.2)
        self.assertEqual(gaps, {"b": None, "c": None, "d": None})

    def test_the_best_on_development_data_is_chosen(self):
        for rate, test, dev in ((1e-5, 0.6, 0.3), (2e-5, 0.4, 0.5), (3e-5, 0.5, 0.4)):
            for seed in range(2):
                changes = {"hyperparameters": {"learning_rate": rate}, "selected": {"value": dev}}
                self.write(f"{rate}-{seed}", {"en": test}, seed=seed, **changes)
        (best,) = xtreme_runs.chosen(self.variants())
        self.assertEqual(best.hyperparameters, "learning_rate 2e-05")
        page = xtreme_report.page(self.variants(), PUBLISHED)
        self.assertIn("| xnli | ours | learning_rate 2e-05 | 50.0 ± 0.0 * | 40.0 ± 0.0 |", page)
        self.assertIn("| xnli | ours | learning_rate 1e-05 | 30.0 ± 0.0 | 60.0 ± 0.0 |", page)
        self.assertNotIn("| en | 60.0", page)

    def test_without_development_scores_all_are_kept_and_told_apart(self):
        for layer in (4, 8):
            selected = None if layer == 4 else {"value": 0.3}  # one of them without
            changes = {"hyperparameters": {"layer": layer}, "selected": selected}
            self.write(f"{layer}", {"de": layer / 10}, task="tatoeba", **changes)
        page = xtreme_report.page(self.variants(), PUBLISHED)
        self.assertIn("| language | ours [layer 4] | ours [layer 8] |", page)
        self.assertIn("| de | 40.0 | 80.0 |", page)


class PaperTest(Case):
    """The papers' own numbers, averaged as they do."""

    def write_row(self, row: published.Row, tasks: tuple[str, ...]) -> None:
        for task in tasks:
            scores = {name: value / 100 for name, value in row.scores[task].items()}
            metrics = xtreme_runs.averaged_metrics(task)
            self.write(task, {"de": {name: scores[name] for name in metrics}}, task=task)

    def row(self, model: str, source: str) -> published.Row:
        (row,) = [
            row
            for row in PUBLISHED.rows
            if (row.model, row.setting) == (model, "zero_shot") and row.source.startswith(source)
        ]
        return row

    @parameterized.parameters(
        ("XLM-R vocabulary, 250K", "60.7"), ("joint, 500K", "61.4"), ("VoCap, 500K", "63.1"),
        ("VoCap, 500K, k-NN", "63.7"),
    )  # fmt: skip
    def test_vocap_averages_seven_tasks(self, model, average):
        self.write_row(self.row(model, "VoCap, Table 1"), xtreme_runs.XTREME[:7])
        table = xtreme_report.averages_table(self.variants())
        self.assertIn(f" | {average} |\n", table)
        self.assertIn(f"| ({average}, 7 tasks) | {average} |", table)
        self.assertIn("ours: no runs of bucc, tatoeba.", table)

    @parameterized.parameters(("mBERT", "59.6"), ("XLM", "55.5"), ("XLM-R Large", "68.1"))
    def test_xtreme_averages_nine_tasks(self, model, average):
        self.write_row(self.row(model, "VECO"), xtreme_runs.XTREME)
        table = xtreme_report.averages_table(self.variants())
        self.assertIn(f" | {average} | ", table)
        self.assertNotIn("no runs of", table)

    @parameterized.parameters(
        ("XY-LENT Base", "XY-LENT, Tables 1", "xnli", 80.5),
        ("XY-LENT Base", "XY-LENT, Tables 1", "tydiqa", (67.1 + 51.5) / 2),
        ("XLM-R Base", "XY-LENT, Tables 1", "xnli", 76.2),
        ("VECO", "VECO", "bucc", 85.0),
        ("VECO", "VECO", "mlqa", (71.7 + 53.2) / 2),
    )
    def test_languages_average_to_what_is_printed(self, model, source, task, printed):
        row = self.row(model, source)
        (languages, *_) = row.languages[task].values()
        self.assertAlmostEqual(row.printed(task), printed)
        self.assertAlmostEqual(row.average(task, languages), printed, delta=0.11)

    def test_a_language_that_a_paper_lacks_leaves_no_common_average(self):
        row = self.row("XLM-R Base", "XY-LENT, Tables 1")
        self.assertAlmostEqual(row.average("xnli", ["en", "sw"]), 76.15)
        self.assertIsNone(row.average("xnli", ["en", "my"]))
        self.assertIsNone(row.average("xnli", []))

    def test_resource_groups(self):
        found = xtreme_report.groups(["en", "bg", "sw", "eu", "tr", "nah", "vi"], PUBLISHED)
        expected = {"high": ["en", "tr", "vi"], "mid": ["bg", "eu"], "low": ["sw"]}
        self.assertEqual(found, expected | {"unlisted": ["nah"]})

    def test_a_wrong_file_of_published_numbers_is_told(self):
        path = self.folder / "numbers.json"
        for text in ("{}", "[", '{"rows": [{}], "corpus_gb": {}}'):
            path.write_text(text, encoding="utf-8")
            with self.assertRaisesRegex(ValueError, "numbers.json: .*published.json in xlm/"):
                published.read(path)
        with self.assertRaisesRegex(OSError, "absent.json"):
            published.read(self.folder / "absent.json")


class ReportTest(Case):
    def check(self, name: str) -> None:
        write = lambda folder: xtreme_report.write_report(folder, self.variants(), PUBLISHED)  # noqa: E731
        golden.check_report(self, __file__, name, write)

    def test_models_and_settings_over_seeds(self):
        for model, plus in (("ours", 0.1), ("random", 0.0)):
            for seed in range(2):
                scores = {"en": 0.5 + plus, "sw": 0.3 + plus + 0.02 * seed}
                self.write(f"{model}{seed}", scores, model=model, seed=seed)
        self.write("tta", {"en": 0.7, "sw": 0.6}, setting="translate_train_all")
        self.write("qa", {"en": answers(0.5, 0.4), "te": answers(0.3, 0.1)}, task="tydiqa")
        self.check("xtreme")

    def test_every_average_is_over_the_languages_that_all_runs_have(self):
        rates = [{"learning_rate": rate, "epochs": 5} for rate in (1e-5, 2e-5)]
        # Burmese is no language of XNLI. Only some runs have Swahili or Thai.
        for number, hyperparameters in enumerate(rates):
            scores = {"en": 0.6 - number / 10, "de": 0.4, "sw": 0.2, "my": 0.1}
            self.write(f"a{number}", scores, hyperparameters=hyperparameters)
        self.write("b", {"en": 0.8, "de": 0.4, "th": 0.3}, model="other")
        self.check("xtreme_languages")

    def test_what_was_selected_on_test_data_is_marked(self):
        rule = {"value": 0.5, "rule": "all_languages"}
        # Burmese is no language of XNLI, and in no average.
        scores = {"en": 0.6, "my": 0.1, "sw": 0.4}
        self.write("a", scores, selected_on_test=["sw"], selected=rule)
        self.write("b", scores | {"sw": 0.2}, model="other", selected={"rule": "english"})
        scores = {"en": {"matthews": -0.1}}
        self.write("c", {}, task="cola", test={}, validation=scores)
        self.check("xtreme_selected")

    def test_scores_of_data_of_ones_own_and_of_no_paper(self):
        self.own("a", 0.9, "/x/intents/data", dataset="data")
        self.own("b", 0.1, "/x/topics/data", dataset="data")
        self.write("stsb", {"en": {"pearson": 0.5, "spearman": 0.4}}, task="stsb")
        self.check("xtreme_own")

    def test_runs_of_other_settings_are_not_averaged(self):
        differing = [(128, "a1"), (128, "a1"), (64, "a1"), (128, "b2")]
        for seed, (length, digest) in enumerate(differing):
            folder = self.write(f"{seed}", {"en": seed / 10}, seed=seed)
            settings = {"task": {"max_length": length}, "parameters": digest,
                        "init_from": str(seed), "train": {"seed": seed}}  # fmt: skip
            (folder / "settings.json").write_text(json.dumps(settings))
        found = self.variants()
        self.assertEqual(sorted(len(one.runs) for one in found), [1, 1, 2])
        names = ("a1, max_length 128], n = 2", "a1, max_length 64]", "b2, max_length 128]")
        self.assertEqual(xtreme_runs.names(found), [f"ours [parameters {one}" for one in names])
        # They are no grid, so none is chosen by its development score.
        self.assertLen(xtreme_runs.chosen(found), 3)

    def test_long_settings_that_begin_alike_tell_runs_apart(self):
        folder = "/home/someone/projects"
        for score, data in ((0.25, "reviews"), (0.5, "reviews of last year"), (0.75, "tickets")):
            settings = {"task": {"root": f"{folder}/{data}", "labels": [*"abcdefghij", data]}}
            path = self.write(data, {"en": score}) / "settings.json"
            path.write_text(json.dumps(settings))
        found = self.variants()
        names = xtreme_runs.names(found)
        self.assertLen(set(names), 3)
        for name, data in zip(names, ("reviews", "reviews of last year", "tickets"), strict=True):
            self.assertIn(f"root …{data}", name)
        # One row each.
        table = xtreme_report.averages_table(found)
        for name, score in zip(names, ("25.0", "50.0", "75.0"), strict=True):
            self.assertIn(f"| {name} | {score} |", table)
