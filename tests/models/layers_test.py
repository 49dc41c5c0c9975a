"""Dense layers against Flax's, and the sum of their biases' gradients against float64."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from absl.testing import parameterized

from xlm.models.layers import dense

KEY = jax.random.key(0)
X = jax.random.normal(jax.random.key(1), (16, 128, 8))


def shapes(params):
    return jax.tree.map(lambda array: (array.shape, array.dtype), params)


class DenseTest(parameterized.TestCase):
    @parameterized.parameters("float32", "bfloat16")
    def test_is_flax_dense(self, dtype):
        ours, theirs = dense(4, ("in", "out"), dtype), nn.Dense(4, dtype=dtype)
        params = nn.unbox(ours.init(KEY, X))
        self.assertEqual(shapes(params), shapes(theirs.init(KEY, X)))
        params["params"]["bias"] = jnp.array([0.3, -1.7, 0.0, 2.9])
        found = ours.apply(params, X)
        self.assertEqual(found.dtype, dtype)
        np.testing.assert_array_equal(found, theirs.apply(params, X))

    @parameterized.parameters("float32", "bfloat16")
    def test_gradient_of_the_bias_is_summed_in_float32(self, dtype):
        layer = dense(4, ("in", "out"), dtype)
        params = nn.unbox(layer.init(KEY, X))
        weights = (1 + jax.random.normal(jax.random.key(2), (16, 128, 4))).astype(dtype)

        @jax.jit
        def gradient(params, weights):
            return jax.grad(lambda params: jnp.vdot(layer.apply(params, X), weights))(params)

        found = gradient(params, weights)["params"]["bias"]
        self.assertEqual(found.dtype, jnp.float32)
        expected = np.asarray(weights, np.float64).sum(axis=(0, 1))
        np.testing.assert_allclose(found, expected, rtol=1e-5)
