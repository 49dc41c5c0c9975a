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
from xlm.objectives.objective import Batch
from xlm.objectives.settings import ContrastSettings

B, D = 5, 7
CONTRAST = ContrastSettings(weight=0.5, temperature=0.1)


def vectors(seed: int) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(B, D)).astype(np.float32)


def slowly(one: np.ndarray, two: np.ndarray, temperature: float) -> tuple[list, list]:
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


class SentenceContrastTest(absltest.TestCase):
    SENTENCES = (slice(0, 6), slice(6, 14))  # of `packed_tokens`

    def test_the_loss_is_of_each_sentence_and_their_contrast(self):
        full = factories.output_layer_settings(kind="full")
        objective = SentenceContrast(factories.masked_lm(full), CONTRAST)
        params, key = factories.random_params(objective), jax.random.key(7)
        tokens = packed_tokens()
        tokens[0, 9:] = [EOS] + [PAD] * 6  # fewer masked tokens, and its pair weighs the same
        segments, positions = packed_segments(tokens, bos=BOS, pad=PAD, across_documents=False)
        pairs = {"tokens": tokens, "segments": segments, "positions": positions}

        @functools.partial(jax.jit, static_argnums=0)
        def of_step(objective, params, batch: Batch):
            plan, _ = objective.plan({}, batch, key, jnp.int32(0))
            return plan, objective.loss(params, {}, plan, None)[0]

        plan, found = jax.device_get(of_step(objective, params, Batch(pairs, SEPARATE_PAIRS)))
        packed = factories.masked_lm(full)
        _, alike = of_step(packed, params, Batch({"tokens": tokens}, PACKED))
        np.testing.assert_allclose(found["separate_mlm_loss"], alike["loss"], rtol=1e-6)

        vectors = [self.alone(params, plan.masked.inputs[:, at]) for at in self.SENTENCES]
        losses, accuracies = jax.device_get(contrast(*vectors, CONTRAST.temperature))
        masked = plan.masked.weights.sum(axis=1)
        self.assertGreater(len(set(masked.tolist())), 1)
        expected = masked.sum() * losses.mean(), masked.sum() * accuracies.mean()
        np.testing.assert_allclose(found["contrast_loss"][0], expected[0], rtol=1e-4)
        np.testing.assert_allclose(found["contrast_accuracy"][0], expected[1], rtol=1e-6)
        total = found["separate_mlm_loss"][0] + CONTRAST.weight * found["contrast_loss"][0]
        np.testing.assert_allclose(found["loss"][0], total, rtol=1e-6)
        for name in ("loss", "separate_mlm_loss", "contrast_loss", "contrast_accuracy"):
            self.assertEqual(found[name][1], masked.sum())

    @staticmethod
    def alone(params, sentences: np.ndarray) -> np.ndarray:
        """Mean state of each sentence's text, of a batch of those sentences and nothing else."""
        encoder = factories.masked_lm().encoder
        encode = functools.partial(encoder.apply, deterministic=True, method="encode")
        is_text = ~np.isin(sentences, SPECIAL)
        places = np.broadcast_to(np.arange(sentences.shape[1]), sentences.shape)
        segments = np.asarray(sentences != PAD, np.int32)
        states = np.asarray(jax.jit(encode)({"params": params}, sentences, segments, places))
        return np.stack([states[i][row].mean(axis=0) for i, row in enumerate(is_text)])
