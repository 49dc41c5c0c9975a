"""The blocks of docs/tutorials and of other pages, run as printed with little data."""

import contextlib
import csv
import io
import json
from unittest import mock

import matplotlib.pyplot as plt
import numpy as np
from absl.testing import absltest

from tests import commands, factories, pages, tiny_tasks
from tests.interop import modern_bert_test, xlm_roberta_parity_test
from tests.interop.onnx_folder_test import HAS_ONNX
from xlm.experiment import model
from xlm.experiment import model as builders
from xlm.interop import model_folder

_TINY_TEXT = (
    "--config.corpus.languages=('en','sw')", "--config.vocab.compare=()",
    "--config.vocab.explore=False", "--config.vocab.num_workers=1",
    "--config.vocab.target_size=600",
)  # fmt: skip
_SHORT = ("--config.task.max_length=24", "--config.task.buckets=()")
_WORDS = ("the", "cat", "dog", "runs", "sleeps", "fox")
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
        self.small = {"finetune": _SHORT}
        # The head of a narrow encoder reads the mean, for which `transformers` has no class. This
        # one has 24 positions.
        self.swapped = {
            '/exported")': '/exported", trust_remote_code=True)',
            "The train was late, again.": "the cat",
        }
        self.write_labelled()
        self.link("FOLDER", tiny_tasks.encoder_folder(1))
        with tiny_tasks.quick():
            tuned, _, _, _, classified = self.run_page("tutorials/labels.md")
        self.assertIn("no development files: held out 10 % of the training", tuned)
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

    def write_labelled(self) -> None:
        """Texts with two labels in three languages."""
        texts = [f'"the cat, {i}",{("complaint", "praise")[i % 3 % 2]}' for i in range(30)]
        for name in ("train.en", "train.de", "train.sw", "test.en", "test.sw"):
            self.write(f"mine/{name}.csv", "\n".join(["text,label", *texts]))

    def test_own_task(self):
        self.small = {"finetune": _SHORT}
        self.swapped = {
            "train__epochs=5.0,": "train__epochs=2.0, task__max_length=24, task__buckets=(),"
        }
        self.write_labelled()
        self.link("runs/xlmr", tiny_tasks.encoder_folder(1))
        with tiny_tasks.quick():
            results, _, _ = self.run_page("own_task.md")
        self.assertIn("macro_f1", results)
        lines = (self.folder / "runs/mine/with_text.jsonl").read_text().splitlines()
        self.assertLen(lines, 30)
        first = json.loads(lines[0])
        self.assertEqual((first["id"], first["text"]), ("2", "the cat, 0"))
        self.assertEqual(set(first["probabilities"]), {"complaint", "praise"})
        self.assertEqual(list(first["columns"]), ["label"])

    def test_embeddings(self):
        self.swapped = {"dimensions=32,128": "dimensions=4,8", "max_length=64": "max_length=24",
                        "buckets=16,32": "buckets=()"}  # fmt: skip
        rng = np.random.default_rng(0)
        texts = [" ".join(rng.choice(_WORDS, 4)) for _ in range(40)]
        pairs = "".join(f"{text}\t{text[::-1]}\n" for text in texts)
        for name in ("train.de", "train.fi", "test.de"):
            tiny_tasks.write(self.folder / f"mine/{name}.tsv.xz", pairs)
        scored = [f"{text}\t{text[::-1]}\t{len(text)}\n" for text in texts]
        for name, some in (("train.de", scored[:30]), ("dev.de", scored[20:]), ("test.de", scored)):
            tiny_tasks.write(self.folder / f"sts/{name}.tsv.xz", "".join(some))
        for code, lines in (("de", texts[:9]), ("en", [text[::-1] for text in texts[:9]])):
            tiny_tasks.write(self.folder / f"mine/test.de-en.{code}.xz", "\n".join(lines) + "\n")
        self.write("questions.txt", "".join(f"{text}\n" for text in texts[:3]))
        self.link("runs/encoder", tiny_tasks.encoder_folder(1))
        with tiny_tasks.quick():
            finetune, scored, search, *_ = self.run_page("embeddings.md")
        self.assertIn("mrr", finetune)
        self.assertIn("spearman", scored)
        hits = [json.loads(line)["hits"] for line in search.splitlines() if line[0] == "{"]
        self.assertEqual([len(one) for one in hits], [3, 3, 3])
        vectors = np.load(self.folder / "runs/english.npy")
        np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), np.ones(9), rtol=1e-5)
        found = self.names["model"].similarity(self.names["questions"], self.names["documents"])
        self.assertEqual(tuple(found.shape), (1, 1))

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


class ModernBertTest(pages.PageTest):
    # What fits little text.
    swapped = {
        "phases=phases": "phases=phases, train__batch_size=4, optimizer__warmup_steps=1, "
                         "store__length=32"
    }  # fmt: skip
    small = {
        "finetune": (*_SHORT, "--config.optimizer.learning_rate=3e-3"),
    }  # fmt: skip

    def setUp(self):
        super().setUp()
        xlm_roberta_parity_test.transformers()
        self.enter_context(mock.patch.object(builders, "mesh", factories.one_device))
        self.tokenizer = modern_bert_test.gemma()[1]
        vocab = self.tokenizer["model"]["vocab"]
        self.model = modern_bert_test.their_model(
            vocab_size=len(vocab), num_hidden_layers=3,
            pad_token_id=vocab["<pad>"], bos_token_id=vocab["<bos>"], eos_token_id=vocab["<eos>"],
        )  # fmt: skip
        self.model.save_pretrained(self.folder / "FOLDER")
        self.write("FOLDER/tokenizer.json", json.dumps(self.tokenizer))
        words = [f"the thing {a}{b} and the other {b}{a}" for a in "abcd" for b in "ijklmnop"]
        documents = "\n\n".join("\n".join(words[i : i + 2]) for i in range(0, 32, 2)) + "\n"
        for language in ("en", "sw"):
            self.write(f"TEXT/{language}.txt", documents)
        sentences = ["the\tO\nother\tO\nthing\tB-T\n", "that\tB-T\nis\tO\nthe\tO\n"] * 12
        self.write("TAGS/train.en.conll", "\n".join(sentences))

    @absltest.skipUnless(HAS_ONNX, "torch, transformers or onnxruntime is not installed")
    def test_its_blocks(self):
        with tiny_tasks.quick():
            printed = self.run_page("modern_bert.md")
        imported, _, _, _, filled, compared, _, tagged = printed
        self.assertIn("TEXT/en.txt: 32 of 32 lines agree", imported)
        self.assertLen(filled.splitlines(), 5)
        self.assertLessEqual(float(compared.split()[-1]), 1e-4)
        self.assertIn("'entity_group': 'T'", tagged)
        with self.subTest("the merger is the mean of the phases"):
            kernels = [
                model_folder.read_model(self.folder / "runs" / name)[1]["embeddings"]["table"]
                for name in ("start", "merged")
            ]
            self.assertBetween(np.abs(kernels[0] - kernels[1]).max(), 1e-5, 0.1)
        with self.subTest("classes"):
            found = [type(self.names["model"]), type(self.names["tagger"].model)]
            self.assertEqual(
                [one.__name__ for one in found],
                ["ModernBertForMaskedLM", "ModernBertForTokenClassification"],
            )
        with self.subTest("vectors"):
            self.assertTrue((self.folder / "runs/sentences/modules.json").exists())
