"""Masked language modelling: sampled against exact, against numpy, and what it does not see."""

import dataclasses
import functools
import itertools
from unittest import mock

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from absl.testing import absltest, parameterized

from input_pipeline.stream import PACKED
from knn_sampling.output_layer import Sample
from knn_sampling.settings import OutputLayerSettings
from tests import factories
from tests.factories import BOS, EOS, MASK, PAD, SPECIAL, packed_tokens
from xlm.models.encoder import output_table
from xlm.models.segments import packed_segments
from xlm.objectives import masked_lm
from xlm.objectives.masked_lm import NEIGHBOURS, TABLE, MaskedLM, TranslationLM
from xlm.objectives.masking import mask_tokens
from xlm.objectives.objective import Batch, gathered_rows
from xlm.objectives.settings import MaskSettings

B, L, VOCAB, PADDED = 4, 16, 30, 32
WHOLE = factories.output_layer_settings()
FULL = factories.output_layer_settings(kind="full")


@functools.cache
def objective_with(layer: OutputLayerSettings = WHOLE) -> MaskedLM:
    return factories.masked_lm(layer)


@functools.cache
def params():
    return factories.random_params(objective_with())


def _differentiated(objective: MaskedLM, params, tokens, step):
    extra, key = factories.first_extra(objective, params), jax.random.key(7)
    batch = Batch({"tokens": tokens}, PACKED)
    plan, touched = objective.plan(extra, batch, key, jnp.int32(step))

    def loss(params):
        found, _ = objective.loss(params, gathered_rows(params, touched), plan, key)
        return found["loss"][0], found

    gradients, found = jax.grad(loss, has_aux=True)(params)
    return found, gradients, touched


@functools.partial(jax.jit, static_argnums=0)
def _all_differentiated(objectives: tuple[MaskedLM, ...], params, tokens, step):
    return [_differentiated(one, params, tokens, step) for one in objectives]


def differentiated(objective: MaskedLM, params, tokens, step: int = 0):
    """Metrics of a batch, gradients of its summed loss, and the touched rows; dropout on."""
    return jax.device_get(_all_differentiated((objective,), params, tokens, step))[0]


def planned(objective: MaskedLM, tokens, step: int = 0):
    """Plan and touched rows of a batch, as shapes."""
    batch = Batch({"tokens": jnp.asarray(tokens)}, PACKED)
    arguments = batch, jax.random.key(7), jnp.int32(step)
    return jax.eval_shape(lambda: objective.plan(objective.init_extra(), *arguments))


class OutputLayersTest(absltest.TestCase):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.found, cls.gradients, _ = differentiated(
            objective_with(FULL), params(), packed_tokens()
        )

    def assert_is_full(self, found, gradients):
        check = functools.partial(np.testing.assert_allclose, rtol=1e-5, atol=1e-6)
        jax.tree.map(check, found, self.found)
        jax.tree.map(check, gradients, self.gradients)
        self.assertGreater(np.abs(gradients["embeddings"]["table"]).max(), 0.1)

    def test_sampling_with_room_for_all_tokens_is_the_full_softmax(self):
        found, gradients, _ = differentiated(objective_with(), params(), packed_tokens())
        self.assertEqual(found["candidates"][0], VOCAB)
        self.assertEqual(found["overflow"][0], 0)
        self.assertBetween(found.pop("table_rows")[0], VOCAB, VOCAB + 3)  # <s>, </s> and padding
        self.assert_is_full(found, gradients)

    def test_the_exact_objective_does_not_sample(self):
        few = factories.output_layer_settings(k=1, capacity=20, log_q_correction=True)
        exact = objective_with(few).exact
        found, gradients, touched = differentiated(exact, params(), packed_tokens())
        self.assertEmpty(touched)
        self.assertEqual(exact.due(0), ())
        self.assert_is_full(found, gradients)

    def test_a_batch_without_text_costs_nothing(self):
        for rows in (np.full((B, L), PAD, np.int32), np.tile([BOS, EOS], (B, L // 2))):
            found, gradients, _ = differentiated(objective_with(), params(), rows.astype(np.int32))
            self.assertEqual(found["loss"], (0, 0))
            jax.tree.map(lambda x: np.testing.assert_array_equal(x, 0), gradients)

    def test_a_refresh_looks_at_the_output_embeddings(self):
        settings = factories.output_layer_settings(k=4, log_q_correction=True)
        objective = objective_with(settings)
        layer, statistics = objective.output_layer, objective.statistics
        other = {"other": np.ones(3, np.float32)}
        given = {**objective.init_extra(), **other}

        @jax.jit
        def refreshed(params, given):
            found = objective.refresh(params, given, objective.due(0), jnp.int32(0))
            table, _ = output_table(params)
            neighbours, values = layer.refresh(given[NEIGHBOURS], table, statistics)
            return found, neighbours, values, layer.inclusion(neighbours, statistics)

        (found, report), neighbours, values, inclusion = refreshed(params(), given)
        expected = {NEIGHBOURS: neighbours, "inclusion_mlm": inclusion, **other}
        jax.tree.map(np.testing.assert_array_equal, found, expected)
        self.assertEqual(report, {name: (value, 1) for name, value in values.items()})
        shapes, initial = (jax.eval_shape(lambda x=x: x) for x in (found, given))
        self.assertEqual(shapes, initial)

    def test_each_objective_of_a_model_has_chances_of_inclusion_of_its_own(self):
        layer = factories.output_layer_settings(k=4, log_q_correction=True)
        even = factories.token_statistics(VOCAB, PADDED)._replace(
            probabilities=jnp.where(jnp.arange(PADDED) % 2 == 0, 1 / 15, 0.0)
        )
        mlm, tlm = (
            factories.masked_lm(layer),
            factories.masked_lm(layer, name="tlm", statistics=even),
        )
        self.assertEqual(tlm.due(0), (NEIGHBOURS, "inclusion_tlm"))

        @jax.jit
        def refreshed(params):
            first = mlm.init_extra() | tlm.init_extra()
            extra, _ = mlm.refresh(params, first, mlm.due(0), jnp.int32(0))
            # The neighbours are shared; renewing the other's own part leaves them as they are.
            both, report = tlm.refresh(params, extra, ("inclusion_tlm",), jnp.int32(0))
            self.assertEmpty(report)
            self.assertIs(both[NEIGHBOURS], extra[NEIGHBOURS])
            return both, tlm.output_layer.inclusion(extra[NEIGHBOURS], even)

        both, expected = jax.device_get(refreshed(params()))
        np.testing.assert_array_equal(both["inclusion_tlm"], expected)
        self.assertGreater(np.abs(both["inclusion_tlm"] - both["inclusion_mlm"]).max(), 0.01)

    def test_plans_and_refreshes_take_the_statistics_of_the_phase(self):
        layers = (
            factories.output_layer_settings(kind=kind, k=4, log_q_correction=True)
            for kind in ("knn", "target_sampling")
        )
        later = factories.token_statistics(VOCAB, PADDED)
        later = later._replace(probabilities=later.probabilities[::-1])
        batch = Batch({"tokens": jnp.asarray(packed_tokens())}, PACKED)

        def found(objective, step):
            extra, names = objective.init_extra(), objective.due(0)
            if names:
                return objective.refresh(params(), extra, names, step)[0]
            return objective.plan(extra, batch, jax.random.key(7), step)[0].sample

        def all_found(phases, alone, steps):
            of_steps = jax.lax.map(lambda step: found(phases, step), steps)
            return of_steps, [found(one, jnp.int32(0)) for one in alone]

        steps = np.array([2, 3], np.int32)
        for layer in layers:
            phases = factories.masked_lm(layer, later_statistics=((3, later),))
            alone = [factories.masked_lm(layer), factories.masked_lm(layer, statistics=later)]
            compute = jax.jit(functools.partial(all_found, phases, alone))
            of_steps, expected = jax.device_get(compute(steps))
            for number, one in enumerate(expected):
                of_step = jax.tree.map(lambda x, i=number: x[i], of_steps)
                jax.tree.map(np.testing.assert_array_equal, of_step, one)
            same = jax.tree.map(np.array_equal, *expected)
            self.assertFalse(all(jax.tree.leaves(same)))

    def test_the_bias_may_start_at_the_log_frequencies(self):
        log_frequencies = np.log(np.arange(1, VOCAB) / (VOCAB * (VOCAB - 1) / 2))
        expected = {False: 0, True: log_frequencies}

        @jax.jit
        def biases(key):
            layers = {x: factories.output_layer_settings(frequency_bias=x) for x in expected}
            return {
                x: output_table(nn.unbox(objective_with(layer).init(key)))[1]
                for x, layer in layers.items()
            }

        for starts, bias in jax.device_get(biases(jax.random.key(0))).items():
            np.testing.assert_allclose(bias[1:VOCAB], expected[starts], rtol=1e-5)
            self.assertTrue(np.isfinite(bias).all())


class ScheduleTest(parameterized.TestCase):
    @parameterized.parameters(("full", ()), ("blockwise", ()), ("knn", (0, 3, 6)), ("nce", ()))
    def test_only_knn_has_an_index_which_is_due_now_and_then(self, kind, due):
        layer = factories.output_layer_settings(kind=kind, refresh_every=3)
        objective = objective_with(layer)
        self.assertEqual(tuple(objective.init_extra()), (NEIGHBOURS,) if due else ())
        found = [step for step in range(9) if objective.due(step)]
        self.assertEqual(tuple(found), due)
        self.assertEqual(objective.due(0), (NEIGHBOURS,) if due else ())

    def test_the_shares_of_a_phase_are_due_where_it_begins(self):
        for corrected, expected in ((True, ("inclusion_mlm",)), (False, ())):
            layer = factories.output_layer_settings(
                kind="knn", refresh_every=3, log_q_correction=corrected
            )
            later = ((4, factories.token_statistics(VOCAB, PADDED)),)
            objective = factories.masked_lm(layer, later_statistics=later)
            self.assertEqual(objective.due(4), expected)
            self.assertEqual(objective.due(3), (NEIGHBOURS, *expected))
            self.assertEmpty(objective.due(5))

    def test_the_last_phase_is_one_object(self):
        objective = dataclasses.replace(objective_with(), full_softmax_from=6)
        phases = [objective.at_step(step) for step in range(10)]
        self.assertEqual([one is objective for one in phases], [True] * 6 + [False] * 4)
        self.assertEqual(set(phases[6:]), {objective.exact})
        self.assertIs(objective_with().at_step(10**9), objective_with())
        # The exact phase is the last one: it has none after it.
        self.assertIs(objective.exact.at_step(9), objective.exact)

    def test_the_mask_rate_is_that_of_the_step(self):
        mask = MaskSettings(0.1, 0.8, 0.1, final_rate=0.9)
        objective = dataclasses.replace(objective_with(FULL), mask=mask, num_steps=5)
        for step, rate in ((0, 0.1), (1, 0.3), (4, 0.9)):
            found, *_ = differentiated(objective, params(), packed_tokens(), step)
            np.testing.assert_allclose(found["mask_rate"], (rate, 1), rtol=1e-6)
            self.assertEqual(found["loss"][1], B * round(10 * rate))  # of ten text tokens each
        constant, *_ = differentiated(objective_with(FULL), params(), packed_tokens(), 4)
        self.assertNotIn("mask_rate", constant)


class KeysTest(absltest.TestCase):
    def keys_of(self, key: jax.Array) -> dict[str, jax.Array]:
        """The random keys that masks, samples and dropout of a step are given."""
        found = {}

        def record(name, key):
            found[name] = jax.random.key_data(key)

        def masking(key, *args, **kwargs):
            record("masks", key)
            return mask_tokens(key, *args, **kwargs)

        class Layer:
            num_valid = VOCAB

            def sample(self, key, *_):
                record("samples", key)

            def loss(self, hidden, *_):
                return hidden.sum(axis=2)

        encoder = objective_with().encoder

        def apply(*args, rngs=None, **kwargs):
            if rngs:
                record("dropout", rngs["dropout"])
            return encoder.apply(*args, rngs=rngs, **kwargs)

        watched = mock.Mock(settings=encoder.settings, apply=apply)
        objective = dataclasses.replace(objective_with(FULL), output_layer=Layer(), encoder=watched)
        batch = Batch({"tokens": jnp.asarray(packed_tokens())}, PACKED)
        with mock.patch.object(masked_lm, "mask_tokens", masking):
            plan, _ = objective.plan({}, batch, key, jnp.int32(0))
        objective.loss(params(), {}, plan, key)
        return found

    def test_masks_dropout_and_samples_have_random_keys_of_their_own(self):
        # Equal keys would make, say, what is dropped depend on what is masked.
        seeds = jnp.arange(2)
        found = jax.jit(lambda x: jax.lax.map(lambda i: self.keys_of(jax.random.key(i)), x))(seeds)
        self.assertCountEqual(found, ["masks", "samples", "dropout"])
        self.assertLen({tuple(key) for keys in found.values() for key in keys.tolist()}, 6)


class LanguagesTest(absltest.TestCase):
    def test_the_loss_of_a_language_is_that_of_its_rows(self):
        objective = dataclasses.replace(objective_with(FULL), languages=("aa", "bb", "cc", "dd"))

        @jax.jit
        def losses(language):
            batch = Batch({"tokens": jnp.array(packed_tokens()), "language": language}, PACKED)
            plan, _ = objective.plan({}, batch, jax.random.key(7), jnp.int32(0))
            return objective.loss(params(), {}, plan, jax.random.key(7))[0]

        rows = jax.device_get(losses(jnp.arange(B)))  # each a language
        found = jax.device_get(losses(jnp.array([0, 2, 0, 2])))
        for name, of in (("aa", ("aa", "cc")), ("cc", ("bb", "dd")), ("bb", ())):
            expected = np.sum([rows[f"loss/{one}"] for one in of] or [[0, 0]], axis=0)
            np.testing.assert_allclose(found[f"loss/{name}"], expected, rtol=1e-6)
        whole = np.sum([rows[f"loss/{name}"] for name in objective.languages], axis=0)
        np.testing.assert_allclose(found["loss"], whole, rtol=1e-6)
        self.assertLen({float(rows[f"loss/{name}"][0]) for name in objective.languages}, B)


class TranslationLMTest(absltest.TestCase):
    """Batches that bring segments and positions of their own."""

    @staticmethod
    @functools.partial(jax.jit, static_argnums=0)
    def loss_of(kind: type[MaskedLM], arrays):
        objective, key = factories.masked_lm(FULL, kind=kind), jax.random.key(7)
        plan, _ = objective.plan({}, Batch(arrays, "any"), key, jnp.int32(0))
        return objective.loss(params(), {}, plan, None)[0]["loss"]

    def test_the_segments_of_packed_rows_give_the_loss_of_packed_rows(self):
        tokens = packed_tokens()
        segments, positions = packed_segments(tokens, bos=BOS, pad=PAD, across_documents=False)
        packed = self.loss_of(MaskedLM, {"tokens": tokens})
        pairs = self.loss_of(
            TranslationLM, {"tokens": tokens, "segments": segments, "positions": positions}
        )
        self.assertEqual(pairs, packed)

    def test_a_sentence_sees_its_translation_and_positions_count(self):
        tokens = np.random.default_rng(0).integers(MASK + 1, VOCAB, (B, L)).astype(np.int32)
        segments = np.ones_like(tokens), np.tile(np.repeat([1, 2], L // 2), (B, 1))
        places = np.arange(L, dtype=np.int32)
        positions = np.tile(places, (B, 1)), np.tile(places[: L // 2], (B, 2))
        losses = [
            self.loss_of(TranslationLM, {"tokens": tokens, "segments": s, "positions": p})[0]
            for s, p in itertools.product(segments, positions)
        ]
        self.assertLen(set(map(float, losses)), 4)


LARGE = 500
SAMPLED = factories.output_layer_settings(k=3, capacity=30, log_q_correction=True)


@functools.cache
def large_objective(layer: OutputLayerSettings = SAMPLED) -> MaskedLM:
    """Of a vocabulary of which a batch touches few rows.

    No layers: what is tested with it is in the embeddings and behind the head.
    """
    encoder = factories.encoder_settings(vocab_size=512, num_layers=0)
    return factories.masked_lm(layer, encoder, num_valid=LARGE)


@functools.cache
def large_params():
    return factories.random_params(large_objective())


CAPACITIES = (0, 400, 512)


def large(layer: OutputLayerSettings, tokens):
    """What `differentiated` finds by the row capacity; of 512 the table is read."""
    objectives = tuple(
        large_objective(dataclasses.replace(layer, row_capacity=x)) for x in CAPACITIES
    )
    found = jax.device_get(_all_differentiated(objectives, large_params(), tokens, 0))
    return dict(zip(CAPACITIES, found, strict=True))


def assert_close(actual, expected):
    check = functools.partial(np.testing.assert_allclose, rtol=1e-5, atol=2e-6)
    jax.tree.map(check, actual, expected)


class TableRowsTest(parameterized.TestCase):
    @parameterized.parameters(("knn", 0), ("knn", 2), ("nce", 1))
    def test_the_rows_stand_in_for_the_table(self, kind: str, group_size: int):
        layer = dataclasses.replace(SAMPLED, kind=kind, group_size=group_size)
        by_capacity = large(layer, packed_tokens(num_valid=LARGE))
        expected, expected_gradients, none = by_capacity.pop(512)
        self.assertEmpty(none)
        for found, gradients, touched in by_capacity.values():
            self.assertEqual(list(touched), [TABLE])
            used = touched[TABLE][touched[TABLE] < 512]
            self.assertLen(set(used.tolist()), len(used))
            self.assertEqual(found["table_rows"], (len(used), 1))
            assert_close(found, expected)
            assert_close(gradients, expected_gradients)
        changed = np.abs(output_table(gradients)[0]).max(axis=1) > 0
        self.assertBetween(changed.sum(), 30, 200)

    def test_of_a_small_vocabulary_or_a_whole_one_the_table_is_read(self):
        exactly = 512 - B * L
        for changes, reads_rows in (
            ({"capacity": exactly}, False),
            ({"capacity": exactly - 1}, True),
            ({"capacity": exactly, "row_capacity": 511}, True),
            ({"capacity": exactly - 1, "row_capacity": 512}, False),
            ({"kind": "full"}, False),
        ):
            objective = large_objective(dataclasses.replace(SAMPLED, **changes))
            rows = packed_tokens(num_valid=LARGE)
            _, touched = planned(objective, rows)
            self.assertEqual(bool(touched), reads_rows, changes)
            self.assertEmpty(planned(objective.exact, rows)[1])


class GroupsTest(absltest.TestCase):
    def halves(self, layer: OutputLayerSettings):
        """Loss and gradients of a batch, and the sums of those of its halves, padding aside."""
        rows = packed_tokens(num_valid=LARGE)
        first, second = rows.copy(), rows.copy()
        first[2:], second[:2] = PAD, PAD
        results = [large(layer, batch)[0] for batch in (rows, first, second)]
        (whole, *parts) = [(found["loss"], gradients) for found, gradients, _ in results]
        return whole, jax.tree.map(np.add, *parts)

    def test_the_loss_is_the_sum_over_the_groups(self):
        assert_close(*self.halves(dataclasses.replace(SAMPLED, group_size=2)))

    def test_a_group_is_so_many_sequences_one_after_another(self):
        # The targets alone, none drawn.
        layer = dataclasses.replace(SAMPLED, kind="target_sampling", group_size=2, num_negatives=0)
        batch = Batch({"tokens": jnp.asarray(packed_tokens(num_valid=LARGE))}, PACKED)
        plan, _ = jax.jit(large_objective(layer).plan)({}, batch, jax.random.key(0), jnp.int32(0))
        targets, used = np.asarray(plan.masked.targets), np.asarray(plan.masked.weights) > 0
        for group, ids in enumerate(np.asarray(plan.sample.candidates.ids)):
            of_group = slice(2 * group, 2 * group + 2)
            expected = set(targets[of_group][used[of_group]].tolist())
            self.assertEqual(set(ids.tolist()) - {512}, expected)


class MetricsTest(absltest.TestCase):
    def test_classes_and_overflow_are_the_mean_over_the_groups(self):
        objective = objective_with()
        plan, _ = planned(objective, packed_tokens())
        candidates = plan.sample.candidates._replace(
            ids=jnp.zeros((2, 5), jnp.int32), union_size=jnp.array([4, 9])
        )
        plan = plan._replace(sample=Sample(candidates, None, None, None), num_rows=jnp.int32(7))
        expected = {"candidates": 6.5, "overflow": 2.0, "table_rows": 7}
        self.assertEqual(objective.sampling_metrics(plan), expected)
        found = objective_with(FULL).sampling_metrics(plan._replace(sample=None))
        self.assertEqual(found, {"candidates": VOCAB, "overflow": 0})


class PredictionsTest(absltest.TestCase):
    """Without dropout."""

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.objective = factories.masked_lm(FULL, factories.encoder_settings(dropout_rate=0.0))
        cls.predict = staticmethod(jax.jit(cls.objective.predictions))

    def test_the_loss_is_that_of_the_masked_tokens(self):
        key, tokens = jax.random.key(3), packed_tokens()

        @jax.jit
        def loss_and_masked(params, tokens, key):
            plan, touched = self.objective.plan({}, Batch({"tokens": tokens}, PACKED), key, 0)
            self.assertEmpty(touched)
            masked = mask_tokens(
                jax.random.split(key, 3)[0], tokens, self.objective.mask,
                vocab_size=VOCAB, mask_id=MASK, special_ids=SPECIAL,
            )  # fmt: skip
            return self.objective.loss(params, {}, plan, key)[0], masked

        found, masked = jax.device_get(loss_and_masked(params(), tokens, key))
        everywhere = np.tile(np.arange(L), (B, 1))
        hidden = np.asarray(self.predict(params(), masked.inputs, everywhere), np.float64)
        table, bias = (np.asarray(x, np.float64)[:VOCAB] for x in output_table(params()))
        losses = []
        for row, slot in zip(*np.nonzero(masked.weights), strict=True):
            at = masked.positions[row, slot]
            exps = np.exp(hidden[row, at] @ table.T + bias)
            losses.append(-np.log(exps[tokens[row, at]] / exps.sum()))
        self.assertEqual(found["loss"][1], len(losses))
        self.assertEqual(len(losses), B * 3)  # 30 % of the ten text tokens of a row
        np.testing.assert_allclose(found["loss"][0], np.sum(losses), rtol=1e-5)

    def test_positions_pick_from_the_row(self):
        everywhere = np.tile(np.arange(L), (B, 1))
        picked = np.random.default_rng(0).permuted(everywhere, axis=1)
        expected = self.predict(params(), packed_tokens(), everywhere)
        expected = np.take_along_axis(np.asarray(expected), picked[:, :, None], axis=1)
        found = self.predict(params(), packed_tokens(), picked)
        np.testing.assert_array_equal(found, expected)

    def test_documents_see_each_other_only_if_told_so(self):
        everywhere = np.tile(np.arange(L), (B, 1))
        tokens = packed_tokens()
        other = np.where(np.arange(L) < 6, tokens, packed_tokens(seed=1))  # the second documents
        across = jax.jit(dataclasses.replace(self.objective, across_documents=True).predictions)
        for predict, is_same in ((self.predict, True), (across, False)):
            first = [np.asarray(predict(params(), t, everywhere))[:, :6] for t in (tokens, other)]
            self.assertEqual(np.array_equal(*first), is_same)


if __name__ == "__main__":
    absltest.main()
