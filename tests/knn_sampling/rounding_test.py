"""The bound covers the worst errors that can be made: of rounding alone, and of sums alone."""

import jax
import jax.numpy as jnp
import numpy as np
from absl.testing import absltest, parameterized

from knn_sampling.neighbours import greatest_lengths, rounding_bound


def bfloat16(x: np.ndarray) -> np.ndarray:
    return x.astype(jnp.bfloat16).astype(np.float32)


@jax.jit
def bound_of(queries: jax.Array, rows: jax.Array) -> jax.Array:
    return rounding_bound(queries, greatest_lengths(rows))


class RoundingBoundTest(parameterized.TestCase):
    @parameterized.parameters(2, 30)
    def test_covers_rounding_and_not_much_more(self, width: int):
        rng = np.random.default_rng(width)
        # Half of the rows lie along a query's rounding error, the worst direction there is.
        queries = rng.normal(size=(20, width)).astype(np.float32)
        errors = queries - bfloat16(queries)
        errors /= np.linalg.norm(errors, axis=1, keepdims=True)
        rows = np.concatenate([errors, rng.normal(size=(20, width))]).astype(np.float32)
        exact = queries.astype(np.float64) @ rows.T
        excess = exact - bfloat16(queries).astype(np.float64) @ bfloat16(rows).T
        bound = np.asarray(bound_of(queries, rows))
        self.assertTrue((excess.max(axis=1) < bound).all())
        self.assertLess((bound / np.abs(excess).max(axis=1)).min(), 4)

    @parameterized.parameters(4, 64, 1024)
    def test_covers_the_sums_of_numbers_that_bfloat16_holds(self, width: int):
        # Added one by one, ones and threes are lost beside 2^24, and cancelled it leaves nothing.
        rows = np.ones((2, width), np.float32)
        rows[1] = 3
        rows[:, 0], rows[:, -1] = 2**24, -(2**24)
        query = np.ones((1, width), np.float32)
        np.testing.assert_array_equal(bfloat16(rows), rows)
        one_by_one = np.cumsum(rows * query, axis=1, dtype=np.float32)[:, -1]
        errors = np.abs((rows.astype(np.float64) * query).sum(axis=1) - one_by_one)
        self.assertGreater(errors.min(), 0)
        # Both scores of a comparison can be off by as much.
        (bound,) = np.asarray(bound_of(query, rows))
        self.assertGreater(bound, 2 * errors.max())

    @parameterized.parameters(np.nan, np.inf)
    def test_is_infinite_where_numbers_are_not_finite(self, value: float):
        finite = np.ones((3, 4), np.float32)  # which bfloat16 holds: an error of 0
        broken = finite.copy()
        broken[1, 2] = value
        np.testing.assert_array_equal(bound_of(finite, broken), [np.inf] * 3)
        np.testing.assert_array_equal(np.isinf(bound_of(broken, finite)), [False, True, False])


if __name__ == "__main__":
    absltest.main()
