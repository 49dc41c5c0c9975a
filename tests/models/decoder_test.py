"""Layers with cross-attention: the encoder among them, and the decoder against numpy."""

import dataclasses
import functools

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from absl.testing import parameterized

from tests.models import encoder_test
from tests.models.encoder_test import assert_close, slow_encode
from tests.models.factories import boxed_shapes, random_params
from xlm.models.encoder import Context, Encoder, EncoderSettings, without_cross_attention

ALL = tuple(dataclasses.replace(settings, cross_attention=True) for settings in encoder_test.ALL)
POST, PRE, _, _, GATED, *_ = ALL
L, K = 12, 5
TOKENS = np.arange(5, 5 + L)[None]  # each once
SEGMENTS = np.array([[1, 1, 1, 1, 1, 2, 2, 2, 2, 0, 0, 0]])
POSITIONS = np.array([[*range(5), *range(4), *range(3)]])
# The first segment sees three states, the second the two others.
SEES = (SEGMENTS[0][:, None] == 1) == (np.arange(K) < 3)[None]
STATES = np.random.default_rng(2).normal(size=(1, K, 16)).astype(np.float32)


@functools.partial(jax.jit, static_argnames=("settings", "is_causal"))
def _decode(params, tokens, states, key, settings, is_causal):
    return Encoder(settings).apply(
        {"params": params}, tokens, SEGMENTS, POSITIONS, Context(states, SEES[None, None]),
        is_causal=is_causal, deterministic=key is None, method="decode",
        rngs=None if key is None else {"dropout": key},
    )  # fmt: skip


def decode(settings, params=None, tokens=TOKENS, states=STATES, key=None, is_causal=True):
    params = random_params(settings) if params is None else params
    return _decode(params, tokens, states, key, settings, is_causal)[0]


@functools.cache
def gradients(settings):
    """Of a sum of the states with dropout, in parameters and in what is attended to."""

    def loss(params, states, key):
        found = decode(settings, params, states=states, key=key)
        return (found @ np.arange(16, dtype=np.float32) ** 2).sum()

    of_arguments = jax.jit(jax.grad(loss, (0, 1)))
    return jax.device_get(of_arguments(random_params(GATED), STATES, jax.random.key(0)))


class EncoderTest(parameterized.TestCase):
    @parameterized.product(settings=ALL, key=(None, 3))
    def test_encoding_is_bit_by_bit_that_without_cross_attention(self, settings, key):
        settings = dataclasses.replace(settings, dropout_rate=0.2, attention_dropout_rate=0.2)
        alone = dataclasses.replace(settings, cross_attention=False)
        params = random_params(settings)
        without = without_cross_attention(params)
        shapes = jax.tree.map(jnp.shape, without)
        self.assertEqual(shapes, jax.tree.map(jnp.shape, nn.unbox(boxed_shapes(alone))))
        key = None if key is None else jax.random.key(key)

        @jax.jit  # of one program, in which the compiler may find them to be the same
        def both(params, without, key):
            encode = functools.partial(encoder_test.encode, TOKENS, SEGMENTS, POSITIONS)
            return encode(settings, params, key), encode(alone, without, key)

        np.testing.assert_array_equal(*both(params, without, key))

    @parameterized.parameters(POST, GATED)
    def test_initial_values_are_those_without_cross_attention(self, settings):
        row = np.zeros((1, 4), np.int32)
        without = dataclasses.replace(settings, cross_attention=False)

        @jax.jit
        def both(key):
            made = (Encoder(s).init(key, row, row, row) for s in (settings, without))
            return tuple(nn.unbox(one["params"]) for one in made)

        found, alone = jax.device_get(both(jax.random.key(1)))
        self.assertGreater(found["layers"]["cross_attention"]["query"]["kernel"].std(), 0.01)
        jax.tree.map(np.testing.assert_array_equal, without_cross_attention(found), alone)


class DecoderTest(parameterized.TestCase):
    @parameterized.product(settings=ALL, is_causal=(True, False))
    def test_equals_numpy(self, settings: EncoderSettings, is_causal):
        found = np.asarray(decode(settings, is_causal=is_causal))
        for document, states in ((slice(0, 5), slice(0, 3)), (slice(5, 9), slice(3, K))):
            expected = slow_encode(TOKENS[0, document], settings, STATES[0, states], is_causal)
            assert_close(found[document], expected)

    @parameterized.parameters({"remat": "dots"}, {"remat": "full"}, {"unroll": 2})
    def test_gradients_do_not_change(self, **change):
        settings = dataclasses.replace(GATED, dropout_rate=0.3, attention_dropout_rate=0.3)
        expected = gradients(settings)
        largest = max(np.abs(x).max() for x in jax.tree.leaves(expected))
        check = functools.partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-6 * largest)
        jax.tree.map(check, gradients(dataclasses.replace(settings, **change)), expected)

    def test_layers_without_cross_attention_cannot(self):
        with self.assertRaisesRegex(ValueError, "cross_attention is False, .* set it to True"):
            decode(encoder_test.POST)
