"""Tests of tokenising a corpus into a packed dataset, with a real tokenizer."""

import itertools
import pathlib
import tempfile

import numpy as np
import sentencepiece as spm
from absl.testing import absltest, parameterized
from sentencepiece import sentencepiece_model_pb2 as model_pb2

from input_pipeline import packed_dataset, tokenization
from input_pipeline.corpus import Corpus, ParallelText
from input_pipeline.packed_dataset import PackedDataset
from input_pipeline.tokenization import PackedDatasetSettings
from vocap import merge

_LETTERS = "▁abcdefghijklmnopqrstuvwxyz0123456789."
_LONG = " ".join(["more words than fit into a row"] * 20)

# More documents than one task holds, so that workers share a language.
_CORPUS = Corpus(
    train={
        "en": [[f"number {i}.", "and so on."] for i in range(600)],
        "sw": [["habari ya asubuhi", "ñandú"], [_LONG]],
    },
    heldout={"en": [["held out."]], "sw": []},
    parallel=(
        ParallelText("core", ("en", "sw"), (("one", "moja"), ("two", ""), (_LONG, "na"))),
        ParallelText("core", ("en", "sw"), (("of another folder", "x"),)),
    ),
    bitexts=(
        ParallelText("core", ("en", "sw"), (("", "tatu"), ("four", "nne"), (_LONG, "tano"))),
        ParallelText("news", ("sw", "en"), (("sita", "six"),)),
    ),
)


def _tokenizer() -> bytes:
    return merge.write_model(list(_LETTERS), -np.arange(1.0, len(_LETTERS) + 1))


def _tokens(rows: np.ndarray, special: packed_dataset.SpecialIds) -> list[int]:
    """All that is in the rows, but for the structure."""
    return rows[~np.isin(rows, special.special_ids())].tolist()


class WriteRowsTest(absltest.TestCase):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.folder = pathlib.Path(cls.enterClassContext(tempfile.TemporaryDirectory()))
        cls.model = _tokenizer()
        cls.processor = spm.SentencePieceProcessor(model_proto=cls.model)
        settings = PackedDatasetSettings(length=64, parallel_length=32, num_workers=2)
        cls.store = tokenization.write_rows(_CORPUS, cls.model, cls.folder, settings)

    def encode(self, documents: list[list[str]]) -> list[int]:
        """Token ids of the documents, a sentence at a time."""
        sentences = itertools.chain.from_iterable(documents)
        return [i for sentence in sentences for i in self.processor.encode(sentence)]

    def test_rows_hold_the_tokens_of_all_documents(self):
        for split, part in (("train", _CORPUS.train), ("heldout", _CORPUS.heldout)):
            for language, documents in part.items():
                rows = self.store.rows(language, split)
                self.assertEqual(rows.shape[1], 64)
                self.assertEqual(rows.dtype, np.uint16)
                self.assertEqual(_tokens(rows, self.store.special), self.encode(documents))

    def test_rows_begin_every_document_anew(self):
        rows = self.store.rows("en", "train")
        self.assertGreaterEqual((rows == self.store.special.bos).sum(), 600)
        first = self.processor.decode([int(i) for i in rows[0, : rows[0].tolist().index(2)]])
        self.assertEqual(first, "number 0. and so on.")

    def test_statistics_count_the_text(self):
        for language, documents in _CORPUS.train.items():
            tokens = self.encode(documents)
            self.assertEqual(
                self.store.statistics[language]["train"],
                {
                    "rows": len(self.store.rows(language, "train")),
                    "tokens": len(tokens),
                    "unknown": tokens.count(self.processor.unk_id()),
                    "characters": len("".join(s + "\n" for d in documents for s in d)),
                },
            )
        self.assertEqual(self.store.statistics["sw"]["train"]["unknown"], 2)  # ñ and ú
        self.assertEqual(self.store.statistics["sw"]["heldout"]["rows"], 0)

    def test_parallel_text_keeps_one_row_per_sentence(self):
        self.assertEqual(self.store.parallel, {"core": ("en", "sw"), "core-2": ("en", "sw")})
        for name, text in zip(self.store.parallel, _CORPUS.parallel, strict=True):
            for column, language in enumerate(text.languages):
                rows = self.store.parallel_rows(name, language)
                self.assertEqual(rows.shape, (len(text.rows), 32))
                for row, cells in zip(rows, text.rows, strict=True):
                    tokens = self.processor.encode(cells[column])[:30]
                    self.assertEqual(_tokens(row, self.store.special), tokens)
                    self.assertEqual((row == self.store.special.bos).sum(), bool(tokens))

    def test_bitext_keeps_all_of_every_sentence(self):
        self.assertEqual(self.store.bitexts, {"core": ("en", "sw"), "news": ("sw", "en")})
        opened = PackedDataset.open(self.folder)
        for name, text in zip(self.store.bitexts, _CORPUS.bitexts, strict=True):
            for column, language in enumerate(text.languages):
                found = opened.bitext(name, language)
                expected = [self.processor.encode(cells[column]) for cells in text.rows]
                self.assertEqual(found.lengths.tolist(), list(map(len, expected)))
                for number, tokens in enumerate(expected):
                    self.assertEqual(found.sentence(number).tolist(), tokens)

    def test_the_store_on_disk_is_the_one_returned(self):
        opened = PackedDataset.open(self.folder)
        self.assertEqual(opened.statistics, self.store.statistics)
        self.assertEqual(opened.special, self.store.special)
        self.assertEqual(opened.vocab_size, self.processor.get_piece_size())
        opened.check_tokenizer(self.model, pathlib.Path("a.model"))

    def test_rows_do_not_depend_on_the_number_of_workers(self):
        folder = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))
        settings = PackedDatasetSettings(length=64, parallel_length=32, num_workers=1)
        tokenization.write_rows(_CORPUS, self.model, folder, settings)
        names = sorted(path.name for path in self.folder.iterdir())
        self.assertEqual(names, sorted(path.name for path in folder.iterdir()))
        for name in names:
            self.assertEqual((self.folder / name).read_bytes(), (folder / name).read_bytes(), name)


class FaultsTest(parameterized.TestCase):
    def test_a_tokenizer_without_a_special_token(self):
        for token in ("<mask>", "<pad>"):
            proto = model_pb2.ModelProto.FromString(_tokenizer())
            for piece in list(proto.pieces):
                if piece.piece == token:
                    proto.pieces.remove(piece)
            processor = spm.SentencePieceProcessor(model_proto=proto.SerializeToString())
            with self.assertRaisesRegex(ValueError, f"has no {token} token.*build_vocab.py"):
                tokenization.special_ids(processor)

    def test_a_tokenizer_in_which_the_text_mask_would_become_a_mask(self):
        proto = model_pb2.ModelProto.FromString(_tokenizer())
        proto.pieces[merge.MASK_ID].type = model_pb2.ModelProto.SentencePiece.USER_DEFINED
        processor = spm.SentencePieceProcessor(model_proto=proto.SerializeToString())
        with self.assertRaisesRegex(ValueError, "has no <mask> token"):
            tokenization.special_ids(processor)

    def test_a_language_without_text_leaves_no_finished_store(self):
        folder = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))
        settings = PackedDatasetSettings(length=64, parallel_length=32, num_workers=1)
        empty = Corpus(train={"en": []}, heldout={"en": []}, parallel=())
        with self.assertRaisesRegex(ValueError, "'en' has no training text"):
            tokenization.write_rows(empty, _tokenizer(), folder, settings)
        with self.assertRaisesRegex(ValueError, "no finished packed dataset"):
            PackedDataset.open(folder)

    @parameterized.parameters("length", "parallel_length")
    def test_rows_too_short_to_be_of_use(self, name):
        settings = {"length": 64, "parallel_length": 64, "num_workers": 1}
        with self.assertRaisesRegex(ValueError, f"store.{name} is 15, must be at least 16"):
            PackedDatasetSettings(**{**settings, name: 15})


if __name__ == "__main__":
    absltest.main()
