"""Replaced-token detection: against plain loops, paths of gradients, and invariances."""

import dataclasses
import functools
from typing import NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from absl.testing import parameterized

from input_pipeline.stream import PACKED
from tests import factories
from tests.factories import BOS, PAD, SPECIAL
from xlm.models.encoder import Encoder, output_table
from xlm.models.segments import packed_segments
from xlm.objectives.masked_lm import MaskedLM
from xlm.objectives.objective import Batch, LossAndMetrics, Touched, gathered_rows
from xlm.objectives.pair_losses import PairSums
from xlm.objectives.replaced_token import DISCRIMINATOR, GENERATOR, HEAD, Plan, ReplacedToken
from xlm.objectives.settings import ReplacedTokenSettings

SETTINGS = ReplacedTokenSettings(generator_layers=0)
SHARINGS = ("shared", "separate", "disentangled")
KEY = jax.random.key(1)
NUM_VALID = 60
# A batch touches some of these rows.
ENCODER = factories.encoder_settings(vocab_size=160, dropout_rate=0.0)


@functools.cache
def generator(layer: str = "full", row_capacity: int = 0) -> MaskedLM:
    """Objective without layers, which masked LM tests."""
    return factories.masked_lm(
        factories.output_layer_settings(kind=layer, k=2, capacity=40, num_negatives=10),
        dataclasses.replace(ENCODER, num_layers=0), num_valid=NUM_VALID, scope=GENERATOR,
        languages=("de", "fr"), row_capacity=row_capacity,
    )  # fmt: skip


@functools.cache
def replaced_token(*of_generator, dropout_rate: float = 0.0, **changes) -> ReplacedToken:
    encoder = Encoder(dataclasses.replace(ENCODER, dropout_rate=dropout_rate))
    settings = dataclasses.replace(SETTINGS, **changes)
    return ReplacedToken(generator(*of_generator), encoder, settings)


def batch() -> Batch:
    tokens = factories.packed_tokens(num_valid=NUM_VALID)
    tokens[1, 9:] = PAD  # a short sequence
    arrays = {"tokens": tokens, "language": np.array([0, 1, 1, 0], np.int32)}
    return Batch(jax.tree.map(jnp.asarray, arrays), PACKED)


@functools.cache
def params(embeddings: str = "shared", corrective_weight: float = 0.0):
    settings = {"embeddings": embeddings, "corrective_weight": corrective_weight}
    return factories.random_params(replaced_token(**settings), 0.4)


@functools.partial(jax.jit, static_argnums=0)
def _planned(generator: MaskedLM, parameters):
    settings = dataclasses.replace(SETTINGS, embeddings="separate")
    objective = ReplacedToken(generator, Encoder(ENCODER), settings)
    aux_state = factories.first_aux_state(objective, parameters)
    return objective.plan(aux_state, batch(), KEY, jnp.int32(0))


def planned(objective: ReplacedToken, parameters):
    """Plan and touched rows of existing tables, otherwise the same for all."""
    of_generator = {GENERATOR: parameters[GENERATOR]}
    plan, touched = jax.device_get(_planned(objective.generator, of_generator))
    return plan, {path: ids for path, ids in touched.items() if path in objective.tables}


class Step(NamedTuple):
    """Values of a step, at masked positions (generator) and for corrupted tokens."""

    metrics: LossAndMetrics
    hidden: np.ndarray  # [B, M, E]
    ids: np.ndarray  # [B, L]
    is_replaced: np.ndarray  # [B, L]
    observed: PairSums | None


@functools.partial(jax.jit, static_argnums=0)
def _step(objective: ReplacedToken, parameters, plan: Plan, touched: Touched, key) -> Step:
    rows, generator = gathered_rows(parameters, touched), objective.generator
    metrics, observed = objective.loss(parameters, rows, plan, key)
    states = generator.states(parameters, rows, plan.generator, None)
    hidden = generator.predicted(parameters, states, plan.generator.masked.positions)
    sample_key = jax.random.split(KEY)[0]
    corrupted, _ = objective._corrupted(parameters, rows, plan, hidden, sample_key)
    ids = corrupted.tokens
    if touched:
        ids = touched[generator.table_path][ids]
    return Step(metrics, hidden, ids, corrupted.is_replaced, observed)


def of_step(objective: ReplacedToken, parameters) -> Step:
    return jax.device_get(_step(objective, parameters, *planned(objective, parameters), KEY))


@jax.jit
def _logits_of_encoder(own, head, ids: jax.Array, tokens: jax.Array) -> jax.Array:
    objective = replaced_token()
    layout = packed_segments(tokens, bos=BOS, pad=PAD, across_documents=False)
    states = objective.encoder.apply(
        {"params": own}, ids, *layout, deterministic=True, method="encode"
    )
    return objective._head.apply({"params": head}, states)


def logits_of_encoder(objective: ReplacedToken, parameters, ids, tokens) -> np.ndarray:
    """Logits [B, L] of the head on the states of the discriminator, with all its parameters.

    Documents are from the original tokens, since samples may contain special tokens.
    """
    own = objective.encoder_params(parameters)
    return np.asarray(_logits_of_encoder(own, parameters[HEAD], ids, tokens), np.float64)


class LossTest(parameterized.TestCase):
    @parameterized.parameters(("shared", "full"), ("separate", "knn"), ("disentangled", "knn"))
    def test_plain_loops_give_the_same(self, embeddings, layer):
        objective, parameters = replaced_token(layer, embeddings=embeddings), params(embeddings)
        step = of_step(objective, parameters)
        found, ids, is_replaced = step.metrics, step.ids, step.is_replaced
        tokens = np.asarray(batch()["tokens"])
        logits = logits_of_encoder(objective, parameters, ids, tokens)
        total, count = 0.0, 0
        for row, column in np.ndindex(*tokens.shape):
            if tokens[row, column] in SPECIAL:
                continue
            probability = 1 / (1 + np.exp(-logits[row, column]))
            is_other = ids[row, column] != tokens[row, column]
            self.assertEqual(is_other, is_replaced[row, column])
            total -= np.log(probability if is_other else 1 - probability)
            count += 1
        np.testing.assert_allclose(found["mrtd/discriminator_loss"], (total, count), rtol=1e-5)
        mlm, weight = found["mrtd/generator_loss"]
        expected = mlm / weight + SETTINGS.weight * total / count
        np.testing.assert_allclose(found["loss"][0] / found["loss"][1], expected, rtol=1e-5)

    def test_the_generator_is_masked_lm(self):
        objective = replaced_token()
        plan, _ = planned(objective, params())
        loss = jax.jit(lambda params, plan: objective.generator.loss(params, {}, plan, None)[0])
        expected = loss(params(), plan.generator)
        found = of_step(objective, params()).metrics
        np.testing.assert_allclose(found["mrtd/generator_loss"], expected["loss"], rtol=1e-6)
        self.assertContainsSubset(["loss/de", "loss/fr"], expected)
        for name in expected.keys() - {"loss"}:
            np.testing.assert_allclose(found[name], expected[name], rtol=1e-6)

    def test_metrics_of_detection(self):
        objective = replaced_token()
        step, tokens = of_step(objective, params()), np.asarray(batch()["tokens"])
        middle = np.median(logits_of_encoder(objective, params(), step.ids, tokens))
        output = params()[HEAD]["output"]
        output = {**output, "bias": output["bias"] - middle}  # so about half are found
        parameters = {**params(), HEAD: {**params()[HEAD], "output": output}}
        found = of_step(objective, parameters)
        np.testing.assert_array_equal(found.ids, step.ids)
        is_text = ~np.isin(tokens, SPECIAL)
        is_found = logits_of_encoder(objective, parameters, found.ids, tokens) > 0
        right = (is_found & step.is_replaced).sum()
        self.assertBetween(right, 1, step.is_replaced.sum() - 1)
        for name, expected in {
            "replaced": (step.is_replaced.sum(), is_text.sum()),
            "precision": (right, (is_found & is_text).sum()),
            "recall": (right, step.is_replaced.sum()),
            "padding": ((tokens == PAD).sum(), tokens.size),
        }.items():
            np.testing.assert_array_equal(found.metrics[f"mrtd/{name}"], expected, err_msg=name)

    def test_samples_are_of_masked_text_only(self):
        step = of_step(replaced_token(), params())
        masked = planned(replaced_token(), params())[0].generator.masked
        tokens = np.asarray(batch()["tokens"])
        is_masked, (rows, slots) = np.zeros(tokens.shape, bool), np.nonzero(masked.weights)
        is_masked[rows, masked.positions[rows, slots]] = True
        np.testing.assert_array_equal(step.ids[~is_masked], tokens[~is_masked])
        self.assertFalse(step.is_replaced[~is_masked].any())
        self.assertFalse(np.isin(tokens[is_masked], SPECIAL).any())
        self.assertLess(step.ids.max(), NUM_VALID)
        # At temperature zero it takes the likeliest token.
        coldest = of_step(replaced_token(temperature=0.0), params())
        table, bias = replaced_token().generator.output_table(params())
        best = np.argmax((coldest.hidden @ table.T + bias)[..., :NUM_VALID], axis=-1)
        found = coldest.ids[rows, masked.positions[rows, slots]]
        np.testing.assert_array_equal(found, best[rows, slots])

    def test_losses_of_language_pairs_are_those_of_their_examples(self):
        objective = dataclasses.replace(replaced_token(), num_pairs=3)
        pairs, tokens = [2, 0, 2, 1], np.array(batch()["tokens"])
        tokens[3] = PAD  # an example without text
        arrays = {"tokens": tokens, "language": np.zeros(4, np.int32), "pair": np.array(pairs)}
        given = Batch(jax.tree.map(jnp.asarray, arrays), PACKED)
        plan, _ = jax.jit(objective.plan)({}, given, KEY, jnp.int32(0))
        step = jax.device_get(_step(objective, params(), plan, {}, KEY))
        of_text = logits_of_encoder(objective, params(), step.ids, tokens)
        detection = np.log1p(np.exp(np.where(step.is_replaced, -of_text, of_text)))
        table, bias = objective.generator.output_table(params())
        of_masked = (step.hidden @ table.T + bias)[..., :NUM_VALID].astype(np.float64)
        masked, losses = jax.device_get(plan.generator.masked), np.zeros((2, 3))
        right = np.take_along_axis(of_masked, masked.targets[..., None], axis=-1)[..., 0]
        mlm = np.log(np.exp(of_masked).sum(axis=-1)) - right
        for row, pair in enumerate(pairs[:3]):
            of_row = mlm[row][masked.weights[row] > 0].mean()
            of_row += SETTINGS.weight * detection[row][~np.isin(tokens[row], SPECIAL)].mean()
            losses[:, pair] += of_row, 1
        self.assertEqual(losses[1].tolist(), [1, 0, 2])
        np.testing.assert_allclose(step.observed.loss, losses[0], rtol=1e-5)
        np.testing.assert_array_equal(step.observed.weight, losses[1])

    def test_dropout_is_the_discriminators(self):
        objective, plain = replaced_token(dropout_rate=0.5), of_step(replaced_token(), params())
        plan, _ = planned(objective, params())
        losses = jax.jit(lambda *args: [objective.loss(*args, key)[0] for key in (KEY, None)])
        for found in losses(params(), {}, plan):
            expected = plain.metrics["mrtd/generator_loss"]
            np.testing.assert_array_equal(found["mrtd/generator_loss"], expected)
        dropped, *_ = losses(params(), {}, plan)
        totals = [x["mrtd/discriminator_loss"][0] for x in (dropped, plain.metrics)]
        self.assertNotEqual(*map(float, totals))


class CorrectiveTest(parameterized.TestCase):
    @parameterized.parameters(*SHARINGS)
    def test_plain_loops_give_the_same(self, embeddings):
        """COCO-LM's L_LM: the probability of a copy plus that of a prediction."""
        objective = replaced_token(embeddings=embeddings, corrective_weight=2.0)
        parameters = jax.tree.map(np.copy, params(embeddings, 2.0))
        masked = planned(objective, parameters)[0].generator.masked
        parameters[GENERATOR]["head"]["bias"][masked.targets[0, 0]] += 20  # all of them samples
        step, tokens = of_step(objective, parameters), np.asarray(batch()["tokens"])
        own = objective.encoder_params(parameters)
        layout = packed_segments(tokens, bos=BOS, pad=PAD, across_documents=False)
        run = functools.partial(objective.encoder.apply, {"params": own})
        hidden = run(run(step.ids, *layout, deterministic=True, method="encode"), method="predict")
        table, bias = (np.asarray(x, np.float64) for x in output_table(own))
        of_pieces = (np.asarray(hidden) @ table.T + bias)[..., :NUM_VALID]
        logits = logits_of_encoder(objective, parameters, step.ids, tokens)
        total, copies = 0.0, 0
        for row, slot in zip(*np.nonzero(masked.weights), strict=True):
            at = row, masked.positions[row, slot]
            replaced = 1 / (1 + np.exp(-logits[at]))
            softmax = np.exp(of_pieces[at]) / np.exp(of_pieces[at]).sum()
            is_copy = step.ids[at] == masked.targets[row, slot]
            total -= np.log(
                replaced * softmax[masked.targets[row, slot]] + (1 - replaced) * is_copy
            )
            copies += is_copy
        self.assertBetween(copies, 1, masked.weights.sum() - 1)
        found = step.metrics
        np.testing.assert_allclose(found["mrtd/corrective_loss"][0], total, rtol=1e-5)
        plain = of_step(replaced_token(embeddings=embeddings), parameters).metrics
        self.assertNotIn("mrtd/corrective_loss", plain)
        np.testing.assert_allclose(found["loss"][0], plain["loss"][0] + 2 * total, rtol=1e-5)

    @parameterized.parameters(*SHARINGS)
    def test_its_gradient_is_the_encoders_and_the_softmaxs(self, embeddings):
        parameters = params(embeddings, 2.0)
        plan, touched = planned(by_rows(embeddings), parameters)
        plain, found = (
            jax.device_get(_gradient(by_rows(embeddings, weight), parameters, plan, touched)[0])
            for weight in (0.0, 2.0)
        )
        tables = [one[GENERATOR]["embeddings"].pop("table") for one in (plain, found)]
        check = functools.partial(np.testing.assert_allclose, rtol=1e-5, atol=1e-5)
        for part in (GENERATOR, HEAD):  # HEAD has the probability of a copy
            jax.tree.map(check, found[part], plain[part])
        self.assertEqual(np.abs(tables[1] - tables[0]).max() > 1e-3, embeddings == "shared")
        heads = [one[DISCRIMINATOR]["head"] for one in (plain, found)]
        for one, other in zip(*map(jax.tree.leaves, heads), strict=True):
            self.assertEqual(np.abs(one).max(), 0)
            self.assertGreater(np.abs(other).max(), 1e-3)


def by_rows(embeddings: str, corrective_weight: float = 0.0) -> ReplacedToken:
    changes = {"embeddings": embeddings, "corrective_weight": corrective_weight}
    return replaced_token("knn", **changes)


def by_table(embeddings: str, corrective_weight: float = 0.0) -> ReplacedToken:
    changes = {"embeddings": embeddings, "corrective_weight": corrective_weight}
    return replaced_token("knn", 10_000, **changes)


@functools.partial(jax.jit, static_argnums=0)
def _gradient(objective: ReplacedToken, parameters, plan: Plan, touched: Touched):
    def loss(parameters):
        rows = gathered_rows(parameters, touched)
        return objective.loss(parameters, rows, plan, KEY)[0]["loss"]

    return jax.grad(loss, has_aux=True)(parameters)


def gradient(objective: ReplacedToken, factor: float = 1.0):
    parameters = params(objective.settings.embeddings, objective.settings.corrective_weight)
    plan, touched = planned(objective, parameters)
    plan = plan._replace(scale=np.float32(plan.scale * factor))
    found, weight = jax.device_get(_gradient(objective, parameters, plan, touched))
    return jax.tree.map(lambda x: x / weight, found)


class GradientTest(parameterized.TestCase):
    @parameterized.parameters(*SHARINGS)
    def test_samples_carry_no_gradient_to_the_generator(self, embeddings):
        alone, both = (gradient(by_rows(embeddings), factor)[GENERATOR] for factor in (0.0, 1.0))
        tables = [one["embeddings"].pop("table") for one in (alone, both)]
        check = functools.partial(np.testing.assert_allclose, rtol=1e-6, atol=1e-7)
        jax.tree.map(check, both, alone)
        if embeddings == "shared":
            self.assertGreater(np.abs(tables[1] - tables[0]).max(), 1e-2)
        else:
            check(*tables)

    @parameterized.parameters(*SHARINGS, ("disentangled", 2.0))
    def test_gathered_rows_and_the_whole_table_have_equal_gradients(self, *changes):
        objective, whole = by_rows(*changes), by_table(*changes)
        arguments = batch(), KEY, jnp.int32(0)
        touched, none = (
            jax.eval_shape(lambda one=one: one.plan(one.init_aux_state(), *arguments))[1]
            for one in (objective, whole)
        )
        self.assertSetEqual(set(touched), set(objective.tables))
        self.assertEmpty(none)
        check = functools.partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-5)
        jax.tree.map(check, gradient(objective), gradient(whole))


class ParametersTest(parameterized.TestCase):
    @parameterized.parameters(*SHARINGS)
    def test_the_discriminator_is_an_encoder(self, embeddings):
        objective, parameters = replaced_token(embeddings=embeddings), params(embeddings)
        tokens, own = batch()["tokens"], objective.encoder_params(parameters)
        expected = logits_of_encoder(objective, parameters, tokens, tokens)
        found = jax.jit(lambda params, tokens: objective.logits(params, tokens))(parameters, tokens)
        np.testing.assert_allclose(found, expected, atol=1e-5)
        table = parameters[GENERATOR]["embeddings"]["table"]
        distance = np.abs(own["embeddings"]["table"] - table).max()
        self.assertEqual(distance > 0.1, embeddings != "shared")
        self.assertEqual(distance == 0, embeddings == "shared")

    def test_tables_at_the_start(self):
        @jax.jit
        def starts(key):
            return {one: nn.unbox(replaced_token(embeddings=one).init(key)) for one in SHARINGS}

        for embeddings, start in jax.device_get(starts(KEY)).items():
            objective = replaced_token(embeddings=embeddings)
            table = start[GENERATOR]["embeddings"]["table"]
            own = start[DISCRIMINATOR]["embeddings"].get("table")
            self.assertEqual(own is None, embeddings == "shared")
            self.assertNotIn("head", start[DISCRIMINATOR])
            if embeddings == "disentangled":
                self.assertEqual(np.abs(own).max(), 0)
                composed = objective.encoder_params(start)["embeddings"]["table"]
                np.testing.assert_array_equal(composed, table)
            if embeddings == "separate":
                self.assertGreater(np.abs(own - table).max(), 0.01)
