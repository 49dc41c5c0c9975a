import csv
import json
import lzma
import math
import pathlib
import shutil
import tempfile
from unittest import mock

from absl.testing import absltest, parameterized

from builders import data as data_builders
from builders import task_data
from builders.task_kinds import KINDS
from builders.task_settings import task_settings
from common import artifacts
from configs import real_text
from configs.finetune import udpos, wikiann
from input_pipeline import sources
from input_pipeline.tasks import loading
from input_pipeline.tasks.tasks import TASKS
from studies import monolingual, monolingual_report, records, runs, splits
from studies.monolingual import Job
from studies.monolingual_report import Cell
from training.signals import EXIT_STOPPED, Stopped

CONFIGS = {"udpos": udpos.get_config(), "wikiann": wikiann.get_config()}


def cell(size: int, alp: float, pos=(), ner=(), language: str = "fi") -> Cell:
    """Scores by seed, from 0 on."""
    scores = {"udpos": dict(enumerate(pos)), "wikiann": dict(enumerate(ner))}
    return Cell(language, size, alp, loss=6.0, unigram=6.25, scores=scores)


class CorrelationTest(parameterized.TestCase):
    def test_hand_made(self):
        # Deviations of ALP (-2, 0, 2), of size (-2, -1, 3), of F1 (-.1, -.1, .2):
        # rho = 0.6 / sqrt(8 * 0.06) and 0.9 / sqrt(14 * 0.06).
        cells = [cell(1, -8, [0.5]), cell(2, -6, [0.5]), cell(6, -4, [0.8])]
        by_alp = monolingual_report.correlate(cells, "udpos", "alp")
        by_size = monolingual_report.correlate(cells, "udpos", "size")
        self.assertAlmostEqual(by_alp.rho, 0.6 / math.sqrt(8 * 0.06))
        self.assertAlmostEqual(by_size.rho, 0.9 / math.sqrt(14 * 0.06))

    def test_of_means_and_of_each_seed_that_all_have(self):
        cells = [
            cell(10, -9, [0.1, 0.7, 0.4]),
            cell(20, -8, [0.2, 0.6, 0.1]),
            cell(30, -7, [0.3, 0.5]),
        ]
        found = monolingual_report.correlate(cells, "udpos", "size")
        self.assertEqual(set(found.by_seed), {0, 1})
        self.assertAlmostEqual(found.by_seed[0], 1)
        self.assertAlmostEqual(found.by_seed[1], -1)
        means = [cell(10, -9, [0.4]), cell(20, -8, [0.3]), cell(30, -7, [0.4])]
        self.assertAlmostEqual(
            found.rho, monolingual_report.correlate(means, "udpos", "size").rho, places=6
        )

    def test_a_score_that_grows_with_the_logarithm(self):
        cells = [cell(2**i, -float(i == 3), [0.1 * i]) for i in range(5)]
        rho = {m: monolingual_report.correlate(cells, "udpos", m).rho for m in ("log_size", "size")}
        self.assertAlmostEqual(rho["log_size"], 1)
        self.assertLess(rho["size"], 0.95)

    def test_too_few_sizes_or_no_differences(self):
        cells = [cell(10, -9, [0.1]), cell(20, -8, [0.2])]
        self.assertIsNone(monolingual_report.correlate(cells, "udpos", "alp"))
        flat = [cell(size, -size, [0.0]) for size in (1, 2, 3)]
        self.assertTrue(math.isnan(monolingual_report.correlate(flat, "udpos", "alp").rho))

    def test_spread(self):
        cells = [cell(1, -1, [0.1, 0.3]), cell(2, -1, [0.4, 0.4]), cell(3, -1, [0.9])]
        self.assertAlmostEqual(cells[0].spread("udpos"), math.sqrt(0.02))
        # Variances of 0.02 and 0; a single seed has none.
        self.assertAlmostEqual(monolingual_report.pooled_spread(cells, "udpos"), 0.1)
        self.assertTrue(math.isnan(cells[2].spread("udpos")))


def rows(table: str) -> list[list[str]]:
    return [[one.strip() for one in line.split("|")[1:-1]] for line in table.splitlines()]


class ReportTest(absltest.TestCase):
    def setUp(self):
        super().setUp()
        self.folder = pathlib.Path(self.enter_context(tempfile.TemporaryDirectory())) / "report"
        self.cells = [
            cell(2000, -5.0, [0.75, 0.85], [0.5]),
            cell(500, -9.0, [0.5, 0.6], [0.25]),
            cell(1000, -6.5, [0.6, 0.7]),
            cell(500, -4.0, language="ar"),
        ]

    def test_tables(self):
        text = monolingual_report.write_report(self.cells, self.folder)
        self.assertEqual((self.folder / "report.md").read_text(), text)
        lines = rows(text)
        self.assertIn(["fi", "500", "-9.0", "-0.25", "55.0 ± 7.1 (2)", "25.0 (1)"], lines)
        self.assertIn(["fi", "1,000", "-6.5", "-0.25", "65.0 ± 7.1 (2)", ""], lines)
        self.assertIn(["ar", "500", "-4.0", "-0.25", "", ""], lines)
        sizes = [line[1] for line in lines if line[:1] == ["fi"]][:3]
        self.assertEqual(sizes, ["500", "1,000", "2,000"])
        (pos,) = (line for line in lines if line[:2] == ["fi", "POS"])
        (ner,) = (line for line in lines if line[:2] == ["fi", "NER"])
        self.assertEqual(pos[2], "3")
        # Deviations of ALP (-13, 2, 11) / 6, of F1 (-7, -1, 8) / 60: 177 / sqrt(294 * 114).
        self.assertEqual(pos[3], "0.967 (0.97 to 0.97)")
        # t of 3 degrees of freedom, sqrt(2 / 2) and a variance of 0.005: 3.182 sqrt(0.005).
        self.assertEqual(pos[-3:], ["25.0", "7.1", "22.5"])
        self.assertIn("Of 3 sizes a correlation is significant at 5 % from 1.00 on", text)
        few = monolingual_report.write_report(self.cells[:2], self.folder / "few")
        self.assertNotIn("significant", few)
        self.assertEqual(ner[2:6], ["2", "", "", ""])
        self.assertIn(["ru", "POS", "0.423", "0.327"], lines)
        for name in ("alp", "scores_alp", "scores_size"):
            self.assertTrue((self.folder / f"{name}.png").exists())

    def test_data(self):
        monolingual_report.write_report(self.cells, self.folder)
        with open(self.folder / "scores.csv", encoding="utf-8") as file:
            lines = list(csv.DictReader(file))
        self.assertLen(lines, 8)
        best = max(lines, key=lambda line: float(line["f1"]))
        shown = (best["size"], best["alp"], best["task"], best["seed"], best["f1"])
        self.assertEqual(shown, ("2000", "-5.0", "udpos", "1", "0.85"))
        found = json.loads((self.folder / "cells.json").read_text())
        self.assertEqual([one["size"] for one in found], [500, 500, 1000, 2000])

    def test_nothing_to_report(self):
        with self.assertRaisesRegex(ValueError, "no encoders to report"):
            monolingual_report.write_report([], self.folder)


class PlanTest(parameterized.TestCase):
    def test_languages_are_finished_one_by_one(self):
        found = monolingual.jobs(["ru", "fi"], [2000, 500, 2000])
        expected = [Job("ru", 500), Job("ru", 2000), Job("fi", 500), Job("fi", 2000)]
        self.assertEqual(found, expected)

    def test_encoders_of_a_language_differ_in_the_vocabulary_alone(self):
        small, large = (Job("fi", size).pretraining(steps=7) for size in (500, 2000))
        differ = {key for key in small if small[key] != large[key]}
        self.assertEqual(differ, {"vocab.sizes", "vocab.target_size"})
        config = real_text.get_config("DATA")
        config.update_from_flattened_dict(small)
        self.assertEqual(config.train.num_steps, 7)
        self.assertEqual(data_builders.corpus_spec(config).languages, ("fi",))
        # The ALP of Figure 1 is of exactly the pieces that the encoder has.
        self.assertEqual(data_builders.vocabulary_settings(config).budget, 500)

    def test_one_side_of_parallel_text_is_text(self):
        root = pathlib.Path(self.enter_context(tempfile.TemporaryDirectory()))
        config = real_text.get_config(str(root))
        parallel = [name for name in config.corpus.parallel if "*" not in name]
        config.update_from_flattened_dict(Job("ru", 500).pretraining(steps=7))
        for name in (*config.corpus.text, *parallel):
            artifacts.write_text(root / name / "rus.txt", "Слово.\n")
        spec = data_builders.corpus_spec(config)
        read = [str(file.path.parent.relative_to(root)) for file in sources.find_text(spec)]
        self.assertCountEqual(read, config.corpus.text)
        self.assertContainsSubset(parallel, read)
        self.assertEmpty(sources.find_parallel(spec))

    @parameterized.parameters(*monolingual_report.TASKS)
    def test_runs_of_a_task_differ_in_the_encoder_and_the_seed(self, task):
        workdir = pathlib.Path("work")
        one = Job("fi", 500).fine_tuning(CONFIGS[task], task, 3, workdir)
        other = Job("fi", 2000).fine_tuning(CONFIGS[task], task, 4, workdir)
        self.assertEqual((one.train.seed, other.train.seed), (3, 4))
        self.assertEqual(one.init_from, "work/encoders/fi/500/seed3")
        for key in ("init_from", "model_name"):
            other[key] = one[key]
        other.train.seed = 3
        self.assertEqual(one, other)
        options = task_settings(one)
        for split in task_data.SPLITS:
            self.assertEqual(task_data.languages(options, split), ("fi",))
        own = mock.Mock(language="fi")
        self.assertEqual(task_data.selected_on(options, [own]), [own])


class SplitsTest(parameterized.TestCase):
    def setUp(self):
        super().setUp()
        folder = pathlib.Path(self.enter_context(tempfile.TemporaryDirectory()))
        self.data, self.workdir = folder / "data", folder / "work"
        for path, count, tag in (
            ("udpos/dev", 23, "NOUN"),
            ("udpos/test", 5, "VERB"),
            ("wikiann_ner/dev", 17, "B-PER"),
        ):
            text = "\n".join(f"{path}/{i}\t{tag}\nsana\t{tag}\n" for i in range(count))
            artifacts.write_bytes(self.data / path / "fi.tsv.xz", lzma.compress(text.encode()))

    def read(self, task: str, split: str) -> list[str]:
        root = splits.split_folder(self.workdir)
        pattern = f"{task}/{split}/{{language}}.tsv"
        readers = KINDS["tagging"].readers
        examples = loading.load_examples(readers, TASKS[task], root, (pattern,), "fi")
        return [one.words[0] for one in examples]

    def test_every_example_is_in_one_split_in_its_order(self):
        splits.write_splits(
            self.data, self.workdir, {task: ["fi"] for task in monolingual_report.TASKS}
        )
        pos = {split: self.read("udpos", split) for split in task_data.SPLITS}
        ner = {split: self.read("wikiann", split) for split in task_data.SPLITS}
        dev = [f"udpos/dev/{i}" for i in range(23)]
        self.assertEqual(pos["train"] + pos["validation"], dev)
        self.assertEqual(pos["test"], [f"udpos/test/{i}" for i in range(5)])
        self.assertEqual(
            ner["train"] + ner["validation"] + ner["test"],
            [f"wikiann_ner/dev/{i}" for i in range(17)],
        )
        self.assertEqual([len(pos[split]) for split in task_data.SPLITS], [21, 2, 5])
        self.assertEqual([len(ner[split]) for split in task_data.SPLITS], [10, 2, 5])

    def test_a_language_without_data(self):
        with self.assertRaisesRegex(ValueError, "udpos/dev/xx.tsv.xz does not exist; .*'xx'"):
            splits.write_splits(
                self.data, self.workdir, {task: ["fi", "xx"] for task in monolingual_report.TASKS}
            )


class RunsTest(absltest.TestCase):
    """The driver; stand-ins for the stages leave what it reads."""

    def setUp(self):
        super().setUp()
        self.workdir = pathlib.Path(self.enter_context(tempfile.TemporaryDirectory()))
        self.done: list[tuple] = []
        self.broken: tuple = ()
        self.error: Exception = ValueError("broken")
        self.enter_context(mock.patch.object(monolingual, "call", self.call))
        self.enter_context(mock.patch.object(monolingual.task_runs, "run", self.run_fine_tuning))

    def note(self, *what):
        self.done.append(what)
        if what == self.broken:
            raise self.error

    def call(self, script, data, folder, change):
        (size,) = change["vocab.sizes"]
        (language,) = change["corpus.languages"]
        seed = (change["train.seed"],) if "train.seed" in change else ()
        self.note(script, language, size, *seed)
        if script == "build_vocab.py":
            built = {"sizes": [size], "alp": [-1000 / size]}
            artifacts.write_json(
                folder / "vocab" / "allocation.json", {"languages": {language: built}}
            )
        if script == "train.py":
            self.assertTrue((folder / "vocab" / "allocation.json").exists())
            artifacts.write_text(folder / "train" / "DONE", "")
        if script == "evaluate.py":
            losses = {language: {"loss": 5.0 + seed[0] / 10, "unigram": 5.5}}
            artifacts.write_json(folder / "report" / "results.json", {"losses": losses})

    def run_fine_tuning(self, config, folder):
        (language,) = config.task.test_languages
        *_, size, seed = pathlib.Path(config.init_from).parts
        self.assertEqual(seed, f"seed{config.train.seed}")
        self.note(config.task.name, language, int(size), config.train.seed)
        score = {"udpos": 0.5, "wikiann": 0.25}[config.task.name] + config.train.seed / 100
        results = {"seed": config.train.seed, "test": {language: {"f1": score}}}
        artifacts.write_json(folder / "results.json", results)
        return results

    def run_all(self, sizes=(10, 20), seeds=(0,), steps=5, data="DATA") -> list[str]:
        jobs = monolingual.jobs(["fi", "ru"], sizes)
        return monolingual.run_all(
            jobs, seeds, self.workdir, data=data, steps=steps, configs=CONFIGS
        )

    def stages(self, *sizes):
        return [
            (stage, language, size, *seed)
            for language in ("fi", "ru")
            for size in sizes
            for stage, seed in (
                ("build_vocab.py", ()),
                ("prepare_data.py", ()),
                ("train.py", (0,)),
                ("evaluate.py", (0,)),
            )
        ]

    def done_stages(self):
        return [one for one in self.done if one[0].endswith(".py")]

    def test_finished_stages_are_not_repeated(self):
        self.assertEmpty(self.run_all())
        self.assertEqual(self.done_stages(), self.stages(10, 20))
        self.assertEqual(self.done[4:6], [("udpos", "fi", 10, 0), ("wikiann", "fi", 10, 0)])
        self.done.clear()
        self.assertEmpty(self.run_all(sizes=(10, 20, 30)))
        self.assertEqual(self.done_stages(), self.stages(30))
        self.assertEmpty(self.run_all(sizes=(10, 20, 30), seeds=(0, 1)))
        runs = {one for one in self.done if not one[0].endswith(".py")}
        self.assertLen(runs, 2 * 3 * 2 * 2)

    def test_another_seed_shares_text_and_has_an_encoder_of_its_own(self):
        self.run_all(sizes=(10,))
        self.done.clear()
        self.assertEmpty(self.run_all(sizes=(10,), seeds=(0, 1)))
        self.assertEqual(
            self.done_stages(),
            [
                (stage, language, 10, 1)
                for language in ("fi", "ru")
                for stage in ("train.py", "evaluate.py")
            ],
        )
        runs = {one for one in self.done if not one[0].endswith(".py")}
        self.assertLen(runs, 2 * 2 * 2)

    def test_restored_results_need_no_encoder(self):
        self.run_all(sizes=(10,), seeds=(0, 1))
        before = list(monolingual.cells(self.workdir))
        kept = self.workdir / "kept.jsonl"
        records.keep(kept, self.workdir, "abc")
        self.workdir = self.workdir / "other"
        records.restore(kept, self.workdir)
        self.done.clear()
        self.assertEmpty(self.run_all(sizes=(10,), seeds=(0, 1)))
        self.assertEmpty(self.done)
        self.assertEqual(list(monolingual.cells(self.workdir)), before)
        # With one result lost, its encoder is trained again.
        (self.workdir / "encoders/fi/10/seed1/udpos/results.json").unlink()
        self.assertEmpty(self.run_all(sizes=(10,), seeds=(0, 1)))
        self.assertIn(("train.py", "fi", 10, 1), self.done)
        self.assertLen([one for one in self.done if one[0] == "train.py"], 1)

    def test_other_settings_are_refused(self):
        self.run_all()
        for changed, message in (
            ({"steps": 6}, "train.num_steps: there 5, now 6"),
            ({"data": "OTHER"}, "data: there 'DATA', now 'OTHER'"),
        ):
            errors = self.run_all(**changed)
            self.assertLen(errors, 4)
            self.assertIn(message, errors[0])

    def test_other_settings_are_refused_of_results_without_their_encoder(self):
        self.run_all(sizes=(10,))
        for path in self.workdir.glob("encoders/*/*/seed0/train"):
            shutil.rmtree(path)
        self.done.clear()
        errors = self.run_all(sizes=(10,), steps=6)
        self.assertLen(errors, 2)
        self.assertIn("train.num_steps: there 5, now 6", errors[0])
        self.assertEmpty(self.run_all(sizes=(10,)))
        self.assertEmpty(self.done)

    def test_restored_results_are_of_the_settings_that_they_were_first_taken_with(self):
        data = self.workdir / "data"
        for name in real_text.get_config("").corpus.text + monolingual._PRETRAINING["corpus.text"]:
            artifacts.write_text(data / name / "fi.txt", "Sana.\n")
        artifacts.write_json(self.workdir / "encoders/fi/10/seed0/record.json", {})
        claims = {steps: monolingual.shared_config(str(data), steps) for steps in (5, 6)}
        runs.claim(self.workdir, claims[5])
        with self.assertRaisesRegex(ValueError, "train.num_steps: there 5, now 6"):
            runs.claim(self.workdir, claims[6])
        for job in monolingual.jobs(["fi"], [10]):  # what all encoders have
            config = real_text.get_config(str(data))
            config.update_from_flattened_dict(job.pretraining(5))
            for section in ("model", "optimizer", "train", "evaluation", "data"):
                self.assertEqual(config[section], claims[5][section])

    def test_a_stage_that_failed_is_repeated_and_stops_no_other(self):
        self.broken = ("train.py", "fi", 20, 0)
        self.assertEqual(self.run_all(), ["fi, 20 pieces, seed 0: broken"])
        self.assertNotIn(("evaluate.py", "fi", 20, 0), self.done)
        self.assertIn(("wikiann", "ru", 20, 0), self.done)
        found = [(one.language, one.size) for one in monolingual.cells(self.workdir)]
        self.assertCountEqual(found, [("fi", 10), ("ru", 10), ("ru", 20)])
        self.broken = ()
        self.done.clear()
        self.assertEmpty(self.run_all())
        self.assertEqual(
            self.done_stages(), [("train.py", "fi", 20, 0), ("evaluate.py", "fi", 20, 0)]
        )

    def test_an_error_of_any_kind_stops_no_other(self):
        self.broken, self.error = ("udpos", "fi", 10, 0), FileNotFoundError("lost")
        errors = self.run_all()
        self.assertEqual(errors, ["fi, 10 pieces, seed 0: FileNotFoundError: lost"])
        self.assertIn(("wikiann", "ru", 20, 0), self.done)

    def test_asked_to_stop(self):
        stopped = mock.patch.object(monolingual.task_runs, "run", side_effect=Stopped(3))
        with stopped, self.assertRaises(SystemExit) as caught:
            self.run_all()
        self.assertEqual(caught.exception.code, EXIT_STOPPED)

    def test_collected(self):
        self.run_all(sizes=(10, 500), seeds=(1, 2))
        by_name = {(one.language, one.size): one for one in monolingual.cells(self.workdir)}
        self.assertLen(by_name, 4)
        scores = {"udpos": {1: 0.51, 2: 0.52}, "wikiann": {1: 0.26, 2: 0.27}}
        self.assertEqual(by_name["ru", 500], Cell("ru", 500, -2.0, 5.15, 5.5, scores))
        self.assertEqual(by_name["fi", 10].alp, -100)


if __name__ == "__main__":
    absltest.main()
