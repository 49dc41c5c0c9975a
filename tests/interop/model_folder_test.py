"""Model folders of either form: heads to start from, tokenizers beside them, places to write."""

import dataclasses
import io
import pathlib
from typing import Any
from unittest import mock

import numpy as np
import sentencepiece as spm
import transformers
from absl.testing import parameterized

from tests.interop.xlm_roberta_test import (
    PADDED,
    SETTINGS,
    SIZES,
    WIDTH,
    FolderTest,
    params_of,
    tokenizer,
)
from xlm.common import artifacts
from xlm.interop import huggingface, model_folder, task_heads, vocabulary, xlm_roberta

ENCODER = {key: value for key, value in params_of(SETTINGS).items() if key != "head"}


class InitialHeadTest(FolderTest):
    def write_tuned(self, suffix: str, modules: tuple[str, ...]) -> None:
        """Write the encoder with a head of a class of theirs."""
        layer = {"kernel": np.ones((WIDTH, 2), np.float32), "bias": np.ones(2, np.float32)}
        head = task_heads.TaskHead("a task", suffix, ("A", "B"), dict.fromkeys(modules, layer))
        model_folder.write_model(self.folder, ENCODER, SIZES, tokenizer(), task_head=head)

    def assert_refused(self, start: Any) -> None:
        with self.assertRaisesRegex(ValueError, "without a masked-LM head, .* fine-tuned model"):
            start(self.folder, dataclasses.asdict(PADDED), tokenizer())

    @parameterized.parameters(
        (task_heads.TOKENS, ("output",)), (task_heads.SEQUENCES, ("dense", "output"))
    )
    def test_a_fine_tuned_xlm_r_has_none(self, suffix, modules):
        self.write_tuned(suffix, modules)
        config = artifacts.read_json(self.folder / "config.json")
        self.assertEqual(config["architectures"], [f"XLMRobertaFor{suffix}"])
        self.assert_refused(model_folder.check_initial)
        self.assert_refused(model_folder.initial_params)
        # And should the names of its tensors not tell.
        with mock.patch.object(xlm_roberta.XLMRoberta, "HEAD", ""):
            self.assert_refused(model_folder.initial_params)


EXPORTED_KINDS = {
    "bytes": {"byte_fallback": True, "vocab_size": 300},
    "user-defined": {"user_defined_symbols": ["<sep>"]},
    "identity": {"normalization_rule_name": "identity"},
    "blanks": {"remove_extra_whitespaces": False, "split_by_whitespace": False},
}
OWN_KINDS = {
    "case": {"normalization_rule_name": "nmt_nfkc_cf"},
    "suffix": {"treat_whitespace_as_suffix": True},
    "prefix": {"add_dummy_prefix": False},
}


def own_model(kind: str, folder: pathlib.Path) -> bytes:
    """A tokenizer of a user's own, as build_vocab.py takes it."""
    content = io.BytesIO()
    own = (EXPORTED_KINDS | OWN_KINDS)[kind]
    options = {"vocab_size": 24, "hard_vocab_limit": False, "minloglevel": 2} | own
    lines = ["ab abc cd", "abc cdab", "h abc"]
    spm.SentencePieceTrainer.train(sentence_iterator=iter(lines), model_writer=content, **options)
    path = folder / "own.model"
    path.write_bytes(content.getvalue())
    return vocabulary.sentencepiece_model(path)


class OwnTokenizerTest(FolderTest):
    @parameterized.parameters(*EXPORTED_KINDS)
    def test_other_kinds_are_exported(self, kind):
        own = own_model(kind, self.parent)
        lines = ["ab abc  cd", " cdab<sep>h", "\u00e9 abc <0x41>\n", "ABC \uff41 "]
        self.assertEqual(huggingface.compare(own, huggingface.tokenizer_json(own), lines), [])

    @parameterized.product(kind=tuple(OWN_KINDS), position=("learned", "gated"))
    def test_the_model_is_written_with_sentencepiece_s_file_alone(self, kind, position):
        own = own_model(kind, self.parent)
        settings = dataclasses.replace(
            SETTINGS, vocab_size=len(vocabulary.vocabulary(own).pieces), position=position
        )
        sizes, params = dataclasses.asdict(settings), params_of(settings)
        with self.assertLogs(level="WARNING") as logs:
            model_folder.write_model(self.folder, params, sizes, own)
        self.assertIn("AutoTokenizer cannot read the model's folder: the tok", logs.output[0])
        self.assertEqual(
            {path.name for path in self.folder.iterdir()},
            {"config.json", "model.safetensors", "spm.model", "tokenizer_config.json"}
            | ({"modeling_vocap.py"} if position == "gated" else set()),
        )
        self.assertEqual(model_folder.read_tokenizer(self.folder), own)
        self.assertEqual(vocabulary.sentencepiece_model(self.folder), own)
        self.assert_same_bits(model_folder.initial_params(self.folder, sizes, own), params)
        with self.assertRaisesRegex(ValueError, "; read this one with sentencepi"):
            huggingface.export_tokenizer(own, self.parent / "alone")
        # Which would make one of five pieces in its place, were there no tokenizer_config.json.
        with self.assertRaisesRegex(ValueError, "instantiate the backend tokenizer"):
            transformers.AutoTokenizer.from_pretrained(self.folder)
