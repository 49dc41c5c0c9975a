"""Tests of tokenizers that lack a special token; preparation_test.py has those of sequences."""

import numpy as np
import sentencepiece as spm
from absl.testing import parameterized

from input_pipeline import tokenization
from vocap import merge, model_proto


class FaultsTest(parameterized.TestCase):
    @parameterized.parameters(("<mask>", True), ("<pad>", True), ("<mask>", False))
    def test_a_tokenizer_without_a_special_token(self, token, is_missing):
        model = merge.write_model(["▁", "a"], np.array([-1.0, -2.0]))
        proto = model_proto.ModelProto.FromString(model)
        (piece,) = [one for one in proto.pieces if one.piece == token]
        if is_missing:
            proto.pieces.remove(piece)
        else:  # in the text it would become a mask
            piece.type = model_proto.ModelProto.SentencePiece.USER_DEFINED
        processor = spm.SentencePieceProcessor(model_proto=proto.SerializeToString())
        with self.assertRaisesRegex(ValueError, f"has no {token} token.*build_vocab.py"):
            tokenization.special_ids(processor)
