"""The index equals a sort of all scores, and log Q an enumeration of all batches."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
from absl.testing import absltest, parameterized
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

from knn_sampling.neighbours import log_inclusion, nearest_neighbours


def small_integers(vocab_size: int, width: int, seed: int = 0) -> np.ndarray:
    """Every product of rows is exact in float32, and many tie."""
    return np.random.default_rng(seed).integers(-2, 3, (vocab_size, width)).astype(np.float32)


def sorted_ids(table: np.ndarray, num_valid: int) -> np.ndarray:
    """All ids below `num_valid` for each row, by (-score, id); NaN last."""
    words = table[:num_valid].astype(np.float64)
    scores = words @ words.T
    scores[np.isnan(scores)] = -np.inf
    ids = np.broadcast_to(np.arange(num_valid), scores.shape)
    return np.lexsort((ids, -scores), axis=1)


class NearestNeighboursTest(parameterized.TestCase):
    @parameterized.product(block_size=(1, 6, 7, 30, 64), k=(1, 5, 30))
    def test_equals_sort_whatever_the_block_size(self, block_size: int, k: int):
        table = small_integers(30, 3)
        distinct_scores = max(len(np.unique(row)) for row in table @ table.T)
        self.assertLess(distinct_scores, 20)  # of 30: there are ties in every row
        index = nearest_neighbours(table, k=k, num_valid=30, block_size=block_size)
        self.assertEqual(index.dtype, jnp.int32)
        np.testing.assert_array_equal(index, sorted_ids(table, 30)[:, :k])

    def test_duplicate_rows_stand_by_falling_score_then_rising_id(self):
        table = np.repeat(small_integers(8, 16), 3, axis=0)[
            np.random.default_rng(1).permutation(24)
        ]
        index = nearest_neighbours(table, k=24, num_valid=24, block_size=5)
        np.testing.assert_array_equal(index, sorted_ids(table, 24))

    def test_equals_sort_for_real_numbers(self):
        table = np.random.default_rng(2).normal(size=(200, 32)).astype(np.float32)
        scores = np.sort(table.astype(np.float64) @ table.T.astype(np.float64), axis=1)
        # Otherwise rounding in float32 may swap two of them.
        self.assertGreater(np.diff(scores[:, -11:]).min(), 1e-5)
        index = nearest_neighbours(table, k=10, num_valid=200, block_size=64)
        np.testing.assert_array_equal(index, sorted_ids(table, 200)[:, :10])

    def test_bfloat16_table_is_scored_in_float32(self):
        table = jnp.asarray(np.random.default_rng(3).normal(size=(60, 32)), jnp.bfloat16)
        index = nearest_neighbours(table, k=10, num_valid=60)
        expected = nearest_neighbours(table.astype(jnp.float32), k=10, num_valid=60)
        np.testing.assert_array_equal(index, expected)
        rounded = jnp.dot(table, table.T)  # what scores in bfloat16 would give
        self.assertTrue((jax.lax.top_k(rounded, 10)[1] != expected).any())

    @parameterized.parameters(4, 9, 32)
    def test_padding_is_nobodys_neighbour(self, block_size: int):
        table = small_integers(24, 3)
        table[21:] = 100.0  # would win or, negated, tie
        index = nearest_neighbours(table, k=21, num_valid=21, block_size=block_size)
        np.testing.assert_array_equal(index[:21], sorted_ids(table, 21))
        self.assertLess(index.max(), 21)

    def test_padding_values_have_no_influence(self):
        table = small_integers(24, 3)
        indices = []
        for filler in (0.0, 100.0, np.nan, np.inf):
            table[20:] = filler
            indices.append(nearest_neighbours(table, k=20, num_valid=20, block_size=8)[:20])
        for index in indices[1:]:
            np.testing.assert_array_equal(index, indices[0])

    def test_nan_rows_come_last_and_before_padding(self):
        table = small_integers(24, 3)
        table[[0, 7]] = np.nan
        index = nearest_neighbours(table, k=22, num_valid=22, block_size=5)
        np.testing.assert_array_equal(index[:22], sorted_ids(table, 22))
        healthy = np.delete(np.arange(22), [0, 7])
        self.assertFalse(np.isin(index[healthy, :20], [0, 7]).any())
        self.assertLess(index.max(), 22)

    @parameterized.parameters(8, 10, 40)
    def test_sharded_table_gives_the_same_index(self, block_size: int):
        mesh = jax.make_mesh(
            (4,), ("model",), axis_types=(AxisType.Auto,), devices=jax.devices()[:4]
        )
        table = small_integers(40, 8)
        sharded = jax.device_put(table, NamedSharding(mesh, P("model")))
        self.assertLen({shard.device for shard in sharded.addressable_shards}, 4)
        self.assertEqual(sharded.addressable_shards[0].data.shape, (10, 8))
        index = nearest_neighbours(sharded, k=6, num_valid=37, block_size=block_size)
        expected = nearest_neighbours(table, k=6, num_valid=37, block_size=block_size)
        np.testing.assert_array_equal(index, expected)

    def test_jit_equals_eager(self):
        table = jnp.asarray(small_integers(13, 4))
        compiled = nearest_neighbours(table, k=4, num_valid=12, block_size=5)
        with jax.disable_jit():
            eager = nearest_neighbours(table, k=4, num_valid=12, block_size=5)
        np.testing.assert_array_equal(compiled, eager)

    @parameterized.parameters((0, 5), (6, 5), (3, 11))
    def test_numbers_that_do_not_fit_the_table_are_named(self, k: int, num_valid: int):
        message = f"k is {k}, num_valid {num_valid}: must be 1 <= k <= num_valid <= 10"
        with self.assertRaisesRegex(ValueError, message):
            nearest_neighbours(small_integers(10, 2), k=k, num_valid=num_valid)

    def test_block_size_below_one(self):
        with self.assertRaisesRegex(ValueError, "block_size is 0, must be at least 1"):
            nearest_neighbours(small_integers(10, 2), k=2, num_valid=10, block_size=0)


class LogInclusionTest(parameterized.TestCase):
    @parameterized.parameters(1, 2, 4)
    def test_equals_enumeration_of_all_batches(self, num_targets: int):
        # Words 0 and 3 do not list themselves, and word 4 is never a target nor a neighbour.
        neighbours = np.array([[1, 2], [1, 0], [2, 3], [1, 2], [4, 0]])
        p = np.array([0.1, 0.2, 0.3, 0.4, 0.0])
        inclusion = np.zeros(5)
        for targets in itertools.product(range(5), repeat=num_targets):
            union = set(targets) | set(neighbours[list(targets)].ravel())
            inclusion[list(union)] += p[list(targets)].prod()
        actual = log_inclusion(jnp.asarray(neighbours), jnp.asarray(p), num_targets)
        self.assertEqual(actual.dtype, jnp.float32)
        np.testing.assert_allclose(actual[:4], np.log(inclusion[:4]), rtol=1e-5, atol=1e-6)
        self.assertEqual(inclusion[4], 0)
        self.assertTrue(jnp.isfinite(actual[4]))

    def test_rare_words_keep_their_precision(self):
        # Q is W p for rare words, far below what 1 - (1 - p)^W could resolve in float32.
        p = np.array([1 - 3e-9, 1e-9, 2e-9])
        actual = log_inclusion(jnp.arange(3)[:, None], jnp.asarray(p), 100)
        np.testing.assert_allclose(actual, [0, np.log(1e-7), np.log(2e-7)], rtol=1e-5, atol=1e-6)


if __name__ == "__main__":
    absltest.main()
