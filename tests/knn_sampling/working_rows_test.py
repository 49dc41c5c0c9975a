"""V' and the small table against sets, for any batch; then the losses on them."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
from absl.testing import parameterized

from knn_sampling.candidates import Candidates, union_of_classes, union_of_neighbours
from knn_sampling.inclusion import NeighbourIndex
from knn_sampling.output_layer import OutputLayer
from knn_sampling.samples import Sample, TokenStatistics
from knn_sampling.working_rows import WorkingRows, working_rows
from tests.knn_sampling.batches import (
    B,
    assert_close,
    index_of,
    layer_of,
    random_batch,
    sample_of,
    statistics_of,
    value_and_gradients,
)

V = 50


def candidate_sets(rng: np.random.Generator, num_groups: int, capacity: int) -> np.ndarray:
    """Ascending ids [G, C] that fill each group in part, then V."""
    ids = np.full((num_groups, capacity), V, np.int32)
    for group in ids:
        size = rng.integers(0, min(capacity, V) + 1)
        group[:size] = np.sort(rng.choice(V, size, replace=False))
    return ids


@functools.partial(jax.jit, static_argnums=(2, 3))
def _make(candidate_ids, tokens, vocab_size, capacities, targets) -> list[WorkingRows]:
    return [
        working_rows(candidate_ids, tokens, vocab_size, capacity, required=targets)
        for capacity in capacities
    ]


def make(candidate_ids, tokens, *capacities: int, targets=None) -> list[WorkingRows]:
    required = np.zeros((0,), np.int32) if targets is None else targets
    return jax.device_get(_make(candidate_ids, tokens, V, capacities, required))


def slow_rows(candidate_ids, tokens, targets, vocab_size: int, capacity: int) -> list[int]:
    inputs, candidates = set(tokens.ravel().tolist()), set(candidate_ids.ravel().tolist())
    candidates.discard(vocab_size)
    stay = inputs | (candidates & set(targets.ravel().tolist()))
    rest = sorted(candidates - stay)
    return sorted(stay | set(rest[: capacity - len(stay)] if capacity else rest))


class WorkingRowsTest(parameterized.TestCase):
    @parameterized.parameters(
        (1, 7, (9, 9)), (1, 20, (2, 4)), (2, V, (3, 5)), (4, 7, (2, 4)), (4, 20, (9, 9))
    )
    def test_equals_sets(self, num_groups: int, capacity: int, tokens_shape: tuple[int, int]):
        for seed in range(5):
            rng = np.random.default_rng(seed)
            candidate_ids = candidate_sets(rng, num_groups, capacity)
            tokens = rng.integers(0, V, tokens_shape).astype(np.int32)
            num_rows = min(num_groups * capacity, V) + min(tokens.size, V)
            expected = slow_rows(candidate_ids, tokens, np.array([]), V, 0)
            # A capacity above the bound is the bound.
            for rows in make(candidate_ids, tokens, 0, num_rows, num_rows + 9):
                ids = rows.ids
                self.assertEqual(ids.shape, (num_rows,))
                used = ids[ids < V]
                self.assertCountEqual(used.tolist(), expected)  # distinct ids only
                self.assertEqual(rows.num_needed, len(expected))
                self.assertEqual(set(ids[ids >= V].tolist()) - {V}, set())

                np.testing.assert_array_equal(ids[rows.tokens], tokens)
                if num_groups == 1:
                    self.assertIsNone(rows.candidates)
                    np.testing.assert_array_equal(ids[:capacity], candidate_ids[0])
                else:
                    is_id = candidate_ids < V
                    found = rows.candidates
                    np.testing.assert_array_equal(ids[found[is_id]], candidate_ids[is_id])
                    np.testing.assert_array_equal(found[~is_id], num_rows)

    @parameterized.parameters((1, 20), (1, 30), (1, V), (3, 20), (3, 23), (3, 45), (3, V))
    def test_within_a_capacity_equals_sets(self, num_groups: int, capacity: int):
        overflows = []
        for seed in range(20):
            rng = np.random.default_rng(seed)
            candidate_ids = candidate_sets(rng, num_groups, V)
            tokens = rng.integers(0, V, (3, 4)).astype(np.int32)
            targets = rng.integers(0, V, (3, 2)).astype(np.int32)  # not all are candidates
            tokens[0], targets[0] = tokens[0, 0], tokens[0, 0]
            (rows,) = make(candidate_ids, tokens, capacity, targets=targets)
            expected = slow_rows(candidate_ids, tokens, targets, V, capacity)
            unused = [V] * (capacity - len(expected))
            self.assertEqual(rows.ids.tolist(), expected + unused)
            needed = len(slow_rows(candidate_ids, tokens, targets, V, 0))
            self.assertEqual(rows.num_needed, needed)
            overflows.append(needed - capacity)

            ids = rows.ids
            np.testing.assert_array_equal(ids[rows.tokens], tokens)
            stays = np.isin(candidate_ids, expected)
            np.testing.assert_array_equal(ids[rows.candidates[stays]], candidate_ids[stays])
            np.testing.assert_array_equal(rows.candidates[~stays], capacity)
        # Nontrivial cases: some batches fit, and some do not.
        self.assertEqual(max(overflows) > 0, capacity < V)
        self.assertEqual(min(overflows) <= 0, num_groups == 1 or capacity == V)

    def test_distinct_tokens_and_targets_fill_the_least_capacity(self):
        tokens, targets = (np.arange(i, j, dtype=np.int32) for i, j in ((20, 32), (40, 48)))
        candidate_ids = np.arange(V, dtype=np.int32)[None]
        (rows,) = make(candidate_ids, tokens[None], 20, targets=targets[None])
        self.assertEqual(rows.ids.tolist(), [*tokens.tolist(), *targets.tolist()])
        message = (
            "output_layer.row_capacity is 19, must be at least 20: the 12 input tokens and 8 "
            "targets of a batch .* vocabulary of 50; 0 sets no limit"
        )
        with self.assertRaisesRegex(ValueError, message):
            make(candidate_ids, tokens[None], 19, targets=targets[None])
        # A smaller vocabulary is enough.
        all_tokens = np.arange(3 * V, dtype=np.int32)[None] % V
        (rows,) = make(candidate_ids, all_tokens, V, targets=targets)
        self.assertEqual(rows.ids.tolist(), [*range(V)])


NUM_ROWS, NUM_VALID = 40, 37
CHANGES = {"num_valid": NUM_VALID, "capacity": NUM_ROWS, "log_q_correction": True}
LAYERS = {
    kind: layer_of(kind, num_negatives=num_negatives, **CHANGES)
    for kind, num_negatives in (("knn", 0), ("target_sampling", 0), ("nce", 20), ("neg", 20))
}
# Input tokens, one of them twice: with 12 targets, 16 rows are the least.
TOKENS = np.array([[3, 3], [8, 30]], np.int32)


def by_rows(layer: OutputLayer, batch, sample: Sample, rows: WorkingRows):
    num_rows, candidates = len(rows.ids), rows.candidates
    # Small tables end in rows without a class, so one program serves all.
    size = max(num_rows, NUM_ROWS)
    ids = np.pad(rows.ids, (0, size - num_rows), constant_values=NUM_ROWS)
    if candidates is not None:
        candidates = np.where(candidates < num_rows, candidates, np.int32(size))
    table = np.append(batch["table"], np.full_like(batch["table"][:1], 7.0), axis=0)[ids]
    its_rows = sample._replace(candidate_rows=candidates)
    losses, (by_hidden, by_row, by_bias) = value_and_gradients(
        layer, batch | {"table": table}, its_rows
    )
    by_table = np.zeros_like(batch["table"])
    used = ids < NUM_ROWS
    np.add.at(by_table, ids[used], np.asarray(by_row)[used])
    return losses, (by_hidden, by_table, by_bias)


def without(sample: Sample, stay: list[int], targets: np.ndarray) -> Sample:
    """The sample with only the candidates that stay in V', by a loop."""
    ids, labels = np.full_like(sample.candidates.ids, NUM_ROWS), sample.candidates.labels.tolist()
    logit_bias, counts = np.zeros(ids.shape, np.float32), np.zeros(ids.shape, np.float32)
    for group, old in enumerate(sample.candidates.ids.tolist()):
        slots = [slot for slot, one in enumerate(old) if one in stay]
        for new, slot in enumerate(slots):
            ids[group, new], logit_bias[group, new] = old[slot], sample.logit_bias[group, slot]
            counts[group, new] = 0 if sample.counts is None else sample.counts[group, slot]
        found = ids[group].tolist()
        labels[group] = [found.index(t) if t in found else 0 for t in targets[group].tolist()]
    union_size = (ids < NUM_ROWS).sum(axis=1, dtype=np.int32)
    labels = np.array(labels, np.int32)
    candidates = sample.candidates._replace(ids=ids, labels=labels, union_size=union_size)
    counts = None if sample.counts is None else counts
    # Only draws use Q, which stays so that programs are equal.
    return Sample(candidates, logit_bias, counts, ids, sample.log_q)


class LossOverRowsTest(parameterized.TestCase):
    @parameterized.product(kind=tuple(LAYERS), group_size=(0, B // 2))
    def test_a_candidate_that_is_left_out_is_no_class(self, kind, group_size):
        layer = dataclasses.replace(LAYERS[kind], group_size=group_size)
        batch, statistics = random_batch(NUM_ROWS, NUM_VALID), statistics_of(NUM_ROWS, NUM_VALID)
        index = index_of(layer, batch, statistics)
        sample = jax.device_get(sample_of(layer, batch, index, statistics))
        ids, targets = sample.candidates.ids, batch["targets"]
        capacities = (0, 16, 21, 38)
        of_batch = jax.device_get(_make(ids, TOKENS, NUM_ROWS, capacities, targets))
        for capacity, rows in zip(capacities, of_batch, strict=True):
            with self.subTest(capacity=capacity):
                stay = slow_rows(ids, TOKENS, targets, NUM_ROWS, capacity)
                left_out = set(ids.ravel().tolist()) - {NUM_ROWS} - set(stay)
                self.assertEqual(bool(left_out), kind != "target_sampling" and capacity in (16, 21))
                cut = without(sample, stay, targets.reshape(len(ids), -1)) if left_out else sample
                expected = value_and_gradients(layer, batch, cut)
                assert_close(by_rows(layer, batch, sample, rows), expected)

    def test_no_array_of_the_table_is_made(self):
        vocab_size, width, groups, sequences, capacity = 500_096, 768, 8, 32, 262_144
        layer = layer_of("knn", k=50, capacity=65_536, group_size=sequences, num_valid=vocab_size)
        batch_size, length, masked = groups * sequences, 512, 77

        def step(neighbours, probabilities, tokens, targets, weights, hidden, table, bias):
            statistics = TokenStatistics(probabilities, None, None)
            index = NeighbourIndex(neighbours, None)
            sample = layer.sample(None, targets, weights, statistics, index)
            ids = sample.candidates.ids
            rows = working_rows(ids, tokens, vocab_size, capacity, required=targets)
            sample = sample._replace(candidate_rows=rows.candidates)

            def loss(*parameters):
                hidden, table, bias = parameters
                return layer.loss(hidden, targets, weights, table, bias, sample).sum()

            unlimited = working_rows(ids, tokens, vocab_size, 0, required=targets)
            return rows.ids, unlimited.ids, jax.grad(loss, (0, 1, 2))(hidden, table, bias)

        positions = batch_size, masked
        shapes = (
            ((vocab_size, 50), jnp.int32), ((vocab_size,), jnp.float32),
            ((batch_size, length), jnp.int32), (positions, jnp.int32), (positions, jnp.float32),
            ((*positions, width), jnp.bfloat16), ((capacity, width), jnp.float32),
            ((vocab_size,), jnp.float32),
        )  # fmt: skip
        program, result = jax.make_jaxpr(step, return_shape=True)(
            *(jax.ShapeDtypeStruct(*shape) for shape in shapes)
        )
        ids, unlimited_ids, (_, by_table, _) = result
        self.assertEqual(ids.shape, (capacity,))
        self.assertEqual(by_table.shape, (capacity, width))
        self.assertGreater(unlimited_ids.shape[0], vocab_size)  # without a capacity: all rows
        self.assertIn(f"[{capacity},{width}]", str(program))
        self.assertNotIn(f"{vocab_size},{width}", str(program))


SIZE, K, G, W = 40, 5, 3, 8


def random_targets(seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """An index that often lacks the token itself; groups with few or many distinct targets."""
    rng = np.random.default_rng(seed)
    neighbours = np.stack([rng.choice(SIZE, K, replace=False) for _ in range(SIZE)]).astype(
        np.int32
    )
    targets = np.stack([rng.integers(0, rng.choice([2, 5, SIZE]), W) for _ in range(G)])
    weights = np.stack([rng.random(W) < rng.choice([0.5, 1.0]) for _ in range(G)])
    return neighbours.astype(np.int32), targets.astype(np.int32), weights.astype(np.float32)


def slow_union(neighbours, targets, weights, capacity: int) -> tuple[list[int], int]:
    """The kept ids of a group, ascending, and the size of the whole union."""
    used = [int(target) for target, weight in zip(targets, weights, strict=True) if weight > 0]
    levels = [set(used)]  # targets, then the additions of each rank of the lists
    for rank in range(K):
        levels.append({int(neighbours[t][rank]) for t in used} - set().union(*levels))
    kept: set[int] = set()
    for level in levels:
        kept.update(sorted(level)[: capacity - len(kept)])
    return sorted(kept), len(set().union(*levels))


def union(neighbours, targets, weights, capacity: int) -> Candidates:
    compiled = jax.jit(union_of_neighbours, static_argnums=3)
    return jax.device_get(compiled(neighbours, targets, weights, capacity))


class UnionOfNeighboursTest(parameterized.TestCase):
    @parameterized.parameters(W, W + 1, 13, 20, 26, SIZE)
    def test_equals_sets(self, capacity: int):
        overflowing = set()  # number of groups that do not fit
        for seed in range(40):
            neighbours, targets, weights = random_targets(seed)
            candidates = union(neighbours, targets, weights, capacity)
            self.assertEqual(candidates.ids.shape, (G, capacity))
            sizes = []
            for group, used in enumerate(weights > 0):
                kept, size = slow_union(neighbours, targets[group], weights[group], capacity)
                unused = [SIZE] * (capacity - len(kept))
                self.assertEqual(candidates.ids[group].tolist(), kept + unused)
                found = candidates.ids[group][candidates.labels[group][used]]
                np.testing.assert_array_equal(found, targets[group, used])
                sizes.append(size)
            self.assertEqual(candidates.union_size.tolist(), sizes)
            overflow = np.maximum(np.array(sizes) - capacity, 0)
            np.testing.assert_array_equal(candidates.overflow(), overflow)
            overflowing.add(int((overflow > 0).sum()))
        # Nontrivial cases: batches that fit, and batches of which some groups fit.
        self.assertEqual(max(overflowing) > 0, capacity < SIZE)
        if capacity >= 13:
            self.assertIn(0, overflowing)
            self.assertEqual(1 in overflowing, capacity < SIZE)

    def test_overflow_keeps_targets_then_nearest_then_smaller_ids(self):
        neighbours = np.zeros((10, 2), np.int32)
        neighbours[7], neighbours[5] = [9, 1], [8, 0]
        targets, weights = np.array([[7, 5]], np.int32), np.ones((1, 2), np.float32)
        for ids in ([5, 7], [5, 7, 8], [5, 7, 8, 9], [0, 5, 7, 8, 9]):
            candidates = union(neighbours, targets, weights, len(ids))
            self.assertEqual(candidates.ids.tolist(), [ids])
            self.assertEqual(candidates.union_size.tolist(), [6])

    def test_unused_positions_add_nothing(self):
        neighbours, targets, _ = random_targets(1)
        empty = union(neighbours, targets, np.zeros((G, W), np.float32), 30)
        self.assertEqual(empty.ids.tolist(), [[SIZE] * 30] * G)
        self.assertEqual(empty.union_size.tolist(), [0] * G)

    @parameterized.parameters((W - 1, W), (SIZE + 1, W), (SIZE - 1, 3 * SIZE))
    def test_capacity_out_of_bounds(self, capacity: int, num_targets: int):
        message = (
            f"capacity is {capacity}, must be at least {min(num_targets, SIZE)}, .* at most the "
            f"vocabulary of {SIZE}; change output_layer.capacity, output_layer.group_size"
        )
        neighbours, targets, weights = random_targets(0)
        targets, weights = (np.resize(x, (G, num_targets)) for x in (targets, weights))
        with self.assertRaisesRegex(ValueError, message):
            union(neighbours, targets, weights, capacity)

    def test_whole_vocabulary_is_enough_for_any_batch(self):
        neighbours, _, _ = random_targets(0)
        targets = np.arange(3 * SIZE, dtype=np.int32)[None] % SIZE
        candidates = union(neighbours, targets, np.ones((1, 3 * SIZE)), SIZE)
        self.assertEqual(candidates.ids.tolist(), [list(range(SIZE))])
        np.testing.assert_array_equal(candidates.labels, targets)

    @parameterized.parameters(0, 1, 6, 20, 100)
    def test_a_union_of_classes_equals_sets(self, num_extra: int):
        make = jax.jit(union_of_classes, static_argnums=3)
        for seed in range(20):
            _, targets, weights = random_targets(seed)
            rng = np.random.default_rng(seed)
            extra = rng.integers(0, rng.choice([3, SIZE]), (G, num_extra)).astype(np.int32)
            candidates = jax.device_get(make(targets, weights, extra, SIZE))
            self.assertEqual(candidates.ids.shape, (G, min(W + num_extra, SIZE)))
            for group, used in enumerate(weights > 0):
                union = sorted({*targets[group, used].tolist(), *extra[group].tolist()})
                ids = candidates.ids[group].tolist()
                self.assertEqual(ids, union + [SIZE] * (len(ids) - len(union)))
                self.assertEqual(candidates.union_size[group], len(union))
                found = np.asarray(ids)[np.asarray(candidates.labels[group])[used]]
                np.testing.assert_array_equal(found, targets[group, used])
            np.testing.assert_array_equal(candidates.overflow(), 0)
