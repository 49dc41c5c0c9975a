"""Model folders of either form: our own form, heads to start from, tokenizers beside them."""

import dataclasses
import io
import itertools
import pathlib
from typing import Any
from unittest import mock

import jax
import numpy as np
import sentencepiece as spm
import transformers
from absl.testing import parameterized
from safetensors.numpy import load_file, save_file

from tests.interop.xlm_roberta_test import (
    PADDED,
    SETTINGS,
    SIZES,
    VOCAB,
    WIDTH,
    FolderTest,
    flat,
    params_of,
    tokenizer,
)
from xlm.common import artifacts
from xlm.interop import huggingface, model_folder, task_heads, vocabulary, xlm_roberta
from xlm.models.settings import POSITIONS, EncoderSettings

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


COMPUTING = ("dtype", "attention", "remat", "unroll")  # not the model's
GATED = dataclasses.replace(
    SETTINGS, position="gated", distance_buckets=8, max_distance=6, distance_slope=0.5,
    initializer="fan_in",
)  # fmt: skip
OTHERS = [
    dataclasses.replace(GATED, position=position, norm_position=norm, embedding_size=size)
    for position, norm, size in itertools.product(POSITIONS, ("post", "pre"), (8, 16))
    if (position, norm, size) != ("learned", "post", 16)
]


class OwnFormTest(FolderTest):
    def write(self, settings: EncoderSettings = GATED) -> None:
        self.write_ours(settings)

    def change_config(self, **changes: Any) -> None:
        """Write other values into config.json; None takes a key out."""
        path = self.folder / "config.json"
        config = artifacts.read_json(path) | changes
        artifacts.write_json(path, {k: v for k, v in config.items() if v is not None})


class RoundTripTest(OwnFormTest):
    @parameterized.parameters(
        *OTHERS,
        dataclasses.replace(GATED, num_layers=0),
        dataclasses.replace(GATED, norm_epsilon=0.1),
    )
    def test_what_was_written_is_read_bit_by_bit(self, settings):
        self.write(settings)
        sizes, found = model_folder.read_model(self.folder)
        expected = dataclasses.asdict(settings)
        self.assertEqual(sizes, {k: v for k, v in expected.items() if k not in COMPUTING})
        self.assert_same_bits(found, params_of(settings))
        self.assertEqual(jax.tree.structure(found), jax.tree.structure(params_of(settings)))

    def test_the_files_say_it_without_our_code(self):
        self.write()
        config = artifacts.read_json(self.folder / "config.json")
        self.assertEqual((config["model_type"], config["format_version"]), ("vocap-encoder", 1))
        self.assertEqual(config["architectures"], ["VocapForMaskedLM"])
        tensors = load_file(self.folder / "model.safetensors")
        named = {name.replace("/", "."): array for name, array in flat(params_of(GATED)).items()}
        self.assertEqual(tensors.keys(), named.keys())
        jax.tree.map(np.testing.assert_array_equal, tensors, named)
        names = {path.name for path in self.folder.iterdir()}
        tokenizers = {"tokenizer.json", "tokenizer_config.json", "special_tokens_map.json"}
        others = {"config.json", "model.safetensors", "modeling_vocap.py", "spm.model"}
        self.assertEqual(names, others | tokenizers)

    def test_padding_is_left_out_and_put_back(self):
        padded = dataclasses.replace(GATED, vocab_size=PADDED.vocab_size)
        self.write(padded)
        sizes, found = model_folder.read_model(self.folder)
        self.assertEqual(sizes["vocab_size"], VOCAB)
        params = params_of(padded)
        table, bias = model_folder.table_of(params)
        cut = model_folder.with_table(params, table[:VOCAB], bias[:VOCAB])
        self.assert_same_bits(found, cut)
        start = model_folder.initial_params(self.folder, dataclasses.asdict(padded), tokenizer())
        table, bias = table.copy(), bias.copy()
        table[VOCAB:], bias[VOCAB:] = 0, 0
        self.assert_same_bits(start, model_folder.with_table(params, table, bias))

    @parameterized.parameters(
        ({}, ""),
        ({"position": "relative"}, "XLMRoberta, model.position is 'relative', there 'learn"),
        ({"norm_position": "pre", "embedding_size": 8},
         "model.norm_position is 'pre', there 'post'; model.embedding_size is 8 and "
         "model.hidden_size 16, there equal$"),
    )  # fmt: skip
    def test_why_transformers_cannot_load_it(self, change, message):
        settings = dataclasses.replace(SETTINGS, **change)
        reason = model_folder.why_not_transformers(dataclasses.asdict(settings))
        self.assertRegex(reason, message or "^$")
        self.write(settings)
        model_type = artifacts.read_json(self.folder / "config.json")["model_type"]
        self.assertEqual(model_type, "vocap-encoder" if change else "xlm-roberta")


class RefusedTest(OwnFormTest):
    @parameterized.parameters(
        ({"format_version": 2}, "format_version is 2, must be 1; read it with its version"),
        ({"max_distance": None}, "the object lacks the field max_distance"),
        ({"position": "alibi"}, 'position is "alibi", must be one of learned, rotary, relative, g'),
        ({"num_heads": 3}, "num_heads is 3, must be a divisor of hidden_size 16"),
    )  # fmt: skip
    def test_settings_that_cannot_be_are_named(self, changes, message):
        self.write()
        self.change_config(**changes)
        with self.assertRaisesRegex(ValueError, f"config.json: {message}"):
            model_folder.read_model(self.folder)

    def test_tensors_that_do_not_fit_are_named(self):
        self.write()
        path = self.folder / "model.safetensors"
        save_file(load_file(path) | {"distances.bias": np.ones((4, 2), np.float32)}, path)
        message = r"distances.bias has shape \(4, 2\), must be \(8, 2\)"
        with self.assertRaisesRegex(ValueError, message):
            model_folder.read_model(self.folder)

    def test_files_that_are_missing_or_damaged_are_named(self):
        self.write()
        (self.folder / "model.safetensors").unlink()
        with self.assertRaisesRegex(ValueError, "has neither .* again with xlm export"):
            model_folder.read_model(self.folder)
        # Parameters of other sizes are not written.
        sizes = dataclasses.asdict(dataclasses.replace(GATED, distance_buckets=16))
        with self.assertRaisesRegex(ValueError, r"distances.bias has shape \(8, 2\), must be \(16"):
            model_folder.write_model(self.parent / "new", params_of(GATED), sizes, tokenizer())
        self.assertEqual([path.name for path in self.parent.iterdir()], ["model"])


class InitialTest(OwnFormTest):
    def differing(self, there: EncoderSettings, **change: Any) -> list[str]:
        """Lines of the error of a run that differs from a folder's model; none without error."""
        self.write(there)
        now = dataclasses.asdict(dataclasses.replace(there, **change))
        try:
            model_folder.check_initial(self.folder, now, tokenizer())
        except ValueError as error:
            return str(error).splitlines()[1:-1]
        return []

    @parameterized.parameters(
        {"position": "relative"}, {"distance_buckets": 12}, {"max_distance": 7},
        {"norm_epsilon": 0.1}, {"position": "learned", "distance_buckets": 12},
    )  # fmt: skip
    def test_settings_that_differ_are_named(self, **change):
        expected = [f"  model.{key}: there {getattr(GATED, key)!r}, now {value!r}"
                    for key, value in change.items()]  # fmt: skip
        # What the positions do not use is free.
        free = {"rotary_theta": 5.0} if change.get("position") == "learned" else {}
        self.assertEqual(self.differing(GATED, **change, **free), expected)

    def test_what_its_positions_do_not_use_is_free(self):
        rotary = dataclasses.replace(GATED, position="rotary")
        changes = {"distance_buckets": 12, "distance_slope": 0.0, "initializer": "normal"}
        self.assertEqual(self.differing(rotary, **changes, dropout_rate=0.0), [])
        self.folder = self.parent / "other"
        expected = ["  model.rotary_theta: there 10000.0, now 500000.0"]
        self.assertEqual(self.differing(rotary, rotary_theta=5e5), expected)
