"""The blocks of docs/tutorials, run as printed with little data."""

import contextlib
import csv
import io
import json
from unittest import mock

import matplotlib.pyplot as plt

from tests import commands, factories, pages, tiny_tasks
from xlm.experiment import model

_TINY_TEXT = (
    "--config.corpus.languages=('en','sw')", "--config.vocab.compare=()",
    "--config.vocab.explore=False", "--config.vocab.num_workers=1",
    "--config.vocab.target_size=600",
)  # fmt: skip
_NO_NETWORK = "it needs the network"
_OTHER_PAGE = "it needs the model of another page"


class TutorialsTest(pages.PageTest):
    def setUp(self):
        super().setUp()
        self.link("corpus", commands.ROOT / "corpus")

    def test_tokenizer(self):
        self.small = {"build_vocab": _TINY_TEXT}
        *_, checked, tokens = self.run_page("tutorials/tokenizer.md")
        self.assertIn("500 of 500 lines agree", checked)
        self.assertIn("'<user>'", tokens)
        self.assertIn("'€'", tokens)
        self.assertIn("600", tokens.splitlines()[-1])

    def test_pretrain(self):
        self.swapped = {"configs/quickstart.py:corpus": "configs/quickstart.py:runlocal"}
        with mock.patch.object(model, "mesh", factories.one_device):
            _, _, evaluated, guesses, _, filled = self.run_page("tutorials/pretrain.md")
        self.assertIn("report: ", evaluated)
        self.assertIn("(2, 32)", guesses)
        # The same model: `transformers` and we fill the mask alike.
        ours = [
            one.piece for one in self.names["encoder"].fill("The cat <mask> the river.", top=3)[0]
        ]
        self.assertIn(str(ours), filled)

    def test_labels(self):
        self.small = {"finetune": ("--config.task.max_length=24", "--config.task.buckets=()")}
        # The head of a narrow encoder reads the mean, for which `transformers` has no class. This
        # one has 24 positions.
        self.swapped = {
            '/exported")': '/exported", trust_remote_code=True)',
            "The train was late, again.": "the cat",
        }
        texts = [f'"the cat, {i}",{("complaint", "praise")[i % 3 % 2]}' for i in range(30)]
        for name in ("train.en", "train.de", "train.sw", "test.en", "test.sw"):
            tiny_tasks.write(self.folder / f"mine/{name}.csv", "\n".join(["text,label", *texts]))
        self.link("FOLDER", tiny_tasks.encoder_folder(1))
        with tiny_tasks.quick():
            tuned, _, _, _, classified = self.run_page("tutorials/labels.md")
        self.assertIn("no development files: 10 % of the training", tuned)
        exported = json.loads((self.folder / "runs/mine/exported/config.json").read_text())
        self.assertEqual(exported["id2label"], {"0": "complaint", "1": "praise"})
        self.assertRegex(classified, "complaint|praise")
        report = self.folder / "runs/mine/report"
        self.assertTrue((report / "report.html").exists(), sorted(report.iterdir()))
        text = (report / "report.md").read_text()
        self.assertRegex(text, r"trained on de, en, sw")
        self.assertNotIn("XTREME", text)
        self.assertTrue((self.folder / "runs/mine/report.html").exists())
        lines = (self.folder / "runs/mine/test.sw.jsonl").read_text().splitlines()
        self.assertLen(lines, 30)
        first = json.loads(lines[0])
        self.assertEqual(first["id"], "2")
        self.assertEqual(set(first["probabilities"]), {"complaint", "praise"})

    def test_translation(self):
        with (commands.ROOT / "corpus/everyday.tsv").open(encoding="utf-8") as rows:
            parallel = [*csv.DictReader(rows, delimiter="\t", quoting=csv.QUOTE_NONE)]
        for name, part in (
            ("train", parallel[:90]),
            ("dev", parallel[90:96]),
            ("test", parallel[96:99]),
        ):
            for language in ("en", "de"):
                lines = "".join(f"{row[language]}\n" for row in part)
                self.write(f"pairs/{name}.{language}", lines)
        self.small = {
            "build_vocab": ("--config.vocab.target_size=500", "--config.vocab.num_workers=1"),
            "finetune": (
                "--config.train.num_steps=4", "--config.train.evaluate_every=2",
                "--config.train.checkpoint_every=2", "--config.train.averaged_checkpoints=2",
                "--config.decoding.max_length=16", "--config.decoding.beams=2",
                "--config.architecture.hidden_size=16", "--config.architecture.embedding_size=16",
                "--config.architecture.mlp_size=16", "--config.architecture.num_heads=2",
            ),
        }  # fmt: skip
        with tiny_tasks.quick():
            self.run_page("tutorials/translation.md")
        self.assertLen((self.folder / "test.de").read_text("utf-8").splitlines(), 3)
        config = (self.folder / "runs/en-de/exported/config.json").read_text("utf-8")
        self.assertIn("MBart", config)

    def test_notebook(self):
        notebook = commands.ROOT / "docs/tutorials/quickstart.ipynb"
        names: dict = {}
        with (
            contextlib.chdir(self.folder),
            mock.patch.object(model, "mesh", factories.one_device),
            mock.patch.object(plt, "show", plt.close),
        ):
            for cell in json.loads(notebook.read_text("utf-8"))["cells"]:
                if cell["cell_type"] != "code":
                    continue
                printed = io.StringIO()
                with contextlib.redirect_stdout(printed):
                    exec(compile("".join(cell["source"]), cell["id"], "exec"), names)
                shown = [one for one in cell["outputs"] if one["output_type"] == "stream"]
                self.assertEqual(bool(printed.getvalue()), bool(shown), cell["id"])
                if "encoder" not in names:  # whose numbers another release of jax may change
                    self.assertEqual(printed.getvalue(), "".join(shown[0]["text"] if shown else ""))
        self.assertEqual(names["vectors"].shape, (2, 32))

    def test_blocks_that_are_not_run_say_why(self):
        for page in sorted((commands.ROOT / "docs/tutorials").glob("*.md")):
            for block in pages.blocks(f"tutorials/{page.name}"):
                self.assertIn(block.not_run, ("", _NO_NETWORK, _OTHER_PAGE), page.name)
