"""Losses of each kind of task against numpy, and what they must not depend on."""

import dataclasses
import functools
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
from absl.testing import absltest, parameterized
from jax.test_util import check_grads

from tests import factories
from xlm.models.encoder import Context, Encoder
from xlm.models.heads import ClassificationHead, SpanHead, TaggingHead
from xlm.objectives import fine_tuning
from xlm.objectives.fine_tuning import TABLE, CrossPairFineTuning, FineTuning
from xlm.objectives.objective import Batch, gathered_rows
from xlm.training.accumulation import Accumulation

B, L, VOCAB, LABELS = 4, 6, 20, 3
# No layers: it compiles sooner, and tests/evaluation/tasks_test.py has some.
SETTINGS = factories.encoder_settings(
    vocab_size=VOCAB, hidden_size=8, num_layers=0, norm_position="post", dropout_rate=0.3
)

KINDS = {
    "classification": (ClassificationHead(LABELS, 0.3), fine_tuning.classification_loss),
    "classification by the mean": (
        ClassificationHead(LABELS, 0.3, "mean"),
        fine_tuning.classification_loss,
    ),
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
    """Outputs without dropout; loss and metrics, with a key with dropout."""
    return jax.device_get(_outputs_and_loss(kind, params(kind), arrays, key))


def batch(length: int = L) -> dict[str, np.ndarray]:
    """Rows of all kinds at once; the last row has weight 0, the third is short."""
    rng = np.random.default_rng(1)
    lengths = np.array([L, L, 4, L])
    index = np.arange(length)
    is_text = index < lengths[:, None]
    words = np.where(is_text & (index > 0) & (index < lengths[:, None] - 1), (index - 1) // 2, -1)
    num_words = (lengths[:, None] - 1) // 2
    tags = np.where(index < num_words, (index + np.arange(B)[:, None]) % LABELS, -1)
    tokens = np.ones((B, length), np.int32)
    tokens[:, :L] = np.where(is_text[:, :L], rng.integers(5, VOCAB, (B, L)), 1)
    answerable = is_text & (index != 1)
    return {
        "tokens": tokens,
        "segments": is_text.astype(np.int32),
        "positions": np.tile(index.astype(np.int32), (B, 1)),
        "words": words.astype(np.int32),
        "tags": tags.astype(np.int32),
        "answerable": answerable,
        "starts": np.array([0, 2, 2, 3], np.int32),
        "ends": np.array([0, 4, 3, 3], np.int32),
        "labels": np.array([0, 2, 1, 2], np.int32),
        "weights": np.array([1, 1, 1, 0], np.float32),
    }


def of_kind(kind: str, length: int = L) -> dict[str, np.ndarray]:
    found = batch(length)
    if kind == "regression":
        found["labels"] = np.array([0.5, 4.0, 2.5, 1.0], np.float32)
    return found


def log_likelihood(scores: np.ndarray, label: int) -> float:
    scores = scores.astype(np.float64)
    return scores[label] - scores.max() - np.log(np.sum(np.exp(scores - scores.max())))


def terms(kind: str, outputs: np.ndarray, found: dict[str, np.ndarray]) -> list[float]:
    """The terms of the loss of all rows of weight 1."""
    losses = []
    for row in range(B - 1):
        out = outputs[row]
        if kind.startswith("classification"):
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
    def test_the_loss_against_numpy(self, kind):
        found = of_kind(kind)
        outputs, metrics = outputs_and_loss(kind, found)
        expected = terms(kind, outputs, found)
        loss, weight = metrics["loss"]
        self.assertEqual(weight, len(expected))
        np.testing.assert_allclose(loss, np.sum(expected), rtol=1e-5)

    @parameterized.parameters("classification", "tagging")
    def test_accuracy(self, kind):
        found = of_kind(kind)
        outputs, metrics = outputs_and_loss(kind, found)
        best = np.argmax(outputs, axis=-1)
        labels = found["labels" if kind == "classification" else "tags"]
        right, weight = metrics["accuracy"]
        counted = labels[:-1] >= 0
        self.assertEqual(right, np.sum((best == labels)[:-1][counted]))
        self.assertEqual(weight, np.sum(counted))

    @parameterized.parameters(*KINDS)
    def test_rows_of_weight_0_do_not_matter(self, kind):
        one, two = of_kind(kind), of_kind(kind)
        for name, value in (("tokens", 7), ("labels", 1), ("starts", 5), ("ends", 5)):
            two[name][-1] = value
        two["tags"][-1] = 1 - two["tags"][-1].clip(0, 1)
        (_, a), (_, b) = (outputs_and_loss(kind, found) for found in (one, two))
        jax.tree.map(np.testing.assert_array_equal, a, b)

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

    def test_it_learns_nothing_besides_parameters(self):
        one = objective("tagging")
        self.assertEqual((one.init_extra(), one.tables, one.due(0)), ({}, (), ()))
        with self.assertRaisesRegex(NotImplementedError, "'index'.* are due, but nothing renews"):
            one.refresh(None, {}, ("index",), jnp.int32(0))


class CrossPairTest(absltest.TestCase):
    SETTINGS = dataclasses.replace(SETTINGS, num_layers=1, cross_attention=True)

    def test_each_text_is_decoded_with_the_other_one(self):
        head = ClassificationHead(LABELS, 0.3)
        one = CrossPairFineTuning(Encoder(self.SETTINGS), head, fine_tuning.classification_loss)
        found = factories.random_params(one, 0.5)
        self.assertEqual(found["task"]["dense"]["kernel"].shape, (16, 16))
        rng, lengths = np.random.default_rng(0), ((3, 4), (4, 3))  # few different ones
        texts = [[rng.integers(5, VOCAB, (1, size)) for size in row] for row in lengths]
        batch = {name: np.zeros((2, 8), np.int32) for name in ("tokens", "segments", "positions")}
        for row, pair in enumerate(texts):
            size = sum(lengths[row])
            batch["tokens"][row, :size] = np.concatenate(pair, axis=1)
            batch["segments"][row, :size] = np.repeat([1, 2], lengths[row])
            batch["positions"][row, :size] = np.concatenate([np.arange(n) for n in lengths[row]])
        states = np.asarray(jax.jit(one.hidden)(found["encoder"], batch))
        self.assertEqual(states.shape, (2, 1, 16))

        @functools.partial(jax.jit, static_argnames=("method", "is_causal"))
        def apply(tokens, *args, **kwargs):
            layout = np.ones(tokens.shape, np.int32), np.arange(tokens.shape[1])[None]
            return one.encoder.apply(
                {"params": found["encoder"]}, tokens, *layout, *args, deterministic=True, **kwargs
            )

        for row, pair in enumerate(texts):
            alone = [apply(tokens, method="encode") for tokens in pair]
            all_seen = np.ones((1, 1, 1, 1), bool)
            expected = [
                np.asarray(
                    apply(tokens, Context(other, all_seen), is_causal=False, method="decode")
                )[0, 0]
                for tokens, other in zip(pair, alone[::-1], strict=True)
            ]
            np.testing.assert_allclose(states[row, 0], np.concatenate(expected), atol=1e-5)


class ByRowsTest(parameterized.TestCase):
    @parameterized.parameters("tagging", "pairs")
    def test_rows_that_are_read_stand_for_the_table(self, kind):
        if kind == "pairs":
            head, loss = KINDS["classification"]
            one = CrossPairFineTuning(Encoder(CrossPairTest.SETTINGS), head, loss)
        else:
            one = objective(kind)
        by_rows = dataclasses.replace(one, by_rows=True)
        found = factories.random_params(one, 0.5)
        arrays = {name: array[:3] for name, array in batch().items()}
        arrays["segments"] = arrays["segments"] + (np.arange(L) > 2) * arrays["segments"]
        self.assertLess(arrays["tokens"].size, VOCAB)

        def gradients(one: FineTuning, found, key):
            plan, touched = one.plan({}, Batch(arrays, kind), key, jnp.int32(0))
            rows = gathered_rows(found, touched)

            def loss(params, rows):
                return one.loss(params, rows, plan, key)[0]["loss"][0]

            value, (of_params, of_rows) = jax.value_and_grad(loss, (0, 1))(found, rows)
            return value, of_params, of_rows, touched

        both = jax.jit(lambda *args: [gradients(x, *args) for x in (one, by_rows)])
        of_whole, of_part = jax.device_get(both(found, jax.random.key(0)))
        value, expected, nothing, touched = of_whole
        self.assertEqual((nothing, touched, by_rows.tables), ({}, {}, (TABLE,)))
        same, of_others, of_rows, touched = of_part
        np.testing.assert_allclose(same, value, rtol=1e-6)
        distinct = np.unique(arrays["tokens"])
        np.testing.assert_array_equal(touched[TABLE][: len(distinct)], distinct)
        np.testing.assert_array_equal(touched[TABLE][len(distinct) :], VOCAB)
        table = expected["encoder"]["embeddings"].pop("table")
        self.assertFalse(of_others["encoder"]["embeddings"].pop("table").any())
        np.testing.assert_allclose(of_rows[TABLE][: len(distinct)], table[distinct], atol=1e-6)
        self.assertGreater(np.abs(table[distinct]).min(axis=1).max(), 1e-4)
        jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, atol=1e-6), of_others, expected)

    def test_a_batch_of_more_tokens_than_there_are_reads_the_table(self):
        by_rows = dataclasses.replace(objective("tagging"), by_rows=True)
        given = Batch(batch(), "tagging")
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
        # The same rows as words of one sentence; -1 is no word.
        words = {"tags": np.array([[0, 2, 2, -1]]), "weights": np.ones(1, np.float32)}

        @jax.jit
        def all_losses(outputs, batch, words):
            return (
                fine_tuning.classification_loss(outputs, batch, by_class),
                fine_tuning.classification_loss(outputs, batch),
                fine_tuning.tagging_loss(outputs[None], words, by_class),
            )

        found, plain, tagged = jax.device_get(all_losses(outputs, batch, words))
        np.testing.assert_allclose(found["loss"][0], losses[:3] @ [2.0, 0.5, 0.5], rtol=1e-6)
        self.assertEqual(float(found["loss"][1]), 3.0)
        self.assertEqual(float(found["accuracy"][1]), 3.0)
        self.assertEqual(float(found["accuracy"][0]), float(plain["accuracy"][0]))
        for one, two in zip(tagged["loss"], found["loss"], strict=True):
            self.assertAlmostEqual(float(one), float(two), places=5)

    @parameterized.parameters(1, 2)
    def test_a_step_depends_on_their_ratios_alone(self, num_parts):
        """Also where they are so small that those of a batch sum to less than 1."""
        norms = []
        for scale in (1.0, 1e-3):
            weights = (2 * scale, 5 * scale, scale)
            loss = functools.partial(fine_tuning.classification_loss, class_weights=weights)
            weighted = dataclasses.replace(objective("classification"), task_loss=loss)
            functions = factories.train_functions(weighted, accumulation=Accumulation(num_parts, 0))
            state = factories.first_state(functions, params("classification"))
            arrays = jax.tree.map(jnp.asarray, batch())
            _, metrics = functions.train_step(weighted, state, Batch(arrays, "classification"))
            norms.append(float(metrics["grad_norm"][0]))
        self.assertGreater(norms[0], 0.1)
        self.assertAlmostEqual(norms[1] / norms[0], 1, places=4)


if __name__ == "__main__":
    absltest.main()
