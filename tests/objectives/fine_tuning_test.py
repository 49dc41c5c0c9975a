"""Losses of each kind of task against numpy, and their invariances."""

import dataclasses
import functools
from unittest import mock

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from absl.testing import parameterized
from jax.test_util import check_grads

from tests import factories
from xlm.models.encoder import Context, Encoder
from xlm.models.heads import ClassificationHead, SpanHead, TaggingHead
from xlm.objectives import fine_tuning
from xlm.objectives.fine_tuning import TABLE, CrossPairFineTuning, FineTuning
from xlm.objectives.objective import Batch, gathered_rows, replace_table
from xlm.objectives.settings import LoraSettings
from xlm.training.accumulation import Accumulation

B, L, VOCAB, LABELS = 4, 6, 20, 3
# Without layers it compiles sooner; tests/evaluation/tasks_test.py has layers.
SETTINGS = factories.encoder_settings(
    vocab_size=VOCAB, hidden_size=8, num_layers=0, norm_position="post", dropout_rate=0.3
)

KINDS = {
    "classification": (ClassificationHead(LABELS, 0.3), fine_tuning.classification_loss),
    "by the mean": (ClassificationHead(LABELS, 0.3, "mean"), fine_tuning.classification_loss),
    "regression": (ClassificationHead(1, 0.3), fine_tuning.regression_loss),
    "tagging": (TaggingHead(LABELS, 0.3, "mean"), fine_tuning.tagging_loss),
    "extractive_qa": (SpanHead(), fine_tuning.span_loss),
}


@functools.cache
def objective(kind: str) -> FineTuning:
    return FineTuning(Encoder(SETTINGS), *KINDS[kind])


@functools.cache
def params(kind: str):
    return factories.random_params(objective(kind), 0.5)


@functools.partial(jax.jit, static_argnums=0)
def _outputs_and_loss(kind: str, values, arrays, key):
    one = objective(kind)
    return one.outputs(values, arrays), one.loss(values, {}, Batch(arrays, kind), key)[0]


def outputs_and_loss(kind: str, arrays: dict[str, np.ndarray], key: jax.Array | None = None):
    return jax.device_get(_outputs_and_loss(kind, params(kind), arrays, key))


def of_kind(kind: str, length: int = L) -> dict[str, np.ndarray]:
    """Rows for all kinds of tasks; the last row has weight 0, the third is short."""
    rng = np.random.default_rng(1)
    ends, index = np.array([[L], [L], [4], [L]]), np.arange(length)
    is_text = index < ends
    words = np.where(is_text & (index > 0) & (index < ends - 1), (index - 1) // 2, -1)
    tags = np.where(index < (ends - 1) // 2, (index + np.arange(B)[:, None]) % LABELS, -1)
    tokens = np.ones((B, length), np.int32)
    tokens[:, :L] = np.where(is_text[:, :L], rng.integers(5, VOCAB, (B, L)), 1)
    arrays = {
        "tokens": tokens, "segments": is_text, "positions": np.tile(index, (B, 1)), "words": words,
        "tags": tags, "starts": np.array([0, 2, 2, 3]), "ends": np.array([0, 4, 3, 3]),
        "labels": np.array([0, 2, 1, 2]),
    }  # fmt: skip
    arrays = {name: array.astype(np.int32) for name, array in arrays.items()}
    if kind == "regression":
        arrays["labels"] = np.array([0.5, 4.0, 2.5, 1.0], np.float32)
    weights = np.array([1, 1, 1, 0], np.float32)
    return {**arrays, "answerable": is_text & (index != 1), "weights": weights}


def log_likelihood(scores: np.ndarray, label: int) -> float:
    scores = scores.astype(np.float64)
    return scores[label] - scores.max() - np.log(np.sum(np.exp(scores - scores.max())))


def terms(kind: str, outputs: np.ndarray, found: dict[str, np.ndarray]) -> list[float]:
    losses = []
    for row in range(B - 1):
        out = outputs[row]
        if kind in ("classification", "by the mean"):
            losses.append(-log_likelihood(out, found["labels"][row]))
        elif kind == "regression":
            losses.append((out[0] - found["labels"][row]) ** 2)
        elif kind == "tagging":
            tags = [tag for tag in found["tags"][row] if tag >= 0]
            losses += [-log_likelihood(out[word], tag) for word, tag in enumerate(tags)]
        else:
            ends = (found["starts"][row], found["ends"][row])
            losses.append(-np.mean([log_likelihood(out[:, i], end) for i, end in enumerate(ends)]))
    return losses


class FineTuningTest(parameterized.TestCase):
    @parameterized.parameters(*KINDS)
    def test_the_loss_and_the_accuracy_against_numpy(self, kind):
        found = of_kind(kind)
        outputs, metrics = outputs_and_loss(kind, found)
        expected = terms(kind, outputs, found)
        loss, weight = metrics["loss"]
        self.assertEqual(weight, len(expected))
        np.testing.assert_allclose(loss, np.sum(expected), rtol=1e-5)
        if kind in ("classification", "by the mean", "tagging"):
            labels = found["tags" if kind == "tagging" else "labels"][:-1]
            right = np.sum((np.argmax(outputs, axis=-1)[:-1] == labels)[labels >= 0])
            self.assertEqual(metrics["accuracy"], (right, np.sum(labels >= 0)))

    @parameterized.parameters(*KINDS)
    def test_padding_does_not_matter(self, kind):
        (_, a), (_, b) = (outputs_and_loss(kind, of_kind(kind, size)) for size in (L, L + 3))
        jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-5), a, b)

    @parameterized.parameters(*KINDS)
    def test_dropout_is_in_training_alone(self, kind):
        found, keys = of_kind(kind), (None, jax.random.key(0), jax.random.key(1))
        outputs, metrics = zip(*(outputs_and_loss(kind, found, key) for key in keys), strict=True)
        self.assertLen({float(one["loss"][0]) for one in metrics}, 3)
        np.testing.assert_array_equal(outputs[1], outputs[2])

    @parameterized.parameters(*KINDS)
    def test_gradients_of_the_head(self, kind):
        found, one = of_kind(kind), objective(kind)
        hidden = jax.jit(one.hidden)(params(kind)["encoder"], found)

        def loss(task):
            params, plan = {"encoder": {}, "task": task}, Batch(found, kind)
            return one.loss(params, {}, plan, None)[0]["loss"][0]

        task = jax.tree.map(jnp.asarray, params(kind)["task"])
        with mock.patch.object(FineTuning, "hidden", lambda *_: hidden):
            check_grads(jax.jit(loss), (task,), 1, modes=["rev"], eps=1e-2)

    def test_the_head_of_pre_training_is_left_out(self):
        self.assertEqual(set(params("tagging")["encoder"]), {"embeddings"})


class CrossPairTest(parameterized.TestCase):
    SETTINGS = dataclasses.replace(SETTINGS, num_layers=1, cross_attention=True)

    def test_each_text_is_decoded_with_the_other_one(self):
        head = ClassificationHead(LABELS, 0.3)
        one = CrossPairFineTuning(Encoder(self.SETTINGS), head, fine_tuning.classification_loss)
        found = factories.random_params(one, 0.5)
        self.assertEqual(found["task"]["dense"]["kernel"].shape, (16, 16))
        rng, lengths = np.random.default_rng(0), ((3, 4), (4, 3))  # few distinct tokens
        texts = [[rng.integers(5, VOCAB, (1, size)) for size in row] for row in lengths]
        batch = {name: np.zeros((2, 8), np.int32) for name in ("tokens", "segments", "positions")}
        for row, pair in enumerate(texts):
            batch["tokens"][row, :7] = np.concatenate(pair, axis=1)
            batch["segments"][row, :7] = np.repeat([1, 2], lengths[row])
            batch["positions"][row, :7] = np.concatenate([np.arange(n) for n in lengths[row]])
        states = np.asarray(jax.jit(one.hidden)(found["encoder"], batch))
        self.assertEqual(states.shape, (2, 1, 16))

        @functools.partial(jax.jit, static_argnames=("method", "is_causal"))
        def apply(tokens, *args, **kwargs):
            layout = np.ones(tokens.shape, np.int32), np.arange(tokens.shape[1])[None]
            return one.encoder.apply(
                {"params": found["encoder"]}, tokens, *layout, *args, deterministic=True, **kwargs
            )

        for row, pair in enumerate(texts):
            alone, expected = [apply(tokens, method="encode") for tokens in pair], []
            for tokens, other in zip(pair, alone[::-1], strict=True):
                context = Context(other, np.ones((1, 1, 1, 1), bool))
                decoded = apply(tokens, context, is_causal=False, method="decode")
                expected.append(np.asarray(decoded)[0, 0])
            np.testing.assert_allclose(states[row, 0], np.concatenate(expected), atol=1e-5)

    @parameterized.parameters("tagging", "pairs")
    def test_rows_that_are_read_stand_for_the_table(self, kind):
        head, loss = KINDS["classification"]
        pairs = CrossPairFineTuning(Encoder(CrossPairTest.SETTINGS), head, loss)
        one = pairs if kind == "pairs" else objective(kind)
        by_rows = dataclasses.replace(one, by_rows=True)
        found = factories.random_params(one, 0.5)
        arrays = {name: array[:3] for name, array in of_kind(kind).items()}
        arrays["segments"] = arrays["segments"] + (np.arange(L) > 2) * arrays["segments"]
        self.assertLess(arrays["tokens"].size, VOCAB)

        def gradients(one: FineTuning, found, key):
            plan, touched = one.plan({}, Batch(arrays, kind), key, jnp.int32(0))

            def loss(params):
                rows = gathered_rows(params, touched)
                if rows:  # the table itself is not read
                    params = replace_table(params, TABLE, jnp.full((VOCAB, 8), jnp.nan))
                return one.loss(params, rows, plan, key)[0]["loss"][0]

            return jax.value_and_grad(loss)(found), touched

        both = jax.jit(lambda *args: [gradients(x, *args) for x in (one, by_rows)])
        (expected, nothing), (result, touched) = jax.device_get(both(found, jax.random.key(0)))
        self.assertEqual((nothing, by_rows.tables), ({}, (TABLE,)))
        jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, atol=1e-6), result, expected)
        distinct = np.unique(arrays["tokens"])
        table = expected[1]["encoder"]["embeddings"]["table"]
        self.assertGreater(np.abs(table[distinct]).min(axis=1).max(), 1e-4)
        np.testing.assert_array_equal(touched[TABLE][: len(distinct)], distinct)
        np.testing.assert_array_equal(touched[TABLE][len(distinct) :], VOCAB)
        # A batch with more tokens than table rows reads the table.
        given = Batch(of_kind(kind), kind)
        plan, touched = by_rows.plan({}, given, jax.random.key(0), jnp.int32(0))
        self.assertIs(plan, given)
        self.assertEqual(touched, {})


class ClassWeightsTest(parameterized.TestCase):
    def test_the_loss_is_a_mean_by_the_weights_of_the_classes(self):
        outputs = np.random.default_rng(0).normal(size=(4, 3)).astype(np.float32)
        labels, rows = np.array([0, 2, 2, 1]), np.array([1.0, 1.0, 1.0, 0.0], np.float32)
        losses = np.log(np.exp(outputs).sum(axis=1)) - outputs[range(4), labels]
        by_class = (2.0, 5.0, 0.5)
        batch = {"labels": labels, "weights": rows}
        # The same rows as words of a sentence; -1 is no word.
        words = {"tags": np.array([[0, 2, 2, -1]]), "weights": np.ones(1, np.float32)}

        @jax.jit
        def all_losses(outputs, batch, words):
            one = functools.partial(fine_tuning.classification_loss, outputs, batch)
            tagged = fine_tuning.tagging_loss(outputs[None], words, by_class)
            return one(by_class), one(), tagged

        found, plain, tagged = jax.device_get(all_losses(outputs, batch, words))
        np.testing.assert_allclose(found["loss"], (losses[:3] @ [2.0, 0.5, 0.5], 3), rtol=1e-6)
        self.assertEqual(found["accuracy"], (plain["accuracy"][0], 3))
        np.testing.assert_allclose(tagged["loss"], found["loss"], rtol=1e-6)

    def test_smoothed_labels_are_a_mixture_with_all_classes(self):
        outputs = np.random.default_rng(0).normal(size=(1, 3, 5)).astype(np.float32)
        labels, by_class = np.array([[4, 0, -1]]), (1.0, 2.0, 3.0, 4.0, 5.0)
        targets = 0.8 * np.eye(5)[[4, 0]] + 0.2 / 5
        log_p = outputs - np.log(np.exp(outputs).sum(axis=-1, keepdims=True))
        expected = -(targets * log_p[0, :2]).sum(axis=1) @ [5.0, 1.0]
        batch = {"tags": labels, "weights": np.ones(1, np.float32)}
        found = jax.jit(fine_tuning.tagging_loss, static_argnums=(2, 3))(
            outputs, batch, by_class, 0.2
        )
        np.testing.assert_allclose(found["loss"], (expected, 6), rtol=1e-5)
        batch = {"labels": labels[0, :2], "weights": np.ones(2, np.float32)}
        texts = fine_tuning.classification_loss(outputs[0, :2], batch, by_class, 0.2)
        np.testing.assert_allclose(texts["loss"], found["loss"], rtol=1e-6)

    @parameterized.parameters(1, 2)
    def test_a_step_depends_on_their_ratios_alone(self, num_parts):
        """Also for small weights, with a sum below 1."""
        norms = []
        for scale in (1.0, 1e-3):
            weights = (2 * scale, 5 * scale, scale)
            loss = functools.partial(fine_tuning.classification_loss, class_weights=weights)
            weighted = dataclasses.replace(objective("classification"), task_loss=loss)
            functions = factories.train_functions(weighted, accumulation=Accumulation(num_parts, 0))
            state = factories.first_state(functions, params("classification"))
            arrays = jax.tree.map(jnp.asarray, of_kind("classification"))
            _, metrics = functions.train_step(weighted, state, Batch(arrays, "classification"))
            norms.append(float(metrics["grad_norm"][0]))
        self.assertGreater(norms[0], 0.1)
        self.assertAlmostEqual(norms[1] / norms[0], 1, places=4)


ENCODER = Encoder(dataclasses.replace(SETTINGS, num_layers=2, dropout_rate=0.0))
WHOLE = FineTuning(ENCODER, ClassificationHead(LABELS, 0.0), fine_tuning.classification_loss)
LORA = dataclasses.replace(WHOLE, lora=LoraSettings(2, 3.0, ("attention/value", "mlp/wide")))


class LowRankTest(parameterized.TestCase):
    def loss_and_gradients(self, one: FineTuning, params):
        def loss(params):
            batch = Batch(of_kind("classification"), "text")
            total, weight = one.loss(params, {}, batch, jax.random.key(0))[0]["loss"]
            return total / weight

        return jax.device_get(jax.jit(jax.value_and_grad(loss))(params))

    def targets(self, params):
        return params["layers"]["attention"]["value"], params["layers"]["mlp"]["wide"]

    def test_gradients_are_those_of_merged_kernels_projected(self):
        params = factories.random_params(LORA)
        dense = {"encoder": jax.tree.map(np.copy, params["encoder"]), "task": params["task"]}
        factors = self.targets(params["lora"])
        for one, other in zip(factors, self.targets(dense["encoder"]), strict=True):
            for layer in range(2):
                other["kernel"][layer] += 3 / 2 * one["a"][layer] @ one["b"][layer]
        found, gradients = self.loss_and_gradients(LORA, params)
        expected, whole = self.loss_and_gradients(WHOLE, dense)
        np.testing.assert_allclose(found, expected, rtol=1e-5)
        ways = self.targets(gradients["lora"]), self.targets(whole["encoder"])
        for one, way, other in zip(factors, *ways, strict=True):
            for layer, kernel in enumerate(3 / 2 * other["kernel"]):
                of_a, of_b = kernel @ one["b"][layer].T, one["a"][layer].T @ kernel
                self.assertGreater(min(np.abs(of_a).max(), np.abs(of_b).max()), 1e-4)
                np.testing.assert_allclose(way["a"][layer], of_a, atol=1e-6)
                np.testing.assert_allclose(way["b"][layer], of_b, atol=1e-6)

    def test_the_start_is_the_encoder_itself(self):
        init = jax.jit(lambda one: nn.unbox(one.init(jax.random.key(1))), static_argnums=0)
        wide = dataclasses.replace(LORA, lora=LoraSettings(512, 1.0, LORA.lora.lora_targets))
        found, plain = init(wide), init(WHOLE)
        jax.tree.map(np.testing.assert_array_equal, wide.merged(found), plain)
        first = self.targets(found["lora"])[0]["a"]
        self.assertEqual(first.shape, (2, 8, 512))
        self.assertAlmostEqual(float(first.std()) * 8**0.5, 1, places=1)

    @parameterized.parameters((1, 1), (2, 1), (1, 4))
    def test_a_step_trains_factors_and_head_alone(self, parts, devices):
        functions = factories.train_functions(
            LORA, factories.optimizer_settings(frozen=("encoder",)),
            dataclasses.replace(factories.ONE_DEVICE, data=devices),
            accumulation=Accumulation(parts, 0),
        )  # fmt: skip
        params = factories.random_params(LORA)
        state = factories.first_state(functions, jax.tree.map(np.copy, params))
        moments = sum(x.size for x in jax.tree.leaves(state.opt_state) if x.ndim)
        batch = Batch(jax.tree.map(jnp.array, of_kind("classification")), "text")
        state, metrics = functions.train_step(LORA, state, batch)
        jax.tree.map(np.testing.assert_array_equal, state.params["encoder"], params["encoder"])
        _, gradients = self.loss_and_gradients(LORA, params)
        trained = jax.tree.leaves([gradients["lora"], gradients["task"]])
        self.assertEqual(moments, 2 * sum(x.size for x in trained))
        norm = np.sqrt(sum((x**2).sum() for x in trained))
        np.testing.assert_allclose(metrics["grad_norm"][0], norm, rtol=1e-4)
