"""Attention against loops over queries, and its uses: masked, biased, crossed, cached, dropped."""

import functools
import itertools
import math
import re
from unittest import mock

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from absl.testing import parameterized

from tests.models.factories import random, random_like
from xlm.models import attention, softmax_attention
from xlm.models.attention import Attention
from xlm.models.flash_attention import flash_attention
from xlm.models.positions import DistanceBias
from xlm.models.segment_attention import segment_attention
from xlm.models.segments import SegmentMask, causal_mask, segment_mask
from xlm.models.softmax_attention import attention_weights

B, Q, K, D, H = 2, 6, 5, 8, 2
PLAIN = Attention(D, H, 0.0, "float32", "xla")
# Drop nothing, and are computed as if they did.
WEIGHTS, BLOCKS = (Attention(D, H, 1e-9, "float32", kernel) for kernel in ("xla", "blockwise"))
SEGMENTS = jnp.array([[1, 1, 1, 2, 2, 2], [1, 2, 2, 2, 2, 1]])
OF_KEYS = jnp.array([[1, 1, 2, 2, 2], [2, 1, 1, 2, 0]])


X, CONTEXT = random(B, Q, D), random(B, K, D, seed=1)
USES = {
    "self": {},
    "causal": {"mask": causal_mask(Q, Q)},
    "segments": {"mask": segment_mask(SEGMENTS)},
    "causal_segments": {"mask": causal_mask(Q, Q) & segment_mask(SEGMENTS)},
    "bias": {"bias": random(1, H, Q, Q, seed=2)},
    "bias_and_mask": {"bias": random(B, H, Q, Q, seed=3), "mask": causal_mask(Q, Q)},
    "bias_and_segments": {"bias": random(1, H, Q, Q, seed=2), "mask": segment_mask(SEGMENTS)},
    "cross": {"context": CONTEXT},
    "cross_segments": {"context": CONTEXT, "mask": segment_mask(SEGMENTS, OF_KEYS)},
    "cross_keys": {"context": CONTEXT, "mask": (OF_KEYS == 2)[:, None, None, :]},
    "cross_bias": {"context": CONTEXT, "bias": random(B, 1, 1, K, seed=4)},
}
# Masks of some uses by their factors, which kernels read.
FACTORS = {
    "segments": {"mask": SegmentMask(SEGMENTS)},
    "causal_segments": {"mask": SegmentMask(SEGMENTS, is_causal=True)},
    "cross_segments": {"mask": SegmentMask(SEGMENTS, OF_KEYS)},
}


@functools.cache
def variables():
    init = functools.partial(PLAIN.init, deterministic=True)
    return random_like(nn.unbox(jax.eval_shape(init, jax.random.key(0), X)))


def attend(module: Attention, x: jax.Array = X, **kwargs) -> tuple:
    """The output, and the cache if one is given; with dropout if the module has it."""
    deterministic = kwargs.pop("deterministic", not module.dropout_rate)
    rngs = {} if deterministic else {"dropout": jax.random.key(0)}
    return module.apply(variables(), x, deterministic=deterministic, rngs=rngs, **kwargs)


@jax.jit
def _outputs(use: dict) -> list[jax.Array]:
    return [attend(module, **use)[0] for module in (PLAIN, WEIGHTS, BLOCKS)]


@functools.cache
def outputs_of(name: str) -> list[np.ndarray]:
    with mock.patch.object(attention, "_BLOCK", 4):  # 6 queries in blocks of 3
        return jax.device_get(_outputs(USES[name]))


def slow_attend(context=X, mask=True, bias=0.0) -> np.ndarray:
    """Attention of each query of each head by itself, in float64."""
    p = jax.tree.map(lambda x: np.asarray(x, np.float64), variables()["params"])
    query, key, value = (
        (np.asarray(array) @ p[name]["kernel"] + p[name]["bias"]).reshape(B, -1, H, D // H)
        for array, name in ((X, "query"), (context, "key"), (context, "value"))
    )
    shape = (B, H, Q, key.shape[1])
    mask, bias = np.broadcast_to(mask, shape), np.broadcast_to(bias, shape)
    mixed = np.zeros((B, Q, H, D // H))
    for b, h, q in np.ndindex(B, H, Q):
        scores = key[b, :, h] @ query[b, q, h] / math.sqrt(D // H) + bias[b, h, q]
        exps = np.exp(scores) * mask[b, h, q]
        mixed[b, q, h] = exps / exps.sum() @ value[b, :, h]
    return mixed.reshape(X.shape) @ p["output"]["kernel"] + p["output"]["bias"]


def assert_close(actual, expected):
    np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=1e-5)


class AttentionTest(parameterized.TestCase):
    @parameterized.parameters(*USES)
    def test_equals_loops(self, name: str):
        expected = slow_attend(**USES[name])
        for found in outputs_of(name):
            assert_close(found, expected)

    def test_projected_context_is_the_context(self):
        pair = PLAIN.apply(variables(), CONTEXT, method="keys_values")
        use = USES["cross_segments"]
        found, _ = attend(PLAIN, context=pair, mask=use["mask"])
        np.testing.assert_array_equal(found, attend(PLAIN, **use)[0])


class CacheTest(parameterized.TestCase):
    @parameterized.parameters((1, 1, 1, 1, 1, 1), (3, 1, 1, 1), (2, 4), (6,))
    def test_decoding_equals_causal_attention_to_all(self, *sizes: int):
        expected = outputs_of("causal")[0]
        decode = jax.jit(lambda x, cache: attend(PLAIN, x, cache=cache))
        cache, outputs, start = PLAIN.empty_cache(B, Q + 2), [], 0
        for size in sizes:
            output, cache = decode(X[:, start : start + size], cache)
            outputs.append(output)
            start += size
        assert_close(np.concatenate(outputs, axis=1), expected)
        self.assertEqual(cache.length, Q)
        self.assertLen({*sizes}, decode._cache_size(), "one program for tokens one by one")

    def test_masks_hold_for_what_is_cached(self):
        decode = jax.jit(lambda x, cache, mask: attend(PLAIN, x, cache=cache, mask=mask))
        cache, outputs = PLAIN.empty_cache(B, Q), []
        for i in range(Q):
            mask = segment_mask(SEGMENTS[:, i : i + 1], SEGMENTS)
            output, cache = decode(X[:, i : i + 1], cache, mask)
            outputs.append(output)
        assert_close(np.concatenate(outputs, axis=1), outputs_of("causal_segments")[0])


class KernelTest(parameterized.TestCase):
    """Where the kernels of GPUs and TPUs are taken, and that they are the same attention."""

    def calls(self, kernel: str, name: str, dropout_rate: float = 0.0, **more) -> int:
        """Compare with plain attention; how often the kernel was called."""
        module, use = Attention(D, H, dropout_rate, "float32", kernel), USES[name] | more
        own = {"flash": flash_attention, "splash": segment_attention}[kernel]
        function = functools.partial(own, interpret=True)
        with mock.patch.object(attention, own.__name__, side_effect=function) as called:
            assert_close(jax.jit(lambda use: attend(module, **use)[0])(use), outputs_of(name)[0])
        return called.call_count

    def test_splash(self):
        self.assertEqual(self.calls("splash", "segments", **FACTORS["segments"]), 1)
        others = ("segments", "causal_segments", "cross_segments", "cross", "self")
        for use in others:  # of which the module is not told any segments
            self.assertEqual(self.calls("splash", use), 0)
        self.assertEqual(self.calls("splash", "segments", 1e-9, **FACTORS["segments"]), 0)
        for use in ("causal_segments", "cross_segments"):
            self.assertEqual(self.calls("splash", use, **FACTORS[use]), 0)
        # Splash has no bias.
        self.assertEqual(self.calls("splash", "bias_and_segments", **FACTORS["segments"]), 0)

    def test_flash(self):
        for use, mask in FACTORS.items():
            self.assertEqual(self.calls("flash", use, 1e-9, **mask), 1)
        for use in ("self", "cross", "cross_keys"):
            self.assertEqual(self.calls("flash", use), 1)
        for use in ("segments", "causal_segments", "cross_segments", "bias", "cross_bias"):
            self.assertEqual(self.calls("flash", use), 0)

    @parameterized.parameters(*FACTORS)
    def test_factors_of_a_mask_are_the_mask(self, use: str):
        for module, expected in zip((PLAIN, WEIGHTS, BLOCKS), outputs_of(use), strict=True):
            with mock.patch.object(attention, "_BLOCK", 4):
                assert_close(attend(module, **USES[use] | FACTORS[use])[0], expected)

    @parameterized.parameters(True, False)
    def test_flash_with_a_bias_by_distance(self, has_positions: bool):
        by_distance = random(H, 2 * Q + 1, seed=7)
        positions = jnp.array([[0, 1, 2, 0, 1, 2]] * B) if has_positions else None
        bias = DistanceBias(by_distance, SEGMENTS, positions)
        options = {"mask": SegmentMask(SEGMENTS), "bias": bias}
        function = functools.partial(flash_attention, interpret=True)
        with mock.patch.object(attention, "flash_attention", side_effect=function) as called:
            module = Attention(D, H, 0.0, "float32", "flash")
            found = jax.jit(lambda: attend(module, **options)[0])()
        # Restarted positions are of no block.
        self.assertEqual(called.call_count, not has_positions)
        assert_close(found, attend(PLAIN, **options)[0])

    def test_decoding_is_plain(self):
        module = Attention(D, H, 0.0, "float32", "flash")
        cache = module.empty_cache(B, Q)
        with mock.patch.object(attention, "flash_attention", side_effect=AssertionError):
            attend(module, X[:, :1], cache=cache)


class BlocksTest(parameterized.TestCase):
    """Dropout by blocks of queries: the same function, in less memory."""

    RATE, LENGTH = 0.3, 12

    def blockwise(self, *args) -> jax.Array:
        with mock.patch.object(attention, "_BLOCK", 4):
            return attention._blockwise(*args, None, jax.random.key(3), self.RATE)

    def test_equals_weights_with_a_share_dropped(self):
        query, key, value = (random(B, self.LENGTH, H, D // H, seed=i) for i in range(3))
        mask, bias = causal_mask(self.LENGTH, self.LENGTH), random(1, H, self.LENGTH, self.LENGTH)
        weights = np.asarray(jax.jit(attention_weights)(query, key, mask, bias, None))
        # With one-hot values attention's output is its weights.
        eye = np.eye(self.LENGTH, dtype=np.float32)[:, None, :]
        one_hot = np.broadcast_to(eye, (B, self.LENGTH, H, self.LENGTH))
        dropped = jax.jit(self.blockwise)(query, key, one_hot, mask, bias)
        dropped = np.moveaxis(np.asarray(dropped), 1, 2)
        is_kept = dropped != 0
        assert_close(dropped, np.where(is_kept, weights / (1 - self.RATE), 0))
        seen = np.broadcast_to(mask, weights.shape)
        share = self.RATE * (1 - self.RATE) / seen.sum()
        self.assertAlmostEqual(1 - is_kept[seen].mean(), self.RATE, delta=4 * math.sqrt(share))
        # No two blocks, heads or sequences are dropped alike.
        last = np.asarray(is_kept)[:, :, [3, 7, 11], :4].reshape(-1, 4)
        self.assertGreater(len(np.unique(last, axis=0)), 4)

        def plain(query, key, value, bias):
            weights = attention_weights(query, key, mask, bias, None)
            return jnp.einsum("bhqk,bkhd->bqhd", weights * is_kept / (1 - self.RATE), value)

        def blockwise(query, key, value, bias):
            return self.blockwise(query, key, value, mask, bias)

        found, expected = (
            jax.jit(jax.grad(lambda *args, f=f: (f(*args) ** 2).sum(), argnums=(0, 1, 2, 3)))
            for f in (blockwise, plain)
        )
        args = (query, key, value, bias)
        jax.tree.map(assert_close, found(*args), expected(*args))

    def test_never_holds_all_weights(self):
        def largest(kernel: str) -> int:
            module = Attention(D, H, self.RATE, "bfloat16", kernel)
            x = jax.ShapeDtypeStruct((B, 64, D), jnp.bfloat16)
            step = jax.jit(jax.grad(lambda x: attend(module, x)[0].astype(jnp.float32).sum()))
            shapes = re.findall(r"tensor<([\dx]+)x\w+>", step.lower(x).as_text())
            return max(math.prod(map(int, shape.split("x"))) for shape in shapes)

        with mock.patch.object(attention, "_BLOCK", 16):
            self.assertLess(largest("blockwise"), B * H * 64 * 64 / 3)
        self.assertEqual(largest("xla"), B * H * 64 * 64)


N, M, L, W = 4, 5, 6, 3  # examples, queries, keys, width of a head
SOME_SEGMENTS = jnp.array([[1, 1, 2, 2, 3], [1] * 5, [1, 2, 3, 4, 5], [1, 1, 1, 2, 2]])
# The last query of the first sequence sees nothing.
OF_MORE_KEYS = jnp.array([[1, 1, 2, 2, 2, 1], [1] * 6, [5, 4, 3, 2, 1, 1], [1, 2, 1, 2, 1, 2]])


def plain(query, keys, values, mask=None, bias=None, gate=None) -> jax.Array:
    scores = jnp.einsum("bqhd,bkhd->bhqk", query, keys) / jnp.sqrt(query.shape[-1])
    if bias is not None:
        of_examples = jnp.repeat(bias, len(query) // len(bias), axis=0)
        scores += of_examples if gate is None else of_examples * jnp.moveaxis(gate, 1, 2)[..., None]
    if mask is not None:
        scores = jnp.where(mask, scores, -1e30)
    return jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(scores), values)


INPUTS = {
    "query": random(N, M, H, W, seed=0),
    "keys": random(N, L, H, W, seed=1),
    "values": random(N, L, H, W, seed=2),
}
MASK = segment_mask(SOME_SEGMENTS, OF_MORE_KEYS)
GATE = random(N, M, H, seed=3)


def gradients(function, mask, inputs: dict):
    direction = random(N, M, H, W, seed=9)

    def loss(inputs):
        output = function(**inputs, mask=mask)
        return (output * direction).sum(), output

    return jax.grad(loss, has_aux=True)(inputs)


@jax.jit
def both(mask, inputs: dict):
    return gradients(softmax_attention.attend, mask, inputs), gradients(plain, mask, inputs)


class AttendTest(parameterized.TestCase):
    @parameterized.product(
        masked=(False, True),
        # There is a gate of a bias alone.
        bias=((None, False), *itertools.product((1, 2, N), (False, True))),
    )
    def test_equals_derived_gradients(self, masked: bool, bias: tuple[int | None, bool]):
        (biased, gated), inputs = bias, dict(INPUTS)
        if biased:
            inputs["bias"] = random(biased, H, M, L, seed=4)
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
