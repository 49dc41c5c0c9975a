"""Attention kernels of GPUs, interpreted, against weights of all pairs; and their dropout."""

import functools
import math
import re
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
from absl.testing import parameterized

from tests.models.factories import random_segments
from xlm.models import flash_attention
from xlm.models.flash_attention import _Inputs, _Options, _reach, dropout_words, fault, is_kept
from xlm.models.positions import by_index

B, H = 3, 2
# Queries, keys, size of a head, half window, dropout rate, bias ("", "relative", "gated"), and
# whether attention is causal.
CASES = (
    (40, 40, 16, 0, 0.0, ""),
    (37, 37, 12, 0, 0.3, ""),
    (70, 70, 16, 9, 0.0, ""),
    (70, 70, 8, 20, 0.3, ""),
    (21, 50, 16, 0, 0.3, ""),  # cross-attention
    (48, 48, 16, 0, 0.0, "relative"),
    (41, 41, 16, 0, 0.3, "gated"),
    (53, 53, 16, 0, 0.3, "", True),
    (70, 70, 16, 19, 0.0, "", True),
    (37, 60, 8, 0, 0.3, "", True),
    (60, 37, 8, 0, 0.3, "", True),
    (60, 37, 16, 0, 0.3, ""),
    (53, 53, 16, 0, 0.3, "gated", True),
)


def inputs_of(num_queries, num_keys, size, rate, bias) -> dict:
    rng = np.random.default_rng(0)
    shapes = {"query": num_queries, "keys": num_keys, "values": num_keys}
    found = {name: rng.normal(size=(B, n, H, size)) for name, n in shapes.items()}
    if bias:  # of more distances than needed
        found["by_distance"] = rng.normal(size=(H, 2 * num_keys + 5))
    if bias == "gated":
        found["gate"] = rng.normal(size=(B, num_queries, H))
    found = {name: jnp.asarray(x, jnp.float32) for name, x in found.items()}
    of_keys = random_segments(B, num_keys, 1 if num_keys == num_queries else 2)
    found["of_queries"] = jnp.asarray(random_segments(B, num_queries, 1))
    found["of_keys"] = jnp.asarray(of_keys)
    if rate:
        words = dropout_words(jax.random.key(0), B, H, num_queries, num_keys)
        found |= {"rows": words[0], "columns": words[1]}
    return found


def plain(query, keys, values, of_queries, of_keys, rows=None, columns=None, by_distance=None,
          gate=None, *, half_window, dropout_rate, is_causal=False):  # fmt: skip
    """Attention by arrays over all pairs, with jax's gradient; zeros where nothing is seen."""
    number, others = query.shape[1], keys.shape[1]
    scores = jnp.einsum("bqhd,bkhd->bhqk", query, keys) / math.sqrt(query.shape[3])
    if by_distance is not None:
        zero = by_distance.shape[1] // 2
        matrix = by_index(by_distance[:, zero - others + 1 : zero + others])[None]
        scores += matrix if gate is None else matrix * jnp.moveaxis(gate, 1, 2)[..., None]
    seen = of_queries[:, None, :, None] == of_keys[:, None, None, :]
    apart = np.arange(number)[:, None] - np.arange(others)[None]
    if half_window:
        seen &= (abs(apart) <= half_window)[None, None]
    if is_causal:
        seen &= (apart >= 0)[None, None]
    weights = jax.nn.softmax(jnp.where(seen, scores, -1e9)) * seen
    if dropout_rate:
        weights = weights * is_kept(rows, columns, dropout_rate) / (1 - dropout_rate)
    return jnp.einsum("bhqk,bkhd->bqhd", weights, values)


def values_and_gradients(function, arguments: dict, **options):
    floats = {x: y for x, y in arguments.items() if y.dtype == jnp.float32}
    others = {x: y for x, y in arguments.items() if x not in floats}

    def loss(floats):
        out = function(**floats, **others, **options)
        return (out * np.random.default_rng(1).normal(size=out.shape).astype(np.float32)).sum(), out

    with jax.default_matmul_precision("highest"):
        return jax.device_get(jax.jit(jax.grad(loss, has_aux=True))(floats))


class FlashAttentionTest(parameterized.TestCase):
    @parameterized.parameters(*CASES)
    def test_values_and_gradients(
        self, num_queries, num_keys, size, half, rate, bias, is_causal=False
    ):
        arguments = inputs_of(num_queries, num_keys, size, rate, bias)
        options = {"half_window": half, "dropout_rate": rate, "is_causal": is_causal}
        flash = functools.partial(flash_attention.flash_attention, interpret=True)
        with mock.patch.object(flash_attention, "_BLOCK", 16):
            found = values_and_gradients(flash, arguments, **options)
        check = functools.partial(np.testing.assert_allclose, rtol=2e-5, atol=2e-5)
        jax.tree.map(check, found, values_and_gradients(plain, arguments, **options))

    @parameterized.product(
        half=(0, 1, 16, 17, 40), is_causal=(False, True), num_keys=(128, 96), of_keys=(False, True)
    )
    def test_reach_holds_what_is_seen_and_little_more(self, half, is_causal, num_keys, of_keys):
        length, size = 128, 16
        of_both = random_segments(B, length, 3)
        of_both = np.where(of_both == 0, 4, of_both)  # sorted
        options = _Options(1.0, half, is_causal, 0.0, True)
        parts = of_both, of_both[:, :num_keys]
        with mock.patch.object(flash_attention, "_BLOCK", size):
            inputs = _Inputs(*parts, *[None] * 7)
            near = flash_attention._near(options, inputs)
            ends = (
                _reach(*map(jnp.asarray, parts[::-1]), near.T)
                if of_keys
                else (_reach(*map(jnp.asarray, parts), near))
            )
        apart = np.arange(length)[:, None] - np.arange(num_keys)
        seen = parts[0][:, :, None] == parts[1][:, None, :]
        seen &= (abs(apart) <= half) if half else True
        seen &= (apart >= 0) if is_causal else True
        blocks = seen.reshape(B, length // size, size, -1, size).any(axis=(2, 4))
        blocks = blocks.swapaxes(1, 2) if of_keys else blocks
        for b, i in np.ndindex(blocks.shape[:2]):
            (found,) = np.nonzero(blocks[b, i])
            first, end = ends[b, i], ends[b, blocks.shape[1] + i]
            if len(found):
                self.assertEqual((first, end), (found[0], found[-1] + 1))
            else:
                self.assertEqual(first, end)

    @parameterized.parameters((False, 3), (True, 4))
    def test_lowers_for_gpus_without_an_array_of_all_pairs(self, is_gated, num_kernels):
        length, of_pairs = 512, 12 * 512**2
        tokens = jax.ShapeDtypeStruct((2, length, 12, 64), jnp.bfloat16)
        segments = jax.ShapeDtypeStruct((2, length), jnp.int32)
        words = jax.ShapeDtypeStruct((2, 12, length), jnp.uint32)
        by_distance = jax.ShapeDtypeStruct((12, 2 * length - 1), jnp.float32)
        gate = jax.ShapeDtypeStruct((2, length, 12), jnp.float32)

        def gradients(*arguments):
            def total(*arguments):
                out = flash_attention.flash_attention(*arguments, dropout_rate=0.1)
                return out.astype(jnp.float32).sum()

            return jax.grad(total, (0, 1, 2, *((7, 8) if is_gated else ())))(*arguments)

        arguments = (*[tokens] * 3, segments, segments, words, words)
        arguments += (by_distance, gate) if is_gated else ()
        exported = jax.export.export(
            jax.jit(gradients), platforms=["cuda"],
            disabled_checks=[jax.export.DisabledSafetyCheck.custom_call("__gpu$xla.gpu.triton")],
        )(*arguments)  # fmt: skip
        text = exported.mlir_module()
        self.assertEqual(text.count("custom_call @__gpu$xla.gpu.triton"), num_kernels)
        shapes = re.findall(r"tensor<((?:\d+x)+)", text)
        sizes = [math.prod(map(int, x.split("x")[:-1])) for x in shapes]
        self.assertGreaterEqual(max(sizes), math.prod(tokens.shape))
        self.assertLess(max(sizes), of_pairs)


class DropoutTest(parameterized.TestCase):
    """Pairs are dropped at the rate, and independently of others near by."""

    RATE, LENGTH = 0.1, 192

    @functools.cached_property
    def dropped(self) -> np.ndarray:
        shape = (8, 6, self.LENGTH, self.LENGTH)
        one, other = (dropout_words(jax.random.key(i), *shape) for i in (0, 1))
        return np.stack([~np.asarray(is_kept(*words, self.RATE)) for words in (one, other)])

    def is_near(self, found: float, expected: float, number: int):
        error = math.sqrt(expected * (1 - expected) / number)
        self.assertAlmostEqual(found, expected, delta=4.5 * error)

    def test_rates(self):
        self.is_near(self.dropped.mean(), self.RATE, self.dropped.size)
        # Of each query, and of each key, as varied as draws are.
        for axis in (-1, -2):
            counts = self.dropped.sum(axis=axis)
            expected = self.LENGTH * self.RATE * (1 - self.RATE)
            self.assertAlmostEqual(
                counts.var() / expected, 1, delta=4.5 * math.sqrt(2 / counts.size)
            )

    def test_neighbours_are_independent(self):
        x, rate = self.dropped, self.RATE
        pairs = {
            "keys": (x[..., 1:], x[..., :-1]),
            "queries": (x[..., 1:, :], x[..., :-1, :]),
            "diagonals": (x[..., 1:, 1:], x[..., :-1, :-1]),
            "heads": (x[:, :, 1:], x[:, :, :-1]),
            "examples": (x[:, 1:], x[:, :-1]),
            "dropout keys": (x[1:], x[:-1]),
            "transposed": (x, x.swapaxes(-1, -2)),
        }
        for name, (one, other) in pairs.items():
            if name == "transposed":
                upper = np.triu(np.ones(x.shape[-2:], bool), 1)
                one, other = one[..., upper], other[..., upper]
            with self.subTest(name):
                self.is_near((one & other).mean(), rate**2, one.size)

    def test_squares_are_independent(self):
        # Sums of words of two queries and two keys are related: any three give the fourth.
        x = self.dropped
        for step in (1, 7):
            corners = (x[..., :-step, :-step], x[..., step:, :-step], x[..., :-step, step:],
                       x[..., step:, step:])  # fmt: skip
            odd = functools.reduce(np.logical_xor, corners)
            self.is_near(odd.mean(), (1 - (1 - 2 * self.RATE) ** 4) / 2, odd.size // 4)
            three = functools.reduce(np.logical_and, corners[:3])
            self.is_near(three.mean(), self.RATE**3, three.size)
            self.is_near(corners[3][three].mean(), self.RATE, int(three.sum()))

    def test_words_in_order_are_mixed(self):
        # Nothing but the hash is random here.
        number = np.arange(512, dtype=np.uint32)
        x = ~np.asarray(is_kept(jnp.asarray(number), jnp.asarray(512 * number), self.RATE))
        self.is_near(x.mean(), self.RATE, x.size)
        for one, other in ((x[1:], x[:-1]), (x[:, 1:], x[:, :-1])):
            self.is_near((one & other).mean(), self.RATE**2, one.size)


class FaultTest(parameterized.TestCase):
    def check(self, **options) -> str:
        with mock.patch.object(flash_attention, "_BLOCK", 16):
            return fault(16, "bfloat16", interpret=True, **options)

    def test_finds_nothing(self):
        self.assertEqual(self.check(has_bias=True, is_gated=True, is_causal=True), "")
        self.assertEqual(self.check(has_bias=False, is_gated=False), "")

    def test_finds_what_is_wrong(self):
        options = {"has_bias": False, "is_gated": False}
        with mock.patch.object(
            flash_attention, "_reach", lambda q, k, near: jnp.zeros((2, 2 * len(near)), int)
        ):
            self.assertRegex(self.check(**options), "values and gradients differ by .*1.0")
        self.assertRegex(fault(16, "bfloat16", **options), "^ValueError: Only interpret mode")
