"""Attention with a gradient of its own against the derived one of plain formulas."""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
from absl.testing import parameterized

from tests.models.factories import random
from xlm.models.segments import segment_mask
from xlm.models.softmax_attention import attend

B, Q, K, H, D = 4, 5, 6, 2, 3
SEGMENTS = jnp.array([[1, 1, 2, 2, 3], [1] * 5, [1, 2, 3, 4, 5], [1, 1, 1, 2, 2]])
# The last query of the first sequence sees nothing.
OF_KEYS = jnp.array([[1, 1, 2, 2, 2, 1], [1] * 6, [5, 4, 3, 2, 1, 1], [1, 2, 1, 2, 1, 2]])


def plain(query, keys, values, mask=None, bias=None, gate=None) -> jax.Array:
    scores = jnp.einsum("bqhd,bkhd->bhqk", query, keys) / jnp.sqrt(query.shape[-1])
    if bias is not None:
        of_examples = jnp.repeat(bias, len(query) // len(bias), axis=0)
        scores += of_examples if gate is None else of_examples * jnp.moveaxis(gate, 1, 2)[..., None]
    if mask is not None:
        scores = jnp.where(mask, scores, -1e30)
    return jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(scores), values)


INPUTS = {
    "query": random(B, Q, H, D, seed=0),
    "keys": random(B, K, H, D, seed=1),
    "values": random(B, K, H, D, seed=2),
}
MASK = segment_mask(SEGMENTS, OF_KEYS)
GATE = random(B, Q, H, seed=3)


def gradients(function, mask, inputs: dict):
    direction = random(B, Q, H, D, seed=9)

    def loss(inputs):
        output = function(**inputs, mask=mask)
        return (output * direction).sum(), output

    return jax.grad(loss, has_aux=True)(inputs)


@jax.jit
def both(mask, inputs: dict):
    return gradients(attend, mask, inputs), gradients(plain, mask, inputs)


class AttendTest(parameterized.TestCase):
    @parameterized.product(
        masked=(False, True),
        # There is a gate of a bias alone.
        bias=((None, False), *itertools.product((1, 2, B), (False, True))),
    )
    def test_equals_derived_gradients(self, masked: bool, bias: tuple[int | None, bool]):
        (biased, gated), inputs = bias, dict(INPUTS)
        if biased:
            inputs["bias"] = random(biased, H, Q, K, seed=4)
        if gated:
            inputs["gate"] = GATE
        found, expected = both(MASK if masked else None, inputs)
        check = functools.partial(np.testing.assert_allclose, rtol=2e-5, atol=2e-6)
        jax.tree.map(check, found, expected)

    def test_bfloat16_is_near_float32(self):
        half = jax.tree.map(lambda x: x.astype(jnp.bfloat16), INPUTS)
        (grads, output), _ = both(MASK, half)
        _, (expected_grads, expected) = both(MASK, INPUTS)
        self.assertEqual({x.dtype for x in jax.tree.leaves((grads, output))}, {jnp.bfloat16.dtype})
        check = functools.partial(np.testing.assert_allclose, rtol=0.05, atol=0.05)
        jax.tree.map(
            lambda a, b: check(np.asarray(a, np.float32), b),
            (grads, output), (expected_grads, expected),
        )  # fmt: skip
