"""The blocks of docs/modern_bert.md, run as printed on a tiny random ModernBERT with own text."""

import json
from unittest import mock

import numpy as np
from absl.testing import absltest

from tests import factories, pages, tiny_tasks
from tests.interop import modern_bert_test, xlm_roberta_parity_test
from tests.interop.onnx_folder_test import HAS_ONNX
from xlm.experiment import model as builders
from xlm.interop import model_folder


class PageTest(pages.PageTest):
    # What fits little text.
    swapped = {
        "phases=phases": "phases=phases, train__batch_size=4, optimizer__warmup_steps=1, "
                         "store__length=32"
    }  # fmt: skip
    small = {
        "finetune": ("--config.task.max_length=24", "--config.task.buckets=()",
                     "--config.optimizer.learning_rate=3e-3"),
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
