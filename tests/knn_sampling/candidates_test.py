"""V' against sets, and what must hold of it whatever the batch."""

import jax
import jax.numpy as jnp
import numpy as np
from absl.testing import absltest, parameterized

from knn_sampling.candidates import Candidates, union_of_neighbours

V, K, W = 40, 5, 8


def random_batch(seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """An index that often misses the word itself, repeated targets, some unused positions."""
    rng = np.random.default_rng(seed)
    neighbours = np.stack([rng.choice(V, K, replace=False) for _ in range(V)]).astype(np.int32)
    targets = rng.integers(0, rng.choice([5, V]), W).astype(np.int32)
    weights = (rng.random(W) < rng.choice([0.5, 1.0])).astype(np.float32)
    return neighbours, targets, weights


def slow_union(neighbours, targets, weights, capacity: int) -> tuple[list[int], int]:
    """The ids that are kept, ascending, and the size of the whole union."""
    used = [int(target) for target, weight in zip(targets, weights, strict=True) if weight > 0]
    levels = [set(used)]  # targets, then what each rank of the lists adds
    for rank in range(K):
        levels.append({int(neighbours[t][rank]) for t in used} - set().union(*levels))
    kept: set[int] = set()
    for level in levels:
        kept.update(sorted(level)[: capacity - len(kept)])
    return sorted(kept), len(set().union(*levels))


def union(neighbours, targets, weights, capacity: int) -> Candidates:
    return jax.jit(union_of_neighbours, static_argnums=3)(
        *map(jnp.asarray, (neighbours, targets, weights)), capacity
    )


class UnionOfNeighboursTest(parameterized.TestCase):
    @parameterized.parameters(W, W + 1, 13, 20, 26, V)
    def test_equals_sets(self, capacity: int):
        overflows = 0
        for seed in range(60):
            batch = random_batch(seed)
            candidates = union(*batch, capacity)
            kept, union_size = slow_union(*batch, capacity)
            unused = [V] * (capacity - len(kept))
            self.assertEqual(candidates.ids.tolist(), kept + unused)
            self.assertEqual(candidates.union_size, union_size)
            self.assertEqual(candidates.overflow(), max(union_size - capacity, 0))
            overflows += union_size > capacity
        self.assertEqual(overflows > 0, capacity < V)  # the cases are worth trying

    @parameterized.parameters(W, 13, V)
    def test_labels_point_to_the_targets(self, capacity: int):
        for seed in range(60):
            neighbours, targets, weights = random_batch(seed)
            candidates = union(neighbours, targets, weights, capacity)
            used = weights > 0
            found = np.asarray(candidates.ids)[np.asarray(candidates.labels)[used]]
            np.testing.assert_array_equal(found, targets[used])

    def test_overflow_keeps_targets_then_nearest_then_smaller_ids(self):
        neighbours = np.zeros((10, 2), np.int32)
        neighbours[7] = [9, 1]
        neighbours[5] = [8, 0]
        targets, weights = np.array([7, 5], np.int32), np.ones(2, np.float32)
        by_capacity = {2: [5, 7], 3: [5, 7, 8], 4: [5, 7, 8, 9], 5: [0, 5, 7, 8, 9]}
        for capacity, ids in by_capacity.items():
            candidates = union(neighbours, targets, weights, capacity)
            self.assertEqual(candidates.ids.tolist(), ids)
            self.assertEqual(candidates.union_size, 6)

    def test_distinct_targets_fill_a_capacity_of_w(self):
        neighbours, _, _ = random_batch(0)
        targets = np.arange(3, 3 + W, dtype=np.int32)[::-1]
        candidates = union(neighbours, targets, np.ones(W), W)
        self.assertEqual(candidates.ids.tolist(), sorted(targets.tolist()))

    def test_unused_positions_add_nothing(self):
        neighbours, targets, _ = random_batch(1)
        weights = np.array([1, 0] * (W // 2), np.float32)
        candidates = union(neighbours, targets, weights, 30)
        alone = union(neighbours, targets[::2], weights[::2], 30)
        np.testing.assert_array_equal(candidates.ids, alone.ids)
        self.assertEqual(candidates.union_size, alone.union_size)
        empty = union(neighbours, targets, np.zeros(W, np.float32), 30)
        self.assertEqual(empty.ids.tolist(), [V] * 30)
        self.assertEqual(empty.union_size, 0)

    def test_size_of_weight_does_not_matter(self):
        neighbours, targets, weights = random_batch(2)
        jax.tree.map(
            np.testing.assert_array_equal,
            union(neighbours, targets, weights, 20),
            union(neighbours, targets, weights * 1e-3, 20),
        )

    def test_order_of_positions_does_not_matter(self):
        for seed in range(20):
            neighbours, targets, weights = random_batch(seed)
            order = np.random.default_rng(seed).permutation(W)
            candidates = union(neighbours, targets, weights, 13)
            permuted = union(neighbours, targets[order], weights[order], 13)
            np.testing.assert_array_equal(permuted.ids, candidates.ids)
            np.testing.assert_array_equal(permuted.labels, candidates.labels[order])

    def test_jit_equals_eager(self):
        batch = random_batch(3)
        eager = union_of_neighbours(*map(jnp.asarray, batch), 13)
        jax.tree.map(np.testing.assert_array_equal, union(*batch, 13), eager)

    @parameterized.parameters(W - 1, V + 1)
    def test_capacity_out_of_bounds(self, capacity: int):
        message = (
            f"capacity is {capacity}, must be at least the {W} masked positions .* at most the "
            f"vocabulary of {V}; change output_layer.capacity"
        )
        with self.assertRaisesRegex(ValueError, message):
            union(*random_batch(0), capacity)

    def test_whole_vocabulary_is_enough_for_any_batch(self):
        neighbours, _, _ = random_batch(0)
        targets = np.arange(3 * V, dtype=np.int32) % V
        candidates = union(neighbours, targets, np.ones(3 * V), V)
        self.assertEqual(candidates.ids.tolist(), list(range(V)))
        np.testing.assert_array_equal(candidates.labels, targets)


if __name__ == "__main__":
    absltest.main()
