"""Tests of tokenising text into packed sequences, with a real tokenizer."""

from unittest import mock

import numpy as np
import sentencepiece as spm
from absl.testing import parameterized

from input_pipeline import array_files, tokenization
from tests.folders import FolderTest
from tests.input_pipeline import reading
from vocap import merge, model_proto

_LETTERS = "▁abcdefghijklmnopqrstuvwxyz0123456789."
_LONG = " ".join(["more words than fit into a row"] * 20)


def _tokenizer() -> bytes:
    return merge.write_model(list(_LETTERS), -np.arange(1.0, len(_LETTERS) + 1))


class RowWriterTest(FolderTest):
    @parameterized.parameters(1, 60, 100_000)
    def test_sequences_do_not_depend_on_the_batches(self, characters):
        documents = [[f"number {i}.", "and so on."] for i in range(50)]
        documents += [["habari ya asubuhi", "ñandú"], [_LONG]]
        processor = spm.SentencePieceProcessor(model_proto=_tokenizer())
        tokens = [
            np.concatenate([*map(processor.encode, one)]).astype(np.uint32) for one in documents
        ]
        special, dtype = tokenization.special_ids(processor), np.dtype(np.uint16)
        path = self.folder / "rows.npy"
        self.enterContext(mock.patch.object(tokenization, "_CHARACTERS_AT_ONCE", characters))
        with array_files.array_file(path, (64,), dtype) as file:
            writer = tokenization.RowWriter(processor, file, 64, dtype)
            for document in documents:
                writer.add(document)
            found = writer.finish()
        expected, flat = (reading.pack_rows(tokens, 64, special, dtype), np.concatenate(tokens))
        np.testing.assert_array_equal(np.load(path), expected)
        counts = np.bincount(flat, minlength=len(writer.counts))
        np.testing.assert_array_equal(writer.counts, counts)
        size = len("".join(s + "\n" for one in documents for s in one))
        sums = {"rows": len(expected), "tokens": len(flat), "unknown": 2, "characters": size}
        self.assertEqual(found, sums)  # ñ and ú are unknown

    def test_no_text_makes_no_sequence(self):
        processor = spm.SentencePieceProcessor(model_proto=_tokenizer())
        path = self.folder / "rows.npy"
        with array_files.array_file(path, (64,), np.uint16) as file:
            writer = tokenization.RowWriter(processor, file, 64, np.dtype(np.uint16))
            self.assertEqual(set(writer.finish().values()), {0})
        self.assertEqual(np.load(path).shape, (0, 64))


class FaultsTest(parameterized.TestCase):
    @parameterized.parameters(("<mask>", True), ("<pad>", True), ("<mask>", False))
    def test_a_tokenizer_without_a_special_token(self, token, is_missing):
        proto = model_proto.ModelProto.FromString(_tokenizer())
        (piece,) = [one for one in proto.pieces if one.piece == token]
        if is_missing:
            proto.pieces.remove(piece)
        else:  # in the text it would become a mask
            piece.type = model_proto.ModelProto.SentencePiece.USER_DEFINED
        processor = spm.SentencePieceProcessor(model_proto=proto.SerializeToString())
        with self.assertRaisesRegex(ValueError, f"has no {token} token.*build_vocab.py"):
            tokenization.special_ids(processor)
