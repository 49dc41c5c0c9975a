"""Cross-lingual contrast: against plain loops, and what it does not depend on."""

import math

import jax
import jax.numpy as jnp
import numpy as np
from absl.testing import absltest, parameterized

from objectives.contrastive import ContrastSettings, contrastive_loss

B, D = 5, 7


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


class ContrastiveLossTest(parameterized.TestCase):
    @parameterized.parameters(1.0, 0.2, 0.05)
    def test_plain_loops_say_the_same(self, temperature):
        one, two = vectors(0), vectors(1)
        two[:2] += 4 * one[:2]  # two pairs that find each other
        losses, accuracies = jax.jit(contrastive_loss)(one, two, temperature)
        expected = slowly(one.astype(np.float64), two.astype(np.float64), temperature)
        # A small loss is a difference of scores of up to 1 / temperature.
        np.testing.assert_allclose(losses, expected[0], rtol=1e-5, atol=1e-6 / temperature)
        np.testing.assert_array_equal(accuracies, expected[1])
        self.assertBetween(float(accuracies.mean()), 0.4, 0.9)

    def test_lengths_and_the_order_of_pairs_and_sides_do_not_matter(self):
        one, two = vectors(0), vectors(1)
        expected = contrastive_loss(one, two, 0.2)
        scale = np.array([[0.1], [1], [10], [3], [0.5]], np.float32)
        for name, found in (
            ("lengths", contrastive_loss(one * scale, two * scale[::-1], 0.2)),
            ("sides", contrastive_loss(two, one, 0.2)),
            ("order", [x[::-1] for x in contrastive_loss(one[::-1], two[::-1], 0.2)]),
        ):
            with self.subTest(name):
                np.testing.assert_allclose(found[0], expected[0], rtol=1e-5)
                np.testing.assert_array_equal(found[1], expected[1])

    def test_a_step_down_the_gradient_brings_translations_together(self):
        def loss(pair):
            return contrastive_loss(*pair, 0.1)[0].sum()

        pair = jnp.stack([vectors(0), vectors(1)])
        down = pair - 1e-3 * jax.grad(loss)(pair)
        self.assertLess(loss(down), loss(pair))
        np.testing.assert_allclose(loss((pair[0], pair[0])), 0, atol=0.1)

    def test_a_sentence_without_text_breaks_nothing(self):
        one = jnp.asarray(vectors(0)).at[2].set(0)
        losses, pull = jax.vjp(lambda x: contrastive_loss(x, vectors(1), 0.1)[0], one)
        self.assertTrue(np.isfinite(losses).all())
        self.assertTrue(np.isfinite(pull(jnp.ones(B))[0]).all())


class ContrastSettingsTest(parameterized.TestCase):
    @parameterized.parameters((-1.0, 0.1, "weight is -1.0"), (1.0, 0.0, "temperature is 0.0"))
    def test_what_cannot_be(self, weight, temperature, message):
        with self.assertRaisesRegex(ValueError, message):
            ContrastSettings(weight, temperature)


if __name__ == "__main__":
    absltest.main()
