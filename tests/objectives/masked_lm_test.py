"""Masked language modelling: sampled against exact, against numpy, and what it does not see."""

import dataclasses
import functools

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from absl.testing import absltest, parameterized

from knn_sampling.noise import cumulative_thresholds
from knn_sampling.output_layer import OutputLayer, WordStatistics
from models.encoder import Encoder, EncoderSettings, output_table
from models.segments import packed_segments
from objectives.contrastive import ContrastSettings, contrastive_loss
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
    capacity_buckets=1,
    num_negatives=20,
    group_size=0,
    refresh="all",
    refresh_every=1,
    index_block=16,
    index_scores="float32",
    vocab_block=16,
    candidate_block=0,
    log_q_correction=False,
    exact_fraction=0.0,
    frequency_bias=False,
)
MASKS = MaskSettings(rate=0.3, mask_share=0.8, random_share=0.1)


def statistics(vocab: int, padded: int) -> WordStatistics:
    """Words of rising probability and one language, but for specials and padding."""
    probabilities = np.arange(padded) * (np.arange(padded) < vocab) / (vocab * (vocab - 1) / 2)
    return WordStatistics(
        jnp.asarray(probabilities, jnp.float32),
        cumulative_thresholds(probabilities),
        jnp.where(probabilities > 0, 0, -1),
    )


def objective_with(layer: OutputLayer = WHOLE, encoder: EncoderSettings = ENCODER) -> MaskedLM:
    return MaskedLM(
        encoder=Encoder(encoder),
        output_layer=layer,
        mask=MASKS,
        bos=BOS,
        pad=PAD,
        mask_id=MASK,
        special_ids=SPECIAL,
        across_documents=False,
        words=statistics(layer.num_valid, encoder.vocab_size),
    )


def random_params(objective: MaskedLM):
    """Parameters away from their initial values, among which are too many zeros and ones."""
    boxed = jax.eval_shape(lambda: objective.init(jax.random.key(0), L))
    rng = np.random.default_rng(0)
    return jax.tree.map(lambda x: (0.3 * rng.normal(size=x.shape)).astype(x.dtype), nn.unbox(boxed))


@functools.cache
def params():
    return random_params(objective_with())


def tokens(seed: int = 0, vocab: int = VOCAB) -> np.ndarray:
    """Rows of two documents and some padding, [B, L]."""
    rows = np.random.default_rng(seed).integers(MASK + 1, vocab, (B, L)).astype(np.int32)
    rows[:, [0, 6]], rows[:, [5, 13]], rows[:, 14:] = BOS, EOS, PAD
    return rows


def index_of(objective: MaskedLM, params):
    empty = objective.empty_index()
    return empty and objective.refresh(params, empty, None)[0]


@functools.partial(jax.jit, static_argnames=("layer", "exact"))
def _value_and_gradients(params, rows, layer: OutputLayer, exact: bool):
    objective = objective_with(layer)
    index = index_of(objective, params)
    batch, key = {"tokens": rows}, jax.random.key(7)
    prepared, _ = objective.prepare(index, batch, key, exact=exact, gather=False)

    def loss(params):
        sums = objective.sums(params, prepared)
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

    def test_only_knn_has_an_index_and_only_sampling_an_exact_phase(self):
        for kind, every, fraction in (
            ("full", 0, 0), ("blockwise", 0, 0), ("knn", 3, 0.5), ("nce", 0, 0.5),
        ):  # fmt: skip
            layer = dataclasses.replace(WHOLE, kind=kind, refresh_every=3, exact_fraction=0.5)
            objective = objective_with(layer)
            self.assertEqual((objective.refresh_every, objective.exact_fraction), (every, fraction))
            self.assertEqual(objective.empty_index() is not None, kind == "knn")

    def test_a_refresh_looks_at_the_output_embeddings(self):
        objective = objective_with(dataclasses.replace(WHOLE, k=4, log_q_correction=True))
        empty = objective.empty_index()
        table, _ = output_table(params())
        index, report = objective.refresh(params(), empty, None)
        expected, values = objective.output_layer.refreshed(empty, table, objective.words, None)
        jax.tree.map(np.testing.assert_array_equal, index, expected)
        self.assertEqual(report, {name: (value, 1) for name, value in values.items()})
        self.assertEqual(jax.eval_shape(lambda: index), jax.eval_shape(lambda: empty))

    def test_the_bias_may_start_at_the_log_frequencies(self):
        log_frequencies = np.log(np.arange(1, VOCAB) / (VOCAB * (VOCAB - 1) / 2))
        for starts, expected in ((False, 0), (True, log_frequencies)):
            objective = objective_with(dataclasses.replace(WHOLE, frequency_bias=starts))
            params = jax.jit(lambda init=objective.init: init(jax.random.key(0), L))()
            _, bias = output_table(nn.unbox(params))
            np.testing.assert_allclose(bias[1:VOCAB], expected, rtol=1e-5)
            self.assertTrue(np.isfinite(bias).all())


class LanguagesTest(absltest.TestCase):
    def test_the_loss_of_a_language_is_that_of_its_rows(self):
        objective = dataclasses.replace(objective_with(), languages=("aa", "bb", "cc", "dd"))

        @jax.jit
        def sums(language):
            batch = {"tokens": jnp.array(tokens()), "language": language}
            prepared, _ = objective.prepare(None, batch, jax.random.key(7), exact=True)
            return objective.sums(params(), prepared)

        rows = jax.device_get(sums(jnp.arange(B)))  # each a language
        found = jax.device_get(sums(jnp.array([0, 2, 0, 2])))
        for name, of in (("aa", ("aa", "cc")), ("cc", ("bb", "dd")), ("bb", ())):
            expected = np.sum([rows[f"loss/{one}"] for one in of] or [[0, 0]], axis=0)
            np.testing.assert_allclose(found[f"loss/{name}"], expected, rtol=1e-6)
        whole = np.sum([rows[f"loss/{name}"] for name in objective.languages], axis=0)
        np.testing.assert_allclose(found["loss"], whole, rtol=1e-6)
        self.assertLen({float(rows[f"loss/{name}"][0]) for name in objective.languages}, B)


class PairsTest(absltest.TestCase):
    """Batches that bring segments and positions of their own."""

    @staticmethod
    def sums_of(batch):
        objective, key = objective_with(dataclasses.replace(WHOLE, kind="full")), jax.random.key(7)
        batch = {name: jnp.asarray(array) for name, array in batch.items()}
        prepared, _ = objective.prepare(None, batch, key, dropout=False, gather=False)
        return objective.sums(params(), prepared)

    def test_the_segments_of_packed_rows_give_the_loss_of_packed_rows(self):
        rows = jnp.asarray(tokens())
        segments, positions = packed_segments(rows, bos=BOS, pad=PAD, across_documents=False)
        packed = self.sums_of({"tokens": rows})
        pairs = self.sums_of({"tokens": rows, "segments": segments, "positions": positions})
        self.assertNotIn("pair_loss", packed)
        self.assertEqual(pairs["loss"], packed["loss"])
        self.assertEqual(pairs["pair_loss"], packed["loss"])

    def test_a_sentence_sees_its_translation_and_positions_count(self):
        rows = np.random.default_rng(0).integers(MASK + 1, VOCAB, (B, L)).astype(np.int32)
        ones, positions = np.ones_like(rows), np.tile(np.arange(L, dtype=np.int32), (B, 1))
        together = self.sums_of({"tokens": rows, "segments": ones, "positions": positions})
        halves = np.repeat([[1, 2]], L // 2, axis=1).repeat(B, axis=0)
        apart = self.sums_of({"tokens": rows, "segments": halves, "positions": positions})
        again = np.tile(np.arange(L // 2, dtype=np.int32), (B, 2))
        restarted = self.sums_of({"tokens": rows, "segments": ones, "positions": again})
        losses = {float(sums["loss"][0]) for sums in (together, apart, restarted)}
        self.assertLen(losses, 3)


class ApartTest(absltest.TestCase):
    """Pairs whose sentences are kept apart, and contrasted."""

    def test_the_loss_is_that_of_each_sentence_alone_and_their_contrast(self):
        contrast = ContrastSettings(weight=0.5, temperature=0.1)
        objective = objective_with(dataclasses.replace(WHOLE, kind="full"))
        objective, key = dataclasses.replace(objective, contrast=contrast), jax.random.key(7)
        rows = tokens()
        rows[0, 9:] = [EOS] + [PAD] * (L - 10)  # fewer masked tokens, so that its pair weighs less
        rows = jnp.asarray(rows)
        segments, positions = packed_segments(rows, bos=BOS, pad=PAD, across_documents=False)
        pairs = {"tokens": rows, "segments": segments, "positions": positions}
        pairs["apart"] = jnp.ones(B, bool)

        prepared, _ = objective.prepare(None, pairs, key, dropout=False, gather=False)
        sums = objective.sums(params(), prepared)
        packed, _ = objective.prepare(None, {"tokens": rows}, key, dropout=False, gather=False)
        expected = objective.sums(params(), packed)["loss"]
        np.testing.assert_allclose(sums["apart_loss"], expected, rtol=1e-6)
        self.assertNotIn("pair_loss", sums)

        vectors = [self.alone(objective, prepared.masked.inputs[:, at]) for at in self.SENTENCES]
        losses, accuracies = contrastive_loss(*vectors, 0.1)
        masked = prepared.masked.weights.sum(axis=1)
        self.assertGreater(len(set(masked.tolist())), 1)
        np.testing.assert_allclose(sums["contrast_loss"][0], losses @ masked, rtol=1e-4)
        np.testing.assert_allclose(sums["contrast_accuracy"][0], accuracies @ masked, rtol=1e-6)
        total = sums["apart_loss"][0] + 0.5 * sums["contrast_loss"][0]
        np.testing.assert_allclose(sums["loss"][0], total, rtol=1e-6)
        for _, weight in (sums["loss"], sums["contrast_loss"], sums["contrast_accuracy"]):
            self.assertEqual(weight, masked.sum())

    SENTENCES = (slice(0, 6), slice(6, 14))  # of `tokens`

    @staticmethod
    def alone(objective: MaskedLM, sentences: jax.Array) -> jax.Array:
        """Mean state of each sentence's text, of a batch of those sentences and nothing else."""
        positions = jnp.broadcast_to(jnp.arange(sentences.shape[1]), sentences.shape)
        states = objective.encoder.apply(
            {"params": params()},
            sentences,
            (sentences != PAD).astype(jnp.int32),
            positions,
            deterministic=True,
            method="encode",
        )
        is_text = ~np.isin(sentences, SPECIAL)
        return jnp.stack([states[i][row].mean(axis=0) for i, row in enumerate(is_text)])


LARGE = 500
LARGE_LAYER = dataclasses.replace(WHOLE, num_valid=LARGE, k=3, capacity=30, log_q_correction=True)
# No layers: what is tested here is in the embeddings and behind the head.
LARGE_ENCODER = dataclasses.replace(ENCODER, vocab_size=512, num_layers=0)


@functools.cache
def large_params():
    return random_params(objective_with(LARGE_LAYER, LARGE_ENCODER))


@functools.partial(jax.jit, static_argnames=("layer", "gather"))
def _large(params, rows, layer: OutputLayer, gather: bool):
    objective = objective_with(layer, LARGE_ENCODER)
    index = index_of(objective, params)
    batch, key = {"tokens": rows}, jax.random.key(7)
    prepared, ids = objective.prepare(index, batch, key, gather=gather)
    table, _ = output_table(params)
    read = params
    if ids is not None:
        few = table.at[ids].get(mode="fill", fill_value=0)
        read = params | {"embeddings": params["embeddings"] | {"table": few}}

    def loss(read):
        sums = objective.sums(read, prepared)
        return sums["loss"][0], sums

    gradients, sums = jax.grad(loss, has_aux=True)(read)
    if ids is not None:
        by_rows, _ = output_table(gradients)
        by_table = jnp.zeros_like(table).at[ids].set(by_rows, mode="drop")
        gradients = gradients | {"embeddings": gradients["embeddings"] | {"table": by_table}}
    return sums, gradients, ids


def large(layer: OutputLayer, rows, gather: bool = False):
    """Sums, gradients and the rows read, of a vocabulary of which a batch touches few."""
    return _large(large_params(), rows, layer, gather)


def assert_close(actual, expected):
    check = functools.partial(np.testing.assert_allclose, rtol=1e-5, atol=2e-6)
    jax.tree.map(check, actual, expected)


def prepared_shapes(layer: OutputLayer, **kwargs):
    """What `prepare` returns for a large vocabulary, as shapes."""
    objective = objective_with(layer, LARGE_ENCODER)
    index, rows = objective.empty_index(), jnp.asarray(tokens(vocab=LARGE))
    return jax.eval_shape(
        lambda index, rows: objective.prepare(index, {"tokens": rows}, jax.random.key(7), **kwargs),
        index,
        rows,
    )


class WorkingRowsTest(parameterized.TestCase):
    @parameterized.parameters(("knn", 0), ("knn", 2), ("nce", 1))
    def test_the_rows_stand_in_for_the_table(self, kind: str, group_size: int):
        layer = dataclasses.replace(LARGE_LAYER, kind=kind, group_size=group_size)
        sums, gradients, ids = large(layer, tokens(vocab=LARGE), gather=True)
        expected, expected_gradients, none = large(layer, tokens(vocab=LARGE))
        self.assertIsNone(none)
        groups = B // (group_size or B)
        capacity = {"knn": 30, "nce": MASKS.slots(L) + 20}[kind]
        self.assertEqual(ids.shape, (groups * capacity + B * L,))
        assert_close(sums, expected)
        assert_close(gradients, expected_gradients)
        touched = np.abs(output_table(gradients)[0]).max(axis=1) > 0
        self.assertBetween(touched.sum(), 30, 200)

    def test_of_a_small_vocabulary_or_a_whole_one_the_table_is_read(self):
        wide = dataclasses.replace(LARGE_LAYER, capacity=512 - B * L)
        for layer, reads_rows in (
            (wide, False), (dataclasses.replace(wide, capacity=511 - B * L), True),
            (dataclasses.replace(LARGE_LAYER, kind="full"), False),
        ):  # fmt: skip
            self.assertEqual(prepared_shapes(layer)[1] is not None, reads_rows)
            self.assertIsNone(prepared_shapes(layer, gather=False)[1])
            self.assertIsNone(prepared_shapes(layer, exact=True)[1])


class GroupsTest(absltest.TestCase):
    def halves(self, layer: OutputLayer):
        """Loss and gradients of a batch, and the sums of those of its halves, padding aside."""
        rows = tokens(vocab=LARGE)
        first, second = rows.copy(), rows.copy()
        first[2:], second[:2] = PAD, PAD
        results = [large(layer, batch)[:2] for batch in (rows, first, second)]
        (whole, *parts) = [(sums["loss"], gradients) for sums, gradients in results]
        return whole, jax.tree.map(jnp.add, *parts)

    def test_the_loss_is_the_sum_over_the_groups(self):
        layer = dataclasses.replace(LARGE_LAYER, group_size=2)
        assert_close(*self.halves(layer))

    def test_a_larger_group_has_more_candidates(self):
        # Or else the test above could not tell whether there are groups.
        ((one_group, _), _), ((halves, _), _) = self.halves(LARGE_LAYER)
        self.assertGreater(one_group, 1.05 * halves)

    def test_a_group_is_so_many_sequences_one_after_another(self):
        layer = dataclasses.replace(LARGE_LAYER, kind="target_sampling", group_size=2)
        objective, rows = objective_with(layer, LARGE_ENCODER), jnp.asarray(tokens(vocab=LARGE))
        prepare = jax.jit(lambda rows, key: objective.prepare(None, {"tokens": rows}, key)[0])
        prepared = prepare(rows, jax.random.key(0))
        targets, used = np.asarray(prepared.masked.targets), prepared.masked.weights > 0
        for group, ids in enumerate(np.asarray(prepared.sample.candidates.ids)):
            of_group = slice(2 * group, 2 * group + 2)
            words = set(targets[of_group][np.asarray(used)[of_group]].tolist())
            self.assertEqual(set(ids.tolist()) - {512}, words)

    def test_groups_that_do_not_divide_the_batch(self):
        with self.assertRaisesRegex(ValueError, "output_layer.group_size is 3, must divide"):
            prepared_shapes(dataclasses.replace(LARGE_LAYER, group_size=3))


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
        batch = {"tokens": jnp.asarray(tokens())}
        prepared, rows = jax.jit(self.objective.prepare)(None, batch, key)
        self.assertIsNone(rows)
        sums = jax.jit(lambda params: self.objective.sums(params, prepared))(params())
        masked = mask_tokens(
            jax.random.split(key, 3)[0],
            jnp.asarray(tokens()),
            MASKS,
            vocab_size=VOCAB,
            mask_id=MASK,
            special_ids=SPECIAL,
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
