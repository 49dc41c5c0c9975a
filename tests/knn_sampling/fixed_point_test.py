"""Fixed points of sampled softmaxes: the truth if corrected, as published away from it."""

import jax
import jax.numpy as jnp
import numpy as np
from absl.testing import absltest, parameterized
from scipy import optimize, special

from knn_sampling.inclusion import NeighbourIndex, log_inclusion
from knn_sampling.noise import cumulative_thresholds
from knn_sampling.output_layer import OutputLayer, TokenStatistics
from tests.knn_sampling.batches import jitted_inclusion, layer_of

V, W, BATCHES = 24, 12, 3000
P = 1 / np.arange(2.0, V + 2)
P /= P.sum()
STATISTICS = TokenStatistics(
    jnp.asarray(P, jnp.float32), cumulative_thresholds(P), jnp.zeros(V, jnp.int32)
)


def neighbours_of(kind: str) -> jax.Array:
    """Three random tokens each, or for target sampling the token alone."""
    rng = np.random.default_rng(0)
    lists = rng.permuted(np.tile(np.arange(V), (V, 1)), axis=1)[:, :3]
    return jnp.asarray(lists if kind == "knn" else np.arange(V)[:, None], jnp.int32)


def fixed_point(layer: OutputLayer, neighbours: jax.Array) -> np.ndarray:
    """Log probabilities [V] of the model without context, a bias alone, of the least mean loss."""
    has_index = neighbours is not None
    index = (
        NeighbourIndex(neighbours, jitted_inclusion(neighbours, STATISTICS.probabilities))
        if has_index
        else None
    )

    weights = jnp.ones((1, W))

    def draw(key):
        targets = jax.random.categorical(key, jnp.log(STATISTICS.probabilities), shape=(1, W))
        return targets, layer.sample(key, targets, weights, STATISTICS, index)

    def loss(bias, targets, sample):
        hidden, table = jnp.zeros((1, W, 2)), jnp.zeros((V, 2))
        return layer.loss(hidden, targets, weights, table, bias, sample).mean()

    # What is drawn does not depend on the bias: once for all iterations.
    batches = jax.jit(jax.vmap(draw))(jax.random.split(jax.random.key(1), BATCHES))

    @jax.jit
    @jax.value_and_grad
    def value_and_gradient(bias, targets, sample):
        return jax.vmap(loss, (None, 0, 0))(bias, targets, sample).mean()

    found = optimize.minimize(
        value_and_gradient, np.zeros(V), args=batches, jac=True, method="L-BFGS-B"
    )
    return special.log_softmax(found.x)


def divergence(log_q: np.ndarray) -> float:
    """KL of the true unigram distribution from another, nats: what the exact loss has too much."""
    return float(np.sum(P * (np.log(P) - special.log_softmax(np.asarray(log_q, np.float64)))))


class FixedPointTest(parameterized.TestCase):
    @parameterized.parameters("knn", "target_sampling")
    def test_log_q_brings_it_to_the_truth(self, kind):
        neighbours = neighbours_of(kind)
        settings = {"capacity": V, "num_valid": V, "k": 3, "group_size": 0, "num_negatives": 0}
        published = fixed_point(layer_of(kind, **settings), neighbours)
        corrected = fixed_point(layer_of(kind, log_q_correction=True, **settings), neighbours)
        log_q = log_inclusion(jitted_inclusion(neighbours, STATISTICS.probabilities), W)
        # Without the correction rare tokens come out too probable by their chance to be in V'.
        expected = divergence(np.log(P) - log_q)
        self.assertGreater(expected, 0.02)
        self.assertBetween(divergence(published) / expected, 0.9, 1.2)
        # A residual is left, since V' depends on the target.
        self.assertLess(divergence(corrected), 0.03 * expected)

    def test_log_q_of_targets_and_further_classes_is_the_truth(self):
        settings = {"num_valid": V, "group_size": 0, "num_negatives": 5}
        published, corrected = (
            divergence(
                fixed_point(
                    layer_of("target_sampling", log_q_correction=corrects, **settings), None
                )
            )
            for corrects in (False, True)
        )
        self.assertGreater(published, 0.01)
        self.assertLess(corrected, 0.05 * published)


if __name__ == "__main__":
    absltest.main()
