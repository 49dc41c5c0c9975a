"""Masked language modelling: sampled against exact, against numpy, and invariances."""

import dataclasses
import functools
from unittest import mock

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from absl.testing import absltest, parameterized

from input_pipeline.stream import PACKED
from knn_sampling.samples import Sample
from knn_sampling.settings import OutputLayerSettings
from tests import factories
from tests.factories import BOS, EOS, MASK, PAD, SPECIAL, packed_tokens
from xlm.models.encoder import Encoder, output_table
from xlm.objectives import masked_lm
from xlm.objectives.contrastive import SentenceContrast
from xlm.objectives.cross_mlm import CrossMLM
from xlm.objectives.masked_lm import NEIGHBOURS, TABLE, MaskedLM
from xlm.objectives.masking import mask_tokens
from xlm.objectives.objective import Batch, gathered_rows
from xlm.objectives.settings import ContrastSettings, MaskSettings, VecoSettings

B, L, VOCAB, PADDED = 4, 16, 30, 32
WHOLE = factories.output_layer_settings()
FULL = factories.output_layer_settings(kind="full")


@functools.cache
def objective_with(layer: OutputLayerSettings = WHOLE) -> MaskedLM:
    return factories.masked_lm(layer)


@functools.cache
def params():
    return factories.random_params(objective_with())


@functools.partial(jax.jit, static_argnums=0)
def _all_differentiated(objectives: tuple[MaskedLM, ...], params, tokens, step):
    def of_step(objective: MaskedLM):
        aux_state, key = factories.first_aux_state(objective, params), jax.random.key(7)
        batch = Batch({"tokens": tokens}, PACKED)
        plan, touched = objective.plan(aux_state, batch, key, jnp.int32(step))

        def loss(params):
            found, _ = objective.loss(params, gathered_rows(params, touched), plan, key)
            return found["loss"][0], found

        gradients, found = jax.grad(loss, has_aux=True)(params)
        return found, gradients, touched

    return [of_step(one) for one in objectives]


def differentiated(objective: MaskedLM, params, tokens, step: int = 0):
    """Metrics of a batch, gradients of its summed loss, and touched rows, with dropout."""
    return jax.device_get(_all_differentiated((objective,), params, tokens, step))[0]


def planned(objective: MaskedLM, tokens, step: int = 0):
    batch = Batch({"tokens": jnp.asarray(tokens)}, PACKED)
    arguments = batch, jax.random.key(7), jnp.int32(step)
    return jax.eval_shape(lambda: objective.plan(objective.init_aux_state(), *arguments))


class OutputLayersTest(parameterized.TestCase):
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

    def test_sampling_all_tokens_and_exact_are_the_full_softmax(self):
        found, gradients, _ = differentiated(objective_with(), params(), packed_tokens())
        self.assertEqual((found["candidates"][0], found["overflow"][0]), (VOCAB, 0))
        self.assertBetween(found.pop("table_rows")[0], VOCAB, VOCAB + 3)  # <s>, </s> and padding
        self.assert_is_full(found, gradients)
        few = factories.output_layer_settings(k=1, capacity=20, log_q_correction=True)
        exact = objective_with(few).exact
        found, gradients, touched = differentiated(exact, params(), packed_tokens())
        self.assertEqual((touched, exact.due(0)), ({}, ()))
        self.assert_is_full(found, gradients)

    def test_a_batch_without_text_costs_nothing(self):
        for rows in (np.full((B, L), PAD, np.int32), np.tile([BOS, EOS], (B, L // 2))):
            found, gradients, _ = differentiated(objective_with(), params(), rows.astype(np.int32))
            self.assertEqual(found["loss"], (0, 0))
            jax.tree.map(lambda x: np.testing.assert_array_equal(x, 0), gradients)

    def test_a_refresh_looks_at_the_output_embeddings(self):
        """Objectives of a model share neighbours; each has its own inclusion."""
        layer = factories.output_layer_settings(k=4, log_q_correction=True)
        even = factories.token_statistics(VOCAB, PADDED)._replace(
            probabilities=jnp.where(jnp.arange(PADDED) % 2 == 0, 1 / 15, 0.0)
        )
        mlm = factories.masked_lm(layer)
        tlm = factories.masked_lm(layer, name="tlm", statistics=even)
        self.assertEqual(tlm.due(0), (NEIGHBOURS, "inclusion_tlm"))
        given = {"other": np.ones(3, np.float32), **mlm.init_aux_state(), **tlm.init_aux_state()}

        @jax.jit
        def refreshed(params, given):
            aux_state, report = mlm.refresh(params, given, mlm.due(0), jnp.int32(0))
            found, nothing = tlm.refresh(params, aux_state, ("inclusion_tlm",), jnp.int32(0))
            self.assertEmpty(nothing)
            one, (table, _) = mlm.output_layer, output_table(params)
            neighbours, values = one.refresh(given[NEIGHBOURS], table, mlm.statistics)
            expected = given | {NEIGHBOURS: neighbours}
            expected["inclusion_mlm"] = one.inclusion(neighbours, mlm.statistics)
            expected["inclusion_tlm"] = one.inclusion(neighbours, even)
            return found, expected, report, values

        found, expected, report, values = jax.device_get(refreshed(params(), given))
        jax.tree.map(np.testing.assert_array_equal, found, expected)
        self.assertEqual(report, {name: (value, 1) for name, value in values.items()})
        self.assertGreater(np.abs(found["inclusion_tlm"] - found["inclusion_mlm"]).max(), 0.01)
        for name, value in given.items():
            self.assertEqual((found[name].shape, found[name].dtype), (value.shape, value.dtype))

    @parameterized.parameters("knn", "target_sampling")
    def test_plans_and_refreshes_take_the_statistics_of_the_phase(self, kind):
        layer = factories.output_layer_settings(kind=kind, k=4, log_q_correction=True)
        later = factories.token_statistics(VOCAB, PADDED)
        later = later._replace(probabilities=later.probabilities[::-1])
        batch = Batch({"tokens": jnp.asarray(packed_tokens())}, PACKED)

        def found(objective, step):
            aux_state, names = objective.init_aux_state(), objective.due(0)
            if names:
                return objective.refresh(params(), aux_state, names, step)[0]
            return objective.plan(aux_state, batch, jax.random.key(7), step)[0].sample

        phases = factories.masked_lm(layer, later_statistics=((3, later),))
        alone = [factories.masked_lm(layer), factories.masked_lm(layer, statistics=later)]

        @jax.jit
        def all_found(steps):
            of_steps = jax.lax.map(lambda step: found(phases, step), steps)
            return of_steps, [found(one, jnp.int32(0)) for one in alone]

        of_steps, expected = jax.device_get(all_found(np.array([2, 3], np.int32)))
        for number, one in enumerate(expected):
            of_step = jax.tree.map(lambda x, i=number: x[i], of_steps)
            jax.tree.map(np.testing.assert_array_equal, of_step, one)
        same = jax.tree.map(np.array_equal, *expected)
        self.assertFalse(all(jax.tree.leaves(same)))

    def test_the_bias_may_start_at_the_log_frequencies(self):
        log_frequencies = np.log(np.arange(1, VOCAB) / (VOCAB * (VOCAB - 1) / 2))
        for starts, expected in ((False, 0), (True, log_frequencies)):
            objective = objective_with(factories.output_layer_settings(frequency_bias=starts))
            _, bias = output_table(nn.unbox(jax.jit(objective.init)(jax.random.key(0))))
            np.testing.assert_allclose(bias[1:VOCAB], expected, rtol=1e-5)
            self.assertTrue(np.isfinite(bias).all())


class ScheduleTest(parameterized.TestCase):
    @parameterized.parameters(("full", ()), ("blockwise", ()), ("knn", (0, 3, 6)), ("nce", ()))
    def test_only_knn_has_an_index_which_is_due_now_and_then(self, kind, due):
        objective = objective_with(factories.output_layer_settings(kind=kind, refresh_every=3))
        self.assertEqual(tuple(objective.init_aux_state()), (NEIGHBOURS,) if due else ())
        found = [step for step in range(9) if objective.due(step)]
        self.assertEqual(tuple(found), due)
        self.assertEqual(objective.due(0), (NEIGHBOURS,) if due else ())

    @parameterized.parameters((True, ("inclusion_mlm",)), (False, ()))
    def test_the_shares_of_a_phase_are_due_where_it_begins(self, corrected, expected):
        layer = factories.output_layer_settings(refresh_every=3, log_q_correction=corrected)
        later = ((4, factories.token_statistics(VOCAB, PADDED)),)
        objective = factories.masked_lm(layer, later_statistics=later)
        due = [objective.due(step) for step in (3, 4, 5)]
        self.assertEqual(due, [(NEIGHBOURS, *expected), expected, ()])

    def test_the_last_phase_is_one_object(self):
        objective = dataclasses.replace(objective_with(), full_softmax_from=6)
        phases = [objective.at_step(step) for step in range(10)]
        self.assertEqual([one is objective for one in phases], [True] * 6 + [False] * 4)
        self.assertEqual(set(phases[6:]), {objective.exact})
        self.assertIs(objective_with().at_step(10**9), objective_with())
        # The exact phase is the last.
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

    def test_masks_dropout_and_samples_have_random_keys_of_their_own(self):
        """Equal keys would, for example, make dropout depend on masks."""
        objective = objective_with(factories.output_layer_settings(kind="nce", num_negatives=5))
        layer, found = type(objective.output_layer), {}

        def recorded(name, function, key_of):
            def call(*args, **kwargs):
                if (key := key_of(args, kwargs)) is not None:
                    found[name] = jax.random.key_data(key)
                return function(*args, **kwargs)

            return call

        def keys_of(seed: jax.Array) -> dict[str, jax.Array]:
            key, batch = jax.random.key(seed), Batch({"tokens": jnp.array(packed_tokens())}, PACKED)
            plan, touched = objective.plan({}, batch, key, jnp.int32(0))
            values = jax.tree.map(jnp.asarray, params())
            objective.loss(values, gathered_rows(values, touched), plan, key)
            return dict(found)

        for of, name, key_of in (
            (masked_lm, "mask_tokens", lambda args, _: args[0]),
            (layer, "sample", lambda args, _: args[1]),
            (Encoder, "apply", lambda _, kwargs: (kwargs.get("rngs") or {}).get("dropout")),
        ):
            call = recorded(name, getattr(of, name), key_of)
            self.enter_context(mock.patch.object(of, name, call))
        keys = jax.jit(lambda seeds: jax.lax.map(keys_of, seeds))(jnp.arange(2))
        self.assertCountEqual(keys, ["mask_tokens", "sample", "apply"])
        self.assertLen({tuple(key) for of in keys.values() for key in of.tolist()}, 6)

    def test_the_loss_of_a_language_is_that_of_its_rows(self):
        objective = dataclasses.replace(objective_with(FULL), languages=("aa", "bb", "cc", "dd"))

        @jax.jit
        def losses(language):
            batch = Batch({"tokens": jnp.array(packed_tokens()), "language": language}, PACKED)
            plan, _ = objective.plan({}, batch, jax.random.key(7), jnp.int32(0))
            return objective.loss(params(), {}, plan, jax.random.key(7))[0]

        rows = jax.device_get(losses(jnp.arange(B)))  # one language each
        found = jax.device_get(losses(jnp.array([0, 2, 0, 2])))
        for name, of in (("aa", ("aa", "cc")), ("cc", ("bb", "dd")), ("bb", ())):
            expected = np.sum([rows[f"loss/{one}"] for one in of] or [[0, 0]], axis=0)
            np.testing.assert_allclose(found[f"loss/{name}"], expected, rtol=1e-6)
        whole = np.sum([rows[f"loss/{name}"] for name in objective.languages], axis=0)
        np.testing.assert_allclose(found["loss"], whole, rtol=1e-6)
        self.assertLen({float(rows[f"loss/{name}"][0]) for name in objective.languages}, B)


LARGE = 500
SAMPLED = factories.output_layer_settings(k=3, capacity=30, log_q_correction=True)
CAPACITIES = (0, 400, 512)


@functools.cache
def large_objective(layer: OutputLayerSettings = SAMPLED) -> MaskedLM:
    """Objective with a vocabulary of which a batch touches few rows.

    It has no layers, since it tests the embeddings and the head.
    """
    encoder = factories.encoder_settings(vocab_size=512, num_layers=0)
    return factories.masked_lm(layer, encoder, num_valid=LARGE)


def large(layer: OutputLayerSettings, tokens):
    """Results of `differentiated` by row capacity; with 512 the table is read."""
    objectives = tuple(
        large_objective(dataclasses.replace(layer, row_capacity=x)) for x in CAPACITIES
    )
    params = factories.random_params(large_objective())
    found = jax.device_get(_all_differentiated(objectives, params, tokens, 0))
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
        picked = self.predict(params(), masked.inputs, masked.positions)
        expected = np.take_along_axis(hidden, masked.positions[:, :, None], axis=1)
        np.testing.assert_array_equal(picked, expected)
        table, bias = (np.asarray(x, np.float64)[:VOCAB] for x in output_table(params()))
        losses = []
        for row, slot in zip(*np.nonzero(masked.weights), strict=True):
            at = masked.positions[row, slot]
            exps = np.exp(hidden[row, at] @ table.T + bias)
            losses.append(-np.log(exps[tokens[row, at]] / exps.sum()))
        self.assertEqual(found["loss"][1], len(losses))
        self.assertEqual(len(losses), B * 3)  # 30 % of the ten text tokens of a row
        np.testing.assert_allclose(found["loss"][0], np.sum(losses), rtol=1e-5)

    def test_documents_see_each_other_only_if_told_so(self):
        everywhere = np.tile(np.arange(L), (B, 1))
        tokens = packed_tokens()
        other = np.where(np.arange(L) < 6, tokens, packed_tokens(seed=1))  # the second documents
        across = jax.jit(dataclasses.replace(self.objective, across_documents=True).predictions)
        for predict, is_same in ((self.predict, True), (across, False)):
            first = [np.asarray(predict(params(), t, everywhere))[:, :6] for t in (tokens, other)]
            self.assertEqual(np.array_equal(*first), is_same)


CROSSED = factories.encoder_settings(cross_attention=True)
LAYER = factories.output_layer_settings(refresh_every=3)
MASKED_LM = factories.masked_lm(LAYER, CROSSED, full_softmax_from=6)


class OnMaskedLMTest(parameterized.TestCase):
    @parameterized.named_parameters(
        ("contrast", SentenceContrast(MASKED_LM, ContrastSettings(0.5, 0.1))),
        ("veco", CrossMLM(MASKED_LM, VecoSettings(), MASKED_LM)),
        ("rtd", factories.replaced_token(LAYER, full_softmax_from=6)),
    )
    def test_phases_and_the_index_are_those_of_its_masked_lm(self, objective):
        one = objective.masked_lm
        self.assertEqual(objective.tables[0], one.table_path)
        self.assertEqual([objective.due(step) for step in (0, 2)], [(NEIGHBOURS,), ()])
        phases = [objective.at_step(step) for step in (0, 5, 6, 9)]
        self.assertEqual(phases[:2], [objective] * 2)
        self.assertIs(phases[2], phases[3])
        self.assertIs(phases[2].masked_lm, one.exact)
        self.assertEqual(phases[2].settings, objective.settings)
        self.assertEmpty(phases[2].due(6))
        if tlm := getattr(phases[2], "translation_lm", None):
            self.assertIs(tlm.output_layer, one.exact_layer)
        params = factories.random_params(objective)
        first_of = factories.first_aux_state
        first = jax.jit(lambda params: [first_of(x, params) for x in (objective, one)])
        jax.tree.map(np.testing.assert_array_equal, *first(params))
