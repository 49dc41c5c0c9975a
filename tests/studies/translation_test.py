import importlib
import json
import pathlib
import re
import tempfile
from typing import Any
from unittest import mock

from absl.testing import absltest

from common import artifacts
from configs import veco
from studies import records, translation, translation_report
from studies.translation_settings import SEARCH, STARTS, TASKS, VECO, XLM, Study

BLEU = {"random": 0.2, "xlm": 0.25, "veco_first": 0.3, "veco_last": 0.35, "veco_last_one": 0.32}


class TranslationTest(absltest.TestCase):
    def setUp(self):
        super().setUp()
        folder = pathlib.Path(self.enter_context(tempfile.TemporaryDirectory()))
        self.data, self.workdir = folder / "data", folder / "work"
        self.calls: list[tuple[str, str]] = []
        self.changes: dict[str, dict[str, Any]] = {}
        self.enter_context(mock.patch.object(translation.runs, "call", self.call))
        self.enter_context(mock.patch.object(translation.runs, "execute", self.execute))

    def of(self, *seeds: int, tasks=("captions_en_de",), starts=("random", "veco_last")) -> Study:
        config = veco.get_config(f"translation,{self.data}")
        return Study(config, self.workdir, tasks, starts, seeds, ("1", "0.3"), 1200, 1, False)

    def study(self, *seeds: int, **choice: Any) -> str:
        translation.do_study(self.of(*seeds, **choice))
        return translation_report.write_report(self.of(*seeds, **choice))

    def call(self, script, config, change, workdir, **_):
        """Stands for the stages."""
        place = str(workdir.relative_to(self.workdir))
        self.calls.append((script[0], place))
        self.changes[place] = change
        if script[0] == "train.py":
            artifacts.write_text(workdir / "train" / "DONE", "")
        if script[0] == "evaluate.py":
            artifacts.write_json(workdir / "report" / "results.json", {})
        if script[0] != "finetune.py":
            return
        task, start, scale, seed = workdir.relative_to(self.workdir / "runs").parts
        direction = TASKS[task].direction
        root = self.data / TASKS[task].folder
        self.assertEqual(config, [f"--config=configs/finetune/multi30k.py:{direction},{root}"])
        # The smaller scale does better from VECO alone.
        is_best = (scale == "0.3") == start.startswith("veco")
        value = BLEU[start] + 0.01 * int(seed.removeprefix("seed")) - (0 if is_best else 0.1)
        scores = {
            split: {direction: {"bleu": value + more, "chrf": 0.6}}
            for split, more in (("validation", 0.02), ("test", 0.0))
        }
        examples = {"examples": {"test": {direction: 1000}}}
        artifacts.write_json(workdir / "results.json", {**scores, **examples})
        curve = [{"step": 200, f"validation/bleu/{direction}": value / 2}]
        artifacts.write_text(
            workdir / "metrics.jsonl", "".join(json.dumps(one) + "\n" for one in curve)
        )
        (workdir / "checkpoints").mkdir(exist_ok=True)
        lines = [
            {"id": str(i), "source": f"a{i}", "reference": f"b{i}", "prediction": f"{start}{i}"}
            for i in range(20)
        ]
        artifacts.write_text(
            workdir / "predictions" / f"test.{direction}.jsonl",
            "".join(json.dumps(one) + "\n" for one in lines),
        )

    def execute(self, arguments, *, name, **_):
        """Stands for `studies.translation_search`."""
        folder = pathlib.Path(arguments[-1].removeprefix("--workdir="))
        self.calls.append((name, str(folder.relative_to(self.workdir.absolute()))))
        found = [
            {
                "split": split, "direction": "en-de", "beams": beams, "averaged": averaged,
                "bleu": 0.1 * averaged + 0.01 * beams + 0.02 * averaged * int(folder.name[-1]),
                "chrf": 0.5,
                "sentences_per_second": (10.0 if beams == 1 else 4.0) + int(folder.name[-1]),
            }
            for split in ("validation", "test")
            for beams in (1, 5)
            for averaged in (1, 3)
        ]  # fmt: skip
        artifacts.write_json(folder / SEARCH, found)

    def test_runs(self):
        self.study(0, 1)
        self.assertEqual(
            self.calls[:4],
            [
                ("build_vocab.py", "."), ("prepare_data.py", "."),
                ("train.py", "encoders/translation/seed0"),
                ("evaluate.py", "encoders/translation/seed0"),
            ],
        )  # fmt: skip
        runs = "runs/captions_en_de"
        tuned = [place for script, place in self.calls if script == "finetune.py"]
        self.assertEqual(
            tuned,
            [
                *(f"{runs}/{start}/{scale}/seed0"
                  for start in ("random", "veco_last") for scale in ("1", "0.3")),
                f"{runs}/random/1/seed1",
                f"{runs}/veco_last/0.3/seed1",
            ],
        )  # fmt: skip
        self.assertEqual(self.calls[-1], (
            "studies.translation_search", f"{runs}/veco_last/0.3/seed1"
        ))  # fmt: skip
        done = len(self.calls)
        self.study(0, 1)
        self.assertEqual([script for script, _ in self.calls[done:]],
                         ["build_vocab.py", "prepare_data.py"])  # fmt: skip

    def test_other_tasks_use_the_scales_of_the_first(self):
        self.study(0, 1, tasks=("captions_en_de", "news_en_de"))
        tuned = [place for script, place in self.calls if script == "finetune.py"]
        self.assertEqual(
            [place for place in tuned if "news" in place],
            [
                f"runs/news_en_de/{one}/seed{seed}"
                for seed in (0, 1)
                for one in ("random/1", "veco_last/0.3")
            ],
        )
        self.assertLen(tuned, 6 + 4)
        searched = [place for name, place in self.calls if name == "studies.translation_search"]
        self.assertLen(searched, 4)
        self.assertTrue(all("captions_en_de" in place for place in searched))
        text = translation_report.write_report(
            self.of(0, 1, tasks=("captions_en_de", "news_en_de"))
        )
        self.assertIn("## WMT news, en-de", text)
        self.assertEqual(text.count("development BLEU at scale"), 1)

    def test_changes(self):
        self.study(0)
        random = self.changes["runs/captions_en_de/random/1/seed0"]
        last = self.changes["runs/captions_en_de/veco_last/0.3/seed0"]
        sizes = {name for name in random if name not in last}
        self.assertEqual({name.partition(".")[0] for name in sizes}, {"architecture"})
        self.assertEqual(
            {name for name in last if random[name] != last[name]},
            {
                "random_init", "init_from", "model_name", "optimizer.learning_rate",
                "optimizer.muon_learning_rate", "translation.needs_cross_attention",
            },
        )  # fmt: skip
        self.assertAlmostEqual(
            last["optimizer.learning_rate"], 0.3 * random["optimizer.learning_rate"]
        )
        self.assertTrue(random["random_init"])
        self.assertEqual(random["init_from"], self.workdir.absolute())
        folder = self.workdir.absolute() / "encoders"
        self.assertEqual(last["init_from"], folder / "translation" / "seed0")
        study = self.of(0, starts=("veco_last", "veco_last_one"))
        two, one = (
            translation.change_of(study, "captions_en_de", start, "1", 0) for start in study.starts
        )
        layers = "translation.decoder_layers"
        self.assertEqual((two[layers], one[layers]), (2, 1))
        self.assertEqual({name for name in two if two[name] != one[name]}, {"model_name", layers})

    def test_a_random_model_has_the_sizes_of_the_others(self):
        study = self.of(0)
        change = translation.change_of(study, "captions_en_de", "random", "1", 0)
        for run in (XLM, VECO):
            model = veco.get_config(run).model
            for key in study.config_of("captions_en_de").architecture:
                self.assertEqual(change[f"architecture.{key}"], model[key], key)

    def test_starts_from_veco_refuse_an_encoder_without_cross_attention(self):
        for start in STARTS:
            change = translation.change_of(self.of(0), "captions_en_de", start, "1", 0)
            run = pathlib.Path(change["init_from"]).parent.name
            has_it = start != "random" and veco.get_config(run).model.cross_attention
            self.assertEqual(change["translation.needs_cross_attention"], has_it, start)

    def test_an_encoder_is_trained_again_only_if_a_run_is_missing(self):
        tasks = ("captions_en_de", "news_en_de")
        self.study(0, 1, tasks=tasks)
        for path in self.workdir.glob("encoders/*/*/train/DONE"):
            path.unlink()
        (self.workdir / "runs/news_en_de/veco_last/0.3/seed1/record.json").unlink()
        done = len(self.calls)
        self.study(0, 1, tasks=tasks)
        self.assertEqual(
            [call for call in self.calls[done:] if call[0] == "train.py"],
            [("train.py", "encoders/translation/seed1")],
        )

    def test_a_failed_encoder_fails_once_and_no_run_starts_from_it(self):
        def fail(script, config, change, workdir, **rest):
            if script[0] == "train.py" and workdir.parent.name == "translation":
                raise ValueError("no memory")
            self.call(script, config, change, workdir, **rest)

        self.enter_context(mock.patch.object(translation.runs, "call", fail))
        with self.assertRaisesRegex(ValueError, "1 runs failed.*no memory"):
            self.study(0)
        tuned = {place for script, place in self.calls if script == "finetune.py"}
        self.assertEqual(tuned, {f"runs/captions_en_de/random/{one}/seed0" for one in ("1", "0.3")})

    def test_report(self):
        text = self.study(0, 1)
        self.assertIn(
            "| random parameters | 1 | 2 | 20.5 | 20.0 to 21.0 | 60.0 | 22.5 |  |  |", text
        )
        self.assertIn(
            "| VECO, last two layers | 0.3 | 2 | 35.5 | 35.0 to 36.0 | 60.0 | 37.5 | +15.0 | "
            "+15.0 to +15.0 |",
            text,
        )
        self.assertIn("| random parameters | 22.0 | 12.0 |", text)
        for line in (
            "| random parameters | 1 | 1 | 2 | 12.0 | 11.0 to 13.0 |  |  | 10.5 | 10.0 to 11.0 | "
            "1.00 |",
            "| VECO, last two layers | 3 | 5 | 2 | 38.0 | 35.0 to 41.0 | +26.0 | +24.0 to +28.0 | "
            "4.5 | 4.0 to 5.0 | 0.43 |",
        ):
            self.assertIn(line, text)
        self.assertTrue((self.workdir / "report" / "captions_en_de.png").exists())
        with self.assertRaisesRegex(ValueError, "no finished runs"):
            translation_report.write_report(self.of(7))

    def test_translations_to_read_are_kept_and_reported(self):
        expected = self.study(0, 1)
        self.assertIn(
            "4. a4\n\n   - reference: b4\n   - random parameters: random4\n"
            "   - VECO, last two layers: veco\\_last4\n\n6. a6\n",
            expected,
        )
        record = self.workdir.parent / "translation.jsonl"
        records.keep(record, self.workdir, "abc")
        kept = {
            path: len(line["content"]["translations"])
            for path, line in records.read(record).items()
            if "translations" in line["content"]
        }
        runs = [
            f"runs/captions_en_de/{start}/{scale}/seed0/record.json"
            for start in ("random", "veco_last")
            for scale in ("0.3", "1")
        ]
        self.assertEqual(kept, dict.fromkeys(runs, 10))
        # Outputs alone: sources and references are sentences of a corpus.
        self.workdir = self.workdir.parent / "other"
        records.restore(record, self.workdir)
        without = re.sub(r"(?m)^   - reference: .*\n", "", expected)
        without = re.sub(r"(?m)^(\d+\.) a\d+$", r"\1", without)
        self.assertEqual(translation_report.write_report(self.of(0, 1)), without)

    def test_configs_of_all_runs_exist(self):
        module = importlib.import_module("configs.finetune.multi30k")
        for task in TASKS:
            for start in STARTS:
                change = translation.change_of(self.of(0, tasks=(task,)), task, start, "1", 0)
                change["init_from"] = str(change["init_from"])
                config = module.get_config(f"{TASKS[task].direction},DATA")
                config.update_from_flattened_dict(change)
                self.assertEqual(config.train.num_steps // config.train.checkpoint_every, 12)


if __name__ == "__main__":
    absltest.main()
