"""The k-NN sampled softmax as a function, against the losses that it is made of."""

import jax
import jax.numpy as jnp
import numpy as np
from absl.testing import absltest

from knn_sampling.losses import full_softmax_loss
from knn_sampling.neighbours import nearest_neighbours
from knn_sampling.softmax import knn_softmax_loss

V, D, W, K = 40, 8, 12, 3


class KNNSoftmaxTest(absltest.TestCase):
    def test_it_is_the_softmax_over_the_union(self):
        rng = np.random.default_rng(0)
        hidden, table, bias = (
            jnp.array(rng.normal(size=shape), jnp.float32) for shape in ((W, D), (V, D), V)
        )
        targets, weights = rng.integers(V, size=W), rng.integers(2, size=W).astype(np.float32)

        def loss(k: int, capacity: int, table=table, weights=None) -> jax.Array:
            index = nearest_neighbours(table, k=k, num_valid=V)
            options = {"capacity": capacity, "weights": weights}
            return knn_softmax_loss(hidden, jnp.array(targets), table, bias, index, **options)

        expected = full_softmax_loss(hidden, targets, weights, table, bias, num_valid=V)
        np.testing.assert_allclose(loss(V, V, weights=weights), expected, rtol=1e-5, atol=1e-6)

        index = np.asarray(nearest_neighbours(table, k=K, num_valid=V))
        union = sorted({*targets.tolist(), *index[targets].ravel().tolist()})
        self.assertLess(len(union), V)
        logits = np.asarray(hidden @ table.T + bias[None])
        of_targets = logits[np.arange(W), targets]
        expected = np.log(np.exp(logits[:, union]).sum(1)) - of_targets
        np.testing.assert_allclose(loss(K, V), expected, rtol=1e-5)
        grads = jax.grad(lambda table: loss(K, V, table).sum())(table)
        touched = np.flatnonzero(np.abs(np.asarray(grads)).sum(1))
        self.assertEqual(touched.tolist(), union)
        # Targets stay where neighbours do not fit.
        self.assertTrue(np.isfinite(loss(K, W)).all())
        with self.assertRaisesRegex(ValueError, "capacity is 2, must be at least 12"):
            loss(K, 2)
