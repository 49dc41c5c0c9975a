"""Attention within windows and segments, by blocks and by Splash, against weights of all pairs."""

import functools
import math
import re
from unittest import mock

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from absl.testing import parameterized
from jax.extend.core import ClosedJaxpr, Jaxpr

from tests.models.factories import (
    boxed_shapes,
    encoder_settings,
    random,
    random_segments,
    values_and_gradients,
)
from xlm.models import attention, segments
from xlm.models.attention import Attention
from xlm.models.encoder import Encoder
from xlm.models.segment_attention import segment_attention
from xlm.models.segments import SegmentMask, segment_mask, window_mask
from xlm.models.softmax_attention import attend
from xlm.training.flops import matmul_flops

B, H, D = 2, 2, 8


def projections(length: int) -> list[np.ndarray]:
    return [random(B, length, H, D, seed=i) for i in range(3)]


def mix(half: int, kernel: str, of_segments, query, keys, values):
    """Attention between the projections of a module, with no mask but segments."""
    module = Attention(H * D, H, 0.0, "float32", kernel, half_window=half)
    pair = attention.KeysValues(keys, values)
    return module._mixed(query, pair, SegmentMask(of_segments), None, None, True, kernel, False)


def seen(half: int, of_segments):
    """Attention by weights of all pairs, of which those of a segment and a window are seen."""
    mask, length = segment_mask(of_segments), of_segments.shape[1]
    mask = mask & window_mask(length, length, half) if half else mask
    return lambda *qkv: attend(*qkv, mask)


class SeenTest(parameterized.TestCase):
    @parameterized.parameters(
        (40, 2, 4), (41, 4, 4), (37, 3, 7), (64, 16, 64), (130, 64, 64), (260, 64, 64), (40, 0, 4)
    )
    def test_values_and_gradients_are_those_of_all_pairs(self, length, half, least):
        by_head, of_segments = projections(length), random_segments(B, length)
        expected = values_and_gradients(seen(half, of_segments), *by_head)
        check = functools.partial(np.testing.assert_allclose, rtol=1e-5, atol=1e-5)
        with (
            mock.patch.object(segments, "_LEAST_BLOCK", least),
            mock.patch.object(attention, "LONGEST_AT_ONCE", 8),
        ):
            found = values_and_gradients(functools.partial(mix, half, "xla", of_segments), *by_head)
        jax.tree.map(check, found, expected)

    @parameterized.parameters((40, 0), (256, 0), (200, 16), (256, 64))
    def test_splash(self, length, half):
        by_head, of_segments = projections(length), random_segments(B, length)
        expected = values_and_gradients(seen(half, of_segments), *by_head)
        interpreted = functools.partial(segment_attention, interpret=True)
        with mock.patch.object(attention, "segment_attention", interpreted):
            mixed = functools.partial(mix, half, "splash", of_segments)
            found = values_and_gradients(mixed, *by_head)
        check = functools.partial(np.testing.assert_allclose, rtol=2e-5, atol=2e-5)
        jax.tree.map(check, found, expected)

    @parameterized.parameters(8, 1024)
    def test_dropout_drops_a_share_of_what_is_seen(self, longest):
        length, half, rate = 24, 2, 0.3
        # With one-hot values and scores of zero, the output is the weights.
        module = Attention(length, 1, rate, "float32", "xla", use_bias=False, half_window=half)
        params = {name: {"kernel": jnp.eye(length)} for name in ("query", "key", "value", "output")}
        params["query"] = {"kernel": jnp.zeros((length, length))}
        x = jnp.broadcast_to(jnp.eye(length), (B, length, length))
        of_segments = random_segments(B, length)
        with (
            mock.patch.object(segments, "_LEAST_BLOCK", 2 if longest == 8 else 64),
            mock.patch.object(attention, "LONGEST_AT_ONCE", longest),
        ):
            rngs = {"dropout": jax.random.key(0)}
            options = {"mask": SegmentMask(of_segments), "deterministic": False}
            found, _ = module.apply({"params": params}, x, **options, rngs=rngs)
        seen = np.asarray(segment_mask(of_segments) & window_mask(length, length, half))[:, 0]
        self.assertTrue((np.asarray(found)[~seen] == 0).all())
        kept = (np.asarray(found)[seen] > 0).mean()
        self.assertAlmostEqual(1 - kept, rate, delta=4 * math.sqrt(0.21 / seen.sum()))

    @parameterized.parameters("float32", "bfloat16")
    def test_splash_lowers_for_tpus_without_an_array_of_all_pairs(self, dtype: str):
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

    def test_splash_refuses_another_sequence(self):
        query, keys, values = projections(8)
        with self.assertRaisesRegex(ValueError, r"are \(2, 8, 2, 8\), \(2, 7, 2, 8\)"):
            segment_attention(query, keys[:, 1:], values[:, 1:], random_segments(B, 8))


def shapes_of(traced) -> set[tuple[int, ...]]:
    """Shapes of all arrays of a traced function and those it calls."""
    found = set()
    for equation in getattr(traced, "jaxpr", traced).eqns:
        found |= {v.aval.shape for v in (*equation.invars, *equation.outvars)}
        leaves = jax.tree.leaves(
            equation.params, is_leaf=lambda x: isinstance(x, (ClosedJaxpr, Jaxpr))
        )
        for leaf in leaves:
            found |= shapes_of(leaf) if isinstance(leaf, (ClosedJaxpr, Jaxpr)) else set()
    return found


class CostTest(parameterized.TestCase):
    LENGTH = 8192
    SETTINGS = encoder_settings(
        hidden_size=128, embedding_size=128, num_heads=2, mlp_size=32, num_layers=3,
        max_length=LENGTH, norm_position="pre", position="rotary", local_window=128, global_every=3,
    )  # fmt: skip

    def traced(self, length=LENGTH, **change):
        settings = encoder_settings(**{**vars(self.SETTINGS), **change})
        row = jax.ShapeDtypeStruct((1, length), jnp.int32)

        def loss(params, tokens):
            encode = functools.partial(Encoder(settings).apply, {"params": params})
            hidden = encode(tokens, tokens, tokens, deterministic=True, method="encode")
            return hidden.sum()

        return jax.jit(jax.grad(loss)).trace(nn.unbox(boxed_shapes(settings)), row)

    def test_no_array_is_over_all_pairs(self):
        length = self.LENGTH
        for shape in shapes_of(self.traced().jaxpr):
            self.assertLess(shape.count(length), 2, shape)
            self.assertLess(math.prod(shape), length * length / 3, shape)

    def test_local_layers_cost_what_the_window_costs(self):
        every, mixed = self.traced(global_every=3, local_window=0), self.traced()
        of_projections = 3 * self.LENGTH * 2 * 128 * (4 * 128 + 2 * 32)
        one_global = (matmul_flops(every.jaxpr) - 3 * of_projections) / 3
        of_local = (matmul_flops(mixed.jaxpr) - 3 * of_projections - one_global) / 2
        # 192 keys a query in place of 8,192; global layers recompute their scores as well.
        self.assertLess(of_local, one_global / 8192 * 192)

        # Twice as long costs twice as much.
        def local_part(length):
            more = self.traced(length, num_layers=3), self.traced(length, num_layers=1)
            return matmul_flops(more[0].jaxpr) - matmul_flops(more[1].jaxpr)

        self.assertEqual(local_part(8192), 2 * local_part(4096))

    def test_memory_grows_with_the_length(self):
        def temporary(length):
            return self.traced(length).lower().compile().memory_analysis().temp_size_in_bytes

        self.assertLess(temporary(8192), 2.2 * temporary(4096))
