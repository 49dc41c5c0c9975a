"""Replaced-token detection: against plain loops, where gradients go, and what may not matter."""

import dataclasses
import functools
from typing import NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from absl.testing import absltest, parameterized

from input_pipeline.bitext import PAIRS
from input_pipeline.stream import PACKED
from tests import factories
from tests.factories import BOS, PAD, SPECIAL
from xlm.models.encoder import Encoder
from xlm.models.segments import packed_segments
from xlm.objectives.masked_lm import MaskedLM, TranslationLM
from xlm.objectives.objective import Batch, LossAndMetrics, Touched, gathered_rows
from xlm.objectives.pair_losses import PairSums
from xlm.objectives.replaced_token import DISCRIMINATOR, GENERATOR, HEAD, Plan, ReplacedToken
from xlm.objectives.settings import ReplacedTokenSettings

SETTINGS = ReplacedTokenSettings(
    generator_layers=0, weight=50.0, temperature=1.0, embeddings="shared"
)
SHARINGS = ("shared", "separate", "disentangled")
KEY = jax.random.key(1)
NUM_VALID = 60
# Of these rows a batch touches a part.
ENCODER = factories.encoder_settings(vocab_size=160, dropout_rate=0.0)


@functools.cache
def generator(
    layer: str = "full", kind: type[MaskedLM] = MaskedLM, row_capacity: int = 0
) -> MaskedLM:
    """No layers, as those are masked LM's."""
    return factories.masked_lm(
        factories.output_layer_settings(kind=layer, k=2, capacity=40, num_negatives=10),
        dataclasses.replace(ENCODER, num_layers=0),
        kind=kind,
        num_valid=NUM_VALID,
        scope=GENERATOR,
        languages=("de", "fr"),
        row_capacity=row_capacity,
    )


@functools.cache
def replaced_token(
    *of_generator, dropout_rate: float = 0.0, name: str = "mrtd", **changes
) -> ReplacedToken:
    encoder = Encoder(dataclasses.replace(ENCODER, dropout_rate=dropout_rate))
    settings = dataclasses.replace(SETTINGS, **changes)
    return ReplacedToken(generator(*of_generator), encoder, settings, name)


def batch(kind: str = PACKED, seed: int = 0) -> Batch:
    tokens = factories.packed_tokens(seed, NUM_VALID)
    tokens[1, 9:] = PAD  # a short sequence
    arrays = {"tokens": tokens, "language": np.array([0, 1, 1, 0], np.int32)}
    if kind == PAIRS:
        segments, positions = packed_segments(tokens, bos=BOS, pad=PAD, across_documents=True)
        arrays |= {"segments": segments, "positions": positions}
    return Batch(jax.tree.map(jnp.asarray, arrays), kind)


@functools.cache
def params(embeddings: str = "shared"):
    return factories.random_params(replaced_token(embeddings=embeddings), 0.4)


@functools.partial(jax.jit, static_argnums=(0, 1))
def _planned(generator: MaskedLM, kind: str, parameters):
    settings = dataclasses.replace(SETTINGS, embeddings="separate")
    objective = ReplacedToken(generator, Encoder(ENCODER), settings)
    extra = factories.first_extra(objective, parameters)
    return objective.plan(extra, batch(kind), KEY, jnp.int32(0))


def planned(objective: ReplacedToken, parameters, kind: str = PACKED):
    """Plan and touched rows: the rows of the tables that there are, else the same for all."""
    of_generator = {GENERATOR: parameters[GENERATOR]}
    plan, touched = jax.device_get(_planned(objective.generator, kind, of_generator))
    return plan, {path: ids for path, ids in touched.items() if path in objective.tables}


class Step(NamedTuple):
    """Values of a step.

    Attributes:
      metrics: its loss and metrics, by gathered rows if it touches few.
      hidden: [B, M, E] of the generator's masked positions.
      ids: [B, L] of the corrupted tokens.
      is_replaced: [B, L] which of them are called replaced.
      observed: sums of losses by language pair, if there are any.
    """

    metrics: LossAndMetrics
    hidden: np.ndarray
    ids: np.ndarray
    is_replaced: np.ndarray
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


def of_step(
    objective: ReplacedToken, parameters, key: jax.Array | None = KEY, kind: str = PACKED
) -> Step:
    return jax.device_get(_step(objective, parameters, *planned(objective, parameters, kind), key))


@jax.jit
def _logits_of_encoder(own, head, ids: jax.Array, tokens: jax.Array) -> jax.Array:
    objective = replaced_token()
    states = objective.encoder.apply(
        {"params": own},
        ids,
        *packed_segments(tokens, bos=BOS, pad=PAD, across_documents=False),
        deterministic=True,
        method="encode",
    )
    return objective._head.apply({"params": head}, states)


def logits_of_encoder(
    objective: ReplacedToken, parameters, ids: np.ndarray, tokens: np.ndarray
) -> np.ndarray:
    """Logits [B, L] of the head on the states of the discriminator, with all its parameters.

    Documents are those of the tokens before their corruption, after which a sample may begin one.
    """
    own = objective.encoder_params(parameters)
    return np.asarray(_logits_of_encoder(own, parameters[HEAD], ids, tokens))


class LossTest(parameterized.TestCase):
    @parameterized.product(embeddings=SHARINGS, layer=("full", "knn"))
    def test_plain_loops_give_the_same(self, embeddings, layer):
        objective, parameters = replaced_token(layer, embeddings=embeddings), params(embeddings)
        step = of_step(objective, parameters)
        found, ids, is_replaced = step.metrics, step.ids, step.is_replaced
        tokens = np.asarray(batch()["tokens"])
        logits = logits_of_encoder(objective, parameters, ids, tokens).astype(np.float64)
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
        output = {**output, "bias": output["bias"] - middle}  # so that about half are found
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
        _, _, ids, is_replaced, _ = of_step(replaced_token(), params())
        masked = planned(replaced_token(), params())[0].generator.masked
        tokens = np.asarray(batch()["tokens"])
        is_masked = np.zeros(tokens.shape, bool)
        for row, (positions, weights) in enumerate(
            zip(masked.positions, masked.weights, strict=True)
        ):
            is_masked[row, positions[weights > 0]] = True
        np.testing.assert_array_equal(ids[~is_masked], tokens[~is_masked])
        self.assertFalse(is_replaced[~is_masked].any())
        self.assertFalse(np.isin(tokens[is_masked], SPECIAL).any())
        self.assertLess(ids.max(), NUM_VALID)

    def test_at_temperature_zero_the_likeliest_token_is_taken(self):
        objective, parameters = replaced_token(temperature=0.0), params()
        step = of_step(objective, parameters)
        masked = planned(objective, parameters)[0].generator.masked
        table, bias = objective.generator.output_table(parameters)
        best = np.argmax((step.hidden @ table.T + bias)[..., :NUM_VALID], axis=-1)
        found = np.take_along_axis(step.ids, masked.positions, axis=1)
        is_used = masked.weights > 0
        np.testing.assert_array_equal(found[is_used], best[is_used])

    def test_pairs(self):
        objective = replaced_token("full", TranslationLM, name="trtd")
        found = of_step(objective, params(), kind=PAIRS).metrics
        self.assertIn("trtd/generator_loss", found)
        # The sentences of a pair attend to each other: as documents, they have other states.
        other = of_step(replaced_token(), params()).metrics
        self.assertNotAlmostEqual(
            float(found["trtd/discriminator_loss"][0]), float(other["mrtd/discriminator_loss"][0])
        )

    def test_losses_of_language_pairs_are_those_of_their_examples(self):
        objective = dataclasses.replace(replaced_token(), num_pairs=3)
        pairs, tokens = [2, 0, 2, 1], np.array(batch()["tokens"])
        tokens[3] = PAD  # an example without text
        arrays = {"tokens": tokens, "language": np.zeros(4, np.int32), "pair": np.array(pairs)}
        given = Batch(jax.tree.map(jnp.asarray, arrays), PACKED)
        plan, _ = jax.jit(objective.plan)({}, given, KEY, jnp.int32(0))
        step = jax.device_get(_step(objective, params(), plan, {}, KEY))
        of_text = logits_of_encoder(objective, params(), step.ids, tokens).astype(np.float64)
        table, bias = objective.generator.output_table(params())
        of_masked = (step.hidden @ table.T + bias)[..., :NUM_VALID].astype(np.float64)
        masked, losses = jax.device_get(plan.generator.masked), np.zeros((2, 3))
        for row, pair in enumerate(pairs[:3]):
            mlm = [
                np.log(np.exp(logits).sum()) - logits[target]
                for logits, target, weight in zip(
                    of_masked[row], masked.targets[row], masked.weights[row], strict=True
                )
                if weight
            ]
            detection = [
                np.log1p(np.exp(-logit if is_replaced else logit))
                for logit, is_replaced, token in zip(
                    of_text[row], step.is_replaced[row], tokens[row], strict=True
                )
                if token not in SPECIAL
            ]
            losses[:, pair] += (np.mean(mlm) + SETTINGS.weight * np.mean(detection), 1)
        self.assertEqual(losses[1].tolist(), [1, 0, 2])
        np.testing.assert_allclose(step.observed.loss, losses[0], rtol=1e-5)
        np.testing.assert_array_equal(step.observed.weight, losses[1])

    def test_dropout_is_the_discriminators(self):
        objective = replaced_token(dropout_rate=0.5)
        plan, _ = planned(objective, params())
        losses = jax.jit(lambda *args: [objective.loss(*args, key)[0] for key in (KEY, None)])
        one, two = jax.device_get(losses(params(), {}, plan))
        plain = of_step(replaced_token(), params()).metrics
        np.testing.assert_array_equal(one["mrtd/generator_loss"], plain["mrtd/generator_loss"])
        np.testing.assert_array_equal(two["mrtd/generator_loss"], plain["mrtd/generator_loss"])
        self.assertNotEqual(
            float(one["mrtd/discriminator_loss"][0]), float(plain["mrtd/discriminator_loss"][0])
        )


def by_rows(embeddings: str) -> ReplacedToken:
    return replaced_token("knn", embeddings=embeddings)


def by_table(embeddings: str) -> ReplacedToken:
    return replaced_token("knn", MaskedLM, 10_000, embeddings=embeddings)


@functools.partial(jax.jit, static_argnums=0)
def _differentiated(embeddings: str, parameters, plans: list[tuple[Plan, Touched]]):
    def gradient(objective: ReplacedToken, plan: Plan, touched: Touched):
        def loss(parameters):
            rows = gathered_rows(parameters, touched)
            return objective.loss(parameters, rows, plan, KEY)[0]["loss"]

        return jax.grad(loss, has_aux=True)(parameters)

    objectives = by_rows(embeddings), by_table(embeddings)
    return [gradient(one, *plan) for one, plan in zip(objectives, plans, strict=True)]


@functools.cache
def differentiated(embeddings: str, factor: float = 1.0):
    """Gradients of the summed loss with a factor of lambda, and the weight of the sum.

    Both by gathered rows and by the table.
    """
    plans = []
    for objective in (by_rows(embeddings), by_table(embeddings)):
        plan, touched = planned(objective, params(embeddings))
        plans.append((plan._replace(scale=np.float32(plan.scale * factor)), touched))
    return jax.device_get(_differentiated(embeddings, params(embeddings), plans))


def gradients(embeddings: str, factor: float = 1.0):
    """Gradient of the mean loss, by gathered rows."""
    (found, weight), _ = differentiated(embeddings, factor)
    return jax.tree.map(lambda x: x / weight, found)


class GradientTest(parameterized.TestCase):
    @parameterized.parameters(*SHARINGS)
    def test_samples_carry_no_gradient_to_the_generator(self, embeddings):
        alone, both = (gradients(embeddings, factor)[GENERATOR] for factor in (0.0, 1.0))
        alone, both = (dict(one) for one in (alone, both))
        tables = [dict(one.pop("embeddings")) for one in (alone, both)]
        check = functools.partial(np.testing.assert_allclose, rtol=1e-6, atol=1e-7)
        jax.tree.map(check, both, alone)
        (of_alone, of_both) = (one.pop("table") for one in tables)
        jax.tree.map(check, *tables)
        if embeddings == "shared":
            self.assertGreater(np.abs(of_both - of_alone).max(), 1e-2)
        else:
            check(of_both, of_alone)

    @parameterized.parameters(*SHARINGS)
    def test_gathered_rows_and_the_whole_table_have_equal_gradients(self, embeddings):
        objective, whole = by_rows(embeddings), by_table(embeddings)
        arguments = batch(), KEY, jnp.int32(0)
        touched, none = (
            jax.eval_shape(lambda one=one: one.plan(one.init_extra(), *arguments))[1]
            for one in (objective, whole)
        )
        self.assertSetEqual(set(touched), set(objective.tables))
        self.assertEmpty(none)
        check = functools.partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-4)
        (found, _), (expected, _) = differentiated(embeddings)
        jax.tree.map(check, found, expected)


class ParametersTest(parameterized.TestCase):
    @parameterized.parameters(*SHARINGS)
    def test_the_discriminator_is_an_encoder(self, embeddings):
        objective, parameters = replaced_token(embeddings=embeddings), params(embeddings)
        tokens, own = batch()["tokens"], objective.encoder_params(parameters)
        expected = logits_of_encoder(objective, parameters, tokens, tokens)
        found = jax.jit(lambda params, tokens: objective.logits(params, tokens))(parameters, tokens)
        np.testing.assert_allclose(found, expected, atol=1e-5)
        table = parameters[GENERATOR]["embeddings"]["table"]
        if embeddings == "separate":
            self.assertGreater(np.abs(own["embeddings"]["table"] - table).max(), 0.1)
        if embeddings == "shared":
            np.testing.assert_array_equal(own["embeddings"]["table"], table)

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

    def test_the_exact_phase(self):
        generator = dataclasses.replace(replaced_token("knn").generator, full_softmax_from=5)
        objective = dataclasses.replace(replaced_token("knn"), generator=generator)
        self.assertIs(objective.at_step(4), objective)
        self.assertIs(objective.at_step(5), objective.at_step(6))
        self.assertIs(objective.at_step(5).generator.output_layer, generator.exact_layer)


if __name__ == "__main__":
    absltest.main()
