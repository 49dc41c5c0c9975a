"""Draws by devices that share a table: those of one device, and in the memory of a share."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from absl.testing import parameterized
from jax.sharding import NamedSharding, PartitionSpec
from scipy import special

from benchmarks.collectives import collectives_of
from knn_sampling.draws import TILE, draw_slots
from knn_sampling.output_layer import OutputLayer
from knn_sampling.settings import KINDS
from knn_sampling.table_sharding import TableSharding
from tests.knn_sampling.batches import B, M, layer_of, mesh_of
from tests.knn_sampling.drawing import (
    CHANGES,
    LEAST,
    VALID,
    batch_of,
    draw,
    draw_many,
    logits_of,
    repeated,
    sampled_from,
    unlikeliness,
)

MESH = mesh_of(data=2, fsdp=1, model=4)


class ShardedTest(parameterized.TestCase):
    def placed(self, batch):
        axes = {"table": "model", "hidden": "data", "weights": "data"}
        return {
            name: jax.device_put(x, NamedSharding(MESH, PartitionSpec(axes.get(name))))
            for name, x in batch.items()
        }

    def layers(self, kind: str, num_valid: int, **more) -> tuple[OutputLayer, OutputLayer]:
        changes = CHANGES | {"num_valid": num_valid, "log_q_correction": True} | more
        split = layer_of(kind, sharding=TableSharding(MESH, ("model",)), **changes)
        return layer_of(kind, **changes), split

    @parameterized.parameters(*KINDS)
    def test_devices_with_whole_tiles_draw_what_one_draws(self, kind: str):
        batch = batch_of(4 * TILE, 500)
        single, split = self.layers(kind, 500, capacity=4 * TILE)
        sample = sampled_from(single, batch)
        placed = self.placed(batch)
        seen = set()
        for seed in range(4):
            found = draw(split, placed, sample, seed)
            jax.tree.map(np.testing.assert_array_equal, found, draw(single, batch, sample, seed))
            seen |= set((np.asarray(found.ids) // TILE).reshape(-1).tolist())
        self.assertGreater(len(seen), 1)

    def test_the_device_that_holds_a_target_leaves_it_uncorrected(self):
        target, num_classes = 300, 4 * TILE

        def search(label: int, **kwargs) -> jax.Array:
            ones = (jnp.ones((1, *shape)) for shape in ((200, 4), (200,), (num_classes, 4)))
            correction = (
                jnp.zeros((1, num_classes)).at[0, target].set(20.0),
                jnp.full((1, 200), label),
            )
            return draw_slots(
                jax.random.key(0), *ones, jnp.zeros((1, num_classes)), temperature=1.0,
                block_size=TILE, correction=correction, **kwargs,
            )[0]  # fmt: skip

        single = jax.jit(search)
        split = jax.jit(functools.partial(search, sharding=TableSharding(MESH, ("model",))))
        for label in (target, target - TILE):
            found = np.asarray(split(label))
            np.testing.assert_array_equal(found, single(label))
            self.assertEqual((found == target).all(), label != target)

    def test_devices_with_parts_of_tiles_draw_from_the_softmax(self):
        _, split = self.layers("full", VALID)
        batch = batch_of(304, VALID)
        found = draw_many(split, self.placed(repeated(batch, 4, 5000)))
        for ids, logits in zip(found, logits_of(batch), strict=False):
            self.assertGreater(unlikeliness(ids, special.softmax(logits)), LEAST)

    @parameterized.parameters("full", "knn")
    def test_inside_of_a_map_over_the_shards_of_a_batch(self, kind: str):
        batch = batch_of(4 * TILE, 500)
        single, split = self.layers(kind, 500, capacity=4 * TILE, group_size=0)
        sample = sampled_from(single, batch)
        spec = PartitionSpec("data")

        def sample_of(labels):
            if sample is None:
                return None
            return sample._replace(candidates=sample.candidates._replace(labels=labels))

        def of_shard(hidden, weights, labels, table):
            changed = batch | {"hidden": hidden, "weights": weights, "table": table}
            return draw(split, changed, sample_of(labels))

        @jax.jit
        def mapped(hidden, weights, labels, table):
            with jax.sharding.use_abstract_mesh(MESH.abstract_mesh):
                return jax.shard_map(
                    of_shard,
                    in_specs=(spec, spec, PartitionSpec(None, "data"), PartitionSpec()),
                    out_specs=spec,
                    axis_names={"data", "fsdp"},
                    check_vma=False,
                )(hidden, weights, labels, table)

        labels = np.zeros((1, B * M), np.int32)
        if sample is not None:
            labels = np.asarray(sample.candidates.labels)
        placed = self.placed(batch)
        found = mapped(placed["hidden"], placed["weights"], labels, placed["table"])
        parts = []
        for part in (slice(0, B // 2), slice(B // 2, B)):
            of_part = batch | {name: batch[name][part] for name in ("hidden", "weights")}
            own = sample_of(labels[:, part.start * M : part.stop * M])
            parts.append(draw(single, of_part, own))
        expected = jax.tree.map(lambda *x: np.concatenate(x), *parts)
        jax.tree.map(np.testing.assert_array_equal, found, expected)

    def test_rows_that_do_not_divide(self):
        _, split = self.layers("full", VALID)
        with self.assertRaisesRegex(ValueError, "302 rows, must be a multiple of the 4 devices"):
            draw(split, batch_of(302), None)


class MemoryTest(parameterized.TestCase):
    positions, num_rows, width = 64, 500_224, 4

    def shapes(self):
        shapes = (1, self.positions, self.width), (1, self.positions)
        shapes += (self.num_rows, self.width), (self.num_rows,)
        names = ("hidden", "weights", "table", "bias")
        return {x: jax.ShapeDtypeStruct(s, jnp.float32) for x, s in zip(names, shapes, strict=True)}

    @parameterized.parameters("full", "blockwise")
    def test_the_logits_are_never_held(self, kind: str):
        layer = layer_of(kind, num_valid=self.num_rows)
        compiled = draw.lower(layer, self.shapes(), None).compile()
        held = compiled.memory_analysis().temp_size_in_bytes
        self.assertLess(held, 4 * self.positions * self.num_rows / 8)

    def test_neither_are_they_by_devices_nor_the_table(self):
        layer = layer_of("full", num_valid=self.num_rows, sharding=TableSharding(MESH, ("model",)))
        placed = {}
        for name, x in self.shapes().items():
            layout = NamedSharding(MESH, PartitionSpec("model" if name == "table" else None))
            placed[name] = jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=layout)
        compiled = draw.lower(layer, placed, None).compile()
        held = compiled.memory_analysis().temp_size_in_bytes
        self.assertLess(held, 4 * self.positions * self.num_rows / 8)
        for collective in collectives_of(compiled.as_text(), 8):
            self.assertLessEqual(max(collective.sizes), self.positions)
