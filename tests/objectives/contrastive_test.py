"""Cross-lingual contrast: against plain loops, and what it does not depend on."""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
from absl.testing import absltest, parameterized

from input_pipeline.bitext import SEPARATE_PAIRS
from input_pipeline.stream import PACKED
from tests import factories
from tests.factories import BOS, EOS, PAD, SPECIAL, packed_tokens
from xlm.models.segments import packed_segments
from xlm.objectives.contrastive import SentenceContrast, contrastive_loss
from xlm.objectives.masked_lm import NEIGHBOURS, TABLE, TranslationLM
from xlm.objectives.objective import Batch
from xlm.objectives.settings import ContrastSettings

B, D = 5, 7
CONTRAST = ContrastSettings(weight=0.5, temperature=0.1)


def vectors(seed: int) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(B, D)).astype(np.float32)


def slowly(one: np.ndarray, two: np.ndarray, temperature: float) -> tuple[list, list]:
    """Losses and accuracies, a sentence at a time."""

    def cosine(a, b) -> float:
        return float(a @ b) / math.sqrt(float(a @ a) * float(b @ b))

    losses, accuracies = [], []
    for i in range(B):
        loss, right = 0.0, 0.0
        for query, others in ((one[i], two), (two[i], one)):
            scores = [cosine(query, other) / temperature for other in others]
            loss -= scores[i] - math.log(sum(math.exp(x) for x in scores))
            right += scores[i] == max(scores)
        losses.append(loss / 2)
        accuracies.append(right / 2)
    return losses, accuracies


contrast = jax.jit(contrastive_loss)


class ContrastiveLossTest(parameterized.TestCase):
    @parameterized.parameters(1.0, 0.2, 0.05)
    def test_plain_loops_say_the_same(self, temperature):
        one, two = vectors(0), vectors(1)
        two[:2] += 4 * one[:2]  # two pairs that find each other
        losses, accuracies = jax.device_get(contrast(one, two, temperature))
        expected = slowly(one.astype(np.float64), two.astype(np.float64), temperature)
        # A small loss is a difference of scores of up to 1 / temperature.
        np.testing.assert_allclose(losses, expected[0], rtol=1e-5, atol=1e-6 / temperature)
        np.testing.assert_array_equal(accuracies, expected[1])
        self.assertBetween(float(accuracies.mean()), 0.4, 0.9)

    def test_lengths_and_the_order_of_pairs_and_sides_do_not_matter(self):
        one, two = vectors(0), vectors(1)
        expected = contrast(one, two, 0.2)
        scale = np.array([[0.1], [1], [10], [3], [0.5]], np.float32)
        for name, found in (
            ("lengths", contrast(one * scale, two * scale[::-1], 0.2)),
            ("sides", contrast(two, one, 0.2)),
            ("order", [np.asarray(x)[::-1] for x in contrast(one[::-1], two[::-1], 0.2)]),
        ):
            with self.subTest(name):
                np.testing.assert_allclose(found[0], expected[0], rtol=1e-5)
                np.testing.assert_array_equal(found[1], expected[1])

    def test_a_sentence_without_text_breaks_nothing(self):
        @jax.jit
        @functools.partial(jax.grad, has_aux=True)
        def differentiated(one):
            losses, _ = contrastive_loss(one, vectors(1), 0.1)
            return losses.sum(), losses

        one = vectors(0)
        one[2] = 0
        gradient, losses = differentiated(one)
        self.assertTrue(np.isfinite(losses).all())
        self.assertTrue(np.isfinite(gradient).all())


class ContrastSettingsTest(parameterized.TestCase):
    @parameterized.parameters((-1.0, 0.1, "weight is -1.0"), (1.0, 0.0, "temperature is 0.0"))
    def test_what_cannot_be(self, weight, temperature, message):
        with self.assertRaisesRegex(ValueError, message):
            ContrastSettings(weight, temperature)


class SentenceContrastTest(absltest.TestCase):
    SENTENCES = (slice(0, 6), slice(6, 14))  # of `packed_tokens`

    def test_the_loss_is_that_of_each_sentence_alone_and_their_contrast(self):
        full = factories.output_layer_settings(kind="full")
        objective = SentenceContrast(factories.masked_lm(full, kind=TranslationLM), CONTRAST)
        params, key = factories.random_params(objective), jax.random.key(7)
        tokens = packed_tokens()
        tokens[0, 9:] = [EOS] + [PAD] * 6  # fewer masked tokens, so that its pair weighs less
        packed = factories.masked_lm(full)

        def of_step(objective, params, batch: Batch):
            plan, _ = objective.plan({}, batch, key, jnp.int32(0))
            return plan, *objective.loss(params, {}, plan, None)

        @jax.jit
        def of_steps(params, tokens):
            segments, positions = packed_segments(tokens, bos=BOS, pad=PAD, across_documents=False)
            pairs = {"tokens": tokens, "segments": segments, "positions": positions}
            _, alike, _ = of_step(packed, params, Batch({"tokens": tokens}, PACKED))
            return *of_step(objective, params, Batch(pairs, SEPARATE_PAIRS)), alike["loss"]

        plan, found, observed, expected = jax.device_get(of_steps(params, tokens))
        self.assertIsNone(observed)
        np.testing.assert_allclose(found["separate_mlm_loss"], expected, rtol=1e-6)

        vectors = [self.alone(params, plan.masked.inputs[:, at]) for at in self.SENTENCES]
        losses, accuracies = jax.device_get(contrast(*vectors, CONTRAST.temperature))
        masked = plan.masked.weights.sum(axis=1)
        self.assertGreater(len(set(masked.tolist())), 1)
        np.testing.assert_allclose(found["contrast_loss"][0], losses @ masked, rtol=1e-4)
        np.testing.assert_allclose(found["contrast_accuracy"][0], accuracies @ masked, rtol=1e-6)
        total = found["separate_mlm_loss"][0] + CONTRAST.weight * found["contrast_loss"][0]
        np.testing.assert_allclose(found["loss"][0], total, rtol=1e-6)
        for name in ("loss", "separate_mlm_loss", "contrast_loss", "contrast_accuracy"):
            self.assertEqual(found[name][1], masked.sum())

    @staticmethod
    def alone(params, sentences: np.ndarray) -> np.ndarray:
        """Mean state of each sentence's text, of a batch of those sentences and nothing else."""
        encode = functools.partial(
            factories.masked_lm().encoder.apply, deterministic=True, method="encode"
        )
        is_text = ~np.isin(sentences, SPECIAL)
        places = np.broadcast_to(np.arange(sentences.shape[1]), sentences.shape)
        segments = np.asarray(sentences != PAD, np.int32)
        states = np.asarray(jax.jit(encode)({"params": params}, sentences, segments, places))
        return np.stack([states[i][row].mean(axis=0) for i, row in enumerate(is_text)])

    def test_phases_and_the_index_are_those_of_its_masked_lm(self):
        masked_lm = factories.masked_lm(
            factories.output_layer_settings(refresh_every=3), full_softmax_from=6
        )
        objective = SentenceContrast(masked_lm, CONTRAST)
        self.assertEqual(objective.tables, (TABLE,))
        self.assertEqual(
            [objective.due(step) for step in (0, 2, 3)], [(NEIGHBOURS,), (), (NEIGHBOURS,)]
        )
        phases = [objective.at_step(step) for step in (0, 5, 6, 9)]
        self.assertEqual(phases[:2], [objective] * 2)
        self.assertIs(phases[2], phases[3])
        self.assertEqual(phases[2].settings, CONTRAST)
        self.assertIs(phases[2].masked_lm, masked_lm.exact)
        self.assertEmpty(phases[2].due(6))

        params = factories.random_params(objective)
        jax.tree.map(np.testing.assert_array_equal, params, factories.random_params(masked_lm))
        both = masked_lm, objective
        first = jax.jit(lambda params: [factories.first_extra(one, params) for one in both])
        jax.tree.map(np.testing.assert_array_equal, *first(params))


if __name__ == "__main__":
    absltest.main()
