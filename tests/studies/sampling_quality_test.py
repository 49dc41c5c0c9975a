import importlib
import os
import pathlib
import tempfile
from unittest import mock

import matplotlib.pyplot as plt
from absl.testing import absltest, flagsaver, parameterized

from builders import model
from common import artifacts
from configs import sampling_quality as sampling_quality_config
from studies import (
    runs,
    sampling_losses,
    sampling_plots,
    sampling_quality,
    sampling_report,
    sampling_settings,
    sampling_tasks,
)
from studies.sampling_settings import Setting
from tests import commands, factories, processes
from tests.malformed import harness
from tests.task_results import task_results

run_process = runs.call  # before a test puts something in its place


def record(setting: str, seed: int, a: float, b: float, **changed) -> dict:
    return {
        "setting": setting,
        "seed": seed,
        "vocab_size": 1000,
        "loss": {"a": a, "b": b},
        "unigram": {"a": 7.0, "b": 8.0},
        "candidates": 1000.0 if setting == "full" else 150.0,
        "overflow": 0.0,
        "staleness": None,
        "steps_per_second": 2.0,
        **changed,
    }


def setting(name: str, bias: bool = False) -> Setting:
    return Setting(name, name.upper(), "method", {"output_layer.frequency_bias": bias})


class ReportTest(parameterized.TestCase):
    def rows(self, *records: dict) -> dict[str, sampling_losses.Row]:
        settings = [setting(name) for name in ("full", "knn", "nce")]
        settings += [setting("full_bias", bias=True), setting("knn_bias", bias=True)]
        return sampling_losses.summarise(settings, records)

    def test_means_and_paired_differences(self):
        rows = self.rows(
            record("knn", 1, 7.5, 7.5, candidates=50.0, staleness=0.5),
            record("full", 0, 5.0, 6.0),
            record("full", 1, 7.0, 7.0),
            record("knn", 0, 5.25, 6.0, staleness=0.25),
            record("knn", 2, 1.0, 1.0, candidates=100.0),
        )
        self.assertEqual(list(rows), ["full", "knn"])
        self.assertEqual(rows["full"].loss, {0: 5.5, 1: 7.0})
        self.assertEqual(rows["full"].above_unigram, {0: -2.0, 1: -0.5})
        self.assertEqual(rows["full"].difference, {})
        # Seed 2 of knn has no full run to be compared with.
        self.assertEqual(rows["knn"].difference, {0: 0.125, 1: 0.5})
        self.assertEqual(rows["knn"].loss[2], 1.0)
        self.assertEqual(rows["full"].languages, {"a": 6.0, "b": 6.5})
        self.assertEqual(rows["knn"].candidates, 100.0)
        self.assertEqual(rows["knn"].staleness, 0.375)

    def test_the_full_softmax_of_the_same_bias_is_compared_with(self):
        rows = self.rows(
            record("full", 0, 5.0, 6.0),
            record("full_bias", 0, 4.0, 5.0),
            record("knn_bias", 0, 4.25, 5.0),
        )
        self.assertEqual(rows["knn_bias"].difference, {0: 0.125})
        self.assertEqual(rows["full_bias"].difference, {})

    def test_table(self):
        rows = self.rows(
            record("full", 0, 5.0, 6.0),
            record("full", 1, 7.0, 7.0),
            record("knn", 0, 5.25, 6.0),
            record("knn", 1, 6.5, 7.0),
            record("nce", 0, 9.0, 9.0),
        )
        speed = {"full": {"step": 1.0, "run": 1.0}, "knn": {"step": 3.0, "run": 2.5}}
        header, _, *lines = sampling_report.table(list(rows.values()), speed).splitlines()
        width = header.count("|")
        self.assertEqual([line.count("|") for line in lines], [width] * 3)
        full, knn, nce = ([cell.strip() for cell in line.split("|")[1:-1]] for line in lines)
        self.assertEqual(full[1:4], ["2", "6.250", "-1.250"])
        self.assertEqual(full[4:7], ["-2.000 to -0.500", "", ""])
        self.assertEqual(knn[2:5], ["6.188", "-1.312", "-1.875 to -0.750"])
        self.assertEqual(knn[5:7], ["-0.062", "-0.250 to +0.125"])
        self.assertEqual(knn[7:9], ["150", "0.150"])
        self.assertEqual(knn[-2:], ["3.00", "2.50"])
        self.assertEqual(nce[-2:], ["", ""])
        self.assertEqual(nce[5], "+3.500")

    def test_language_table(self):
        rows = self.rows(record("full", 0, 5.0, 6.0), record("full", 1, 7.0, 7.0))
        table = sampling_report.language_table(list(rows.values()), {"a": 7.0, "b": 8.0})
        self.assertIn("| unigram of the language | 7.000 | 8.000 | 7.500 |", table)
        self.assertIn("| FULL | 6.000 | 6.500 | 6.250 |", table)

    @parameterized.parameters(
        # Intervals of 5 steps; before steps 0, 10, 20, ... there is a refresh.
        (10, 30, 100.0),
        # Nothing but the first interval has one.
        (30, 30, 10.0),
        # Each has one; the first, which compiles, is left out.
        (5, 30, 10.0),
        # Steps after the tenth are exact.
        (30, 10, 100.0),
    )
    def test_plain_speed(self, refresh_every, last, expected):
        speeds = {5: 1.0, 10: 100.0, 15: 10.0, 20: 100.0, 25: 10.0, 30: 10.0}
        records = [{"step": step, "steps_per_second": v} for step, v in speeds.items()]
        found = sampling_quality.plain_speed(
            records, log_every=5, refresh_every=refresh_every, last=last
        )
        self.assertEqual(found, expected)

    def test_seconds_a_step(self):
        config = sampling_quality_config.get_config("runlocal")
        config.train.num_steps = 100
        config.output_layer.refresh_every = 30
        times = {"step": 1.0, "refresh": 50.0}
        self.assertEqual(sampling_report.seconds_a_step(config, times), 1 + 4 * 0.5)
        self.assertEqual(sampling_report.seconds_a_step(config, {"step": 1.0}), 1.0)
        # With the last tenth exact, the refreshes before steps 0, 30 and 60 are left.
        config.output_layer.full_softmax_fraction = 0.1
        times["exact"] = 11.0
        self.assertEqual(sampling_report.seconds_a_step(config, times), 0.9 + 1.1 + 3 * 0.5)

    def test_fine_tuning_table(self):
        scores = {
            "knn": {1: {"en": 80.0, "de": 44.0, "ru": 20.0}, 2: {"en": 80, "de": 0, "ru": 0}},
            "full": {0: {"en": 90.0, "de": 40.0, "ru": 20.0}, 1: {"en": 90, "de": 42, "ru": 20}},
            "random": {0: {"en": 50.0, "de": 9.0, "ru": 1.0}},
        }
        settings = [setting(name) for name in ("full", "knn", "nce")]
        header, _, random, full, knn, least = (
            [cell.strip() for cell in line.split("|")[1:-1]]
            for line in sampling_tasks.table(scores, settings).splitlines()
        )
        self.assertEqual(header[:6], ["", "seeds", "en", "de", "ru", "mean but en"])
        self.assertEqual(random[:6], ["random parameters", "1", "50.0", "9.0", "1.0", "5.0"])
        self.assertEqual(random[7:], ["", ""])
        self.assertEqual(full[:7], ["FULL", "2", "90.0", "41.0", "20.0", "30.5", "30.0 to 31.0"])
        self.assertEqual(full[7:], ["", ""])
        # One seed is common.
        self.assertEqual(knn[5:], ["16.0", "0.0 to 32.0", "+1.0", "+1.0 to +1.0"])
        # Of the means: t of two degrees of freedom, variances 0.5 and 512, two seeds each.
        self.assertEqual(least[2:6], ["0.0", "94.8", "43.0", f"{4.3027 * 256.25**0.5:.1f}"])
        self.assertEqual(sampling_tasks.table({"other": scores["knn"]}, settings), "")

    def test_plot_of_fine_tuned_methods(self):
        def by_seed(*scores: float) -> dict[int, dict[str, float]]:
            return {seed: {"en": 90.0, "de": score} for seed, score in enumerate(scores)}

        pos = {"full": by_seed(40.0, 42.0), "knn": by_seed(38.0), "random": by_seed(20.0)}
        scores = {"udpos": pos, "tatoeba": {"full": by_seed(5.0)}}
        settings = [setting(name) for name in ("full", "knn", "nce")]
        path = pathlib.Path("methods.png")
        with mock.patch.object(sampling_plots.figures, "save") as save:
            sampling_plots.plot_tuned_methods(settings, {"udpos": {"full": by_seed(1.0)}}, path)
            save.assert_not_called()  # nothing to compare it with
            sampling_plots.plot_tuned_methods(settings, scores, path)
        figure, saved_to = save.call_args.args
        self.addCleanup(plt.close, figure)
        self.assertEqual(saved_to, path)
        (axes,) = figure.axes
        self.assertEqual(axes.get_xlabel(), "POS, F1, mean without English")
        labels = [label.get_text() for label in axes.get_yticklabels()]
        self.assertEqual(labels, ["FULL", "KNN", "random parameters"])
        drawn = [(list(line.get_xdata()), list(line.get_ydata())) for line in axes.get_lines()]
        self.assertEqual(
            drawn[::2], [([40, 42], [0, 0]), ([38], [1]), ([20], [2]), ([41, 41], [0, 1])]
        )
        self.assertEqual(drawn[1::2], [([41], [0]), ([38], [1]), ([20], [2])])

    def test_fine_tuned_scores_are_compared_within_their_group(self):
        config = sampling_quality_config.get_config("DATA")
        settings = sampling_settings.study(config)
        score = {"full": 1.0, "knn": 2.0, "knn_corrected": 3.0}

        def by_seed(one: Setting) -> dict[int, dict[str, float]]:
            return {0: {"en": 0.0, "de": score.get(one.name, 10.0)}}

        tuned = {one.name: by_seed(one) for one in settings if one.is_fine_tuned}
        parts = sampling_report._task_tables({"tatoeba": {}, "udpos": tuned}, settings)
        titles, tables = parts[::2], parts[1::2]
        self.assertEqual(
            titles,
            [f"### {sampling_settings.GROUPS[one]}: POS, F1" for one in ("method", "k", "half")],
        )
        found = {}
        for group, table in zip(("method", "k", "half"), tables, strict=True):
            for line in table.splitlines()[2:-1]:
                cells = [cell.strip() for cell in line.split("|")[1:-1]]
                found[group, cells[0]] = cells[6]
        label = {one.name: one.label for one in settings}
        self.assertEqual(found["method", label["nce"]], "+9.0")
        self.assertEqual(found["method", label["knn"]], "+1.0")
        self.assertEqual(found["k", label["knn"]], "+1.0")  # of another group, to be compared with
        self.assertEqual(found["k", label["k5"]], "+8.0")
        self.assertEqual(found["k", label["k100_corrected"]], "+7.0")
        halves = ("half_full", "half_knn", "half_corrected")
        self.assertEqual([found["half", label[one]] for one in halves], ["+9.0", "+8.0", "+7.0"])
        self.assertNotIn(("k", label["nce"]), found)
        self.assertNotIn("n = 1000", "".join(tables))


class SettingsTest(absltest.TestCase):
    def setUp(self):
        super().setUp()
        self.config = sampling_quality_config.get_config("DATA")
        self.settings = {one.name: one for one in sampling_settings.study(self.config)}

    def test_they_differ_in_what_they_name_alone(self):
        seen = []
        for setting in self.settings.values():
            self.assertNotIn("|", setting.label)  # it would end a cell
            own = setting.config(self.config, seed=7)
            self.assertEqual(own.train.seed, 7)
            self.assertNotIn((own.output_layer, own.model), seen)
            seen.append((own.output_layer, own.model))
            with own.unlocked():
                own.output_layer, own.train.seed = self.config.output_layer, self.config.train.seed
                if setting.group == "half":
                    self.assertEqual(own.model.embedding_size, own.model.hidden_size // 2)
                    own.model.embedding_size = own.model.hidden_size
            self.assertEqual(own, self.config)

    def test_labels_name_what_a_method_has(self):
        parts = {
            "log Q": "log_q_correction", "frequency bias": "frequency_bias",
            "exact last tenth": "full_softmax_fraction",
        }  # fmt: skip
        for setting in self.settings.values():
            layer = setting.config(self.config).output_layer
            for part, key in parts.items():
                named = part in setting.label or "corrected" in setting.label
                self.assertEqual(named, bool(layer[key]), f"{setting.label}: {key}")
            if "as published" in setting.label:
                self.assertEqual(layer.kind, "knn")
            reference = self.settings[setting.reference].config(self.config).output_layer
            self.assertEqual(
                (reference.kind, reference.frequency_bias), ("full", layer.frequency_bias)
            )

    def test_one_interval_breaks_the_rule_and_is_labelled(self):
        config = self.config
        targets = config.train.batch_size * 13  # 0.2 of 64
        for setting in self.settings.values():
            layer = setting.config(config).output_layer
            if layer.kind == "knn":
                keeps = layer.refresh_every * targets >= 10 * config.vocab.target_size
                self.assertEqual(keeps, "breaks" not in setting.label)
        broken = [one for one in self.settings.values() if "breaks" in one.label]
        self.assertEqual([one.name for one in broken], ["n25", "n25_corrected"])
        self.assertLess(25 * targets, config.vocab.target_size)


class TasksTest(absltest.TestCase):
    def test_languages_that_the_study_and_the_task_have(self):
        config = sampling_quality_config.get_config("DATA")
        folder = pathlib.Path(self.enter_context(tempfile.TemporaryDirectory()))
        config.corpus.root = str(folder)
        for language in ("de", "en", "xx", "ru"):
            artifacts.write_text(folder / "udpos" / "test" / f"{language}.tsv.xz", "")
        settings = sampling_settings.study(config)
        runs = sampling_tasks.task_runs(settings, [0, 4], ["udpos"])
        methods = ["full", "knn", "knn_corrected", "target_sampling", "nce", "nce_bias", "neg"]
        forms = ("", "_corrected")
        encoders = [*methods, *(f"k{k}{form}" for k in (5, 10, 50, 100) for form in forms)]
        encoders += ["half_full", "half_knn", "half_corrected", "random"]
        self.assertEqual(
            [(r.column, r.seed) for r in runs], [(e, s) for s in (0, 4) for e in encoders]
        )
        flag, change = sampling_tasks.arguments(config, runs[-1], pathlib.Path("/runs/full"))
        self.assertEqual(flag, f"--config=configs/finetune/udpos.py:{folder}")
        self.assertEqual(change["task.test_languages"], ("de", "en", "ru"))
        self.assertEqual((change["train.seed"], change["random_init"]), (4, True))
        self.assertFalse(sampling_tasks.arguments(config, runs[0], folder).change["random_init"])
        for name in sampling_tasks.TASKS:  # keys of the task's config
            own = importlib.import_module(f"configs.finetune.{name}").get_config("DATA")
            own.update_from_flattened_dict(sampling_tasks.TASKS[name].change)
        with self.assertRaisesRegex(ValueError, "no tatoeba_retrieval/LANGUAGE-en.tsv.xz in a"):
            run = sampling_tasks.task_runs(settings, [0], ["tatoeba"])[0]
            sampling_tasks.arguments(config, run, folder)
        with self.assertRaisesRegex(ValueError, "--tasks: no xnli; there are udpos, wikiann"):
            sampling_tasks.task_runs(settings, [0], ["xnli"])


class RunsTest(absltest.TestCase):
    def setUp(self):
        super().setUp()
        self.workdir = pathlib.Path(self.enter_context(tempfile.TemporaryDirectory()))
        artifacts.write_json(self.workdir / "rows" / "settings.json", {"text": "some"})
        artifacts.write_json(self.workdir / "rows" / "meta.json", {"vocab_size": 600})
        self.enter_context(flagsaver.as_parsed(workers="2", pin="false"))
        self.config = sampling_quality_config.get_config("runlocal")
        everything = {one.name: one for one in sampling_settings.study(self.config)}
        self.settings = [everything[name] for name in ("full", "knn", "k10")]
        self.tasks = ["tatoeba"]
        self.calls: list[tuple[str, str]] = []
        self.broken = ""

    def call(self, script, workdir, change, log, config=()):
        """Stands for the stages."""
        if script[0] == "finetune.py":
            encoder, seed, task = workdir.parts[-3:]
            self.calls.append((script[0], f"{encoder} {seed.removeprefix('seed')}"))
            self.assertTrue((change["init_from"] / "record.json").exists())
            artifacts.write_json(workdir / "results.json", task_results(task, {"de": 0.25}))
            return
        self.calls.append((script[0], f"{workdir.parent.name} {change['train.seed']}"))
        if self.calls[-1] == (script[0], self.broken):
            raise ValueError("broken")
        self.assertTrue((workdir / "rows" / "meta.json").exists())
        artifacts.write_text(
            workdir / "train" / "metrics.jsonl",
            '{"step": 1, "train/candidates": 9.0, "train/overflow": 0.0}\n'
            '{"step": 2, "train/candidates": 5.0, "train/overflow": 1.0}\n',
        )
        artifacts.write_text(
            workdir / "train" / "speed.jsonl", '{"step": 2, "steps_per_second": 3.0}\n'
        )
        losses = {"en": {"loss": 5.0 + change["train.seed"], "unigram": 6.0}}
        artifacts.write_json(workdir / "report" / "results.json", {"losses": losses})

    def do_runs(self, *seeds: int):
        arguments = sampling_tasks.Arguments("--config=a", {})

        def of_run(config, run, encoder):
            return arguments._replace(change={"init_from": encoder, "train.seed": run.seed})

        with (
            mock.patch.object(sampling_quality, "call", self.call),
            mock.patch.object(sampling_tasks, "arguments", of_run),
        ):
            sampling_quality.do_runs(self.config, self.settings, seeds, self.tasks, self.workdir)

    def report(self, *seeds: int) -> str:
        arguments = (self.config, self.settings, seeds, self.tasks, self.workdir)
        return sampling_report.write_report(*arguments)

    def test_order_and_finished_runs_are_not_repeated(self):
        stages = ("train.py", "evaluate.py")

        def pretraining(seed, *names):
            return [(stage, f"{name} {seed}") for name in names for stage in stages]

        def tuning(seeds, *names):
            return [("finetune.py", f"{name} {seed}") for seed in seeds for name in names]

        methods, groups = ("full", "knn"), ("full", "knn", "random")
        with flagsaver.as_parsed(workers="1"):
            self.do_runs(0)
            first = [*pretraining(0, *methods), *tuning([0], *groups)]
            first += [*pretraining(0, "k10"), *tuning([0], "k10")]
            self.assertEqual(self.calls, first)
            self.calls.clear()
            self.do_runs(0, 1)
        # finetune.py itself knows what is done.
        second = [*pretraining(1, *methods), *tuning([0, 1], *groups)]
        second += [*pretraining(1, "k10"), *tuning([0, 1], "k10")]
        self.assertEqual(self.calls, second)
        for key, value, there in (
            ("model.num_layers", 3, 2),
            ("data.alpha", 0.3, 0.7),
            ("data.across_documents", True, False),
            ("objective", "veco", "masked_lm"),
            ("evaluation.seed", 7, 0),
        ):
            before = self.config.copy_and_resolve_references()
            self.config.update_from_flattened_dict({key: value})
            with self.assertRaisesRegex(ValueError, f"\n  {key}: there {there!r}, now {value!r}\n"):
                self.do_runs(0)
            self.config = before
        self.do_runs(0)

    def test_a_run_of_before_all_sections_were_compared(self):
        self.tasks = []
        self.do_runs(0)
        path = self.workdir / "runs" / "full" / "seed0" / "settings.json"
        recorded = artifacts.read_json(path)
        artifacts.write_json(path, {k: one for k, one in recorded.items() if k != "data"})
        self.calls.clear()
        self.do_runs(0)
        self.assertEmpty(self.calls)

    def test_the_study_refuses_other_settings_before_it_runs_anything(self):
        self.tasks = []
        self.enter_context(flagsaver.as_parsed(seeds="0", tasks=""))
        stages = []

        def call(script, *arguments, **options):
            if script[0] in ("build_vocab.py", "prepare_data.py"):
                stages.append(script[0])
            elif script[0] != "-m":  # the measurement of speed
                self.call(script, *arguments, **options)

        with mock.patch.object(sampling_quality, "call", call):
            sampling_quality._run_all(self.config, self.settings, self.workdir)
            self.assertLen(stages, 2)
            self.config.data.alpha = 0.3
            with self.assertRaisesRegex(ValueError, "data.alpha: there 0.7, now 0.3"):
                sampling_quality._run_all(self.config, self.settings, self.workdir)
        self.assertLen(stages, 2)

    def test_a_failed_run_is_repeated_and_stops_no_other(self):
        self.tasks = []
        self.broken = "full 0"
        with self.assertRaisesRegex(ValueError, "1 of 6 runs failed: broken"):
            self.do_runs(0, 1)
        self.broken = ""
        self.calls.clear()
        self.do_runs(0, 1)
        self.assertEqual(self.calls, [("train.py", "full 0"), ("evaluate.py", "full 0")])

    def test_restored_records_are_not_made_again(self):
        for name in ("full", "knn", "k10"):
            folder = self.workdir / "runs" / name / "seed0"
            artifacts.write_json(folder / "record.json", {"restored": name})
        for name in ("knn", "k10"):
            done = self.workdir / "fine_tuning" / name / "seed0" / "tatoeba" / "results.json"
            artifacts.write_json(done, {"test": {}})
        with flagsaver.as_parsed(workers="1"):
            self.do_runs(0)
        # The full softmax is trained again, since its fine-tuning is missing.
        trained = [("train.py", "full 0"), ("evaluate.py", "full 0")]
        tuned = [("finetune.py", "full 0"), ("finetune.py", "random 0")]
        self.assertEqual(self.calls, [*trained, *tuned])

    def test_report_of_what_is_there(self):
        with self.assertRaisesRegex(ValueError, "no finished runs"):
            self.report(0)
        chosen, self.settings = self.settings, self.settings[1:]
        self.do_runs(0, 1)
        text = self.report(0, 1)
        self.assertIn("All 8 runs are done.", text)
        label = r"\| k-NN as published \(k = 4, n = 2\) \| 2 \| 5.500 \| -0.500 \|"
        self.assertRegex(text, label + r" -1.000 to \+0.000 \|  \|")
        self.assertRegex(
            text, r"as published \(k = 4, n = 2\) \| 2 \| 25.0 \| 25.0 \| 25.0 to 25.0 \|  \|"
        )
        images = ("methods.png", "methods_tuned.png", "neighbours.png", "neighbours_tuned.png")
        for name in ("report.md", *images):
            self.assertTrue((self.workdir / "report" / name).exists())
        for name in images:
            self.assertIn(f"]({name})", text)
        self.settings = chosen
        self.assertIn(
            "13 of 21 runs (seeds): full (0, 1, 2); knn (2); k10 (2); tatoeba of full (0, 1, 2); "
            "tatoeba of random (0, 1, 2); tatoeba of knn (2); tatoeba of k10 (2).",
            self.report(0, 1, 2),
        )


class MiniatureTest(absltest.TestCase):
    def call(self, script, config, change, workdir, **options):
        """Stands for the processes of the stages; the speed is measured in one."""
        if script[0] == "-m":
            run_process(script, config, change, workdir, **options)
            return
        changed = [f"--config.{key}={value}" for key, value in change.items()]
        name = script[0].removesuffix(".py")
        with commands.no_flags():  # those of the study
            done = commands.execute(name, *config, *changed, f"--workdir={workdir.absolute()}")
        self.assertEqual(done.returncode, 0, done.stderr)

    def do_all(self, jobs, **_):
        """In this thread, which alone is told of signals."""
        for job in jobs:
            job.work()
        return []

    def test_one_setting(self):
        workdir = pathlib.Path(self.enter_context(tempfile.TemporaryDirectory()))
        for name, stands_in in (("call", self.call), ("do_all", self.do_all)):
            self.enter_context(mock.patch.object(runs, name, stands_in))
        # As a process has.
        self.enter_context(mock.patch.object(model, "mesh", factories.one_device))
        self.enter_context(mock.patch.dict(os.environ, processes.environment()))
        given = [
            "--config=configs/sampling_quality.py:runlocal",
            "--config.train.num_steps=4",
            # Which compile sooner.
            *("--config.model.num_layers=0", "--config.evaluation.retrieval_layer=0"),
            "--config.vocab.compare=()",
            *("--settings=knn", "--seeds=3", "--turns=1", "--tasks=", f"--workdir={workdir}"),
        ]
        result = harness.run("studies.sampling_quality", given)
        logs = "".join(path.read_text() for path in workdir.rglob("log.txt"))
        self.assertEqual(result.status, 0, result.errors + logs)
        found = artifacts.read_json(workdir / "runs" / "knn" / "seed3" / "record.json")
        self.assertBetween(found["candidates"], 4, 599)
        self.assertEqual(set(found["loss"]), {"en", "ka", "sw"})
        times = artifacts.read_json(workdir / "speed.json")["times"]
        self.assertEqual(
            {name: set(own) for name, own in times.items()}, {"knn": {"step", "refresh"}}
        )
        report = (workdir / "report" / "report.md").read_text()
        self.assertIn(report, result.output)


if __name__ == "__main__":
    absltest.main()
