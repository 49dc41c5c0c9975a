import dataclasses
import importlib
import itertools
import json
import pathlib
import shutil
import tempfile
import threading
import time
from typing import Any
from unittest import mock

import numpy as np
from absl.testing import absltest

from common import artifacts
from configs import xy_lent as xy_lent_config
from input_pipeline.packed_dataset import PackedDataset, tokenizer_hash
from studies import xy_lent, xy_lent_tasks
from studies.xy_lent_report import Encoder
from studies.xy_lent_settings import GROUPS, LABELS, Study, data_name
from studies.xy_lent_tasks import TaskRun
from tests.factories import SPECIAL_IDS, write_rows
from tests.task_results import task_results

RATES = ("3e-4", "1e-3")
ARMS = ("small", "small_mlm", "small_2x", "small_adamw")
# Zero-shot score under seed 0.
SCORES = {"small": 0.6, "small_mlm": 0.5, "small_2x": 0.7}


def write_dataset(folder: pathlib.Path) -> None:
    """Packed rows without rows: two languages and a pair."""
    folder.mkdir(parents=True, exist_ok=True)
    for language in ("de", "en"):
        np.save(folder / f"set.{language}.bitext.npy", np.full(3, 7, np.uint16))
        np.save(folder / f"set.{language}.ends.npy", np.array([1, 3]))
    statistics = write_rows(folder, ("de", "en"), length=64)
    PackedDataset(
        folder, 600, 64, tokenizer_hash(b""), SPECIAL_IDS, statistics, {}, {"set": ("de", "en")}
    ).write_meta()


class XyLentTest(absltest.TestCase):
    def setUp(self):
        super().setUp()
        folder = pathlib.Path(self.enter_context(tempfile.TemporaryDirectory()))
        self.data, self.workdir = folder / "data", folder / "work"
        self.config = xy_lent_config.get_config(f"small,{self.data}")
        for language in ("en", "de", "xx"):
            for task in ("udpos", "xnli"):
                pattern = xy_lent_tasks.TASKS[task].test
                artifacts.write_text(self.data / pattern.format(language), "")
        artifacts.write_text(self.data / "tatoeba_retrieval/de-en.tsv.xz", "")
        artifacts.write_text(self.data / "americasnli/dev/quy.tsv.xz", "")
        self.calls: list[tuple[str, str]] = []
        self.changes: dict[tuple[str, str], dict[str, Any]] = {}
        self.broken = ("", "")
        self.enter_context(mock.patch.object(xy_lent.runs, "call", self.call))

    def call(self, script, config, change, workdir, **_):
        """Stands for the stages."""
        call = (script[0], str(workdir.relative_to(self.workdir)))
        self.calls.append(call)
        self.changes[call] = change
        if call == self.broken:
            raise ValueError("broken")
        stages = {
            "prepare_data.py": lambda: write_dataset(workdir / "rows"),
            "train.py": lambda: self.train(workdir, change),
            "evaluate.py": lambda: self.evaluate(workdir, change),
            "finetune.py": lambda: self.fine_tune(workdir, config),
        }
        if script[0] in stages:
            stages[script[0]]()

    def train(self, workdir: pathlib.Path, change: dict[str, Any]) -> None:
        artifacts.write_text(workdir / "train" / "DONE", "")
        is_rtd = change.get("objective") != "masked_lm"
        metrics, speed = [], []
        for step, loss, auc in ((500, 6.0, 0.6), (1000, 5.0, 0.75), (1500, 5.2, 0.7)):
            scores = {"rtd/unigram/auc": auc} if is_rtd else {}
            metrics += [
                {"step": step, "train/loss": 1.0},
                {"step": step, "eval/loss": loss, **scores},
            ]
            speed.append({"step": step, "steps_per_second": 2.5})
        for name, records in (("metrics", metrics), ("speed", speed)):
            lines = "".join(json.dumps(one) + "\n" for one in records)
            artifacts.write_text(workdir / "train" / f"{name}.jsonl", lines)

    def evaluate(self, workdir: pathlib.Path, change: dict[str, Any]) -> None:
        seed = change["train.seed"]
        losses = {
            language: {"loss": loss + 0.1 * seed, "unigram": 6.5, "bits_per_character": 3.0}
            for language, loss in (("de", 5.0), ("en", 5.4))
        }
        auc = {"own": 0.6, "unigram": 0.72}
        if "evaluation.frozen_generator" in change:
            auc["frozen"] = 0.65
        detection = {
            corruption: {
                "de": {"auc": value, "replaced": 0.1},
                "en": {"auc": value, "replaced": 0.2},
            }
            for corruption, value in auc.items()
        }
        if change.get("objective") == "masked_lm":
            detection = {}
        artifacts.write_json(
            workdir / "report" / "results.json", {"losses": losses, "detection": detection}
        )

    def fine_tune(self, workdir: pathlib.Path, config: list[str]) -> None:
        task, arm, *choice, seed = workdir.relative_to(self.workdir / "tasks").parts
        self.assertEqual(config, [f"--config=configs/finetune/{task}.py:{self.data}"])
        # The smaller rate does better for the masked LM alone.
        is_best = (choice == ["3e-4"]) == (arm == "small_mlm")
        score = SCORES[arm] + 0.02 * int(seed.removeprefix("seed"))
        unseen = {"quy": score - 0.2} if task == "xnli" else {}
        results = task_results(task, {"en": 0.9, "de": score, **unseen})
        results["examples"] = {"test": {"en": 1234, "de": 100, "quy": 7}}
        if task == "tatoeba":
            del results["test"]["en"]
        if choice:
            results["selected"] = {"value": 0.8 if is_best else 0.7}
        artifacts.write_json(workdir / "results.json", results)

    def of(self, *seeds: int, arms=ARMS, tasks=("udpos", "tatoeba")) -> Study:
        return Study(self.config, self.workdir, arms, seeds, tasks, RATES, workers=1, pin=False)

    def places(self, script: str, start: str = "") -> list[str]:
        return [place for name, place in self.calls if name == script and place.startswith(start)]

    def test_runs(self):
        xy_lent.do_study(self.of(0, 4))
        self.assertEqual(self.places("build_vocab.py"), ["data/small", "data/small_2x"])
        self.assertEqual(
            self.changes["prepare_data.py", "data/small_2x"]["vocab.target_size"], 20_000
        )
        runs = [f"encoders/{arm}/seed{seed}" for seed in (0, 4) for arm in ARMS]
        self.assertEqual(self.places("train.py"), runs)
        self.assertEqual(self.places("evaluate.py"), runs)
        # All that an encoder is for is done before the next one is trained.
        parts_of = [place.split("/") for _, place in self.calls if not place.startswith("data/")]
        encoders = [(parts[1 + (parts[0] == "tasks")], parts[-1]) for parts in parts_of]
        self.assertLen([one for one, _ in itertools.groupby(encoders)], 8)
        stages = [script for script, _ in self.calls if script in ("train.py", "evaluate.py")]
        self.assertEqual(stages, ["train.py", "evaluate.py"] * 8)
        for arm in ARMS:
            rows = self.workdir / "encoders" / arm / "seed4" / "rows"
            own = "small_2x" if arm == "small_2x" else "small"
            self.assertEqual(rows.resolve(), self.workdir / "data" / own / "rows")
            change = self.changes["evaluate.py", f"encoders/{arm}/seed4"]
            # Neither the masked LM nor the encoder of another vocabulary can be scored on it.
            frozen = self.workdir / "encoders" / "small" / "seed0"
            self.assertEqual(
                change.pop("evaluation.frozen_generator", None),
                frozen if arm in ("small", "small_adamw") else None,
            )
            self.assertEqual(change, {**xy_lent_config.SMALL[arm], "train.seed": 4})

    def test_the_frozen_generator_is_trained_whatever_is_chosen(self):
        xy_lent.do_study(self.of(1, arms=("small_adamw",), tasks=()))
        self.assertEqual(
            self.places("train.py"), ["encoders/small_adamw/seed1", "encoders/small/seed0"]
        )
        self.assertEqual(self.places("evaluate.py"), ["encoders/small_adamw/seed1"])

    def test_arms_that_are_trained_at_a_time_train_the_frozen_generator_once(self):
        both = threading.Barrier(2, timeout=60)
        train = self.train

        def train_together(workdir, change):
            if workdir.name == "seed1":
                both.wait()
            else:
                time.sleep(0.2)
            train(workdir, change)

        self.enter_context(mock.patch.object(self, "train", train_together))
        arms = ("small_adamw", "small_shared")
        xy_lent.do_study(dataclasses.replace(self.of(1, arms=arms, tasks=()), workers=2))
        self.assertEqual(self.places("train.py", "encoders/small/"), ["encoders/small/seed0"])
        self.assertLen(self.places("evaluate.py"), 2)

    def test_fine_tuning(self):
        xy_lent.do_study(self.of(0, 4))
        best = {"small": "1e-3", "small_mlm": "3e-4", "small_2x": "1e-3"}
        self.assertEqual(
            self.places("finetune.py", "tasks/udpos"),
            [
                *(f"tasks/udpos/{arm}/{rate}/seed0" for arm in best for rate in RATES),
                *(f"tasks/udpos/{arm}/{rate}/seed4" for arm, rate in best.items()),
            ],
        )
        self.assertEqual(
            self.places("finetune.py", "tasks/tatoeba"),
            [f"tasks/tatoeba/{arm}/seed{seed}" for seed in (0, 4) for arm in best],
        )

    def test_what_a_run_is_called_with(self):
        study = self.of(0, 4)
        for task in ("udpos", "xnli", "tatoeba"):
            rate = "" if task == "tatoeba" else "1e-3"
            change = xy_lent_tasks.change_of(study, TaskRun(task, "small_mlm", rate, 4))
            self.assertEqual(change["init_from"], self.workdir / "encoders/small_mlm/seed4")
            self.assertEqual(change["train.seed"], 4)
            languages = {"tatoeba": ("de",), "xnli": ("de", "en", "quy")}.get(task, ("de", "en"))
            self.assertEqual(change["task.test_languages"], languages)
            own = importlib.import_module(f"configs.finetune.{task}").get_config("DATA")
            own.update_from_flattened_dict({**change, "init_from": str(change["init_from"])})
            if task == "xnli":
                # No development data are test data.
                self.assertEqual(own.task.validation, ("nli_en/mnli_dev.tsv.xz",))
                self.assertEqual(
                    own.task.test,
                    ("xnli/dev/{language}.tsv.xz", "americasnli/dev/{language}.tsv.xz"),
                )
            if task != "tatoeba":
                self.assertEqual(own.optimizer.learning_rate, 1e-3)
        self.assertEqual(
            xy_lent_tasks.change_of(study, TaskRun("tatoeba", "small", "", 0))["task.layer"], 1
        )
        with self.assertRaisesRegex(
            ValueError, "in a language of the pre-training, corpus.lang.*; add them, or"
        ):
            xy_lent_tasks.change_of(study, TaskRun("wikiann", "small", "1e-3", 0))
        # Without AmericasNLI, XNLI is as its config has it.
        (self.data / "americasnli/dev/quy.tsv.xz").unlink()
        change = xy_lent_tasks.change_of(study, TaskRun("xnli", "small", "1e-3", 0))
        self.assertEqual(change["task.test_languages"], ("de", "en"))
        self.assertNotIn("task.test", change)

    def test_languages_that_no_encoder_has_seen_have_a_table_of_their_own(self):
        study = self.of(0, 2, arms=("small", "small_mlm"), tasks=("xnli",))
        xy_lent.do_study(study)
        text = xy_lent.write_report(study)
        self.assertIn("| XNLI, accuracy | rate | seeds | de | en | mean but en |", text)
        self.assertIn("| MLM + TLM | 3e-4 | 2 | 52.0 | 90.0 | 52.0 |", text)
        self.assertIn("| AmericasNLI, accuracy | rate | seeds | quy | mean but en |", text)
        self.assertIn(
            "| MLM + TLM | 3e-4 | 2 | 32.0 | 32.0 | 30.0 to 34.0 | -10.0 | -10.0 to -10.0 |  |  |",
            text,
        )

    def test_report(self):
        xy_lent.do_study(self.of(0, 2))
        text = xy_lent.write_report(self.of(0, 2))
        self.assertIn("2 languages, 1 language pairs, 600 pieces, sequences of 64 tokens;", text)
        # Losses minus unigram: -1.5 and -1.1 under seed 0, 0.2 more under seed 2.
        self.assertIn(
            "| RTD, many-to-many pairs by Eq. 2 | 2 | -1.200 | -1.300 to -1.100 | en -1.00 | 3.000 "
            "| 72.0 | 72.0 to 72.0 | 50 % | 60.0 | 65.0 | 15.0 % | 128,000 | 10.0 |",
            text,
        )
        self.assertIn("| MLM + TLM | 2 | -1.200 | -1.300 to -1.100 | en -1.00 | 3.000 "
                      "|  |  |  |  |  |  | 128,000 | 10.0 |", text)  # fmt: skip
        self.assertIn("| 72.0 | 72.0 to 72.0 | 50 % | 60.0 |  | 15.0 % |", text)  # twice the V
        self.assertIn("| step | 500 | 1000 | 1500 |\n|---|---:|---:|---:|\n| RTD, many", text)
        self.assertIn("the highest loss is -1.100: met", text)
        self.assertIn("the least is 0.720: met", text)
        self.assertIn("| POS, F1 | rate | seeds | de | en | mean but en |", text)
        self.assertIn("| test examples | | | 100 | 1,234 |", text)
        self.assertIn(
            "| MLM + TLM | 3e-4 | 2 | 52.0 | 90.0 | 52.0 | 50.0 to 54.0 | -10.0 | -10.0 to -10.0 "
            "| 38.0 | 36.0 to 40.0 |",
            text,
        )
        # Two seeds four points apart in each of three arms: variances of 8, t of three degrees of
        # freedom 3.182, times the root of 8; of Tatoeba there is no English.
        self.assertIn("| detectable |  |  | 9.0 | 0.0 | 9.0 |  |  |  | 9.0 |  |", text)
        self.assertIn("| detectable |  |  | 9.0 | 9.0 |  |  |  |  |  |", text)
        self.assertIn("| twice the vocabulary |  | 2 | 72.0 | 72.0 | 70.0 to 74.0 |", text)
        self.assertIn("| POS, F1: MLM + TLM | 80.0 | 70.0 |", text)
        self.assertNotIn("Sampling of language pairs", text)  # of one arm
        for group in ("learning", "ablation", "table2"):
            self.assertTrue((self.workdir / "report" / f"{group}.png").exists())

    def test_what_is_done_is_not_repeated_and_a_failure_stops_no_other(self):
        self.broken = ("train.py", "encoders/small_mlm/seed0")
        with self.assertRaisesRegex(ValueError, "1 runs failed: broken"):
            xy_lent.do_study(self.of(0))
        self.assertNotIn("MLM + TLM", xy_lent.write_report(self.of(0)))
        self.broken = ("", "")
        self.calls.clear()
        xy_lent.do_study(self.of(0))
        places = [place for script, place in self.calls if not place.startswith("data/")]
        self.assertEqual({place.split("/")[1 + place.startswith("tasks")] for place in places},
                         {"small_mlm"})  # fmt: skip
        self.assertLen(places, 2 + 2 + 1)

    def test_recorded_results_need_no_encoder(self):
        study = self.of(0, 4)
        xy_lent.do_study(study)
        text = xy_lent.write_report(study)
        for folder in (self.workdir / "data", *self.workdir.glob("encoders/*/*/[!.]*")):
            if folder.is_symlink():
                folder.unlink()
            elif folder.is_dir():
                shutil.rmtree(folder)
        self.assertEqual(xy_lent.write_report(study), text)
        self.calls.clear()
        xy_lent.do_study(study)
        self.assertEqual(self.places("train.py") + self.places("finetune.py"), [])

        # A missing run of a task takes its own encoder, a missing evaluation the frozen one too.
        run = TaskRun("udpos", "small_mlm", "3e-4", 4)
        run.folder(study.workdir).joinpath("results.json").unlink()
        xy_lent.do_study(study)
        self.assertEqual(self.places("train.py"), ["encoders/small_mlm/seed4"])
        self.assertEqual(self.places("finetune.py"), ["tasks/udpos/small_mlm/3e-4/seed4"])
        self.assertEqual(self.places("evaluate.py"), [])
        self.calls.clear()
        study.record("small_adamw", 4).unlink()
        xy_lent.do_study(study)
        self.assertEqual(
            self.places("train.py"), ["encoders/small/seed0", "encoders/small_adamw/seed4"]
        )

    def test_arms(self):
        """Each has keys of its own, and a table."""
        found = {arm: self.of(0).config_of(arm).to_json() for arm in LABELS}
        self.assertLen(set(found.values()), len(LABELS))
        self.assertEqual({arm for _, arms in GROUPS.values() for arm in arms}, set(LABELS))
        self.assertEqual({arm for arm in LABELS if data_name(arm) != "small"}, {"small_2x"})

    def test_a_rise(self):
        encoder = Encoder({}, 0, {}, None, {}, {1: 0.5, 2: 0.6, 3: 0.6, 4: 0.7}, 0)
        self.assertAlmostEqual(encoder.rises, 2 / 3)
        self.assertIsNone(dataclasses.replace(encoder, auc_curve={1: 0.5}).rises)

    def test_nothing_to_report(self):
        with self.assertRaisesRegex(ValueError, "no finished runs"):
            xy_lent.write_report(self.of(0))


if __name__ == "__main__":
    absltest.main()
