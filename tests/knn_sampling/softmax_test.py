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
    def setUp(self):
        super().setUp()
        rng = np.random.default_rng(0)
        self.table = jnp.array(rng.normal(size=(V, D)), jnp.float32)
        self.bias = jnp.array(rng.normal(size=V), jnp.float32)
        self.hidden = jnp.array(rng.normal(size=(W, D)), jnp.float32)
        self.targets = jnp.array(rng.integers(V, size=W), jnp.int32)
        self.weights = jnp.array(rng.integers(2, size=W), jnp.float32)

    def loss(self, k: int, capacity: int, table=None, weights=None) -> jax.Array:
        index = nearest_neighbours(self.table, k=k, num_valid=V)
        table = self.table if table is None else table
        return knn_softmax_loss(
            self.hidden, self.targets, table, self.bias, index, capacity=capacity, weights=weights
        )

    def test_all_neighbours_are_the_full_softmax(self):
        expected = full_softmax_loss(
            self.hidden, self.targets, self.weights, self.table, self.bias, num_valid=V
        )
        found = self.loss(V, V, weights=self.weights)
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)

    def test_it_is_the_softmax_over_the_union(self):
        index = np.asarray(nearest_neighbours(self.table, k=K, num_valid=V))
        union = sorted({*np.asarray(self.targets), *index[np.asarray(self.targets)].ravel()})
        self.assertLess(len(union), V)
        logits = np.asarray(self.hidden @ self.table.T + self.bias[None])[:, union]
        expected = np.log(np.exp(logits).sum(1)) - [
            row[union.index(target)]
            for row, target in zip(logits, np.asarray(self.targets), strict=True)
        ]
        np.testing.assert_allclose(self.loss(K, V), expected, rtol=1e-5)
        grads = jax.grad(lambda table: self.loss(K, V, table).sum())(self.table)
        touched = np.flatnonzero(np.abs(np.asarray(grads)).sum(1))
        self.assertEqual(touched.tolist(), union)

    def test_targets_stay_where_neighbours_do_not_fit(self):
        self.assertTrue(np.isfinite(self.loss(K, W)).all())
        with self.assertRaisesRegex(ValueError, "capacity is 2, must be at least 12"):
            self.loss(K, 2)


if __name__ == "__main__":
    absltest.main()
