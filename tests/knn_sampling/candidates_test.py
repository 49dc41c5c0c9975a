"""V' against sets, and what must hold of it whatever the batch."""

import jax
import numpy as np
from absl.testing import parameterized

from knn_sampling.candidates import Candidates, union_of_classes, union_of_neighbours

V, K, G, W = 40, 5, 3, 8


def random_batch(seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """An index that often misses the token itself; groups with few or many distinct targets."""
    rng = np.random.default_rng(seed)
    neighbours = np.stack([rng.choice(V, K, replace=False) for _ in range(V)]).astype(np.int32)
    targets = np.stack([rng.integers(0, rng.choice([2, 5, V]), W) for _ in range(G)])
    weights = np.stack([rng.random(W) < rng.choice([0.5, 1.0]) for _ in range(G)])
    return neighbours, targets.astype(np.int32), weights.astype(np.float32)


def slow_union(neighbours, targets, weights, capacity: int) -> tuple[list[int], int]:
    """The ids of one group that are kept, ascending, and the size of the whole union."""
    used = [int(target) for target, weight in zip(targets, weights, strict=True) if weight > 0]
    levels = [set(used)]  # targets, then what each rank of the lists adds
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
    @parameterized.parameters(W, W + 1, 13, 20, 26, V)
    def test_equals_sets(self, capacity: int):
        overflowing = set()  # how many groups of a batch do not fit
        for seed in range(40):
            neighbours, targets, weights = random_batch(seed)
            candidates = union(neighbours, targets, weights, capacity)
            self.assertEqual(candidates.ids.shape, (G, capacity))
            sizes = []
            for group, used in enumerate(weights > 0):
                kept, size = slow_union(neighbours, targets[group], weights[group], capacity)
                unused = [V] * (capacity - len(kept))
                self.assertEqual(candidates.ids[group].tolist(), kept + unused)
                found = candidates.ids[group][candidates.labels[group][used]]
                np.testing.assert_array_equal(found, targets[group, used])
                sizes.append(size)
            self.assertEqual(candidates.union_size.tolist(), sizes)
            overflow = np.maximum(np.array(sizes) - capacity, 0)
            np.testing.assert_array_equal(candidates.overflow(), overflow)
            overflowing.add(int((overflow > 0).sum()))
        # The cases are worth trying: batches that fit, and ones of which some groups fit.
        self.assertEqual(max(overflowing) > 0, capacity < V)
        if capacity >= 13:
            self.assertIn(0, overflowing)
            self.assertEqual(1 in overflowing, capacity < V)

    def test_overflow_keeps_targets_then_nearest_then_smaller_ids(self):
        neighbours = np.zeros((10, 2), np.int32)
        neighbours[7], neighbours[5] = [9, 1], [8, 0]
        targets, weights = np.array([[7, 5]], np.int32), np.ones((1, 2), np.float32)
        for ids in ([5, 7], [5, 7, 8], [5, 7, 8, 9], [0, 5, 7, 8, 9]):
            candidates = union(neighbours, targets, weights, len(ids))
            self.assertEqual(candidates.ids.tolist(), [ids])
            self.assertEqual(candidates.union_size.tolist(), [6])

    def test_unused_positions_add_nothing(self):
        neighbours, targets, _ = random_batch(1)
        empty = union(neighbours, targets, np.zeros((G, W), np.float32), 30)
        self.assertEqual(empty.ids.tolist(), [[V] * 30] * G)
        self.assertEqual(empty.union_size.tolist(), [0] * G)

    @parameterized.parameters((W - 1, W), (V + 1, W), (V - 1, 3 * V))
    def test_capacity_out_of_bounds(self, capacity: int, num_targets: int):
        message = (
            f"capacity is {capacity}, must be at least {min(num_targets, V)}, .* at most the "
            f"vocabulary of {V}; change output_layer.capacity, output_layer.group_size"
        )
        neighbours, targets, weights = random_batch(0)
        targets, weights = (np.resize(x, (G, num_targets)) for x in (targets, weights))
        with self.assertRaisesRegex(ValueError, message):
            union(neighbours, targets, weights, capacity)

    def test_whole_vocabulary_is_enough_for_any_batch(self):
        neighbours, _, _ = random_batch(0)
        targets = np.arange(3 * V, dtype=np.int32)[None] % V
        candidates = union(neighbours, targets, np.ones((1, 3 * V)), V)
        self.assertEqual(candidates.ids.tolist(), [list(range(V))])
        np.testing.assert_array_equal(candidates.labels, targets)

    @parameterized.parameters(0, 1, 6, 20, 100)
    def test_a_union_of_classes_equals_sets(self, num_extra: int):
        make = jax.jit(union_of_classes, static_argnums=3)
        for seed in range(20):
            _, targets, weights = random_batch(seed)
            rng = np.random.default_rng(seed)
            extra = rng.integers(0, rng.choice([3, V]), (G, num_extra)).astype(np.int32)
            candidates = jax.device_get(make(targets, weights, extra, V))
            self.assertEqual(candidates.ids.shape, (G, min(W + num_extra, V)))
            for group, used in enumerate(weights > 0):
                union = sorted({*targets[group, used].tolist(), *extra[group].tolist()})
                ids = candidates.ids[group].tolist()
                self.assertEqual(ids, union + [V] * (len(ids) - len(union)))
                self.assertEqual(candidates.union_size[group], len(union))
                found = np.asarray(ids)[np.asarray(candidates.labels[group])[used]]
                np.testing.assert_array_equal(found, targets[group, used])
            np.testing.assert_array_equal(candidates.overflow(), 0)
