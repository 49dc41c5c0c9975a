"""The small table against sets: all that is needed, once, and everything found again."""

import jax
import numpy as np
from absl.testing import absltest, parameterized

from knn_sampling.working_rows import WorkingRows, working_rows

V = 50


def candidate_sets(rng: np.random.Generator, num_groups: int, capacity: int) -> np.ndarray:
    """[G, C] ascending ids that fill each group in part, V after them."""
    ids = np.full((num_groups, capacity), V, np.int32)
    for group in ids:
        size = rng.integers(0, min(capacity, V) + 1)
        group[:size] = np.sort(rng.choice(V, size, replace=False))
    return ids


def make(candidate_ids: np.ndarray, tokens: np.ndarray) -> WorkingRows:
    return jax.jit(working_rows, static_argnums=2)(candidate_ids, tokens, V)


class WorkingRowsTest(parameterized.TestCase):
    @parameterized.product(
        num_groups=(1, 2, 4), capacity=(7, 20, V), tokens_shape=((2, 4), (3, 5), (9, 9))
    )
    def test_equals_sets(self, num_groups: int, capacity: int, tokens_shape: tuple[int, int]):
        for seed in range(5):
            rng = np.random.default_rng(seed)
            candidate_ids = candidate_sets(rng, num_groups, capacity)
            tokens = rng.integers(0, V, tokens_shape).astype(np.int32)
            rows = make(candidate_ids, tokens)
            ids = np.asarray(rows.ids)
            num_rows = min(num_groups * capacity, V) + min(tokens.size, V)
            self.assertEqual(ids.shape, (num_rows,))

            used = ids[ids < V]
            words = {*tokens.ravel().tolist(), *candidate_ids.ravel().tolist()} - {V}
            self.assertCountEqual(used.tolist(), words)  # distinct, and nothing else
            self.assertEqual(set(ids[ids >= V].tolist()) - {V}, set())

            np.testing.assert_array_equal(ids[np.asarray(rows.tokens)], tokens)
            if num_groups == 1:
                self.assertIsNone(rows.candidates)
                np.testing.assert_array_equal(ids[:capacity], candidate_ids[0])
            else:
                is_word = candidate_ids < V
                places = np.asarray(rows.candidates)
                np.testing.assert_array_equal(ids[places[is_word]], candidate_ids[is_word])
                np.testing.assert_array_equal(places[~is_word], num_rows)

    def test_any_batch_fits(self):
        # As many distinct words as there can be: all candidates of all groups, and the tokens.
        candidate_ids = np.arange(30, dtype=np.int32).reshape(3, 10)
        tokens = np.arange(30, V, dtype=np.int32).reshape(4, 5)
        rows = make(candidate_ids, tokens)
        self.assertEqual(rows.ids.tolist(), list(range(V)))
        np.testing.assert_array_equal(rows.tokens, tokens)
        np.testing.assert_array_equal(rows.candidates, candidate_ids)


if __name__ == "__main__":
    absltest.main()
