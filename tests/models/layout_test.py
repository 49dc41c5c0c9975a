"""Activations on a mesh: split by sequences, whatever the parameters are split over."""

import collections
import dataclasses
import functools
from unittest import mock

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from absl.testing import parameterized
from jax.sharding import PartitionSpec as P

from tests.models.factories import boxed_shapes
from tests.models.sharded import GATED, SETTINGS, B, L, M, on_mesh
from xlm.models import attention, layout, segments
from xlm.models.encoder import Encoder, EncoderSettings
from xlm.models.flash_attention import flash_attention
from xlm.models.segment_attention import segment_attention
from xlm.training.settings import MeshSettings
from xlm.training.sharding import make_mesh

MESHES = ((8, 1, 1), (1, 8, 1), (2, 2, 2), (1, 4, 2))
TOKENS = jnp.zeros((8, 6), jnp.int32)
SPLASH = dataclasses.replace(SETTINGS, attention="splash")
LOCAL = dataclasses.replace(
    SETTINGS, position="rotary", norm_position="pre", first_norm=False, mlp="geglu", bias=False,
    local_window=2, global_every=2,
)  # fmt: skip
FLASH = dataclasses.replace(GATED, attention="flash", attention_dropout_rate=0.3)
# The kernels of a TPU and a GPU, where there is none.
interpreted_splash = functools.partial(segment_attention, interpret=True)
interpreted_flash = functools.partial(flash_attention, interpret=True)


@functools.cache
def on_one_device(encoder: EncoderSettings) -> tuple:
    return on_mesh(1, 1, 1, encoder)()


def tearDownModule():
    on_mesh.cache_clear()  # or its programs would stay loaded


class LayoutTest(parameterized.TestCase):
    @parameterized.parameters(
        ((1, 8, 1), SETTINGS),
        ((2, 2, 2), GATED),
        ((2, 2, 2), SPLASH),
        ((2, 2, 2), LOCAL),
        ((2, 2, 2), FLASH),
    )
    @mock.patch.object(segments, "_LEAST_BLOCK", 1)
    @mock.patch.object(attention, "flash_attention", interpreted_flash)
    def test_values_are_those_of_one_device(self, axes, encoder: EncoderSettings):
        # On one device without a fused kernel, but for its dropout.
        plain = encoder if encoder == FLASH else dataclasses.replace(encoder, attention="xla")
        expected_loss, expected = on_one_device(plain)
        with mock.patch.object(attention, "segment_attention", interpreted_splash):
            found_loss, found = on_mesh(*axes, encoder)()
        np.testing.assert_allclose(found_loss, expected_loss, rtol=1e-5)
        largest = max(np.abs(x).max() for x in jax.tree.leaves(expected))
        check = functools.partial(np.testing.assert_allclose, rtol=1e-5, atol=1e-5 * largest)
        jax.tree.map(check, found, expected)

    def test_fsdp_takes_the_memory_of_data(self):
        data, fsdp = (on_mesh(*axes, SETTINGS).temporary_bytes() for axes in ((8, 1, 1), (1, 8, 1)))
        self.assertLess(fsdp, 1.2 * data)

    @parameterized.parameters((8, 1, 1), (1, 8, 1))
    def test_of_a_bias_only_distances_are_summed_over_devices(self, *axes: int):
        with_bias, without = on_mesh(*axes, GATED), on_mesh(*axes, SETTINGS)
        new = collections.Counter(with_bias.collective_sizes())
        new.subtract(without.collective_sizes())
        # By distance, and the vectors and numbers of the gate, maybe of both layers.
        heads = GATED.num_heads
        distances, gate = heads * (2 * L - 1), 2 * GATED.num_layers * (GATED.hidden_size + heads)
        added = {size for size, count in new.items() if count > 0}
        self.assertLessEqual(max(added, default=0), max(distances, gate))

    @parameterized.parameters(*MESHES)
    def test_nothing_is_sent_of_the_size_of_all_activations(self, *axes: int):
        sizes = on_mesh(*axes, SETTINGS).collective_sizes()
        self.assertNotEmpty(sizes)
        one_device = B * L * SETTINGS.hidden_size // (axes[0] * axes[1])
        parameters = SETTINGS.hidden_size * SETTINGS.mlp_size // axes[2]
        self.assertLessEqual(max(sizes), max(one_device, parameters))

    def test_without_constraints_it_would_be(self):
        # Or else the tests above would pass without them.
        data, left = on_mesh(8, 1, 1, SETTINGS), on_mesh(1, 8, 1, SETTINGS, constrained=False)
        self.assertEqual(max(left.collective_sizes()), B * L * SETTINGS.mlp_size)
        self.assertGreater(left.temporary_bytes(), 2 * data.temporary_bytes())

    def test_head_splits_what_it_is_given(self):
        mesh = make_mesh(MeshSettings(1, 8, 1, vocab_multiple=8, rules=()))
        predict = jax.jit(functools.partial(Encoder(SETTINGS).apply, method="predict"))
        states = jax.ShapeDtypeStruct((B, M, SETTINGS.hidden_size), jnp.float32)
        with jax.set_mesh(mesh):
            lowered = predict.lower({"params": nn.unbox(boxed_shapes(SETTINGS))}, states)
        output = lowered.compile().output_shardings
        self.assertEqual(output.shard_shape((B, M, SETTINGS.embedding_size))[0], B // 8)


class SplitBatchTest(parameterized.TestCase):
    def constraints(self, function, *args) -> list[P]:
        jaxpr = jax.make_jaxpr(function)(*args).jaxpr
        equations = [e for e in jaxpr.eqns if e.primitive.name == "sharding_constraint"]
        return [equation.params["sharding"].spec for equation in equations]

    def in_mesh(self, *shape: int):
        names = ("data", "fsdp", "model")
        types = (jax.sharding.AxisType.Auto,) * 3
        return jax.sharding.use_abstract_mesh(jax.sharding.AbstractMesh(shape, names, types))

    @parameterized.parameters((2, 2, 2), (4, 1, 2), (1, 8, 1))
    def test_batch_is_split(self, *shape: int):
        with self.in_mesh(*shape):
            (spec,) = self.constraints(layout.split_batch, TOKENS)
            (whole,) = self.constraints(layout.gathered, TOKENS)
        self.assertEqual(spec, P(("data", "fsdp"), P.UNCONSTRAINED))
        self.assertEqual(whole, P())

    @parameterized.parameters(((1, 1, 8), 8), ((2, 2, 2), 6))
    def test_nothing_to_split_or_that_divides(self, shape, batch_size: int):
        rows, table = TOKENS[:batch_size], jnp.zeros((5, 4))
        with self.in_mesh(*shape):
            self.assertEmpty(self.constraints(layout.split_batch, rows))
            self.assertEmpty(self.constraints(layout.embedded, table, rows))

    def test_without_a_mesh_and_inside_of_a_shard_map(self):
        for function in (layout.split_batch, layout.gathered):
            self.assertIs(function(TOKENS), TOKENS)
        types = (jax.sharding.AxisType.Auto,) * 2
        mesh = jax.make_mesh((4, 2), ("data", "fsdp"), axis_types=types)
        spec = P(("data", "fsdp"))
        split = jax.shard_map(layout.split_batch, mesh=mesh, in_specs=spec, out_specs=spec)
        tokens = jnp.arange(64)
        np.testing.assert_array_equal(split(tokens), tokens)

    @parameterized.parameters((4, "fsdp"), (3, None))
    def test_columns_of_the_table_are_split_if_they_divide(self, width: int, axis: str | None):
        with self.in_mesh(4, 2, 1):
            specs = self.constraints(layout.embedded, jnp.zeros((5, width)), TOKENS)
        self.assertEqual(specs[1], P("data", None, axis))
