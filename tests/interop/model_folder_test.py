"""Model folders of either form: heads to start from, tokenizers beside them, places to write."""

import dataclasses
from typing import Any
from unittest import mock

import numpy as np
from absl.testing import absltest, parameterized

from common import artifacts
from interop import model_folder, task_heads, xlm_roberta
from tests.interop.xlm_roberta_test import (
    PADDED,
    SETTINGS,
    SIZES,
    WIDTH,
    FolderTest,
    params_of,
    tokenizer,
)

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
        with mock.patch.object(xlm_roberta.XLMRoberta, "has_head", return_value=True):
            self.assert_refused(model_folder.initial_params)

    def test_an_encoder_of_our_own_form_has_none(self):
        model_folder.write_model(self.folder, ENCODER, SIZES, tokenizer())
        self.assert_refused(model_folder.check_initial)

    def test_a_masked_lm_has_one(self):
        model_folder.write_model(self.folder, params_of(SETTINGS), SIZES, tokenizer())
        model_folder.check_initial(self.folder, dataclasses.asdict(PADDED), tokenizer())


if __name__ == "__main__":
    absltest.main()
