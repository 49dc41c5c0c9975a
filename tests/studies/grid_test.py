"""Studies of a grid: what is run, what is shared, what the report says of made-up results."""

import pathlib
import tempfile
from typing import Any
from unittest import mock

from absl.testing import absltest

from common import artifacts
from configs import grids
from launch import jobs
from studies import grid, grid_report, records
from studies.grid_runs import Run
from tests.task_results import task_results

ARGUMENT = "configs/xlm_r.py:small,DATA"


def made_up(bits: float, score: float | None, loss: float = 4.0) -> Run:
    """Results of a run: English at `bits` a character, Swahili at one more, and NER of Swahili."""
    losses = {
        name: {"loss": loss, "unigram": 6.0, "bits_per_character": bits + more}
        for name, more in (("en", 0), ("sw", 1))
    }
    scores = {} if score is None else {"wikiann": {"en": 90.0, "sw": score}}
    return Run(losses, 8000, 2.0, scores, {task: {"en": 7, "sw": 300} for task in scores})


class ReportTest(absltest.TestCase):
    def setUp(self):
        super().setUp()
        self.grid = grids.choose(ARGUMENT, "capacity")

    def row(self, text: str, *begin: str) -> list[str]:
        (line,) = (
            line for line in text.splitlines() if line.startswith(f"| {' | '.join(begin)} |")
        )
        return [cell.strip() for cell in line.split("|")[1 + len(begin) : -1]]

    def test_numbers(self):
        found = {
            "languages_7": {0: made_up(2.0, 50.0), 1: made_up(2.2, 52.0)},
            "reference": {0: made_up(2.5, 40.0, 4.5), 1: made_up(2.7, 44.0, 5.5)},
            "wide_15": {0: made_up(2.3, None)},
        }
        text = grid_report.table(self.grid, found)
        self.assertEqual(
            self.row(text, "15", "equal width", "reference"),
            ["2", "8,000", "-1.000", "en -1.00", "3.100 (3.000 to 3.200)",
             "2.600 (2.500 to 2.700)", "3.600 (3.500 to 3.700)", "42.0 (40.0 to 44.0)", "2.0"],
        )  # fmt: skip
        # Seven languages are in both series; of no run there is nothing.
        self.assertEqual(text.count("| languages_7 |"), 2)
        self.assertNotIn("wide_30", text)
        self.assertEqual(self.row(text, "examples")[-2:], ["300", ""])
        # Variances 0.02 and 0.02 with one degree of freedom each, 2, 2 and 1 seeds, whose harmonic
        # mean is 3 / 2, and t of two degrees 4.303: 4.303 * sqrt(2 / (3 / 2) * 0.02).
        self.assertEqual(self.row(text, "detectable")[6], "0.703")
        # NER: variances 2 and 8, two runs of two seeds: 4.303 * sqrt(2 / 2 * 5).
        self.assertEqual(self.row(text, "detectable")[9], "9.6")

        effects = grid_report.effects(self.grid, found)
        self.assertEqual(
            self.row(effects, "equal width", "NER, F1"),
            ["51.0 at 7", "-9.0 at 15", "+0.0 at 7", "9.6"],
        )
        self.assertEqual(
            self.row(effects, "growing width", "bits/char")[:3],
            ["2.600 at 7", "+0.200 at 15", "+0.000 at 7"],
        )
        bits, scores = grid_report.language_tables(self.grid, found)
        self.assertIn("| reference | 2.600 | 3.600 |", bits)
        self.assertEqual(self.row(bits, "detectable"), ["0.703", "0.703"])
        # Of a run without scores there is no line.
        self.assertIn("| NER, F1 | en | sw |", scores)
        self.assertIn("| reference | 90.0 | 42.0 |", scores)
        self.assertNotIn("wide_15", scores)
        self.assertEqual(self.row(scores, "detectable"), ["0.0", "9.6"])

    def test_places_without_a_number_are_compared_with_the_first(self):
        corpora = grids.choose(ARGUMENT, "corpora")
        found = {
            "wikipedia_7": {0: made_up(2.5, 40.0), 1: made_up(2.7, 44.0)},
            "languages_7": {0: made_up(2.0, 50.0), 1: made_up(2.2, 52.0)},
            "wikipedia_15": {0: made_up(2.4, None)},
            "reference": {0: made_up(2.3, 41.0)},
        }
        text = grid_report.contrasts(corpora, found)
        self.assertIn("| difference | measure | 7 languages | 15 languages | mean |", text)
        # Variances 0.02 and 0.02, 2, 2, 1 and 1 seeds, whose harmonic mean is 4 / 3, and a mean of
        # two: 4.303 sqrt(2 / (4 / 3) * 0.02 / 2).
        self.assertEqual(
            self.row(text, "CommonCrawl less Wikipedia", "bits/char"),
            ["-0.500", "-0.100", "-0.300", "0.527"],
        )
        # Of 15 languages there is no score of both.
        self.assertEqual(
            self.row(text, "CommonCrawl less Wikipedia", "NER, F1")[:3], ["+9.0", "", "+9.0"]
        )
        alone = grid_report.contrasts(grids.choose(ARGUMENT, "tokenizer"), {
            "reference": {0: made_up(2.3, 41.0)}, "bpe": {0: made_up(2.0, 43.0)},
        })  # fmt: skip
        self.assertEqual(self.row(alone, "BPE less unigram model", "NER, F1"), ["+2.0", ""])

    def test_each_series_of_places_without_a_number_has_a_reference_of_its_own(self):
        table2 = grids.choose("configs/xy_lent.py:base,DATA", "table2")
        found = {
            name: {0: made_up(2.5, score)}
            for name, score in (
                ("base_250k", 40.0), ("base_english", 41.0), ("base", 43.0), ("base_mlm", 46.0),
            )
        }  # fmt: skip
        text = grid_report.contrasts(table2, found)
        self.assertIn("| difference | measure | vocabulary | pairs | objective | mean |", text)
        for places, cells in (
            ("500K pieces less 250K pieces", ["+1.0", "", "", "+1.0", ""]),
            ("pairs of all less pairs with English", ["", "+2.0", "", "+2.0", ""]),
            ("ELECTRA less masked LM", ["", "", "-3.0", "-3.0", ""]),
        ):
            self.assertEqual(self.row(text, places, "NER, F1"), cells)
        self.assertLen(text.splitlines(), 2 + 3 * len(grid_report.measures(found)))
        # The reference is the series' first place, not the first that has results.
        del found["base_mlm"]
        self.assertNotIn("ELECTRA", grid_report.contrasts(table2, found))

    def test_a_cell_of_fewer_seeds_than_its_row_says_so(self):
        def scores(*some: float | None) -> list[str]:
            by_seed = {seed: made_up(2.0, score) for seed, score in enumerate(some)}
            return self.row(grid_report.table(self.grid, {"reference": by_seed}), *place)

        place = ("15", "equal width", "reference")
        whole = scores(40.0, 44.0, 45.0)
        self.assertEqual((whole[0], whole[-2]), ("3", "43.0 (40.0 to 45.0)"))
        self.assertNotIn("seed", " ".join(whole))
        part = scores(40.0, None, 44.0)
        self.assertEqual((part[0], part[-2]), ("3", "42.0 (40.0 to 44.0; 2 seeds)"))
        self.assertEqual(part[:-2], whole[:-2])
        self.assertEqual(scores(None, 44.0, None)[-2], "44.0 (1 seed)")

    def test_one_seed_tells_no_error(self):
        text = grid_report.table(self.grid, {"reference": {0: made_up(2.0, 50.0)}})
        self.assertIn("| 3.000 |".replace("3.000", "2.500"), text)
        self.assertEqual(set(self.row(text, "detectable")), {""})

    def test_only_languages_of_all_runs_count(self):
        more = made_up(2.0, 50.0)
        losses = {**more.losses, "ka": {"loss": 1.0, "unigram": 1.0, "bits_per_character": 100.0}}
        other = Run(losses, 8000, 2.0, more.scores, more.examples)
        text = grid_report.table(self.grid, {"reference": {0: more}, "languages_7": {0: other}})
        self.assertNotIn("100", text)

    def test_a_task_of_one_run_is_no_comparison(self):
        found = {"languages_7": {0: made_up(2.0, None)}, "reference": {0: made_up(2.5, 40.0)}}
        text = grid_report.table(self.grid, found)
        self.assertNotIn("NER", text)
        self.assertEqual(self.row(text, "examples")[-3:], ["", "", ""])
        alone = grid_report.table(self.grid, {"reference": found["reference"]})
        self.assertIn("| NER, F1 |", alone)
        self.assertEqual(self.row(alone, "examples")[-2:], ["300", ""])

    def test_the_page_has_the_papers_values(self):
        path = pathlib.Path(self.enter_context(tempfile.TemporaryDirectory())) / "report" / "x.md"
        text = grid_report.write_report(
            self.grid, {"reference": {0: made_up(2, 5)}}, path, "State."
        )
        self.assertEqual(path.read_text(encoding="utf-8"), text)
        self.assertIn("| 100 | equal width | 67.7 |", text)
        self.assertTrue(path.with_suffix(".png").exists())
        self.assertIn("has no number", grid_report.paper_table(grids.choose(ARGUMENT, "alpha")))
        with self.assertRaisesRegex(ValueError, "no finished runs of this grid"):
            grid_report.write_report(self.grid, {}, path, "")


class GridTest(absltest.TestCase):
    def setUp(self):
        super().setUp()
        folder = pathlib.Path(self.enter_context(tempfile.TemporaryDirectory()))
        self.data, self.workdir = folder / "data", folder / "work"
        for language in ("de", "en", "xx"):
            artifacts.write_text(self.data / f"udpos/test/{language}.tsv.xz", "")
        self.argument = f"configs/xlm_r.py:small,{self.data}"
        self.calls: list[tuple[str, str]] = []
        self.configs: dict[tuple[str, str], tuple[list[str], dict[str, Any]]] = {}
        self.broken = ""
        self.allocation: dict[str, Any] = {}
        self.enter_context(mock.patch.object(grid.runs, "call", self.call))
        self.overrides: dict[str, Any] = {"train.num_steps": 7}
        self.enter_context(mock.patch.object(grid.runs, "own_config", self.own_config))

    def own_config(self):
        """The flags of a command that define its config."""
        changed = (f"--config.{key}={value}" for key, value in self.overrides.items())
        return [f"--config={self.argument}", *changed]

    def call(self, script, config, change, workdir, **_):
        """Stands for the stages."""
        call = (script[0], str(workdir.relative_to(self.workdir)))
        self.calls.append(call)
        self.configs[call] = (list(config), dict(change))
        if call[1] == self.broken:
            raise ValueError("broken")
        if script[0] == "train.py":
            artifacts.write_json(workdir / "train" / "DONE", {})
            speed = '{"step": 60, "steps_per_second": 0.5}\n{"step": 120, "steps_per_second": 1}\n'
            artifacts.write_text(workdir / "train" / "speed.jsonl", speed)
            artifacts.write_json(self.workdir / "rows.json", {})
        if script[0] == "build_vocab.py" and self.allocation:
            artifacts.write_json(workdir / "vocab" / "allocation.json", self.allocation)
        if script[0] == "prepare_data.py":
            artifacts.write_json(workdir / "rows" / "meta.json", {"vocab_size": 8000})
        if script[0] == "evaluate.py":
            losses = {"en": {"loss": 4.0, "unigram": 6.0, "bits_per_character": 2.0}}
            artifacts.write_json(workdir / "report" / "results.json", {"losses": losses})
        if script[0] == "finetune.py":
            results = task_results(workdir.parts[-3], {"de": 0.4, "en": 0.9})
            results["examples"] = {"test": {"de": 10, "en": 20}}
            artifacts.write_json(workdir / "results.json", results)

    def study(self, *names: str, seeds=(0,), tasks=("udpos",)) -> grid.Study:
        found = grids.choose(self.argument, "alpha")
        return grid.Study(
            *(self.argument, self.overrides, found, names or found.runs, self.workdir, seeds),
            tasks=tasks,
            workers=1,
            pin=False,
        )

    def test_runs_share_text_and_are_done_once(self):
        study = self.study("alpha_0.01", "reference", seeds=(0, 1))
        grid.do_study(study)
        text = study.data("reference").relative_to(self.workdir)
        self.assertEqual(study.data("alpha_0.01"), study.data("reference"))
        self.assertEqual(
            self.calls,
            [
                ("build_vocab.py", str(text)),
                ("prepare_data.py", str(text)),
                *(
                    (script, place.format(name, seed))
                    for seed in (0, 1)
                    for name in ("alpha_0.01", "reference")
                    for script, place in (
                        ("train.py", "runs/{}/seed{}"),
                        ("evaluate.py", "runs/{}/seed{}"),
                        ("finetune.py", "tasks/udpos/{}/seed{}"),
                    )
                ),
            ],
        )
        self.assertTrue((self.workdir / "runs/reference/seed1/rows").is_symlink())
        config, change = self.configs["train.py", "runs/alpha_0.01/seed1"]
        self.assertEqual(
            config,
            [
                f"--config=configs/xlm_r.py:small.alpha_0.01,{self.data}",
                "--config.train.num_steps=7",
            ],
        )
        self.assertEqual(change, {"train.seed": 1})
        config, change = self.configs["finetune.py", "tasks/udpos/reference/seed0"]
        self.assertEqual(config, [f"--config=configs/finetune/udpos.py:{self.data}"])
        self.assertEqual(change["task.test_languages"], ("de", "en"))  # xx is not pre-trained on
        self.assertEqual(change["init_from"], study.encoder("reference", 0).absolute())

        self.calls.clear()
        grid.do_study(study)
        self.assertEmpty(self.calls)

    def test_flags_of_the_config_hold_for_fine_tuning(self):
        artifacts.write_text(self.data / "tatoeba_retrieval/de-en.tsv.xz", "")
        for overrides, layer, length, languages in (
            ({}, 1, 64, ("de", "en")),
            ({"model.num_layers": 6, "store.length": 128}, 4, 128, ("de", "en")),
            ({"corpus.languages": ("xx", "en")}, 1, 64, ("en", "xx")),
        ):
            self.overrides = overrides
            study = self.study("reference", tasks=("udpos", "tatoeba"))
            artifacts.write_json(study.record("reference", 0), {"losses": {}})
            change = grid.change_of(study, "udpos", "reference", 0)
            self.assertEqual(change["task.max_length"], length)
            self.assertEqual(change["task.text_pooling"], "mean")
            self.assertCountEqual(change["task.test_languages"], languages)
            if "xx" not in languages:
                change = grid.change_of(study, "tatoeba", "reference", 0)
                self.assertEqual(change["task.layer"], layer)

    def test_a_flag_prevails_over_what_the_grid_changes(self):
        # As it does for the stages: the grid is in the value of --config, which flags follow.
        self.assertEqual(self.study().config_of("alpha_0.01").data.alpha, 0.01)
        self.overrides = {"data.alpha": 0.5}
        self.assertEqual(self.study().config_of("alpha_0.01").data.alpha, 0.5)
        # The launchers lay the text out without flags.
        self.overrides = {"store.length": 128}
        self.test_launched_runs_are_taken_up()

    def test_large_encoders_are_tested_in_all_languages_of_the_corpus_by_the_tasks_settings(self):
        self.argument = f"configs/xlm_r.py:ablation,{self.data}"
        study = self.study("reference", tasks=("udpos", "tatoeba"))
        self.assertEmpty(study.config_of("reference").corpus.languages)  # all that there are
        artifacts.write_text(self.data / "tatoeba_retrieval/de-en.tsv.xz", "")
        with mock.patch.object(
            grid, "record", lambda folder: {"losses": {"de": {}, "en": {}, "sw": {}}}
        ):
            grid.do_study(study)
        _, change = self.configs["finetune.py", "tasks/udpos/reference/seed0"]
        self.assertEqual(change["task.test_languages"], ("de", "en"))
        self.assertNotIn("optimizer.frozen", change)
        self.assertNotIn("task.text_pooling", change)
        self.assertNotIn("optimizer.learning_rate", change)
        self.assertNotIn("task.max_length", change)
        _, change = self.configs["finetune.py", "tasks/tatoeba/reference/seed0"]
        self.assertEqual(change["task.layer"], 8)

    def test_results_are_read_and_kept(self):
        study = self.study("reference")
        grid.do_study(study)
        run = grid.read_runs(study)["reference"][0]
        self.assertEqual(run.minutes, 3)  # 60 steps at half a step a second, 60 at one
        self.assertEqual(run.vocab_size, 8000)
        self.assertEmpty(run.vocabulary)  # as of a tokenizer that is given
        self.assertEqual(run.scores, {"udpos": {"de": 40, "en": 90}})

        record = self.workdir.parent / "xlm_r.jsonl"
        self.assertEqual(records.keep(record, self.workdir, "abc"), 2)
        other = self.workdir.parent / "other"
        records.restore(record, other)
        self.workdir, calls = other, len(self.calls)
        grid.do_study(self.study("reference"))
        self.assertLen(self.calls, calls)
        self.assertEqual(grid.read_runs(self.study("reference")), {"reference": {0: run}})

    def test_the_vocabularys_own_scores_are_kept(self):
        alone = {"alp": -100.0, "tokens_per_sentence": 20.0, "unknown_rate": 0.0}
        self.allocation = {
            "settings": {"method": "joint"},
            "languages": {"en": {"resource": "high"}, "sw": {"resource": "low"}},
            # The other method is one to compare with; there is no held-out text in Swahili.
            "scores": {"uniform": {"en": {**alone, "alp": -200.0}}, "joint": {"en": alone}},
        }
        study = self.study("reference")
        grid.do_study(study)
        self.assertEqual(
            grid.read_runs(study)["reference"][0].vocabulary,
            {"en": {"alp": -100.0, "tokens_per_sentence": 20.0, "resource": "high"}},
        )

    def cells(self, path: pathlib.Path) -> dict[str, str]:
        """Number of seeds of each run in the table of a page."""
        lines = path.read_text(encoding="utf-8").splitlines()
        found = (line.split(" | ") for line in lines if " | all | " in line)
        return {run: seeds for _, _, run, seeds, *_ in found}

    def test_the_report_is_of_all_runs_whichever_command_they_are_of(self):
        report = self.workdir / "report"
        first = self.study(seeds=(0, 1))
        grid.do_study(first)
        _, paths = grid.write_reports(first, "alpha")
        self.assertEqual(paths, [report / "alpha.md"])
        every = dict.fromkeys(first.names, "2")
        self.assertEqual(self.cells(report / "alpha.md"), every)
        self.assertIn("All 12 runs are done.", (report / "alpha.md").read_text("utf-8"))

        more = self.study("alpha_0.01", "reference", seeds=(3, 4))
        grid.do_study(more)
        text, paths = grid.write_reports(more, "alpha")
        own = report / "alpha_alpha_0.01_reference_seeds_3_4.md"
        self.assertEqual(paths, [report / "alpha.md", own])
        both = {"alpha_0.01": "4", "reference": "4"}
        self.assertEqual(self.cells(report / "alpha.md"), every | both)
        self.assertEqual((report / "alpha.md").read_text("utf-8"), text)
        # Nobody asked for seeds 3 and 4 of the others.
        self.assertIn("All 16 runs are done.", text)
        self.assertEqual(self.cells(own), dict.fromkeys(both, "2"))
        self.assertIn("All 4 runs are done.", own.read_text("utf-8"))

        # Of the first command again, whose seeds are no longer all.
        again, (_, own) = grid.write_reports(first, "alpha")
        self.assertEqual(again, text)
        self.assertEqual((own.name, self.cells(own)), ("alpha_seeds_0_1.md", every))

    def test_what_is_missing(self):
        def missing(*names: str, tasks=("udpos",)) -> str:
            study = self.study(*names, seeds=(0, 1), tasks=tasks)
            return grid.missing(study, study.grid.runs, grid.read_runs(study))

        grid.do_study(self.study("alpha_0.01"))
        grid.do_study(self.study("reference", seeds=(0, 1)))
        others = (name for name in self.study().names if name not in ("alpha_0.01", "reference"))
        none = ", ".join(f"{name} (0, 1)" for name in others)
        self.assertIn("alpha_0.01 (1)", missing())
        self.assertNotIn("reference", missing())
        # Seeds of a run with results, which nobody asked for, are not missing.
        self.assertEqual(missing("reference"), f"**Missing** (seeds): {none}.")
        # Scores of one of two seeds are, and those of a task that was asked for.
        self.study().task_results("udpos", "reference", 1).unlink()
        scores = "of POS, F1: reference (1); of NER, F1: reference (0, 1)"
        self.assertEqual(
            missing("reference", tasks=("wikiann",)), f"**Missing** (seeds): {none}; {scores}."
        )

    def test_other_folders_of_a_run_are_no_seeds(self):
        study = self.study("reference", seeds=(10, 9))
        grid.do_study(study)
        study.encoder("reference", 9).rename(self.workdir / "runs/reference/seed9_old")
        self.assertEqual(list(grid.read_runs(study)["reference"]), [10])

    def test_a_failure_stops_no_other(self):
        self.broken = "runs/alpha_0.01/seed0"
        with self.assertRaisesRegex(ValueError, "1 runs failed: broken"):
            grid.do_study(self.study("alpha_0.01", "reference"))
        self.assertEqual(list(grid.read_runs(self.study())), ["reference"])

    def test_launched_runs_are_taken_up(self):
        job = jobs.Job("a", self.argument, str(self.workdir), ("train", "evaluate"))
        study = self.study()
        self.assertEqual(
            {(one.workdir, one.shared) for one in jobs.jobs_of_grid(job, "alpha", 2)},
            {
                (str(study.encoder(name, seed)), str(study.data(name)))
                for name in study.names
                for seed in (0, 1)
            },
        )


if __name__ == "__main__":
    absltest.main()
