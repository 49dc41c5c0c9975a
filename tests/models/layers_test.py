"""Dense layers against Flax's, and what heads of spans mask.

task_heads_parity_test.py compares all heads with PyTorch.
"""

import functools

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from absl.testing import parameterized

from tests.models.factories import random_like
from xlm.models.heads import SpanHead
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


class HeadsTest(parameterized.TestCase):
    def test_no_span_begins_or_ends_where_no_answer_may_be(self):
        hidden = np.random.default_rng(0).normal(size=(3, 7, 4)).astype(np.float32)
        batch = {"answerable": np.arange(7) % 3 < np.array([[2], [0], [1]])}
        init, apply = (
            functools.partial(function, deterministic=True)
            for function in (SpanHead().init, SpanHead().apply)
        )
        shapes = jax.eval_shape(init, jax.random.key(0), hidden, batch)
        params = random_like(shapes["params"])
        found = np.asarray(jax.jit(apply)({"params": params}, hidden, batch))
        expected = hidden @ params["output"]["kernel"] + params["output"]["bias"]
        answerable = batch["answerable"]
        np.testing.assert_allclose(found[answerable], expected[answerable], rtol=1e-5)
        self.assertLess(np.max(found[~answerable]), -1e8)
