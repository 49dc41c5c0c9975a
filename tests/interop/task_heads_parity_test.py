"""Fine-tuned encoders with their heads against PyTorch and `transformers`, where installed."""

import dataclasses
from typing import Any

import flax.linen as nn
import jax
import numpy as np
from absl.testing import absltest, parameterized
from safetensors.numpy import load_file

from tests import tiny_tasks
from tests.interop.xlm_roberta_parity_test import HAS_TORCH, XL, texts, transformers
from tests.interop.xlm_roberta_test import LENGTH, SETTINGS, FolderTest, params_of, tokenizer
from xlm.common import artifacts
from xlm.experiment import fine_tuning as builders
from xlm.interop import model_folder, task_heads
from xlm.interop.task_heads import TaskHead
from xlm.models.encoder import Encoder
from xlm.models.heads import ClassificationHead, SpanHead, TaggingHead
from xlm.objectives import fine_tuning
from xlm.objectives.fine_tuning import FineTuning

MODERN = {
    "position": "rotary", "norm_position": "pre", "mlp": "geglu", "norm": "layer_no_bias",
    "bias": False, "first_norm": False, "local_window": 4, "global_every": 2,
}  # fmt: skip
LABELS = ("entailment", "neutral", "contradiction")


def head_of(kind: str, module: nn.Module, suffix: str, labels: tuple[str, ...]):
    """The objective of a head, the parameters of both, and the head as it is exported."""
    objective = FineTuning(Encoder(SETTINGS), module, fine_tuning.classification_loss)
    rng = np.random.default_rng(3)
    params = jax.tree.map(
        lambda x: (0.5 * rng.normal(size=x.shape)).astype(np.float32),
        nn.unbox(jax.eval_shape(objective.init_head, jax.random.key(0))),
    )
    pooling = module.pooling if suffix == task_heads.SEQUENCES else "first"
    return objective, params, TaskHead(kind, suffix, labels, params, pooling)


def batch_of(words: np.ndarray | None = None) -> dict[str, np.ndarray]:
    """Rows of different lengths, padded, of which any token may be an answer's."""
    tokens, is_text = texts(pad_id=1)
    return {
        "tokens": tokens,
        "segments": is_text.astype(np.int32),
        "positions": np.broadcast_to(np.arange(LENGTH, dtype=np.int32), tokens.shape),
        "words": np.zeros_like(tokens) if words is None else words,
        "answerable": is_text,
    }


@absltest.skipUnless(HAS_TORCH, "torch and transformers are not installed")
class HeadParityTest(FolderTest):
    def both(
        self, made: tuple[FineTuning, Any, TaskHead], batch: dict[str, np.ndarray], **changes: Any
    ) -> tuple[np.ndarray, Any]:
        """Our outputs for a batch, and theirs by the class that they load."""
        import torch

        objective, params, head = made
        settings = dataclasses.replace(SETTINGS, **changes)
        encoder = {key: value for key, value in params_of(settings).items() if key != "head"}
        objective = dataclasses.replace(objective, encoder=Encoder(settings))
        sizes = dataclasses.asdict(settings)
        if "final_norm" in encoder:
            # Of any size: heads of ModernBERT divide by it.
            scale = np.geomspace(0.01, 30, settings.hidden_size).astype(np.float32)
            encoder = {**encoder, "final_norm": {**encoder["final_norm"], "scale": scale}}
        model_folder.write_model(self.folder, encoder, sizes, tokenizer(), task_head=head)
        read = model_folder.read_task_head(self.folder)
        self.assertEqual(
            (read.class_suffix, read.labels, read.pooling),
            (head.class_suffix, head.labels, head.pooling),
        )
        jax.tree.map(np.testing.assert_array_equal, read.params, head.params)
        loader = getattr(transformers(), f"AutoModelFor{head.class_suffix}")
        model, report = loader.from_pretrained(self.folder, output_loading_info=True)
        self.assertEmpty({key: value for key, value in report.items() if value})
        self.names = model.config.id2label
        self.their_class = type(model).__name__
        mine = jax.jit(objective.outputs)({"encoder": encoder, "task": params}, batch)
        with torch.no_grad():
            theirs = model.eval()(
                torch.tensor(batch["tokens"].astype(np.int64)),
                attention_mask=torch.tensor(batch["segments"].astype(np.int64)),
            )
        return np.asarray(mine), theirs

    def assert_equal(self, mine: np.ndarray, theirs: np.ndarray):
        self.assertGreater(theirs.std(), 0.2)
        np.testing.assert_allclose(mine, theirs, rtol=0, atol=1e-4)

    @parameterized.parameters(
        ({}, "XLMRoberta"), (XL, "XLMRobertaXL"), (MODERN, "ModernBert"),
        (MODERN, "ModernBert", "mean"),
    )  # fmt: skip
    def test_classes(self, changes, name, pooling="first"):
        module = ClassificationHead(3, 0.1, pooling, 1e-5 if changes is MODERN else None)
        head = head_of("classification", module, task_heads.SEQUENCES, LABELS)
        mine, theirs = self.both(head, batch_of(), **changes)
        self.assert_equal(mine, theirs.logits.numpy())
        self.assertEqual(self.names, dict(enumerate(LABELS)))
        self.assertEqual(self.their_class, f"{name}ForSequenceClassification")
        config = artifacts.read_json(self.folder / "config.json")
        self.assertEqual(config["label2id"], {"entailment": 0, "neutral": 1, "contradiction": 2})
        if changes:
            return
        self.folder = self.folder.with_name("number")
        head = head_of("regression", ClassificationHead(1, 0.1), task_heads.SEQUENCES, ())
        mine, theirs = self.both(head, batch_of())
        self.assert_equal(mine, theirs.logits.numpy())
        config = artifacts.read_json(self.folder / "config.json")
        self.assertEqual(config["problem_type"], "regression")

    @parameterized.parameters(
        ("first", {}, "XLMRoberta"), ("mean", {}, "XLMRoberta"), ("mean", XL, "XLMRobertaXL"),
        ("mean", MODERN, "ModernBert"),
    )  # fmt: skip
    def test_tags_of_words_of_several_tokens(self, pooling, changes, name):
        _, is_text = texts(pad_id=1)
        words = np.where(is_text, (np.arange(LENGTH) - 1) // 2, -1).astype(np.int32)
        words[:, 0] = -1  # <s>
        head = head_of("tagging", TaggingHead(3, 0.1, pooling), task_heads.TOKENS, LABELS)
        mine, theirs = self.both(head, batch_of(words), **changes)
        self.assertEqual(self.their_class, f"{name}ForTokenClassification")
        by_token = theirs.logits.numpy()
        found, expected = [], []
        for row, own in enumerate(words):
            for word in range(own.max() + 1):
                tokens = np.flatnonzero(own == word)[: 1 if pooling == "first" else None]
                expected.append(by_token[row, tokens].mean(axis=0))
                found.append(mine[row, word])
        self.assertGreater(len(found), 15)
        self.assert_equal(np.stack(found), np.stack(expected))

    @parameterized.parameters(({}, "XLMRoberta"), (XL, "XLMRobertaXL"), (MODERN, "ModernBert"))
    def test_spans(self, changes, name):
        head = head_of("extractive_qa", SpanHead(), task_heads.SPANS, ())
        batch = batch_of()
        mine, theirs = self.both(head, batch, **changes)
        self.assertEqual(self.their_class, f"{name}ForQuestionAnswering")
        scores = np.stack([theirs.start_logits.numpy(), theirs.end_logits.numpy()], axis=-1)
        self.assert_equal(mine[batch["answerable"]], scores[batch["answerable"]])


class OwnFormTest(FolderTest):
    def test_texts_have_modern_berts_head_on_its_encoder(self):
        modern = dataclasses.replace(SETTINGS, **MODERN, norm_epsilon=1e-3)
        for settings, epsilon in ((SETTINGS, None), (modern, 1e-3)):
            found = builders.with_head(tiny_tasks.config("glue", "cola,"), settings).head
            self.assertEqual(found.norm_epsilon, epsilon)

    def test_an_encoder_that_is_no_xlm_r_keeps_its_head_and_can_be_read(self):
        settings = dataclasses.replace(SETTINGS, position="gated")
        sizes = dataclasses.asdict(settings)
        encoder = {key: value for key, value in params_of(settings).items() if key != "head"}
        _, params, head = head_of(
            "classification", ClassificationHead(3, 0.1), task_heads.SEQUENCES, LABELS
        )
        reason = model_folder.why_not_transformers(sizes, task_head=head)
        self.assertIn("model.position is 'gated'", reason)
        self.assertNotIn("masked-LM head", reason)
        model_folder.write_model(self.folder, encoder, sizes, tokenizer(), task_head=head)
        config = artifacts.read_json(self.folder / "config.json")
        self.assertEqual(config["task"]["labels"], list(LABELS))
        tensors = load_file(self.folder / "model.safetensors")
        np.testing.assert_array_equal(tensors["task.dense.kernel"], params["dense"]["kernel"])
        found, read = model_folder.read_model(self.folder)
        self.assertEqual(found["position"], "gated")
        jax.tree.map(np.testing.assert_array_equal, read, encoder)
        # As is a head without a class.
        _, _, head = head_of("toy", ClassificationHead(3, 0.1), "", LABELS)
        reason = model_folder.why_not_transformers(dataclasses.asdict(SETTINGS), task_head=head)
        self.assertRegex(reason, "no class .* of kind toy$")

    def test_a_head_of_other_parts_or_outputs_is_refused(self):
        _, params, _ = head_of("tagging", TaggingHead(3, 0.1, "mean"), task_heads.TOKENS, LABELS)
        with self.assertRaisesRegex(ValueError, r"parts .'output'.* must have .'dense', 'outp"):
            TaskHead("classification", task_heads.SEQUENCES, LABELS, params)
        with self.assertRaisesRegex(ValueError, "3 outputs and 2 labels"):
            TaskHead("tagging", task_heads.TOKENS, LABELS[:2], params)
