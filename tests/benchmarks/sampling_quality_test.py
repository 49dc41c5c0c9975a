import os
import pathlib
import subprocess
import sys
import tempfile
from unittest import mock

from absl.testing import absltest, flagsaver, parameterized

import artifacts
from benchmarks import sampling_quality, sampling_report
from configs import sampling_quality as sampling_quality_config

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent


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


class ReportTest(parameterized.TestCase):
    def rows(self, *records: dict) -> dict[str, sampling_report.Row]:
        return sampling_report.summarise({"full": "FULL", "knn": "KNN", "nce": "NCE"}, records)

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
        # Seed 2 of knn has no full run to be compared with.
        self.assertEqual(rows["knn"].difference, {0: 0.125, 1: 0.5})
        self.assertEqual(rows["knn"].loss[2], 1.0)
        self.assertEqual(rows["full"].languages, {"a": 6.0, "b": 6.5})
        self.assertEqual(rows["knn"].candidates, 100.0)
        self.assertEqual(rows["knn"].staleness, 0.375)

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
        self.assertEqual(full[:6], ["FULL", "2", "6.250", "5.500 to 7.000", "", ""])
        self.assertEqual(knn[2:6], ["6.188", "5.625 to 6.750", "-0.062", "-0.250 to +0.125"])
        self.assertEqual(knn[6:8], ["150", "0.150"])
        self.assertEqual(knn[-3:], ["2.00", "3.00", "2.50"])
        self.assertEqual(nce[-2:], ["", ""])
        self.assertEqual(nce[4], "+3.500")

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
        self.assertEqual(sampling_quality.seconds_a_step(config, times), 1 + 4 * 0.5)
        self.assertEqual(sampling_quality.seconds_a_step(config, {"step": 1.0}), 1.0)
        # With the last tenth exact, the refreshes before steps 0, 30 and 60 are left.
        config.output_layer.exact_fraction = 0.1
        times["exact"] = 11.0
        self.assertEqual(sampling_quality.seconds_a_step(config, times), 0.9 + 1.1 + 3 * 0.5)

    def test_settings_differ_in_the_output_layer_and_the_seed(self):
        config = sampling_quality_config.get_config("runlocal")
        config.train.num_steps = 20
        seen = []
        for setting in sampling_quality.study(config):
            own = setting.config(config, seed=7)
            self.assertEqual(own.train.seed, 7)
            self.assertNotIn(own.output_layer, seen)
            seen.append(own.output_layer)
            with own.unlocked():
                own.output_layer, own.train.seed = config.output_layer, config.train.seed
            self.assertEqual(own, config)


class RunsTest(absltest.TestCase):
    def setUp(self):
        super().setUp()
        self.workdir = pathlib.Path(self.enter_context(tempfile.TemporaryDirectory()))
        artifacts.write_json(self.workdir / "rows" / "settings.json", {"text": "some"})
        artifacts.write_json(self.workdir / "rows" / "meta.json", {"vocab_size": 600})
        self.enter_context(flagsaver.as_parsed(workers="2", pin="false"))
        self.config = sampling_quality_config.get_config("runlocal")
        self.settings = sampling_quality.study(self.config)[:2]
        self.calls: list[tuple[str, str]] = []
        self.broken = ""

    def call(self, script, workdir, change, log):
        """Stands for the stages."""
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
        with mock.patch.object(sampling_quality, "call", self.call):
            sampling_quality.do_runs(self.config, self.settings, seeds, self.workdir)

    def test_finished_runs_are_not_repeated(self):
        self.do_runs(0)
        stages = ("train.py", "evaluate.py")
        self.assertCountEqual(self.calls, [(s, f"{n} 0") for s in stages for n in ("full", "knn")])
        self.calls.clear()
        self.do_runs(0, 1)
        self.assertCountEqual(self.calls, [(s, f"{n} 1") for s in stages for n in ("full", "knn")])
        self.config.model.num_layers = 3
        with self.assertRaisesRegex(ValueError, "model.num_layers: there 2, now 3"):
            self.do_runs(0)

    def test_a_failed_run_is_repeated_and_stops_no_other(self):
        self.broken = "full 0"
        with self.assertRaisesRegex(ValueError, "1 of 4 runs failed: broken"):
            self.do_runs(0, 1)
        self.broken = ""
        self.calls.clear()
        self.do_runs(0, 1)
        self.assertEqual(self.calls, [("train.py", "full 0"), ("evaluate.py", "full 0")])

    def test_report_of_what_is_there(self):
        with self.assertRaisesRegex(ValueError, "no finished runs"):
            sampling_quality.write_report(self.config, self.workdir)
        self.settings = self.settings[1:]
        self.do_runs(0, 1)
        text = sampling_quality.write_report(self.config, self.workdir)
        self.assertRegex(text, r"\| k-NN \(k = 4, n = 2\) \| 2 \| 5.500 \| 5.000 to 6.000 \|")
        for name in ("report.md", "methods.png", "neighbours.png"):
            self.assertTrue((self.workdir / "report" / name).exists())


class MiniatureTest(absltest.TestCase):
    def test_one_setting(self):
        workdir = pathlib.Path(self.enter_context(tempfile.TemporaryDirectory()))
        command = [
            *(sys.executable, "-m", "benchmarks.sampling_quality"),
            "--config=configs/sampling_quality.py:runlocal",
            "--config.train.num_steps=4",
            *("--settings=knn", "--seeds=3", "--turns=1", f"--workdir={workdir}"),
        ]
        environment = {
            **os.environ,
            "XLA_FLAGS": "",  # one device
            # What several processes need is compiled once.
            "JAX_COMPILATION_CACHE_DIR": str(workdir / "compiled"),
            "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
            "JAX_DISABLE_MOST_OPTIMIZATIONS": "1",
        }
        result = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
        logs = "".join(path.read_text() for path in workdir.rglob("log.txt"))
        self.assertEqual(result.returncode, 0, result.stderr + logs)
        found = artifacts.read_json(workdir / "runs" / "knn" / "seed3" / "record.json")
        self.assertBetween(found["candidates"], 4, 599)
        self.assertEqual(set(found["loss"]), {"en", "ka", "sw"})
        times = artifacts.read_json(workdir / "speed.json")["times"]
        self.assertEqual(
            {name: set(own) for name, own in times.items()}, {"knn": {"step", "refresh"}}
        )
        report = (workdir / "report" / "report.md").read_text()
        self.assertIn(report, result.stdout)


if __name__ == "__main__":
    absltest.main()
