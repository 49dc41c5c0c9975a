"""The commands of docs/own_task.md, run as printed on a tiny encoder."""

import contextlib
import json
import re

import numpy as np

from tests import commands, folders, tiny_tasks

# What fits the tiny encoder, besides what is printed.
_SMALL = {"finetune": ("--config.task.max_length=24", "--config.task.buckets=()")}


class PageTest(folders.FolderTest):
    def setUp(self):
        super().setUp()
        rng = np.random.default_rng(0)
        for name, count in (("train.en", 30), ("train.de", 30), ("train.sw", 30),
                            ("test.en", 9), ("test.sw", 9)):  # fmt: skip
            labels = rng.choice(["complaint", "praise"], count)
            rows = [f'"the cat, {number}",{label}' for number, label in enumerate(labels)]
            tiny_tasks.write(self.folder / f"mine/{name}.csv", "\n".join(["text,label", *rows]))

    def here(self, argument: str) -> str:
        argument = re.sub(r"(?<![\w/])(runs|mine)/", rf"{self.folder}/\1/", argument)
        argument = re.sub(r":mine$", f":{self.folder}/mine", argument)
        return argument.replace("=FOLDER", f"={tiny_tasks.encoder_folder(1)}")

    def test_its_commands(self):
        found = commands.printed("own_task.md")
        self.assertEqual(
            [name for name, *_ in found],
            ["import_model", "finetune", "xtreme_table", "predict",
             "export_model"],
        )  # fmt: skip
        with contextlib.ExitStack() as stack:
            stack.enter_context(tiny_tasks.quick())
            for name, *arguments in found:
                given = [*map(self.here, arguments), *_SMALL.get(name, ())]
                done = commands.execute(name, *given)
                self.assertEqual(done.returncode, 0, done.stderr)
                if name == "finetune":
                    self.assertIn("no development files: 10 % of the training", done.stdout)
        exported = json.loads((self.folder / "runs/mine/exported/config.json").read_text())
        self.assertEqual(exported["id2label"], {"0": "complaint", "1": "praise"})
        report = self.folder / "runs/mine/report"
        self.assertTrue((report / "report.html").exists(), sorted(report.iterdir()))
        text = (report / "report.md").read_text()
        self.assertRegex(text, r"trained on de, en, sw")
        self.assertNotIn("XTREME", text)
        lines = (self.folder / "runs/mine/test.sw.jsonl").read_text().splitlines()
        self.assertLen(lines, 9)
        first = json.loads(lines[0])
        self.assertEqual(first["id"], "2")
        self.assertEqual(set(first["probabilities"]), {"complaint", "praise"})
