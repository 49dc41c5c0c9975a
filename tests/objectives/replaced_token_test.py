"""Replaced-token detection: against plain loops, where gradients go, and what may not matter."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
from absl.testing import absltest, parameterized

from input_pipeline.bitext import PAIRS
from input_pipeline.stream import PACKED
from models.encoder import Encoder
from models.segments import packed_segments
from objectives.batch import Batch
from objectives.masked_lm import MaskedLM
from objectives.objective import gathered_rows
from objectives.replaced_token import (
    DISCRIMINATOR,
    GENERATOR,
    HEAD,
    ReplacedToken,
    ReplacedTokenSettings,
)
from objectives.translation_lm import TranslationLM
from tests import factories
from tests.factories import BOS, PAD, SPECIAL

SETTINGS = ReplacedTokenSettings(
    generator_layers=1, weight=50.0, temperature=1.0, embeddings="shared"
)
SHARINGS = ("shared", "separate", "disentangled")
KEY = jax.random.key(1)
NUM_VALID = 60
# Of these rows a batch touches a part.
ENCODER = factories.encoder_settings(vocab_size=160, dropout_rate=0.0)


def replaced_token(
    layer: str = "full",
    kind: type[MaskedLM] = MaskedLM,
    dropout_rate: float = 0.0,
    languages: tuple[str, ...] = (),
    **changes,
) -> ReplacedToken:
    generator = factories.masked_lm(
        factories.output_layer_settings(kind=layer, k=2, capacity=40, num_negatives=10),
        ENCODER,
        kind=kind,
        num_valid=NUM_VALID,
        scope=GENERATOR,
        languages=languages,
    )
    encoder = Encoder(dataclasses.replace(ENCODER, num_layers=2, dropout_rate=dropout_rate))
    return ReplacedToken(generator, encoder, dataclasses.replace(SETTINGS, **changes))


def batch(kind: str = PACKED, seed: int = 0) -> Batch:
    tokens = factories.packed_tokens(seed, NUM_VALID)
    tokens[1, 9:] = PAD  # a short sequence
    arrays = {"tokens": tokens, "language": np.array([0, 1, 1, 0], np.int32)}
    if kind == PAIRS:
        segments, positions = packed_segments(tokens, bos=BOS, pad=PAD, across_documents=True)
        arrays |= {"segments": segments, "positions": positions}
    return Batch(jax.tree.map(jnp.asarray, arrays), kind)


@functools.cache
def params(embeddings: str = "shared", layer: str = "full"):
    found = factories.random_params(replaced_token(layer, embeddings=embeddings), 0.4)
    return jax.tree.map(jnp.asarray, found)


def planned(objective: ReplacedToken, parameters, kind: str = PACKED):
    extra = factories.first_extra(objective, parameters)
    return objective.plan(extra, batch(kind), KEY, jnp.int32(0))


def of_step(objective: ReplacedToken, parameters, key: jax.Array | None = KEY, kind: str = PACKED):
    """Loss and metrics of a step, by gathered rows if it touches few."""
    plan, touched = planned(objective, parameters, kind)
    return objective.loss(parameters, gathered_rows(parameters, touched), plan, key)[0]


def mean_loss(objective: ReplacedToken, parameters) -> jax.Array:
    total, weight = of_step(objective, parameters)["loss"]
    return total / weight


def corrupted_ids(objective: ReplacedToken, parameters) -> tuple[np.ndarray, np.ndarray]:
    """Ids of the corrupted tokens, and which of them are called replaced."""
    plan, touched = planned(objective, parameters)
    rows = gathered_rows(parameters, touched)
    states = objective.generator.states(parameters, rows, plan.generator, None)
    hidden = objective.generator.predicted(parameters, states, plan.generator.masked.positions)
    sample_key = jax.random.split(KEY)[0]
    found, _ = objective._corrupted(parameters, rows, plan, hidden, sample_key)
    ids = np.asarray(found.tokens)
    if touched:
        ids = np.asarray(touched[objective.generator.table_path])[ids]
    return ids, np.asarray(found.is_replaced)


class LossTest(parameterized.TestCase):
    @parameterized.product(embeddings=SHARINGS, layer=("full", "knn"))
    def test_plain_loops_give_the_same(self, embeddings, layer):
        objective, parameters = replaced_token(layer, embeddings=embeddings), params(embeddings)
        found = of_step(objective, parameters)
        ids, is_replaced = corrupted_ids(objective, parameters)
        logits = np.asarray(objective.logits(parameters, jnp.asarray(ids)), np.float64)
        tokens = np.asarray(batch()["tokens"])
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
        objective = replaced_token(languages=("de", "fr"))
        plan, _ = planned(objective, params())
        expected, _ = objective.generator.loss(params(), {}, plan.generator, None)
        found = of_step(objective, params())
        np.testing.assert_allclose(found["mrtd/generator_loss"], expected["loss"], rtol=1e-6)
        for name in expected.keys() - {"loss"}:
            np.testing.assert_allclose(found[name], expected[name], rtol=1e-6)

    def test_metrics_of_detection(self):
        objective = replaced_token()
        ids, is_replaced = corrupted_ids(objective, params())
        middle = np.median(objective.logits(params(), jnp.asarray(ids)))
        output = params()[HEAD]["output"]
        output = {**output, "bias": output["bias"] - middle}  # so that about half are found
        parameters = {**params(), HEAD: {**params()[HEAD], "output": output}}
        found = of_step(objective, parameters)
        tokens = np.asarray(batch()["tokens"])
        is_text = ~np.isin(tokens, SPECIAL)
        is_found = np.asarray(objective.logits(parameters, jnp.asarray(ids))) > 0
        right = (is_found & is_replaced).sum()
        self.assertBetween(right, 1, is_replaced.sum() - 1)
        for name, expected in {
            "replaced": (is_replaced.sum(), is_text.sum()),
            "precision": (right, (is_found & is_text).sum()),
            "recall": (right, is_replaced.sum()),
            "padding": ((tokens == PAD).sum(), tokens.size),
        }.items():
            np.testing.assert_array_equal(found[f"mrtd/{name}"], expected, err_msg=name)

    def test_samples_are_of_masked_text_only(self):
        ids, is_replaced = corrupted_ids(replaced_token(), params())
        tokens = np.asarray(batch()["tokens"])
        masked = planned(replaced_token(), params())[0].generator.masked
        is_masked = np.zeros(tokens.shape, bool)
        for row, (positions, weights) in enumerate(
            zip(masked.positions, masked.weights, strict=True)
        ):
            is_masked[row, np.asarray(positions)[np.asarray(weights) > 0]] = True
        np.testing.assert_array_equal(ids[~is_masked], tokens[~is_masked])
        self.assertFalse(is_replaced[~is_masked].any())
        self.assertFalse(np.isin(tokens[is_masked], SPECIAL).any())
        self.assertLess(ids.max(), NUM_VALID)

    def test_a_right_sample_is_original(self):
        objective = replaced_token(temperature=0.0)
        parameters = params()
        plan, _ = planned(objective, parameters)
        target = int(plan.generator.masked.targets[0, 0])
        bias = np.array(parameters[GENERATOR]["head"]["bias"])
        bias[target] += 1e4  # always predicted
        head = {**parameters[GENERATOR]["head"], "bias": bias}
        parameters = {**parameters, GENERATOR: {**parameters[GENERATOR], "head": head}}
        ids, is_replaced = corrupted_ids(objective, parameters)
        position = int(plan.generator.masked.positions[0, 0])
        self.assertEqual(ids[0, position], target)
        self.assertFalse(is_replaced[0, position])
        accuracy = of_step(objective, parameters)["mrtd/generator_accuracy"]
        is_target = (plan.generator.masked.targets == target) & (plan.generator.masked.weights > 0)
        np.testing.assert_array_equal(
            accuracy, (is_target.sum(), plan.generator.masked.weights.sum())
        )

    def test_at_temperature_zero_the_likeliest_token_is_taken(self):
        objective, parameters = replaced_token(temperature=0.0), params()
        plan, _ = planned(objective, parameters)
        generator, masked = objective.generator, plan.generator.masked
        states = generator.states(parameters, {}, plan.generator, None)
        hidden = generator.predicted(parameters, states, masked.positions)
        table, bias = generator.output_table(parameters)
        best = np.argmax((hidden @ table.T + bias[None, None, :])[..., :NUM_VALID], axis=-1)
        ids, _ = corrupted_ids(objective, parameters)
        found = np.take_along_axis(ids, np.asarray(masked.positions), axis=1)
        is_used = np.asarray(masked.weights) > 0
        np.testing.assert_array_equal(found[is_used], best[is_used])

    def test_pairs(self):
        objective = dataclasses.replace(replaced_token(kind=TranslationLM), name="trtd")
        found = of_step(objective, params(), kind=PAIRS)
        self.assertIn("trtd/generator_loss", found)
        # The sentences of a pair attend to each other: as documents, they have other states.
        other = of_step(replaced_token(), params())
        self.assertNotAlmostEqual(
            float(found["trtd/discriminator_loss"][0]), float(other["mrtd/discriminator_loss"][0])
        )

    def test_dropout_is_the_discriminators(self):
        objective = replaced_token(dropout_rate=0.5)
        one, two = (of_step(objective, params(), key) for key in (KEY, None))
        plain = of_step(replaced_token(), params())
        np.testing.assert_array_equal(one["mrtd/generator_loss"], plain["mrtd/generator_loss"])
        np.testing.assert_array_equal(two["mrtd/generator_loss"], plain["mrtd/generator_loss"])
        self.assertNotEqual(
            float(one["mrtd/discriminator_loss"][0]), float(plain["mrtd/discriminator_loss"][0])
        )


@functools.cache
def compiled_gradient(embeddings: str):
    """Function of the parameters and a factor of lambda."""
    objective = replaced_token(embeddings=embeddings)

    def loss(parameters, factor):
        plan, touched = planned(objective, parameters)
        plan = plan._replace(scale=plan.scale * factor)
        rows = gathered_rows(parameters, touched)
        total, weight = objective.loss(parameters, rows, plan, KEY)[0]["loss"]
        return total / weight

    return jax.jit(jax.grad(loss))


@functools.cache
def gradients(embeddings: str, factor: float = 1.0):
    return jax.device_get(compiled_gradient(embeddings)(params(embeddings), factor))


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
    def test_the_discriminators_gradient_is_that_of_differences(self, embeddings):
        objective, parameters = replaced_token(embeddings=embeddings), params(embeddings)
        grads = gradients(embeddings)
        names, rng = (DISCRIMINATOR, HEAD), np.random.default_rng(0)
        direction = {
            name: jax.tree.map(lambda x: rng.normal(size=x.shape), parameters[name])
            for name in names
        }

        def loss_after(step: float) -> float:
            own = {
                name: jax.tree.map(
                    lambda x, d: (x + step * d).astype(np.float32),
                    parameters[name],
                    direction[name],
                )
                for name in names
            }
            return float(mean_loss(objective, {**parameters, **own}))

        products = jax.tree.map(
            lambda g, d: float((g * d).sum()), {name: grads[name] for name in names}, direction
        )
        slope = (loss_after(1e-3) - loss_after(-1e-3)) / 2e-3
        np.testing.assert_allclose(sum(jax.tree.leaves(products)), slope, rtol=2e-2)

    @parameterized.parameters(*SHARINGS)
    def test_gathered_rows_and_the_whole_table_have_equal_gradients(self, embeddings):
        objective, parameters = replaced_token("knn", embeddings=embeddings), params(embeddings)
        plan, touched = planned(objective, parameters)
        self.assertSetEqual(set(touched), set(objective.tables))

        def loss(parameters):
            rows = gathered_rows(parameters, touched)
            return objective.loss(parameters, rows, plan, KEY)[0]["loss"][0]

        whole = dataclasses.replace(
            objective, generator=dataclasses.replace(objective.generator, row_capacity=10_000)
        )
        extra = factories.first_extra(whole, parameters)
        plan_of_whole, none = whole.plan(extra, batch(), KEY, jnp.int32(0))
        self.assertEmpty(none)

        def loss_of_whole(parameters):
            return whole.loss(parameters, {}, plan_of_whole, KEY)[0]["loss"][0]

        found, expected = jax.grad(loss)(parameters), jax.grad(loss_of_whole)(parameters)
        check = functools.partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-4)
        jax.tree.map(check, jax.device_get(found), jax.device_get(expected))


class ParametersTest(parameterized.TestCase):
    @parameterized.parameters(*SHARINGS)
    def test_the_discriminator_is_an_encoder(self, embeddings):
        objective, parameters = replaced_token(embeddings=embeddings), params(embeddings)
        tokens = batch()["tokens"]
        own = objective.encoder_params(parameters)
        states = objective.encoder.apply(
            {"params": own},
            tokens,
            *packed_segments(tokens, bos=BOS, pad=PAD, across_documents=False),
            deterministic=True,
            method="encode",
        )
        logits = objective._head.apply({"params": parameters[HEAD]}, states)
        np.testing.assert_allclose(logits, objective.logits(parameters, tokens), atol=1e-5)
        table = parameters[GENERATOR]["embeddings"]["table"]
        if embeddings == "separate":
            self.assertGreater(np.abs(own["embeddings"]["table"] - table).max(), 0.1)
        if embeddings == "shared":
            np.testing.assert_array_equal(own["embeddings"]["table"], table)

    def test_tables_at_the_start(self):
        for embeddings in SHARINGS:
            objective = replaced_token(embeddings=embeddings)
            start = jax.device_get(
                jax.tree.map(
                    lambda x: x.value,
                    objective.init(KEY),
                    is_leaf=lambda x: hasattr(x, "value"),
                )
            )
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

    def test_corrupt_masks_and_fills(self):
        objective, tokens = replaced_token("knn"), batch()["tokens"]
        found = np.asarray(jax.jit(objective.corrupt)(params(), tokens, KEY))
        is_text = ~np.isin(tokens, SPECIAL)
        np.testing.assert_array_equal(found[~is_text], np.asarray(tokens)[~is_text])
        changed = (found != np.asarray(tokens)).sum()
        self.assertBetween(changed, 1, 0.3 * is_text.sum() + 4)

    @parameterized.parameters(
        ({"generator_layers": -1}, "generator_layers is -1, must be at least 0"),
        ({"weight": -1.0}, "replaced_token.weight is -1.0, must be at least 0"),
        ({"temperature": -0.5}, "temperature is -0.5, must be at least 0"),
        ({"temperature": float("nan")}, "temperature is nan, must be at least 0"),
        ({"embeddings": "none"}, "embeddings is 'none', must be one of .*disentangled"),
    )
    def test_settings_out_of_range(self, changes, message):
        with self.assertRaisesRegex(ValueError, message):
            dataclasses.replace(SETTINGS, **changes)


if __name__ == "__main__":
    absltest.main()
