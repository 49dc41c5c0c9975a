"""The page of a run in progress, and of several runs."""

import dataclasses
import json
import math
import pathlib

from tests import commands
from tests.folders import FolderTest
from xlm.common import artifacts, tables
from xlm.training import clock, run_report, sinks
from xlm.training.run_report import Run

TEXT = {"en": (300, 1000), "he": (200, 400)}  # tokens and characters


def run(name: str, tokenizer: str, *, factor: float = 1.0, text=TEXT, **settings) -> Run:
    """A run whose losses in bits per character do not depend on `factor`, tokens per character."""
    statistics = {
        language: {"heldout": {"tokens": tokens * factor, "characters": characters}}
        for language, (tokens, characters) in text.items()
    }
    found = Run(name, pathlib.Path("none"), {"train.num_steps": 20, **settings}, {},
                statistics=statistics, tokenizer=tokenizer)  # fmt: skip
    for step in (10, 20):
        of = {f"eval/loss/{one}": (20 / step + i) / factor for i, one in enumerate(text)}
        found.add(step, {"eval/loss": sum(of.values()) / len(of), **of, "train/loss": 9.0, "x": 1})
    return found


class RunReportTest(FolderTest):
    def written(self, *runs: Run) -> str:
        return run_report.write(self.folder, runs).read_text(encoding="utf-8")

    def rows(self, text: str) -> dict[str, list[str]]:
        lines = [line.strip("| ").split(" | ") for line in text.splitlines() if line[:1] == "|"]
        return {first: rest for first, *rest in lines}

    def test_one_vocabulary_is_compared_in_nats(self):
        text = self.written(run("a", "t", alpha=0.3), run("b", "t", factor=2.0, alpha=0.7))
        self.assertIn("vocabularies are the same", text)
        self.assertEqual(self.rows(text)["he"], ["2.000", "1.000", "-1.000"])
        self.assertEqual(self.rows(text)["`alpha`"], ["0.3", "0.7"])
        self.assertNotIn("train.num_steps", text)

    def test_vocabularies_are_compared_in_bits_a_character(self):
        text = self.written(run("a", "t"), run("b", "u", factor=2.0))
        self.assertIn("in bits a character", text)
        self.assertNotIn("text differ", text)
        bits = f"{2 * 200 / 400 / math.log(2):.3f}"
        self.assertEqual(self.rows(text)["he"], [bits, bits, "+0.000"])
        curves = (self.folder / "curves0.svg").read_text(encoding="utf-8")
        self.assertIn("loss (bits a character)", curves)
        self.assertNotIn("9 at", curves)  # the training loss is in nats

    def test_means_are_over_the_languages_of_all_runs(self):
        more = run("b", "t", text={**TEXT, "ar": (10, 10)})
        text = self.written(run("a", "t"), more)
        self.assertIn("over the 2 languages", text)
        self.assertNotIn("ar", self.rows(text))
        self.assertEqual(self.rows(text)["**mean**"][:2], ["1.500", "1.500"])
        curves = (self.folder / "curves0.svg").read_text(encoding="utf-8")
        self.assertEqual(curves.count(": 1.5 at 20"), 2)

    def test_losses_that_cannot_be_compared_are_not(self):
        unknown = dataclasses.replace(run("b", "u"), tokenizer="", statistics={})
        text = self.written(run("a", "t"), unknown)
        self.assertIn("not compared", text)
        self.assertNotIn("he", self.rows(text))
        other = run("b", "u", text={"en": (300, 999), "he": (200, 400)})
        self.assertIn("held-out texts differ", self.written(run("a", "t"), other))

    def test_evaluations_in_training_are_not_compared_with_those_after_it(self):
        found = {one: {"loss": 0.5, "bits_per_character": 0.25} for one in TEXT}
        done = dataclasses.replace(run("a", "t"), results=found)
        self.assertEqual(self.rows(self.written(done, run("b", "t")))["en"][0], "1.000")
        same = dataclasses.replace(done, name="c")
        self.assertEqual(self.rows(self.written(done, same))["en"][0], "0.500")
        other = dataclasses.replace(done, name="c", tokenizer="u")
        self.assertEqual(self.rows(self.written(done, other))["en"][0], "0.250")

    def test_the_page_of_a_run_in_progress_is_renewed_and_at_its_end_rests(self):
        train, page = self.folder / "train", self.folder / "report" / "report.html"
        train.mkdir()
        (self.folder / "rows").mkdir()
        (train / "metrics.jsonl").write_text("", encoding="utf-8")
        settings = {"train": {"num_steps": 20}}
        (train / "settings.json").write_text(json.dumps(settings), encoding="utf-8")
        seen = []
        with sinks.SINKS["report"](train, 0) as write:
            for step in (10, 15, 20):
                name = "train/loss" if step == 15 else "eval/loss"
                write({name: 2.0, "eval/loss/he<b>": 2.0} if name[0] == "e" else {name: 2.0}, step)
                seen.append(page.read_text(encoding="utf-8"))
        self.assertIn("training, step 10 of 20", seen[0])
        self.assertIn('http-equiv="refresh"', seen[0])
        self.assertEqual(seen[0], seen[1])  # nothing is written between evaluations
        self.assertIn("trained, step 20 of 20", seen[2])
        self.assertNotIn('http-equiv="refresh"', seen[2])
        self.assertNotIn("he<b>", seen[2])
        self.assertEqual([one.name for one in page.parent.iterdir()], ["report.html"])

    def test_the_command_reads_runs_as_they_are_on_disk(self):
        for parent, loss in (("a", 2.0), ("b", 1.0)):
            train, rows = (self.folder / parent / "run" / one for one in ("train", "rows"))
            statistics = run("a", "t").statistics
            meta = {"statistics": statistics, "tokenizer": "t"}
            artifacts.write_text(rows / "meta.json", json.dumps(meta))
            metrics = [{"step": 5, "eval/loss": 9, "eval/loss/he": 9}, {"step": 10, "eval/loss": 1}]
            metrics[1]["eval/loss/he"] = loss
            lines = "".join(f"{json.dumps(one)}\n" for one in metrics)
            artifacts.write_text(train / "metrics.jsonl", lines)
            artifacts.write_text(train / "speed.jsonl", '{"step": 10, "tokens_per_second": 70}\n')
            seconds = dict.fromkeys(clock.PARTS, 0.0) | {"step": 10, "steps": 60, "compiling": 180}
            artifacts.write_text(train / "goodput.jsonl", f"{json.dumps(seconds)}\n")
        names = [str(self.folder / parent / "run") for parent in "ab"]
        out = self.folder / "out"
        done = commands.execute("report", f"--runs={','.join(names)}", f"--output={out}")
        self.assertEqual(done.returncode, 0, done.stderr)
        rows = self.rows((out / "report.md").read_text(encoding="utf-8"))
        self.assertEqual(rows["he"], ["2.000", "1.000", "-1.000"])
        self.assertEqual(rows["compiling"], ["3.0", "75.0"] * 2)
        self.assertNotIn("lost", rows)  # 0.0
        self.assertIn(f"report: {out}/report.html", done.stdout)
        self.assertIn(": 70 at 10", (out / "speed.svg").read_text(encoding="utf-8"))
        text = (out / "report.md").read_text(encoding="utf-8")
        self.assertIn(tables.escaped(names[1]), text)  # their names are equal
        self.assertLen(done.stdout.splitlines(), 1)

    def test_runs_of_two_kinds(self):
        tuned = {"task.name": "cola", "train.epochs": 3, "optimizer.rate": 0.1}
        runs = run("a", "t", **{"optimizer.rate": 0.2, "mask.rate": 0.1}), run("b", "", **tuned)
        text = self.written(*runs)
        self.assertIn("Runs of different kinds: no loss compares.** a: pre-training, b: cola", text)
        self.assertNotIn("texts differ", text)
        rows = {key for key in self.rows(text) if key.startswith("`")}
        self.assertEqual(rows, {"`optimizer.rate`"})

    def test_two_fine_tunings(self):
        (self.folder / "DONE").touch()
        artifacts.write_json(self.folder / "results.json", {"selected": {"step": 15}})
        tuned = {"task.name": "cola", "train.num_steps": 0}  # the number is not recorded
        one, two = run("a", "", **tuned), run("b", "", **tuned, **{"train.patience": 2, "a": ["b"]})
        text = self.written(one, dataclasses.replace(two, folder=self.folder))
        self.assertIn("xlm table", text)
        self.assertRegex(text, r"(?s)a: training, step 20\..*b: trained, step 20\.")
        self.assertIn("b: trained, step 20.** Its scores are of the checkpoint of step 15.", text)
        self.assertEqual(self.rows(text)["`a`"], ["-", "b"])
        self.assertEqual(self.rows(text)["`train.patience`"], ["-", "2"])

    def test_a_folder_without_a_run_is_named(self):
        with self.assertRaisesRegex(ValueError, f"{self.folder} has no metrics.jsonl; name"):
            run_report.read(self.folder)
