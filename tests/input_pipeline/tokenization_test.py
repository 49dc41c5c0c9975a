"""Tests of tokenising text into packed sequences, with a real tokenizer."""

import pathlib
import tempfile
from unittest import mock

import numpy as np
import sentencepiece as spm
from absl.testing import absltest, parameterized
from sentencepiece import sentencepiece_model_pb2 as model_pb2

from input_pipeline import array_files, tokenization
from input_pipeline.tokenization import PackedDatasetSettings
from tests.input_pipeline import reading
from vocap import merge

_LETTERS = "▁abcdefghijklmnopqrstuvwxyz0123456789."
_LONG = " ".join(["more words than fit into a row"] * 20)


def _tokenizer() -> bytes:
    return merge.write_model(list(_LETTERS), -np.arange(1.0, len(_LETTERS) + 1))


class RowWriterTest(parameterized.TestCase):
    @parameterized.parameters(1, 60, 100_000)
    def test_sequences_do_not_depend_on_the_batches(self, characters):
        documents = [[f"number {i}.", "and so on."] for i in range(50)]
        documents += [["habari ya asubuhi", "ñandú"], [_LONG]]
        processor = spm.SentencePieceProcessor(model_proto=_tokenizer())
        tokens = [
            np.array([i for sentence in one for i in processor.encode(sentence)], np.uint32)
            for one in documents
        ]
        special, dtype = tokenization.special_ids(processor), np.dtype(np.uint16)
        path = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory())) / "rows.npy"
        with (
            mock.patch.object(tokenization, "_CHARACTERS_AT_ONCE", characters),
            array_files.array_file(path, (64,), dtype) as file,
        ):
            writer = tokenization.RowWriter(processor, file, 64, dtype)
            for document in documents:
                writer.add(document)
            statistics = writer.finish()
        expected = reading.pack_rows(tokens, 64, special, dtype)
        np.testing.assert_array_equal(np.load(path), expected)
        flat = np.concatenate(tokens)
        np.testing.assert_array_equal(
            writer.counts, np.bincount(flat, minlength=len(writer.counts))
        )
        self.assertEqual(
            statistics,
            {
                "rows": len(expected),
                "tokens": len(flat),
                "unknown": 2,  # ñ and ú
                "characters": len("".join(s + "\n" for one in documents for s in one)),
            },
        )

    def test_no_text_makes_no_sequence(self):
        processor = spm.SentencePieceProcessor(model_proto=_tokenizer())
        path = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory())) / "rows.npy"
        with array_files.array_file(path, (64,), np.uint16) as file:
            writer = tokenization.RowWriter(processor, file, 64, np.dtype(np.uint16))
            self.assertEqual(set(writer.finish().values()), {0})
        self.assertEqual(np.load(path).shape, (0, 64))


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

    @parameterized.parameters("length", "parallel_length")
    def test_rows_too_short_to_be_of_use(self, name):
        settings = {"length": 64, "parallel_length": 64, "num_workers": 1}
        with self.assertRaisesRegex(ValueError, f"store.{name} is 15, must be at least 16"):
            PackedDatasetSettings(**{**settings, name: 15})

    def test_shards_too_small_to_be_of_use(self):
        with self.assertRaisesRegex(ValueError, "store.shard_bytes is 1000, must be at least 1024"):
            PackedDatasetSettings(length=64, parallel_length=64, num_workers=1, shard_bytes=1000)


if __name__ == "__main__":
    absltest.main()
