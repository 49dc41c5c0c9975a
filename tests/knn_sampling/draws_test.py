"""Draws against the softmax of their distribution, on one device and on several."""

import dataclasses
import functools
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
from absl.testing import parameterized
from jax.sharding import NamedSharding, PartitionSpec
from scipy import special, stats

from benchmarks.collectives import collectives_of
from knn_sampling import draws, sampled_layers
from knn_sampling.draws import TILE, Draws, draw_slots
from knn_sampling.inclusion import log_inclusion
from knn_sampling.output_layer import OutputLayer
from knn_sampling.samples import example_axes
from knn_sampling.settings import KINDS
from knn_sampling.table_sharding import TableSharding
from tests.knn_sampling.batches import (
    B,
    G,
    M,
    index_of,
    layer_of,
    mesh_of,
    random_batch,
    sample_of,
    statistics_of,
)
from tests.objectives.example_axes_test import shard

# Three tiles; the last is short and has padding.
V, VALID = 300, 290
CHANGES = {"num_valid": VALID, "k": 40, "capacity": V, "num_negatives": 100}
FULL = layer_of("full", **CHANGES)
BLOCKWISE = dataclasses.replace(layer_of("blockwise", **CHANGES), block_size=128)
KNN, TARGETS = (
    dataclasses.replace(layer_of(kind, **CHANGES), block_size=128)
    for kind in ("knn", "target_sampling")
)
CORRECTED, CORRECTED_TARGETS = (
    dataclasses.replace(layer, log_q_correction=True) for layer in (KNN, TARGETS)
)
NCE, NEG = layer_of("nce", **CHANGES), layer_of("neg", **CHANGES)
SAMPLED = (KNN, CORRECTED, TARGETS, CORRECTED_TARGETS, NCE, NEG)


batch_of = functools.partial(random_batch, V, VALID)


def sampled_from(layer: OutputLayer, batch, seed: int = 0):
    num_rows = len(batch["table"])
    statistics = statistics_of(num_rows, layer.num_valid)
    return sample_of(layer, batch, index_of(layer, batch, statistics), statistics, seed)


@functools.partial(jax.jit, static_argnames=("layer", "temperature"))
def draw(layer: OutputLayer, batch, sample, seed: int = 0, temperature: float = 1.0) -> Draws:
    arguments = (batch[name] for name in ("hidden", "weights", "table", "bias"))
    return layer.draw(jax.random.key(seed), *arguments, sample, temperature)


def draw_many(layer: OutputLayer, batch, temperature: float = 1.0) -> np.ndarray:
    """Ids by an exact layer, at enough positions to make optimisation worthwhile."""
    lowered = draw.lower(layer, batch, None, 0, temperature)
    compiled = lowered.compile({"xla_backend_optimization_level": 1})
    return np.asarray(compiled(batch, None, 0).ids)


def logits_of(batch) -> np.ndarray:
    """Logits [B M, V] in float64, -inf for padding."""
    hidden, table, bias = (np.asarray(batch[x], np.float64) for x in ("hidden", "table", "bias"))
    logits = hidden.reshape(-1, hidden.shape[-1]) @ table.T + bias[None, :]
    logits[:, VALID:] = -np.inf
    return logits


def repeated(batch, states: int, times: int) -> dict[str, np.ndarray]:
    """Batch of the first hidden states, each repeated: [states, times]."""
    hidden = batch["hidden"].reshape(B * M, -1)[:states]
    hidden = np.repeat(hidden[:, None], times, axis=1)
    return batch | {"hidden": hidden, "weights": np.ones(hidden.shape[:2], np.float32)}


def unlikeliness(ids: np.ndarray, probabilities: np.ndarray) -> float:
    """p-value of the draws' chi-square; rare classes are pooled."""
    counts = np.bincount(np.asarray(ids).reshape(-1), minlength=len(probabilities))
    expected = probabilities / probabilities.sum() * counts.sum()
    if counts[expected == 0].any():
        return 0.0
    is_rare = expected < 10
    observed = np.append(counts[~is_rare], counts[is_rare].sum())
    expected = np.append(expected[~is_rare], expected[is_rare].sum())
    some = expected > 0
    statistic = ((observed - expected)[some] ** 2 / expected[some]).sum()
    return stats.chi2.sf(statistic, some.sum() - 1)


# Chance that a test fails. Seeds of the hundred tests are fixed.
LEAST = 1e-4
WG = B * M // G
# one group, whose rows may come first
ONE_GROUP = dataclasses.replace(CORRECTED, group_size=0)


@functools.partial(jax.jit, static_argnames=("layer", "temperature", "count"))
def ids_of_keys(layer, batch, sample, count: int, temperature: float = 1.0) -> jax.Array:
    one = lambda seed: draw(layer, batch, sample, seed, temperature).ids  # noqa: E731
    return jax.lax.map(one, jnp.arange(count), batch_size=50)


class DistributionTest(parameterized.TestCase):
    @parameterized.parameters((FULL, 1.0), (BLOCKWISE, 0.3), (BLOCKWISE, 1.0), (BLOCKWISE, 3.0))
    def test_is_the_softmax(self, layer: OutputLayer, temperature: float):
        batch = batch_of()
        found = draw_many(layer, repeated(batch, 4, 10_000), temperature)
        for ids, logits in zip(found, logits_of(batch), strict=False):
            self.assertGreater(unlikeliness(ids, special.softmax(logits / temperature)), LEAST)

    @parameterized.parameters(1, 2, TILE, TILE + 1, 2 * TILE)
    def test_tables_of_any_size(self, num_rows: int):
        layer = dataclasses.replace(BLOCKWISE, num_valid=num_rows)
        batch = batch_of()
        batch |= {"table": batch["table"][:num_rows], "bias": batch["bias"][:num_rows]}
        found = draw(layer, repeated(batch, 1, 10_000), None).ids
        probabilities = special.softmax(logits_of(batch_of())[0, :num_rows])
        if num_rows > 1:
            self.assertGreater(unlikeliness(found, probabilities), LEAST)
        else:
            np.testing.assert_array_equal(found, 0)

    def test_positions_and_groups_are_independent(self):
        batch = batch_of()
        whole = dataclasses.replace(TARGETS, num_negatives=V)
        equal = {"hidden": np.broadcast_to(batch["hidden"][:1, :1], batch["hidden"].shape)}
        batch |= equal | {"weights": np.ones((B, M), np.float32)}
        found = np.asarray(ids_of_keys(whole, batch, sampled_from(whole, batch), 3000))
        p = special.softmax(logits_of(batch)[0])
        same_class = (p**2).sum()
        first = found[:, 0, 0]
        for other in (found[:, 0, 1], found[:, 1, 0], found[:, B // G, 0]):
            same = (first == other).sum()
            self.assertGreater(stats.binomtest(int(same), len(first), same_class).pvalue, LEAST)

    def check_law(self, found, layer: OutputLayer, batch, sample, temperature: float):
        """Check ids [N, B, M] drawn from the candidates of each group."""
        ids = np.asarray(sample.candidates.ids)
        used = ids < V
        log_weights = np.zeros(ids.shape)
        if getattr(layer, "log_q_correction", False):
            log_weights = np.asarray(sample.logit_bias)
            self.assertGreater(np.ptp(log_weights[used]), 0.1)
        if isinstance(layer, sampled_layers.NCE):
            p = np.append(statistics_of(V, VALID).probabilities, 0)[ids]
            num_targets = (np.asarray(batch["weights"]).reshape(len(ids), -1) > 0).sum(axis=1)
            log_weights = -np.asarray(log_inclusion(p, layer.num_negatives + num_targets[:, None]))
        found = np.asarray(found).reshape(len(found), -1)
        logits = logits_of(batch)
        targets = np.asarray(batch["targets"]).reshape(-1)
        for position in np.flatnonzero(batch["weights"]):
            group = position * len(ids) // (B * M)
            masses = np.full(V, -np.inf)
            own = ids[group][used[group]]
            masses[own] = logits[position, own] / temperature
            is_other = own != targets[position]
            masses[own] += log_weights[group][used[group]] * is_other
            p = special.softmax(masses)
            self.assertGreater(unlikeliness(found[:, position], p), LEAST)

    @parameterized.parameters(*((layer, 2.0) for layer in SAMPLED), (CORRECTED, 1.0))
    def test_sampled_layers_draw_from_their_candidates(self, layer, temperature: float):
        batch = batch_of()
        sample = sampled_from(layer, batch)
        found = ids_of_keys(layer, batch, sample, 2000, temperature)
        self.check_law(found, layer, batch, sample, temperature)

    @parameterized.parameters(
        CORRECTED, CORRECTED_TARGETS, dataclasses.replace(NCE, num_negatives=4)
    )
    def test_parts_of_a_group_draw_as_the_group_does(self, layer: OutputLayer):
        # Like devices with a share each of the only group and of the targets of Q. Q differs
        # between targets and other classes, so targets must be as likely as all others.
        layer, batch = dataclasses.replace(layer, group_size=0), batch_of()
        batch["table"] = np.random.default_rng(2).normal(size=(V, 32)).astype(np.float32)
        batch["hidden"] = 0.25 * batch["table"][batch["targets"]]
        sample = sampled_from(layer, batch)
        axes = example_axes(sample, 2)
        found = []
        for number in range(2):
            part = {name: np.split(batch[name], 2)[number] for name in ("hidden", "weights")}
            of_part = shard(sample, axes, number, 2)
            found.append(ids_of_keys(layer, batch | part, of_part, 4000))
        self.check_law(np.concatenate(found, axis=1), layer, batch, sample, 1.0)


class InvarianceTest(parameterized.TestCase):
    @parameterized.parameters(FULL, BLOCKWISE, *SAMPLED)
    def test_best_is_the_likeliest_class(self, layer: OutputLayer):
        batch = batch_of()
        sample = sampled_from(layer, batch)
        logits = logits_of(batch)
        if sample is not None:
            for group, ids in enumerate(np.asarray(sample.candidates.ids)):
                positions = slice(group * WG, (group + 1) * WG)
                logits[positions, np.setdiff1d(np.arange(V), ids)] = -np.inf
        expected = np.where(batch["weights"] > 0, logits.argmax(axis=1).reshape(B, M), 0)
        found = draw(layer, batch, sample)
        np.testing.assert_array_equal(found.best, expected)
        self.assertFalse((np.asarray(found.ids) == expected).all())
        greedy = draw(layer, batch, sample, 0, 0.0)
        np.testing.assert_array_equal(greedy.ids, expected)
        np.testing.assert_array_equal(greedy.best, expected)

    @parameterized.parameters(0, 1, 129, 256, 1000)
    def test_blocks_of_any_size_give_the_same_draws(self, block_size: int):
        batch = repeated(batch_of(), 2, 500)
        layer = dataclasses.replace(BLOCKWISE, block_size=block_size)
        both = (draw(one, batch, None) for one in (layer, BLOCKWISE))
        jax.tree.map(np.testing.assert_array_equal, *both)

    @parameterized.parameters(False, True)
    def test_all_classes_as_candidates_draw_as_the_full_softmax(self, corrects):
        layer = layer_of("knn", **CHANGES | {"k": VALID, "group_size": 0})
        layer = dataclasses.replace(layer, log_q_correction=corrects)
        batch = batch_of()
        for seed in range(5):
            found = draw(layer, batch, sampled_from(layer, batch), seed)
            jax.tree.map(np.testing.assert_array_equal, found, draw(FULL, batch, None, seed))

    @parameterized.parameters(CORRECTED, TARGETS, NCE, NEG)
    def test_gathered_rows_give_the_draws_of_the_whole_table(self, layer: OutputLayer):
        batch = batch_of()
        sample = sampled_from(layer, batch)
        expected = draw(layer, batch, sample)
        np.testing.assert_array_equal(expected.rows, expected.ids)
        order = np.random.default_rng(0).permutation(V)
        row_of = np.append(np.argsort(order), V + 3)  # outside the table, so any number will do
        moved = sample._replace(candidate_rows=jnp.asarray(row_of[sample.candidates.ids]))
        found = draw(layer, batch | {"table": batch["table"][order]}, moved)
        np.testing.assert_array_equal(found.ids, expected.ids)
        np.testing.assert_array_equal(found.best, expected.best)
        used = np.asarray(batch["weights"]) > 0
        np.testing.assert_array_equal(order[found.rows][used], np.asarray(found.ids)[used])
        np.testing.assert_array_equal(np.asarray(found.rows)[~used], 0)

    def test_rows_of_a_single_group_that_come_first(self):
        batch = batch_of()
        sample = sampled_from(ONE_GROUP, batch)
        unused = np.full((1, batch["table"].shape[1]), 7.0, np.float32)
        first = np.concatenate([batch["table"], unused])[sample.candidates.ids[0]]
        leading = sample._replace(candidate_rows=None)
        found = draw(ONE_GROUP, batch | {"table": first}, leading)
        expected = draw(ONE_GROUP, batch, sample)
        np.testing.assert_array_equal(found.ids, expected.ids)
        used = np.asarray(batch["weights"]) > 0
        of_rows = np.asarray(sample.candidates.ids)[0][found.rows]
        np.testing.assert_array_equal(of_rows[used], np.asarray(found.ids)[used])

    @parameterized.parameters(FULL, KNN)
    def test_bfloat16_rounds_the_factors_only(self, layer: OutputLayer):
        batch = repeated(batch_of(), B, M)
        sample = sampled_from(layer, batch_of())
        short = batch | {"hidden": batch["hidden"].astype(jnp.bfloat16)}
        rounded = {
            x: batch[x].astype(jnp.bfloat16).astype(jnp.float32) for x in ("hidden", "table")
        }
        for seed in range(10):
            found = draw(layer, short, sample, seed)
            expected = draw(layer, batch | rounded, sample, seed)
            jax.tree.map(np.testing.assert_array_equal, found, expected)


class AbsentTest(parameterized.TestCase):
    @parameterized.parameters(KNN, CORRECTED, NCE)
    def test_candidates_without_a_row_are_never_drawn(self, layer: OutputLayer):
        batch = batch_of()
        sample = sampled_from(layer, batch)
        ids = np.asarray(sample.candidates.ids)
        gone = ids % 3 == 0
        moved = sample._replace(candidate_rows=jnp.asarray(np.where(gone, V, ids)))
        found = ids_of_keys(layer, batch, moved, 2000, 2.0)
        used = np.asarray(batch["weights"]) > 0
        self.assertTrue((np.asarray(found)[:, used] % 3 > 0).all())

    @staticmethod
    @jax.jit
    def among_rising_biases(num_used: int):
        """Draws and best classes if all blocks were visited."""
        ones = (jnp.ones((1, *shape)) for shape in ((200, 4), (200,), (3 * TILE, 4)))
        biases = jnp.arange(3 * TILE)[None] / TILE
        options = {"temperature": 1.0, "block_size": TILE, "num_used": num_used}
        return draw_slots(jax.random.key(0), *ones, biases, **options)

    @parameterized.parameters(1, TILE, TILE + 1, 3 * TILE)
    def test_blocks_past_the_classes_in_use_are_not_visited(self, num_used: int):
        drawn, best = self.among_rising_biases(num_used)
        last = -(-num_used // TILE) * TILE - 1
        self.assertBetween(int(drawn.max()), last - TILE, last)
        np.testing.assert_array_equal(best, last)

    @parameterized.parameters(KNN, TARGETS, NCE, NEG)
    def test_sampled_layers_visit_the_largest_union(self, layer: OutputLayer):
        batch = batch_of()
        batch["weights"][:2] = 0  # a whole group without targets
        sample = sampled_from(layer, batch)
        self.assertLess(sample.candidates.union_size.min(), sample.candidates.union_size.max())

        @jax.jit
        def num_used(batch, sample) -> jax.Array:
            with mock.patch.object(draws, "draw_slots", wraps=draw_slots) as called:
                arguments = (batch[name] for name in ("hidden", "weights", "table", "bias"))
                layer.draw(jax.random.key(0), *arguments, sample, 1.0)
            return called.call_args.kwargs["num_used"]

        self.assertEqual(num_used(batch, sample), sample.candidates.union_size.max())

    @parameterized.parameters(FULL, BLOCKWISE, *SAMPLED)
    def test_positions_of_weight_zero(self, layer: OutputLayer):
        batch = batch_of()
        sample = sampled_from(layer, batch)
        unused = np.asarray(batch["weights"]) == 0
        expected = draw(layer, batch, sample)
        hidden = np.where(unused[:, :, None], np.float32(np.nan), batch["hidden"])
        found = draw(layer, batch | {"hidden": hidden}, sample)
        jax.tree.map(np.testing.assert_array_equal, found, expected)
        for values in found:
            self.assertEqual((values.shape, values.dtype), ((B, M), jnp.int32))
            np.testing.assert_array_equal(np.asarray(values)[unused], 0)

    @parameterized.parameters(FULL, BLOCKWISE, *SAMPLED)
    def test_states_that_are_not_finite_give_valid_ids(self, layer: OutputLayer):
        batch = batch_of()
        sample = sampled_from(layer, batch)
        for value in (np.nan, np.inf):
            batch["hidden"][0] = value
            for ids in map(np.asarray, draw(layer, batch, sample)):
                self.assertTrue(((ids >= 0) & (ids < VALID)).all())

    def test_settings_that_cannot_be(self):
        for temperature in (-0.5, float("nan")):
            message = f"temperature is {temperature}, must be at least"
            with self.assertRaisesRegex(ValueError, message):
                draw(FULL, batch_of(), None, 0, temperature)
        with self.assertRaisesRegex(ValueError, "block_size is -1, must be at least 0"):
            draw(dataclasses.replace(BLOCKWISE, block_size=-1), batch_of(), None)


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
        batch = random_batch(4 * TILE, 500)
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
        batch = random_batch(304, VALID)
        found = draw_many(split, self.placed(repeated(batch, 4, 5000)))
        for ids, logits in zip(found, logits_of(batch), strict=False):
            self.assertGreater(unlikeliness(ids, special.softmax(logits)), LEAST)

    def test_rows_that_do_not_divide(self):
        _, split = self.layers("full", VALID)
        with self.assertRaisesRegex(ValueError, "302 rows, must be a multiple of the 4 devices"):
            draw(split, random_batch(302, VALID), None)


class MemoryTest(parameterized.TestCase):
    positions, num_rows, width = 64, 500_224, 4

    def shapes(self):
        shapes = (1, self.positions, self.width), (1, self.positions)
        shapes += (self.num_rows, self.width), (self.num_rows,)
        names = ("hidden", "weights", "table", "bias")
        return {x: jax.ShapeDtypeStruct(s, jnp.float32) for x, s in zip(names, shapes, strict=True)}

    @parameterized.parameters(("full", False), ("blockwise", False), ("full", True))
    def test_the_logits_are_never_held_nor_is_the_table_sent(self, kind: str, is_split: bool):
        changes = {"sharding": TableSharding(MESH, ("model",))} if is_split else {}
        layer, shapes = layer_of(kind, num_valid=self.num_rows, **changes), self.shapes()
        for name, x in shapes.items() if is_split else ():
            layout = NamedSharding(MESH, PartitionSpec("model" if name == "table" else None))
            shapes[name] = jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=layout)
        compiled = draw.lower(layer, shapes, None).compile()
        held = compiled.memory_analysis().temp_size_in_bytes
        self.assertLess(held, 4 * self.positions * self.num_rows / 8)
        for collective in collectives_of(compiled.as_text(), 8):
            self.assertLessEqual(max(collective.sizes), self.positions)
