"""Label smoothing against its definition, term by term."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
from absl.testing import absltest, parameterized
from jax.test_util import check_grads

from objectives.label_smoothing import label_smoothed_loss, smoothing_penalty, translation_loss

B, L, E, R, V = 3, 5, 4, 12, 9


def random(*shape: int, seed: int = 0) -> jax.Array:
    return jnp.asarray(np.random.default_rng(seed).normal(size=shape), jnp.float32)


HIDDEN, TABLE, BIAS = 2 * random(B, L, E), random(R, E, seed=1), random(R, seed=2)
LOGITS = HIDDEN @ TABLE.T + BIAS[None, None]
LABELS = jnp.asarray(np.random.default_rng(3).integers(V, size=(B, L)), jnp.int32)


def slow_loss(logits, label: int, smoothing: float) -> float:
    """Cross-entropy of the smoothed distribution, in float64, class by class."""
    logits = np.asarray(logits[:V], np.float64)
    log_probs = logits - np.log(np.exp(logits).sum())
    return -sum(((1 - smoothing) * (c == label) + smoothing / V) * log_probs[c] for c in range(V))


class LabelSmoothingTest(parameterized.TestCase):
    @parameterized.parameters(0.0, 0.1, 1.0)
    def test_against_the_definition(self, smoothing):
        found = label_smoothed_loss(LOGITS, LABELS, smoothing, V)
        for i, j in np.ndindex(B, L):
            expected = slow_loss(LOGITS[i, j], int(LABELS[i, j]), smoothing)
            np.testing.assert_allclose(found[i, j], expected, rtol=1e-5)

    def test_without_smoothing_it_is_plain(self):
        plain = optax.softmax_cross_entropy_with_integer_labels(LOGITS[..., :V], LABELS)
        np.testing.assert_allclose(label_smoothed_loss(LOGITS, LABELS, 0.0, V), plain, rtol=1e-6)

    def test_rows_of_no_class_do_not_count(self):
        other = LOGITS.at[..., V:].set(1e9)
        for smoothing in (0.0, 0.3):
            found = label_smoothed_loss(other, LABELS, smoothing, V)
            expected = label_smoothed_loss(LOGITS, LABELS, smoothing, V)
            np.testing.assert_array_equal(found, expected)

    def test_the_penalty_makes_a_likelihood_smooth(self):
        table = TABLE.at[V:].set(1e9)
        found = smoothing_penalty(HIDDEN, LABELS, table, BIAS, 0.1, V)
        plain, smooth = (label_smoothed_loss(LOGITS, LABELS, e, V) for e in (0.0, 0.1))
        np.testing.assert_allclose(plain + found, smooth, rtol=1e-5)

    def test_gradients(self):
        check_grads(
            lambda x: label_smoothed_loss(x, LABELS, 0.1, V), [LOGITS], 1, ("rev",), 1e-2, 1e-2
        )
        # Least where the probabilities are those of the smoothed label.
        target = 0.9 * jax.nn.one_hot(LABELS, V) + 0.1 / V
        grad = jax.grad(lambda x: label_smoothed_loss(x, LABELS, 0.1, V).sum())(jnp.log(target))
        np.testing.assert_allclose(grad, 0, atol=1e-6)

    def test_the_loss_of_a_batch(self):
        labels = LABELS.at[0, 3:].set(-1).at[2, 1:].set(-1)
        batch = {"target_outputs": labels, "weights": jnp.array([1.0, 0.0, 1.0])}
        kept = [(0, 0), (0, 1), (0, 2), (2, 0)]
        for smoothing in (0.0, 0.1):
            found = jax.jit(translation_loss, static_argnums=(2, 3))(LOGITS, batch, smoothing, V)
            for name, e in (("loss", smoothing), ("nll", 0.0)):
                expected = sum(slow_loss(LOGITS[i], int(labels[i]), e) for i in kept)
                np.testing.assert_allclose(found[name][0], expected, rtol=1e-5)
                self.assertEqual(found[name][1], 4)
        right = sum(int(np.argmax(LOGITS[i][:V])) == int(labels[i]) for i in kept)
        self.assertEqual(found["accuracy"], (right, 4))

    def test_padding_has_no_gradient(self):
        labels = LABELS.at[0, 3:].set(-1)
        batch = {"target_outputs": labels, "weights": jnp.array([1.0, 1.0, 0.0])}
        grad = jax.grad(lambda x: translation_loss(x, batch, 0.1, V)["loss"][0])(LOGITS)
        is_zero = np.all(np.asarray(grad) == 0, axis=-1)
        np.testing.assert_array_equal(is_zero, (labels < 0) | (np.arange(B) == 2)[:, None])


if __name__ == "__main__":
    absltest.main()
