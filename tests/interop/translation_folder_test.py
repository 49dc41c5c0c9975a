"""Exported translation models: the run's hypotheses, token for token, in two other libraries."""

import contextlib
import functools
import pathlib
import re
import unittest
from typing import Any

import jax
import msgspec
import numpy as np
from absl.testing import parameterized

from tests import tiny_tasks, tiny_translation
from tests.cli.export_tuned_test import ExportCase
from tests.interop.xlm_roberta_parity_test import HAS_TORCH
from vocap.settings import EOS_ID
from xlm.common import artifacts
from xlm.experiment.translation_prediction import TranslationRun
from xlm.interop.params_file import read_params, write_params

try:
    from ctranslate2 import Translator, converters
except ImportError:
    converters = None

SOURCES = ["the cat runs", "dog .", "sleeps the the cat", "cat", "runs runs dog"]
DIRECTIONS = "en-de+en-fr"


@functools.cache
def run(norm_position: str, beams: int) -> pathlib.Path:
    """The folder of a run, with noise on its parameters so that its hypotheses differ."""
    folder = tiny_tasks.scratch() / f"translates-{norm_position}"
    config = tiny_translation.config(
        DIRECTIONS, translation__output_head=False, architecture__norm_position=norm_position,
        train__num_steps=2, train__averaged_checkpoints=0, train__evaluate_every=2,
        decoding__beams=beams,
    )  # fmt: skip
    tiny_tasks.run(config, folder)
    params, notes = read_params(folder / "best.safetensors")
    rng = np.random.default_rng(0)
    noisy = jax.tree.map(lambda x: x + rng.normal(0, 0.3, x.shape), params)
    noisy["decoder"]["head"]["bias"][EOS_ID] += 3  # so that most end
    write_params(folder / "best.safetensors", noisy, msgspec.to_builtins(notes))
    return folder


class TranslationFolderTest(ExportCase):
    @parameterized.parameters(("pre", 4), ("post", 1))
    @unittest.skipUnless(HAS_TORCH, "torch and transformers are not installed")
    def test_both_libraries_translate_as_the_run(self, norm_position, beams):
        import torch
        import transformers

        workdir = run(norm_position, beams)
        result = self.export(workdir)
        self.assertEqual(result.returncode, 0, result.stderr)
        translates = TranslationRun(workdir)
        expected = {one: translates(SOURCES, one) for one in DIRECTIONS.split("+")}
        self.assertNotEqual(*expected.values())

        model = transformers.AutoModelForSeq2SeqLM.from_pretrained(self.output).eval()
        name = {"pre": "MBart", "post": "Bart"}[norm_position]
        self.assertEqual(type(model).__name__, f"{name}ForConditionalGeneration")
        tokenizer = transformers.AutoTokenizer.from_pretrained(self.output)
        rows = tokenizer(SOURCES, padding=True, return_tensors="pt")
        # Symbols are no classes of the softmax.
        self.assertLess(model.final_logits_bias[0, tiny_tasks.VOCAB :].max(), -1e8)
        for direction, texts in expected.items():
            symbol = f"<2{direction[-2:]}>"
            first = tokenizer.convert_tokens_to_ids(symbol)
            self.assertEqual(first, tiny_tasks.VOCAB + list(expected).index(direction))
            with torch.no_grad():
                found = model.generate(**rows, decoder_start_token_id=first)
            decoded = tokenizer.batch_decode(found, skip_special_tokens=True)
            self.assertEqual([one.strip() for one in decoded], texts)
            with torch.no_grad():
                found = model.generate(**rows, decoder_start_token_id=first, num_beams=1)
            self.check_served(
                tokenizer, symbol, tokenizer.batch_decode(found, skip_special_tokens=True)
            )

    def check_served(self, tokenizer, symbol: str, texts: list[str]) -> None:
        """Compare greedy searches, since beam searches end by rules of their own."""
        if converters is None:
            return
        served = str(self.folder / "served")
        converters.TransformersConverter(str(self.output)).convert(served, force=True)
        tokens = [tokenizer.convert_ids_to_tokens(ids) for ids in tokenizer(SOURCES)["input_ids"]]
        prefix = [[symbol]] * len(tokens)
        config = pathlib.Path(served, "config.json")
        found = artifacts.read_json(config)
        if start := found["decoder_start_token"]:  # of Bart
            self.assertEqual(start, "<2de>")
            artifacts.write_json(config, {**found, "decoder_start_token": symbol})
            prefix = None
        results = Translator(served).translate_batch(
            tokens, target_prefix=prefix, beam_size=1, max_decoding_length=tiny_tasks.LENGTH - 1,
            min_decoding_length=0,
            suppress_sequences=[["<s>"], ["<pad>"], ["<unk>"], ["<mask>"]],
        )  # fmt: skip
        ids = (tokenizer.convert_tokens_to_ids(one.hypotheses[0]) for one in results)
        found = [tokenizer.decode(one, skip_special_tokens=True) for one in ids]
        self.assertEqual(found, texts)

    @unittest.skipUnless(HAS_TORCH, "torch and transformers are not installed")
    def test_the_code_of_the_card_runs(self):
        workdir = run("pre", 4)
        self.assertEqual(self.export(workdir).returncode, 0)
        card = (self.output / "README.md").read_text(encoding="utf-8")
        (code,) = re.findall(r"```python\n(.*?)```", card, re.DOTALL)
        names: dict[str, Any] = {}
        with contextlib.chdir(self.output):
            exec(compile(code.replace("A sentence", SOURCES[0]), "README.md", "exec"), names)
        texts = names["tokenizer"].batch_decode(names["found"], skip_special_tokens=True)
        (expected,) = TranslationRun(workdir)(SOURCES[:1], "en-de")
        self.assertEqual(texts[0].strip(), expected)
        self.assertIn('pipeline_tag: "translation"', card)
        self.assertIn("`<2de>`, `<2fr>`", card)

    @parameterized.parameters(
        ({"translation__output_head": True}, "has a dense layer before the output embeddings"),
        ({"architecture__position": "rotary"}, "model.position is 'rotary', there 'learned'"),
    )
    def test_what_neither_class_computes_is_refused(self, overrides, error):
        config = tiny_translation.config(**{"translation__output_head": False, **overrides})
        workdir = self.folder / "run"
        tiny_tasks.run(config, workdir)
        self.assert_refused(error, workdir)
        self.assertRegex(self.export(workdir, "--format=onnx").stderr, "has no place for a decoder")

    def test_a_decoder_without_a_head_needs_outputs_as_wide_as_the_embeddings(self):
        config = tiny_translation.config(
            translation__output_head=False, architecture__embedding_size=8
        )
        with self.assertRaisesRegex(ValueError, "translation.output_head is False, but embeddings"):
            tiny_tasks.run(config, self.folder / "run")
