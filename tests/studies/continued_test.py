import dataclasses
import pathlib
import tempfile
from typing import Any
from unittest import mock

from absl.testing import absltest

from common import artifacts
from configs import xy_lent
from evaluation import forgetting
from evaluation.task_results import reported_scores
from studies import continued, continued_report, xy_lent_settings
from studies import xy_lent as xy_lent_study
from tests.task_results import task_results

# Exact loss of German and Finnish before and after, of which the domain has German.
LOSSES = {
    "peak": {("general", forgetting.LOSS): {"de": (4.0, 5.0), "fi": (5.0, 6.5)},
             ("domain", forgetting.LOSS): {"de": (5.0, 4.0)}},
    "tenth": {("general", forgetting.LOSS): {"de": (4.0, 4.0), "fi": (5.0, 5.5)},
              ("domain", forgetting.LOSS): {"de": (5.0, 4.5)}},
}  # fmt: skip


class ContinuedTest(absltest.TestCase):
    def setUp(self):
        super().setUp()
        folder = pathlib.Path(self.enter_context(tempfile.TemporaryDirectory()))
        self.data, self.encoders, self.workdir = (folder / n for n in ("data", "xy", "work"))
        artifacts.write_text(self.data / "tico19" / "de.txt.xz", "")
        artifacts.write_text(self.data / "tico19" / "docs.txt", "")
        for language in ("en", "de"):
            artifacts.write_text(self.data / "xnli" / "dev" / f"{language}.tsv.xz", "")
        self.study = continued.Study(
            xy_lent.get_config(f"small,{self.data}"), self.encoders, self.workdir, "tico19",
            steps=200, seeds=(0, 2), task="xnli", rate="", workers=1, pin=False,
        )  # fmt: skip
        for arm in continued.ARMS:
            for seed in self.study.seeds:
                artifacts.write_text(self.study.encoder(arm, seed) / "train" / "DONE", "")
        self.calls: list[tuple[str, str]] = []
        self.changes: dict[str, dict[str, Any]] = {}
        self.broken = ""
        self.enter_context(mock.patch.object(continued.runs, "call", self.call))
        self.enter_context(mock.patch.object(continued.runs, "execute", self.execute))
        # The plot of a comparison is tests/tools/forgetting_test.py's.
        self.enter_context(mock.patch.object(forgetting, "plot_changes"))

    def call(self, script, config, change, workdir, **_):
        """Stands for the stages."""
        place = str(workdir.relative_to(self.workdir))
        self.calls.append((script[0], place))
        self.changes[place] = change
        if place == self.broken:
            raise ValueError("broken")
        if script[0] == "finetune.py":
            score = 100 * change["optimizer.learning_rate"]
            task = workdir.relative_to(self.workdir / "tasks").parts[0]
            artifacts.write_json(workdir / "results.json", task_results(task, {"de": score}))

    def execute(self, arguments, **_):
        """Stands for `tools.forgetting`."""
        given = dict(one.removeprefix("--").split("=") for one in arguments[2:])
        output = pathlib.Path(given.pop("output"))
        self.changes[f"forgetting {output.parent.relative_to(self.workdir)}"] = given
        rate, seed = output.parts[-3:-1]
        worse = 0.1 * int(seed.removeprefix("seed"))
        changes = {
            key: {name: (before, after + worse) for name, (before, after) in change.items()}
            for key, change in LOSSES[rate].items()
        }
        if "tasks" in given:
            results = artifacts.read_json(
                pathlib.Path(given["tasks"].split(",")[1], "results.json")
            )
            score = reported_scores(results)["de"]
            changes["task", f"{results['task']}, score"] = {"de": (0.5, score)}
        self.calls.append(("forgetting", str(output.parent.relative_to(self.workdir))))
        forgetting.write_report(changes, "made up", output)

    def places(self, script: str) -> list[str]:
        return [place for name, place in self.calls if name == script]

    def report(self, study: continued.Study) -> str:
        return continued_report.write_report(self.workdir, continued.ARMS, study.seeds, ("de",))

    def test_runs(self):
        continued.do_study(self.study)
        self.assertEqual(self.places("prepare_data.py"), ["domain"])
        domain = self.changes["domain"]
        self.assertEqual(
            (domain["corpus.text"], domain["corpus.languages"]), (("tico19",), ("de",))
        )
        self.assertEqual((domain["corpus.parallel"], domain["data.pair_share"]), ((), 0))
        first = self.encoders / "encoders" / "small" / "seed0"
        for link, target in (("domain/vocab", "vocab"), ("general/rows", "rows")):
            path = self.workdir / link
            self.assertEqual((path.parent / path.readlink()).resolve(), first / target)
        self.assertEqual(
            self.places("train.py"),
            [
                f"runs/{arm}/{rate}/seed{seed}"
                for seed in (0, 2)
                for arm in ("small", "small_mlm")
                for rate in ("peak", "tenth")
            ],
        )
        base = self.study.config.optimizer
        for arm in continued.ARMS:
            for rate, scale in (("peak", 1), ("tenth", 0.1)):
                change = self.changes[f"runs/{arm}/{rate}/seed2"]
                for key in ("learning_rate", "muon_learning_rate"):
                    self.assertAlmostEqual(change[f"optimizer.{key}"], scale * base[key])
                encoder = self.encoders / "encoders" / arm / "seed2"
                self.assertEqual(change["train.init_from"], encoder)
                config = self.study.config.copy_and_resolve_references()
                config.update_from_flattened_dict({**change, "train.init_from": str(encoder)})
                self.assertEqual(config.objective == "masked_lm", arm == "small_mlm")
                self.assertEqual(
                    self.changes[f"forgetting runs/{arm}/{rate}/seed2"],
                    {
                        "before": str(encoder),
                        "after": str(self.workdir / "runs" / arm / rate / "seed2"),
                        "rows": f"{self.workdir / 'general'},{self.workdir / 'domain'}",
                    },
                )
        self.assertEqual(self.places("finetune.py"), [])
        self.calls.clear()
        (first / "train" / "DONE").unlink()
        continued.do_study(self.study)
        self.assertEmpty(self.calls)

    def test_task(self):
        study = dataclasses.replace(self.study, seeds=(0,), rate="1e-3")
        continued.do_study(study)
        self.assertCountEqual(
            self.places("finetune.py"),
            [
                f"tasks/xnli/1e-3/{arm}/{name}/seed0"
                for arm in continued.ARMS
                for name in ("before", "peak", "tenth")
            ],
        )
        change = self.changes["tasks/xnli/1e-3/small_mlm/tenth/seed0"]
        self.assertEqual(change["init_from"], self.workdir / "runs" / "small_mlm/tenth/seed0")
        self.assertEqual(change["task.test_languages"], ("de", "en"))
        self.assertEqual(change["task.validation"], ("nli_en/mnli_dev.tsv.xz",))
        both = [self.workdir / f"tasks/xnli/1e-3/small/{name}/seed0" for name in ("before", "peak")]
        given = self.changes["forgetting runs/small/peak/seed0"]
        self.assertEqual(given["tasks"], f"{both[0]},{both[1]}")

    def test_what_the_study_of_encoders_has_fine_tuned(self):
        there = self.encoders / "tasks" / "xnli" / "small" / "1e-3" / "seed0"
        artifacts.write_json(there / "results.json", task_results("xnli", {"de": 0.5}))
        continued.do_study(dataclasses.replace(self.study, seeds=(0,), rate="1e-3"))
        places = self.places("finetune.py")
        self.assertNotIn("tasks/xnli/1e-3/small/before/seed0", places)
        self.assertLen(places, 5)
        given = self.changes["forgetting runs/small/tenth/seed0"]
        self.assertEqual(
            given["tasks"], f"{there},{self.workdir / 'tasks/xnli/1e-3/small/tenth/seed0'}"
        )

    def test_task_of_finished_runs(self):
        artifacts.write_text(self.data / "udpos" / "test" / "de.tsv.xz", "")
        study = dataclasses.replace(self.study, seeds=(0,))
        continued.do_study(study)
        self.calls.clear()
        for task, rate, tuned, compared in (
            ("xnli", "1e-3", 6, 4), ("xnli", "1e-3", 0, 0), ("udpos", "1e-3", 6, 4),
            ("udpos", "3e-3", 6, 4), ("udpos", "1e-3", 0, 4), ("udpos", "1e-3", 0, 0),
        ):  # fmt: skip
            continued.do_study(dataclasses.replace(study, task=task, rate=rate))
            self.assertLen(self.places("finetune.py"), tuned)
            self.assertLen(self.places("forgetting"), compared)
            self.calls.clear()

    def test_other_settings_are_refused(self):
        artifacts.write_text(self.data / "news" / "de.txt.xz", "")
        study = dataclasses.replace(self.study, seeds=(0,))
        # Nothing is made yet of a domain that is not there.
        with self.assertRaisesRegex(ValueError, "--domain"):
            continued.do_study(dataclasses.replace(study, domain="none"))
        continued.do_study(study)
        config = study.config.copy_and_resolve_references()
        config.mask.rate = 0.5
        for change, message in (
            ({"steps": 100}, "steps: there 200, now 100"),
            ({"domain": "news"}, "domain: there 'tico19', now 'news'"),
            ({"config": config}, "mask.rate: there .*, now 0.5"),
        ):
            with self.assertRaisesRegex(ValueError, f"another config:\n  {message}"):
                continued.do_study(dataclasses.replace(study, **change))
        continued.do_study(dataclasses.replace(study, seeds=(0, 2), workers=2))
        self.assertLen(self.places("train.py"), 8)

    def test_encoders_that_were_restored_as_results_alone(self):
        folder = self.study.encoder("small_mlm", 2)
        (folder / "train" / "DONE").unlink()
        artifacts.write_json(folder / "record.json", {})
        xy = xy_lent_settings.Study(
            *(self.study.config, self.encoders, ["small_mlm"], [2], (), ()), workers=1, pin=False
        )
        message = f"in {folder}; .* --arms=small,small_mlm --seeds=0,2, .* remove record.json"
        for _ in range(2):
            self.assertFalse(xy_lent_study.is_needed(xy, "small_mlm", 2))
            with self.assertRaisesRegex(ValueError, message):
                continued.do_study(self.study)
        (folder / "record.json").unlink()
        self.assertTrue(xy_lent_study.is_needed(xy, "small_mlm", 2))
        self.assertEmpty(self.calls)
        continued.do_study(dataclasses.replace(self.study, seeds=(0,)))
        self.assertLen(self.places("train.py"), 4)

    def test_report(self):
        self.broken = "runs/small_mlm/peak/seed2"
        with self.assertRaisesRegex(ValueError, "1 of 8 runs failed: broken"):
            continued.do_study(self.study)
        text = self.report(self.study)
        self.assertIn("not there: MLM + TLM, peak rate, seed 2.", text)
        start = "| RTD, many-to-many pairs by Eq. 2, peak rate | 2 "
        # Losses after: 5.0 and 5.2 of 4.0, 6.5 and 6.7 of 5.0.
        self.assertIn(f"{start}| 4.500 | 5.850 | +29.8 | +27.5 to +32.0 |  | +27.5 | +32.0 |", text)
        self.assertIn(f"{start}| 5.000 | 4.100 | -18.0 | -20.0 to -16.0 |  | -18.0 |  |", text)
        # 3.182 sqrt(2 / 1.6 * 4.5^2 / 2): three of four runs have two seeds, 4.5 apart.
        self.assertIn("| *detectable* | | | | 11.3 | | | | |", text)
        # de, of the domain, and fi, without: from 4.0 to 5.1 and from 5.0 to 6.6, 0.2 apart.
        row = "| RTD, many-to-many pairs by Eq. 2, peak rate |  |  | "
        self.assertIn(f"{row}+1.100 | +1.000 to +1.200 | +1.600 | +1.500 to +1.700 |", text)
        # 3.182 sqrt(2 / 1.6 * 0.02 / 2)
        self.assertIn("| *detectable* |  |  | 0.503 |  | 0.503 |  |", text)
        self.assertIn("| relative % | de | fi |\n", text)
        self.assertIn("| MLM + TLM, a tenth of it | +2.5 | +12.0 |", text)
        self.assertIn("| MLM + TLM, peak rate | +25.0 | +30.0 |", text)
        self.assertTrue((self.workdir / "report" / "forgetting.png").exists())

    def test_refusals(self):
        with self.assertRaisesRegex(ValueError, "--domain: .*none has no <language>.txt in a lang"):
            continued.do_study(dataclasses.replace(self.study, domain="none"))
        with self.assertRaisesRegex(ValueError, "no finished run in .*/small/seed1, .*/seed1; run"):
            continued.do_study(dataclasses.replace(self.study, seeds=(1,)))
        with self.assertRaisesRegex(ValueError, "no finished runs"):
            self.report(self.study)


if __name__ == "__main__":
    absltest.main()
