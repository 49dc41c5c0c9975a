"""Splash attention against attention that holds all weights, and what is lowered."""

import functools
import math
import re

import jax
import jax.numpy as jnp
import numpy as np
from absl.testing import absltest, parameterized

from xlm.models.segment_attention import segment_attention
from xlm.models.segments import segment_mask
from xlm.models.softmax_attention import attend

B, H, D = 2, 2, 16


def arguments(length: int, dtype=jnp.float32) -> tuple:
    """Three segments and padding in each sequence, not at the borders of blocks."""
    rng = np.random.default_rng(0)
    tokens = (jnp.asarray(rng.normal(size=(B, length, H, D)), dtype) for _ in range(3))
    ends = np.sort(rng.integers(1, length, (B, 3)), axis=1)
    segments = 1 + (np.arange(length)[None, :, None] >= ends[:, None, :]).sum(axis=2)
    return *tokens, jnp.asarray(segments % 4, jnp.int32)


def plain(query, keys, values, segments) -> jax.Array:
    return attend(query, keys, values, segment_mask(segments))


class SegmentAttentionTest(parameterized.TestCase):
    @parameterized.parameters(40, 256)
    def test_values_and_gradients(self, length: int):
        def loss(function, *arguments):
            out = function(*arguments)
            weights = np.random.default_rng(1).normal(size=out.shape)
            return (out * jnp.asarray(weights, jnp.float32)).sum(), out

        def values_and_gradients(function):
            gradients = jax.grad(functools.partial(loss, function), (0, 1, 2), has_aux=True)
            return jax.jit(gradients)(*arguments(length))

        found = values_and_gradients(functools.partial(segment_attention, interpret=True))
        check = functools.partial(np.testing.assert_allclose, rtol=2e-5, atol=2e-5)
        jax.tree.map(check, found, values_and_gradients(plain))

    @parameterized.parameters("float32", "bfloat16")
    def test_lowers_for_tpus_without_an_array_of_all_pairs(self, dtype: str):
        shape = (2, 512, 12, 64)
        tokens = jax.ShapeDtypeStruct(shape, dtype)
        segments = jax.ShapeDtypeStruct(shape[:2], jnp.int32)

        def gradients(*arguments):
            def total(*arguments):
                return segment_attention(*arguments).astype(jnp.float32).sum()

            return jax.grad(total, (0, 1, 2))(*arguments)

        export = jax.export.export(jax.jit(gradients), platforms=["tpu"])
        exported = export(tokens, tokens, tokens, segments)
        self.assertEqual({x.dtype for x in exported.out_avals}, {jnp.dtype(dtype)})
        text = exported.mlir_module()
        # Values, gradients of queries, gradients of keys and values.
        self.assertEqual(text.count("custom_call @tpu_custom_call"), 3)
        shapes = re.findall(r"tensor<((?:\d+x)+)", text)
        sizes = [math.prod(map(int, x.split("x")[:-1])) for x in shapes]
        self.assertGreaterEqual(max(sizes), math.prod(shape))
        self.assertLess(max(sizes), 12 * 512**2)

    def test_refuses_another_sequence(self):
        query, keys, values, segments = arguments(8)
        with self.assertRaisesRegex(ValueError, r"are \(2, 8, 2, 16\), \(2, 7, 2, 16\)"):
            segment_attention(query, keys[:, 1:], values[:, 1:], segments)


if __name__ == "__main__":
    absltest.main()
