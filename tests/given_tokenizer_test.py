"""Tokenizers that are there already, in place of one that is built."""

import io
import json
import pathlib

import numpy as np
import sentencepiece as spm
from absl.testing import parameterized

from configs import quickstart
from input_pipeline.packed_dataset import META
from input_pipeline.tokenization import special_ids
from tests import folders
from vocap import merge
from xlm.common import artifacts
from xlm.experiment import memory
from xlm.experiment.data import Folders
from xlm.experiment.experiment import Experiment
from xlm.interop import huggingface

SPACE = "\u2581"
PIECES = [*"abcdefgh", SPACE, SPACE + "ab", "cd", "abc"]


def model(pieces=PIECES) -> bytes:
    return merge.write_model(pieces, -np.arange(1.0, len(pieces) + 1))


class GivenTokenizerTest(folders.FolderTest):
    def setUp(self):
        super().setUp()
        self.folders = Folders(self.folder / "work")

    def build(self, path: pathlib.Path) -> None:
        config = quickstart.get_config("runlocal")
        config.vocab.tokenizer = str(path)
        Experiment(config, self.folders.workdir).build_vocab()

    def test_it_is_the_vocabulary_and_another_takes_its_place_until_rows_exist(self):
        self.folders.vocab.mkdir(parents=True)
        # Of an earlier build.
        for name in ("allocation.json", "report.md", "report.html", "alp.svg"):
            (self.folders.vocab / name).touch()
        self.build(self.write("one.model", model()))
        self.assertEqual(self.folders.read_tokenizer(), model())
        left = {path.name for path in self.folders.vocab.iterdir()}
        self.assertEqual(left, {"DONE", "LOCK", "settings.json", "spm.model"})
        other = self.write("other.model", model(PIECES[:9]))
        self.build(other)
        self.assertEqual(self.folders.read_tokenizer(), model(PIECES[:9]))
        artifacts.write_text(self.folders.rows / META, "{}")
        self.build(other)
        with self.assertRaisesRegex(ValueError, "made under another config"):
            self.build(self.folder / "one.model")

    @parameterized.parameters(
        {"model_type": "bpe", "vocab_size": 16}, {"pad_id": 3},
        {"pad_id": 3, "control_symbols": ["<mask>", "<sep>"]},
        {"user_defined_symbols": ["<mask>", "<sep>"]},
    )  # fmt: skip
    def test_a_model_of_sentencepiece(self, **options):
        content = io.BytesIO()
        spm.SentencePieceTrainer.train(
            sentence_iterator=iter(["ab abc cd", "abc cdab", "h abc"]), model_writer=content,
            hard_vocab_limit=False, minloglevel=2, **{"vocab_size": 20, **options},
        )  # fmt: skip
        self.build(self.write("own.model", content.getvalue()))
        found = spm.SentencePieceProcessor(model_proto=self.folders.read_tokenizer())
        special_ids(found)  # raises ValueError where one is missing
        self.assertEqual(found.id_to_piece(list(range(5))), list(merge.SPECIALS))
        expected = spm.SentencePieceProcessor(model_proto=content.getvalue())
        self.assertEqual(
            {found.id_to_piece(i) for i in range(5, len(found))},
            {expected.id_to_piece(i) for i in range(len(expected))} - {*merge.SPECIALS},
        )
        for text in ("ab abc cdab", "abcabc h <sep> ab"):
            self.assertEqual(found.encode(text, out_type=str), expected.encode(text, out_type=str))
        config = quickstart.get_config("runlocal")  # memory is estimated with its size
        config.vocab.tokenizer = str(self.folder / "own.model")
        self.assertEqual(memory.absent_rows(config).vocab_size, len(found))

    def test_a_folder_of_hugging_face(self):
        huggingface.export_tokenizer(model(), self.folder / "hf")
        # As XLM-R's: its normaliser is one step.
        value = artifacts.read_json(self.folder / "hf" / "tokenizer.json")
        value["normalizer"] = next(
            step for step in value["normalizer"]["normalizers"] if step["type"] == "Precompiled"
        )
        splits = [{"type": "WhitespaceSplit"}, {"type": "Metaspace", "replacement": SPACE}]
        value["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": splits}
        artifacts.write_json(self.folder / "hf" / "tokenizer.json", value)
        self.build(self.folder / "hf")
        found = spm.SentencePieceProcessor(model_proto=self.folders.read_tokenizer())
        expected = spm.SentencePieceProcessor(model_proto=model())
        for text in ("ab cd\u3000abc", "h \u017e"):
            self.assertEqual(found.encode(text), expected.encode(text))

    def test_what_is_none(self):
        vocab = [["<unk>", 0], ["a", -1], ["a", -2]]
        twice = {
            "normalizer": None,
            "pre_tokenizer": {"type": "Metaspace", "prepend_scheme": "never"},
            "model": {"type": "Unigram", "unk_id": 0, "vocab": vocab},
        }
        with self.assertRaisesRegex(ValueError, "twice.json: .* a is already defined"):
            self.build(self.write("twice.json", json.dumps(twice)))
        with self.assertRaisesRegex(ValueError, "empty.model: not a SentencePiece model"):
            self.build(self.write("empty.model", b""))
        with self.assertRaisesRegex(ValueError, "none: no such file"):
            self.build(self.folder / "none")
        self.assertFalse(self.folders.vocab.exists())
