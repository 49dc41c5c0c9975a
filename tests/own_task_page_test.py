"""The blocks of docs/own_task.md, run as printed on a tiny encoder."""

import json

import numpy as np

from tests import pages, tiny_tasks


class PageTest(pages.PageTest):
    # What fits the tiny encoder, besides what is printed.
    small = {"finetune": ("--config.task.max_length=24", "--config.task.buckets=()")}
    swapped = {"train__epochs=5.0,": "train__epochs=2.0, task__max_length=24, task__buckets=(),"}

    def setUp(self):
        super().setUp()
        rng = np.random.default_rng(0)
        for name, count in (("train.en", 30), ("train.de", 30), ("train.sw", 30),
                            ("test.en", 9), ("test.sw", 9)):  # fmt: skip
            labels = rng.choice(["complaint", "praise"], count)
            rows = [f'"the cat, {number}",{label}' for number, label in enumerate(labels)]
            tiny_tasks.write(self.folder / f"mine/{name}.csv", "\n".join(["text,label", *rows]))
        self.link("runs/xlmr", tiny_tasks.encoder_folder(1))

    def test_its_blocks(self):
        with tiny_tasks.quick():
            results, _, _ = self.run_page("own_task.md")
        self.assertIn("macro_f1", results)
        lines = (self.folder / "runs/mine/with_text.jsonl").read_text().splitlines()
        self.assertLen(lines, 9)
        first = json.loads(lines[0])
        self.assertEqual((first["id"], first["text"]), ("2", "the cat, 0"))
        self.assertEqual(set(first["probabilities"]), {"complaint", "praise"})
        self.assertEqual(list(first["columns"]), ["label"])
