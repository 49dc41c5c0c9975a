"""Fused attention against attention that holds all scores: values, gradients, what is lowered."""

import functools
import math
import re

import jax
import jax.numpy as jnp
import numpy as np
from absl.testing import absltest, parameterized
from jax.sharding import PartitionSpec as P

from models.fused_attention import gated_attention

B, L, H, D = 2, 48, 2, 16
NAMES = ("query", "keys", "values", "gate", "by_distance")
ALL = (0, 1, 2, 3, 4)


@functools.cache  # a function that is static to `jit` must be the same one to be compiled once
def with_blocks(block_size: int):
    """The fused kernel without a GPU."""
    return functools.partial(gated_attention, block_size=block_size, interpret=True)


fused = with_blocks(16)
# Sizes of which several tests are, for the programs that they share.
RAGGED = {"length": 37}
ONE_GROUP = {"batch_size": 8, "length": 32, "num_heads": 1}
# Without a GPU, jax from 0.11 on lowers Triton's kernels for one that is named.
H100 = jax.sharding.AbstractMesh(
    (1,), ("data",), abstract_device=jax.sharding.AbstractDevice("NVIDIA H100", 132, "gpu")
)


def reference(query, keys, values, gate, by_distance, segments) -> jax.Array:
    """The same by [B, H, L, L] scores."""
    length = query.shape[1]
    scores = jnp.einsum("bqhd,bkhd->bhqk", query, keys, preferred_element_type=jnp.float32)
    scores /= math.sqrt(query.shape[-1])
    if by_distance is not None:
        center = by_distance.shape[1] // 2
        distances = jnp.arange(length)[None, :] - jnp.arange(length)[:, None]
        bias = by_distance[None, :, distances + center]
        scores += bias if gate is None else gate.swapaxes(1, 2)[..., None] * bias
    is_seen = segments[:, None, :, None] == segments[:, None, None, :]
    weights = jax.nn.softmax(jnp.where(is_seen, scores, -jnp.inf))
    mixed = jnp.einsum(
        "bhqk,bkhd->bqhd",
        weights.astype(values.dtype),
        values,
        preferred_element_type=jnp.float32,
    )
    return mixed.astype(values.dtype)


def inputs(length=L, *, batch_size=B, num_heads=H, head_size=D, reach=None, dtype=jnp.float32):
    """Arguments, N being `reach`, of one segment."""
    rng = np.random.default_rng(0)
    shape = (batch_size, length, num_heads, head_size)
    query, keys, values = (jnp.asarray(rng.normal(size=shape), dtype) for _ in range(3))
    gate = jnp.asarray(rng.uniform(0.5, 2, shape[:3]), jnp.float32)
    width = 2 * (reach or length) - 1
    by_distance = jnp.asarray(rng.normal(size=(num_heads, width)), jnp.float32)
    return query, keys, values, gate, by_distance, jnp.ones(shape[:2], jnp.int32)


def segments(*rows: list[int]) -> jax.Array:
    """Segments [B, L] of these lengths; the last one of a sequence is 0, as padding is."""
    return jnp.asarray([np.repeat([*range(1, len(row)), 0], row) for row in rows], jnp.int32)


def eager_values_and_gradients(function, arguments, wanted=ALL) -> dict[str, jax.Array]:
    """The output, and the gradients of a random weighted sum of it."""

    def loss(*arguments):
        out = function(*arguments)
        weights = np.random.default_rng(1).normal(size=out.shape)
        return (out.astype(jnp.float32) * jnp.asarray(weights, jnp.float32)).sum(), out

    gradients, out = jax.grad(loss, argnums=wanted, has_aux=True)(*arguments)
    return {"out": out} | {NAMES[n]: x for n, x in zip(wanted, gradients, strict=True)}


values_and_gradients = jax.jit(
    eager_values_and_gradients, static_argnums=(0,), static_argnames=("wanted",)
)


def assert_same(actual: dict[str, jax.Array], expected: dict[str, jax.Array], tolerance=2e-5):
    """Within a tolerance of the largest value of each array, or of 1 where it is less."""
    for name, x in expected.items():
        assert actual[name].dtype == x.dtype, name
        x = np.asarray(x, np.float32)
        difference = np.abs(np.asarray(actual[name], np.float32) - x).max()
        scale = max(1.0, np.abs(x).max())
        assert difference <= tolerance * scale, f"{name}: {difference} of {scale}"


class GatedAttentionTest(parameterized.TestCase):
    @parameterized.named_parameters(
        ("one_segment", {}, None),
        ("several_segments", {}, segments([10, 30, 8], [16, 1, 31])),
        ("a_token_each", {}, segments(*B * [[1] * L])),
        ("scattered_segments", {}, jnp.asarray(np.random.default_rng(2).integers(0, 3, (B, L)))),
        ("one_block", {"length": 16}, None),
        ("less_than_a_block", {"length": 5}, segments([3, 2], [1, 4])),
        ("one_token", {"length": 1}, None),
        ("blocks_that_do_not_divide", RAGGED, segments([20, 17], [36, 1])),
        ("head_size_that_is_padded", {"head_size": 24}, None),
        ("more_distances_than_needed", {"length": 37, "reach": 100}, None),
        ("some_more_distances", {"length": 37, "reach": 40}, None),
        ("one_group", ONE_GROUP, None),
        ("many_groups", {"batch_size": 6, "length": 32}, None),
    )
    def test_values_and_gradients(self, sizes, of_segments):
        arguments = inputs(**sizes)
        if of_segments is not None:
            arguments = (*arguments[:5], of_segments)
        expected = values_and_gradients(reference, arguments)
        assert_same(values_and_gradients(fused, arguments), expected)

    def test_without_gate_or_bias(self):
        query, keys, values, gate, by_distance, _ = inputs()
        seen = segments([10, 30, 8], [16, 1, 31])
        for optional, wanted in (((None, by_distance), (0, 1, 2, 4)), ((None, None), (0, 1, 2))):
            arguments = (query, keys, values, *optional, seen)
            expected = values_and_gradients(reference, arguments, wanted=wanted)
            assert_same(values_and_gradients(fused, arguments, wanted=wanted), expected)
        # A gate of no bias is none.
        arguments = (query, keys, values, gate, None, seen)
        actual = values_and_gradients(fused, arguments, wanted=ALL[:4])
        self.assertFalse(np.any(actual.pop("gate")))
        assert_same(actual, expected)

    @parameterized.parameters(16, 32, 64)
    def test_block_size_does_not_matter(self, block_size):
        arguments = inputs(**RAGGED)
        expected = values_and_gradients(reference, arguments)
        assert_same(values_and_gradients(with_blocks(block_size), arguments), expected)

    def test_large_scores(self):
        query, *others = inputs()
        arguments = (100 * query, *others)
        expected = values_and_gradients(reference, arguments)
        assert_same(values_and_gradients(fused, arguments), expected, 1e-4)

    def test_bfloat16(self):
        """Within twice the distance of the reference in bfloat16 from float32."""
        rounded = inputs(dtype=jnp.bfloat16)
        exact = values_and_gradients(
            reference, (*(x.astype(jnp.float32) for x in rounded[:3]), *rounded[3:])
        )
        actual = values_and_gradients(fused, rounded)
        plain = values_and_gradients(reference, rounded)
        self.assertEqual(
            {n: x.dtype for n, x in actual.items()}, {n: x.dtype for n, x in plain.items()}
        )

        def error(arrays, name):
            difference = np.asarray(arrays[name], np.float32) - np.asarray(exact[name])
            return np.linalg.norm(difference) / np.linalg.norm(exact[name])

        for name in exact:
            self.assertLess(error(actual, name), 2 * error(plain, name), name)

    def test_jit_remat_and_vmap(self):
        arguments = inputs()
        expected = values_and_gradients(fused, arguments)
        assert_same(eager_values_and_gradients(fused, arguments), expected, 1e-6)
        assert_same(values_and_gradients(jax.checkpoint(fused), arguments), expected, 1e-6)
        twice = tuple(np.stack([x, x[::-1]]) for x in map(np.asarray, arguments))
        mapped = jax.vmap(functools.partial(values_and_gradients, fused))(twice)
        for n in range(2):
            one = values_and_gradients(fused, tuple(x[n] for x in twice))
            assert_same({name: np.asarray(x)[n] for name, x in mapped.items()}, one, 1e-6)

    def test_split_by_sequences(self):
        arguments = inputs(**ONE_GROUP)
        split = P("data")
        function = jax.shard_map(
            fused,
            mesh=jax.make_mesh((8,), ("data",), axis_types=(jax.sharding.AxisType.Auto,)),
            in_specs=(split, split, split, split, P(), split),
            out_specs=split,
            check_vma=False,
        )
        actual = values_and_gradients(jax.jit(function), arguments)
        assert_same(actual, values_and_gradients(fused, arguments), 1e-6)

    @parameterized.parameters(("float32", True), ("bfloat16", True), ("bfloat16", False))
    def test_lowers_for_gpus_without_an_array_of_all_pairs(self, dtype, has_bias: bool):
        batch_size, length, num_heads, head_size = 2, 512, 12, 64
        shape = (batch_size, length, num_heads, head_size)
        tokens = jax.ShapeDtypeStruct(shape, dtype)
        gate = jax.ShapeDtypeStruct(shape[:3], jnp.float32)
        by_distance = jax.ShapeDtypeStruct((num_heads, 2 * length - 1), jnp.float32)
        of_tokens = jax.ShapeDtypeStruct(shape[:2], jnp.int32)
        bias = (gate, by_distance) if has_bias else (None, None)
        arguments = (tokens, tokens, tokens, *bias, of_tokens)

        def gradients(*arguments):
            wanted = ALL if has_bias else ALL[:3]
            return values_and_gradients(gated_attention, arguments, wanted=wanted)

        for function, num_kernels in ((gated_attention, 1), (gradients, 4 if has_bias else 3)):
            with jax.sharding.use_abstract_mesh(H100):
                traced = jax.jit(function).trace(*arguments)
                text = traced.lower(lowering_platforms=("cuda",)).as_text()
            self.assertEqual(text.count("custom_call @__gpu$xla.gpu.triton"), num_kernels)
            shapes = re.findall(r"tensor<((?:\d+x)+)", text)
            sizes = [math.prod(map(int, x.split("x")[:-1])) for x in shapes]
            self.assertGreaterEqual(max(sizes), math.prod(shape))
            self.assertLess(max(sizes), num_heads * length**2)

    @parameterized.named_parameters(
        ("keys", {"keys": jnp.zeros((B, L + 1, H, D))}, "keys are"),
        ("dtype_of_values", {"values": jnp.zeros((B, L, H, D), jnp.bfloat16)}, "values are"),
        ("segments", {"segments": jnp.zeros((B, L + 1), jnp.int32)}, "segments are"),
        ("gate", {"gate": jnp.ones((B, H, L))}, "the gate is"),
        ("few_distances", {"by_distance": jnp.zeros((H, 2 * L - 3))}, "an odd number from 95"),
        ("even_distances", {"by_distance": jnp.zeros((H, 2 * L))}, "an odd number from 95"),
        ("heads", {"by_distance": jnp.zeros((1, 2 * L - 1))}, "2 heads"),
        ("small_block", {"block_size": 8}, "block_size is 8"),
        ("odd_block", {"block_size": 48}, "block_size is 48"),
    )
    def test_refuses(self, changes, message):
        arguments = dict(zip((*NAMES, "segments"), inputs(), strict=True))
        with self.assertRaisesRegex(ValueError, message):
            fused(**arguments | changes)

    def test_refuses_other_types(self):
        with self.assertRaisesRegex(ValueError, "float32 or bfloat16"):
            fused(*inputs(dtype=jnp.float16))


if __name__ == "__main__":
    absltest.main()
