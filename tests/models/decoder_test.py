"""Layers with cross-attention: the encoder among them, and the decoder against numpy."""

import dataclasses
import functools

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from absl.testing import absltest, parameterized

from tests.models import encoder_test
from tests.models.encoder_test import assert_close, slow_attention, slow_dense, slow_norm
from tests.models.factories import boxed_shapes, random_params
from xlm.models.encoder import Context, Encoder, EncoderSettings, without_cross_attention

ALL = tuple(dataclasses.replace(settings, cross_attention=True) for settings in encoder_test.ALL)
POST, PRE, _, _, GATED = ALL
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
        {"params": params},
        tokens,
        SEGMENTS,
        POSITIONS,
        Context(states, SEES[None, None]),
        is_causal=is_causal,
        deterministic=key is None,
        method="decode",
        rngs=None if key is None else {"dropout": key},
    )


def decode(settings, params=None, tokens=TOKENS, states=STATES, key=None, is_causal=True):
    """Hidden states [L, D]."""
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


def slow_cross_attention(x: np.ndarray, states: np.ndarray, p, num_heads: int) -> np.ndarray:
    """Attention of one document to all of `states`, head by head."""
    query = slow_dense(x, p["query"])
    key, value = (slow_dense(states, p[name]) for name in ("key", "value"))
    mixed = np.zeros_like(x)
    for head in np.split(np.arange(x.shape[1]), num_heads):
        exps = np.exp(query[:, head] @ key[:, head].T / np.sqrt(len(head)))
        mixed[:, head] = exps / exps.sum(axis=1, keepdims=True) @ value[:, head]
    return slow_dense(mixed, p["output"])


def slow_decode(document: list[int], states: np.ndarray, settings, is_causal) -> np.ndarray:
    """Hidden states [L, D] of one document, layer by layer, in float64."""
    p = jax.tree.map(lambda x: np.asarray(x, np.float64), random_params(settings))
    x = slow_dense(p["embeddings"]["table"][document], p["embeddings"]["project"])
    if settings.position == "learned":
        x += p["embeddings"]["positions"][: len(document)]
    x = slow_norm(x, p["embeddings"]["norm"])
    bias = p["distances"]["bias"] if settings.has_bias else None
    for i in range(settings.num_layers):
        layer = jax.tree.map(lambda x, i=i: x[i], p["layers"])

        def attend(x, p=layer["attention"]):
            if not is_causal:
                return slow_attention(x, p, settings, bias)
            # The last token of a prefix is one that sees no later ones.
            prefixes = [slow_attention(x[: n + 1], p, settings, bias) for n in range(len(x))]
            return np.stack([prefix[-1] for prefix in prefixes])

        def attend_to_states(x, p=layer["cross_attention"]):
            return slow_cross_attention(x, states, p, settings.num_heads)

        def mlp(x, p=layer["mlp"]):
            x = slow_dense(x, p["wide"])
            return slow_dense(np.asarray(jax.nn.gelu(x, approximate=False)), p["output"])

        sublayers = {
            "attention_norm": attend, "cross_attention_norm": attend_to_states, "mlp_norm": mlp
        }  # fmt: skip
        for norm, sublayer in sublayers.items():
            if settings.norm_position == "post":
                x = slow_norm(x + sublayer(x), layer[norm])
            else:
                x = x + sublayer(slow_norm(x, layer[norm]))
    return x if settings.norm_position == "post" else slow_norm(x, p["final_norm"])


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
            expected = slow_decode(TOKENS[0, document], STATES[0, states], settings, is_causal)
            assert_close(found[document], expected)

    @parameterized.parameters({"remat": "dots"}, {"remat": "full"}, {"unroll": 2})
    def test_gradients_do_not_change(self, **change):
        settings = dataclasses.replace(GATED, dropout_rate=0.3, attention_dropout_rate=0.3)
        expected = gradients(settings)
        largest = max(np.abs(x).max() for x in jax.tree.leaves(expected))
        check = functools.partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-6 * largest)
        jax.tree.map(check, gradients(dataclasses.replace(settings, **change)), expected)

    def test_layers_without_cross_attention_cannot(self):
        with self.assertRaisesRegex(ValueError, "model.cross_attention is False, .* set it, and"):
            decode(encoder_test.POST)


if __name__ == "__main__":
    absltest.main()
