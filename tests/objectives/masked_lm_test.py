"""Masked language modelling: sampled against exact, against numpy, and what it does not see."""

import dataclasses
import functools

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from absl.testing import absltest

from knn_sampling.output_layer import OutputLayer
from models.encoder import Encoder, EncoderSettings, output_table
from objectives.masked_lm import MaskedLM
from objectives.masking import MaskSettings, mask_tokens

BOS, PAD, EOS, UNK, MASK = range(5)
SPECIAL = (BOS, PAD, EOS, MASK)
B, L, VOCAB, PADDED = 4, 16, 30, 32
ENCODER = EncoderSettings(
    vocab_size=PADDED,
    embedding_size=8,
    hidden_size=16,
    num_layers=1,
    num_heads=2,
    mlp_size=16,
    max_length=L,
    norm_position="pre",
    dropout_rate=0.1,
    attention_dropout_rate=0.0,
    dtype="float32",
)
# Every word is every word's neighbour, so that V' is the whole vocabulary.
WHOLE = OutputLayer(
    kind="knn",
    num_valid=VOCAB,
    k=VOCAB,
    capacity=PADDED,
    refresh_every=1,
    block_size=16,
    log_q_correction=False,
    exact_fraction=0.0,
    frequency_bias=False,
)
MASKS = MaskSettings(rate=0.3, mask_share=0.8, random_share=0.1)


def objective_with(layer: OutputLayer = WHOLE, encoder: EncoderSettings = ENCODER) -> MaskedLM:
    return MaskedLM(
        encoder=Encoder(encoder),
        output_layer=layer,
        mask=MASKS,
        bos=BOS,
        pad=PAD,
        mask_id=MASK,
        never_masked=SPECIAL,
        across_documents=False,
        target_probabilities=jnp.full(PADDED, 1 / VOCAB),
        num_targets=B * MASKS.slots(L),
    )


@functools.cache
def params():
    """Parameters away from their initial values, among which are too many zeros and ones."""
    boxed = jax.eval_shape(lambda: objective_with().init(jax.random.key(0), L))
    rng = np.random.default_rng(0)
    return jax.tree.map(lambda x: (0.3 * rng.normal(size=x.shape)).astype(x.dtype), nn.unbox(boxed))


def tokens(seed: int = 0) -> np.ndarray:
    """Rows of two documents and some padding, [B, L]."""
    rows = np.random.default_rng(seed).integers(MASK + 1, VOCAB, (B, L)).astype(np.int32)
    rows[:, [0, 6]], rows[:, [5, 13]], rows[:, 14:] = BOS, EOS, PAD
    return rows


@functools.partial(jax.jit, static_argnames=("layer", "exact"))
def _value_and_gradients(params, rows, layer: OutputLayer, exact: bool):
    objective = objective_with(layer)
    index = objective.index(params) if layer.uses_neighbours else None

    def loss(params):
        batch, key = {"tokens": rows}, jax.random.key(7)
        sums = objective.sums(params, index, batch, key, exact=exact)
        return sums["loss"][0], sums

    return jax.grad(loss, has_aux=True)(params)


def value_and_gradients(rows, layer: OutputLayer = WHOLE, exact: bool = False):
    """Sums of a batch and the gradients of its summed loss, dropout on."""
    gradients, sums = _value_and_gradients(params(), rows, layer, exact)
    return sums, gradients


class OutputLayersTest(absltest.TestCase):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        full = dataclasses.replace(WHOLE, kind="full")
        cls.sums, cls.gradients = value_and_gradients(tokens(), full)

    def assert_is_full(self, sums, gradients):
        check = functools.partial(np.testing.assert_allclose, rtol=1e-5, atol=1e-6)
        jax.tree.map(check, sums, self.sums)
        jax.tree.map(check, gradients, self.gradients)
        self.assertGreater(jnp.abs(gradients["embeddings"]["table"]).max(), 0.1)

    def test_sampling_with_room_for_all_words_is_the_full_softmax(self):
        sums, gradients = value_and_gradients(tokens())
        self.assertEqual(sums["candidates"][0], VOCAB)
        self.assertEqual(sums["overflow"][0], 0)
        self.assert_is_full(sums, gradients)

    def test_exact_steps_do_not_sample(self):
        few = dataclasses.replace(WHOLE, k=1, capacity=B * MASKS.slots(L), log_q_correction=True)
        self.assert_is_full(*value_and_gradients(tokens(), few, exact=True))

    def test_padding_rows_of_the_vocabulary_get_no_gradient(self):
        for gradients in (self.gradients, value_and_gradients(tokens())[1]):
            table, bias = output_table(gradients)
            np.testing.assert_array_equal(table[VOCAB:], 0)
            np.testing.assert_array_equal(bias[VOCAB:], 0)
            self.assertTrue((bias[:VOCAB] != 0).all())

    def test_a_batch_without_text_costs_nothing(self):
        for rows in (np.full((B, L), PAD, np.int32), np.tile([BOS, EOS], (B, L // 2))):
            sums, gradients = value_and_gradients(rows.astype(np.int32))
            self.assertEqual(sums["loss"], (0, 0))
            jax.tree.map(lambda x: np.testing.assert_array_equal(x, 0), gradients)

    def test_only_sampling_has_an_index(self):
        full = objective_with(dataclasses.replace(WHOLE, kind="full", exact_fraction=0.5))
        self.assertIsNone(full.empty_index())
        self.assertEqual((full.refresh_every, full.exact_fraction), (0, 0))
        sampled = objective_with(dataclasses.replace(WHOLE, refresh_every=3, exact_fraction=0.5))
        self.assertEqual((sampled.refresh_every, sampled.exact_fraction), (3, 0.5))
        shapes = jax.eval_shape(lambda: sampled.index(params()))
        expected = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), shapes)
        self.assertEqual(expected, jax.eval_shape(sampled.empty_index))


class PredictionsTest(absltest.TestCase):
    """Without dropout."""

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        full = dataclasses.replace(WHOLE, kind="full")
        cls.objective = objective_with(full, dataclasses.replace(ENCODER, dropout_rate=0.0))
        cls.predict = staticmethod(jax.jit(cls.objective.predictions))

    def test_the_loss_is_that_of_the_masked_tokens(self):
        key = jax.random.key(3)
        sums = jax.jit(self.objective.sums)(params(), None, {"tokens": tokens()}, key)
        masked = mask_tokens(
            jax.random.split(key)[0],
            jnp.asarray(tokens()),
            MASKS,
            vocab_size=VOCAB,
            mask_id=MASK,
            never_masked=SPECIAL,
        )
        masked = jax.tree.map(np.asarray, masked)
        everywhere = np.tile(np.arange(L), (B, 1))
        hidden = np.asarray(self.predict(params(), masked.inputs, everywhere), np.float64)
        table, bias = (np.asarray(x, np.float64)[:VOCAB] for x in output_table(params()))
        losses = []
        for row, slot in zip(*np.nonzero(masked.weights), strict=True):
            at = masked.positions[row, slot]
            exps = np.exp(hidden[row, at] @ table.T + bias)
            losses.append(-np.log(exps[tokens()[row, at]] / exps.sum()))
        self.assertEqual(sums["loss"][1], len(losses))
        self.assertEqual(len(losses), B * 3)  # 30 % of the eleven text tokens of a row
        np.testing.assert_allclose(sums["loss"][0], np.sum(losses), rtol=1e-5)

    def test_positions_pick_from_the_row(self):
        everywhere = np.tile(np.arange(L), (B, 1))
        picked = np.random.default_rng(0).permuted(everywhere, axis=1)
        expected = self.predict(params(), tokens(), everywhere)
        expected = np.take_along_axis(np.asarray(expected), picked[:, :, None], axis=1)
        np.testing.assert_array_equal(self.predict(params(), tokens(), picked), expected)

    def test_documents_see_each_other_only_if_told_so(self):
        everywhere = np.tile(np.arange(L), (B, 1))
        other = np.where(np.arange(L) < 6, tokens(), tokens(seed=1))  # another second document
        across = jax.jit(dataclasses.replace(self.objective, across_documents=True).predictions)
        for predict, is_same in ((self.predict, True), (across, False)):
            first = [np.asarray(predict(params(), t, everywhere))[:, :6] for t in (tokens(), other)]
            self.assertEqual(np.array_equal(*first), is_same)


if __name__ == "__main__":
    absltest.main()
