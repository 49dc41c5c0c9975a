"""The modelling file of our own form, by `trust_remote_code`, against the encoder."""

import dataclasses
from typing import Any
from unittest import mock

import jax
import numpy as np
from absl.testing import absltest, parameterized

from tests.interop.model_folder_test import GATED, OTHERS
from tests.interop.task_heads_parity_test import LABELS, batch_of, head_of
from tests.interop.xlm_roberta_parity_test import (
    HAS_TORCH,
    logits_of,
    states_of,
    texts,
    transformers,
)
from tests.interop.xlm_roberta_test import LENGTH, VOCAB, FolderTest, params_of, tokenizer
from tests.models import encoder_test
from xlm.interop import model_folder
from xlm.interop.task_heads import SEQUENCES, SPANS, TOKENS
from xlm.models.encoder import Encoder, EncoderSettings
from xlm.models.heads import ClassificationHead, SpanHead, TaggingHead
from xlm.models.segments import segment_mask
from xlm.models.transformer import Context

CROSSED = dataclasses.replace(GATED, cross_attention=True, norm_position="pre")
BLOCKS = [
    dataclasses.replace(blocks, vocab_size=VOCAB, max_length=LENGTH)
    for blocks in (encoder_test.MODERN, encoder_test.RMS)
]


@absltest.skipUnless(HAS_TORCH, "torch and transformers are not installed")
class ModelingTest(FolderTest):
    def setUp(self):
        super().setUp()
        transformers()
        from transformers import dynamic_module_utils

        cache = str(self.folder.parent / "modules")
        self.enter_context(mock.patch.object(dynamic_module_utils, "HF_MODULES_CACHE", cache))

    def load(self, suffix: str, settings: EncoderSettings, params: Any, head: Any = None):
        sizes = dataclasses.asdict(settings)
        model_folder.write_model(self.folder, params, sizes, tokenizer(), task_head=head)
        loader = getattr(transformers(), f"AutoModel{suffix}")
        model, report = loader.from_pretrained(
            self.folder, trust_remote_code=True, output_loading_info=True
        )
        missing = {key: value for key, value in report.items() if value and "unexp" not in key}
        self.assertEmpty(missing)
        return model.eval()

    def assert_close(self, mine: Any, theirs: Any, is_text: np.ndarray):
        mine, theirs = np.asarray(mine)[is_text], theirs.detach().numpy()[is_text]
        self.assertGreater(np.std(theirs), 0.2)
        np.testing.assert_allclose(mine, theirs, rtol=0, atol=1e-4)

    @parameterized.parameters(*OTHERS, *BLOCKS, CROSSED, dataclasses.replace(GATED, num_layers=0))
    def test_states_and_logits(self, settings):
        import torch

        params, (tokens, is_text) = params_of(settings), texts(pad_id=1)
        model = self.load("ForMaskedLM", settings, params)
        found = model(
            torch.tensor(tokens.astype(np.int64)), torch.tensor(is_text.astype(np.int64)),
            output_hidden_states=True,
        )  # fmt: skip
        states = states_of(settings, params, tokens, is_text)
        self.assert_close(states, found.hidden_states[-1], is_text)
        self.assert_close(logits_of(settings, params, states), found.logits, is_text)

    @parameterized.parameters(True, False)
    def test_cross_attention(self, is_causal):
        import torch

        params, (tokens, is_text) = params_of(CROSSED), texts(pad_id=1)
        segments = is_text.astype(np.int32)
        context = np.random.default_rng(0).normal(size=(*tokens.shape, 16)).astype(np.float32)
        sees = np.arange(LENGTH) < np.array([[3], [LENGTH], [7], [2]])
        mine = Encoder(CROSSED).apply(
            {"params": params}, tokens, segments,
            np.broadcast_to(np.arange(LENGTH), tokens.shape),
            Context(context, segment_mask(np.ones_like(segments), sees.astype(np.int32))),
            is_causal=is_causal, deterministic=True, method="decode",
        )  # fmt: skip
        found = self.load("", CROSSED, params)(
            torch.tensor(tokens.astype(np.int64)), torch.tensor(segments.astype(np.int64)),
            encoder_hidden_states=torch.tensor(context), is_causal=is_causal,
            encoder_attention_mask=torch.tensor(sees.astype(np.int64)),
        )  # fmt: skip
        self.assert_close(mine, found.last_hidden_state, is_text)

    @parameterized.parameters(
        (SEQUENCES, ClassificationHead(3, 0.1), "first", LABELS),
        (SEQUENCES, ClassificationHead(3, 0.1, "mean"), "mean", LABELS),
        (SEQUENCES, ClassificationHead(1, 0.1, "mean"), "mean", ()),
        (SEQUENCES, ClassificationHead(3, 0.1, norm_epsilon=1e-5), "first", LABELS),
        (TOKENS, TaggingHead(3, 0.1, "first"), "first", LABELS),
        (SPANS, SpanHead(), "first", ()),
    )
    def test_heads(self, suffix, module, pooling, labels):
        import torch

        batch = batch_of(np.broadcast_to(np.arange(LENGTH, dtype=np.int32), (4, LENGTH)))
        objective, params, head = head_of("classification", module, suffix, labels)
        blocks = {"norm": "layer_no_bias", "bias": False} if head.has_norm else {}
        settings = dataclasses.replace(GATED, **blocks)
        encoder = {key: value for key, value in params_of(settings).items() if key != "head"}
        objective = dataclasses.replace(objective, encoder=Encoder(settings))
        mine = jax.jit(objective.outputs)({"encoder": encoder, "task": params}, batch)
        head = dataclasses.replace(head, pooling=pooling)
        model = self.load(f"For{suffix}", settings, encoder, head)
        self.assertEqual(tuple(model.config.id2label.values())[: len(labels)], labels)
        is_text = batch["segments"] > 0
        found = model(
            torch.tensor(batch["tokens"].astype(np.int64)), torch.tensor(is_text.astype(np.int64))
        )
        if suffix == SPANS:
            self.assert_close(mine[..., 0], found.start_logits, is_text)
            self.assert_close(mine[..., 1], found.end_logits, is_text)
        else:
            rows = is_text if suffix == TOKENS else np.ones(len(is_text), bool)
            self.assert_close(mine, found.logits, rows)
        # The folder is still what other commands start from.
        _, read = model_folder.read_model(self.folder)
        jax.tree.map(np.testing.assert_array_equal, read, encoder)
