"""model.onnx of model folders in onnxruntime against the encoder, where PyTorch is installed."""

import dataclasses
import importlib.util
import sys
from unittest import mock

import jax
import numpy as np
from absl.testing import absltest, parameterized

from tests.interop.model_folder_test import GATED
from tests.interop.modeling_test import BLOCKS
from tests.interop.task_heads_parity_test import LABELS, batch_of, head_of
from tests.interop.xlm_roberta_parity_test import logits_of, states_of, texts
from tests.interop.xlm_roberta_test import LENGTH, SETTINGS, VOCAB, FolderTest, params_of, tokenizer
from xlm.common import artifacts
from xlm.interop import model_folder, onnx_folder
from xlm.interop.task_heads import SEQUENCES
from xlm.models.encoder import Encoder, EncoderSettings
from xlm.models.heads import ClassificationHead

# Distances at the edges of buckets, whose logarithms are whole numbers.
EDGES = dataclasses.replace(GATED, distance_buckets=16, max_distance=16)
HAS_ONNX = all(map(importlib.util.find_spec, ("torch", "transformers", "onnxruntime")))


@absltest.skipUnless(HAS_ONNX, "torch, transformers or onnxruntime is not installed")
class OnnxTest(FolderTest):
    def write(self, settings: EncoderSettings, head=None) -> dict:
        params, sizes = params_of(settings), dataclasses.asdict(settings)
        if head is not None:
            params = {key: value for key, value in params.items() if key != "head"}
        model_folder.write_model(self.folder, params, sizes, tokenizer(), task_head=head)
        return params

    def run_onnx(self, tokens: np.ndarray, is_text: np.ndarray) -> np.ndarray:
        import onnxruntime

        session = onnxruntime.InferenceSession(self.folder / "model.onnx")
        inputs = {"input_ids": tokens, "attention_mask": is_text}
        (found,) = session.run(None, {key: one.astype(np.int64) for key, one in inputs.items()})
        return found

    @parameterized.parameters(EDGES, BLOCKS[0])
    def test_states_of_any_sizes(self, settings):
        params, (tokens, is_text) = self.write(settings), texts(pad_id=1)
        config = artifacts.read_json(self.folder / "config.json")
        with mock.patch.object(onnx_folder, "_LARGEST", 0):  # with a file of weights
            onnx_folder.convert(self.folder, by_head=False)
        self.assertTrue((self.folder / "model.onnx.data").exists())
        self.assertFalse((self.folder / "model.safetensors").exists())
        del config["auto_map"]  # whose code is not in the folder
        self.assertEqual(artifacts.read_json(self.folder / "config.json"), config)
        states = np.asarray(states_of(settings, params, tokens, is_text))
        for rows, length in ((4, LENGTH), (1, LENGTH), (2, max(is_text[:2].sum(1)))):
            used = is_text[:rows, :length]
            found = self.run_onnx(tokens[:rows, :length], used)
            np.testing.assert_allclose(found[used], states[:rows, :length][used], atol=1e-4)

    def test_logits(self):
        params, (tokens, is_text) = self.write(SETTINGS), texts(pad_id=1)
        onnx_folder.convert(self.folder, by_head=True)
        logits = logits_of(SETTINGS, params, states_of(SETTINGS, params, tokens, is_text))
        self.assertNotIn(b"onnx_folder.py", (self.folder / "model.onnx").read_bytes())
        found = self.run_onnx(tokens, is_text)
        self.assertEqual(found.shape, (*tokens.shape, VOCAB))
        np.testing.assert_allclose(found[is_text], logits[is_text], atol=1e-4)

    def test_scores_of_a_task(self):
        batch = batch_of(np.broadcast_to(np.arange(LENGTH, dtype=np.int32), (4, LENGTH)))
        module = ClassificationHead(3, 0.1)
        objective, params, head = head_of("classification", module, SEQUENCES, LABELS)
        encoder = self.write(GATED, head)
        onnx_folder.convert(self.folder, by_head=True)
        objective = dataclasses.replace(objective, encoder=Encoder(GATED))
        mine = jax.jit(objective.outputs)({"encoder": encoder, "task": params}, batch)
        found = self.run_onnx(batch["tokens"], batch["segments"] > 0)
        np.testing.assert_allclose(found, mine, atol=1e-4)

    def test_refused(self):
        self.write(SETTINGS)
        missing = mock.patch.dict(sys.modules, onnxruntime=None)
        with missing, self.assertRaisesRegex(ValueError, r"--format=onnx: .*install '.\[onnx\]'"):
            onnx_folder.convert(self.folder, by_head=True)
