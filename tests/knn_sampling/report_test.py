"""Shares of list entries, counted by hand and on as many words as are looked at."""

import jax
import jax.numpy as jnp
import numpy as np
from absl.testing import absltest, parameterized

from knn_sampling.report import same_group_share, staleness

FRESH = np.array([[0, 1, 2], [1, 2, 3], [2, 1, 0], [3, 0, 1], [4, 5, 6]], np.int32)
WORDS = np.arange(5, dtype=np.int32)


class StalenessTest(parameterized.TestCase):
    def test_nothing_changed(self):
        self.assertEqual(staleness(FRESH, FRESH, WORDS, 5), 0)

    def test_order_does_not_matter(self):
        self.assertEqual(staleness(FRESH[:, ::-1], FRESH, WORDS, 5), 0)

    def test_everything_changed(self):
        self.assertEqual(staleness(FRESH + 10, FRESH, WORDS, 5), 1)

    @parameterized.parameters((5, 3 / 15), (4, 1 / 12), (2, 0.0), (0, 1.0))
    def test_entries_that_were_not_there(self, num_valid: int, expected: float):
        old = FRESH.copy()
        old[2] = [7, 2, 0]  # one of three is missing
        old[4] = [6, 8, 9]  # two of three
        found = jax.jit(staleness, static_argnums=3)(old, FRESH, WORDS, num_valid)
        self.assertAlmostEqual(float(found), expected, places=6)

    def test_it_is_the_share_of_the_fresh_entries(self):
        # A list that names one word twice has both entries, or lacks both.
        old, fresh = np.array([[1, 1]]), np.array([[1, 2]])
        self.assertEqual(staleness(old, fresh, np.array([0]), 9), 0.5)
        self.assertEqual(staleness(fresh, old, np.array([0]), 9), 0)

    def test_words_may_be_any(self):
        # Padding is told by the words' ids, not by their places.
        old = FRESH.copy()
        old[0] = 9
        words = np.array([7, 1, 2, 3, 4], np.int32)
        self.assertEqual(staleness(old, FRESH, words, 5), 0)

    def test_many_words_are_looked_at_evenly(self):
        rng = np.random.default_rng(0)
        num_words = 10_000
        fresh = rng.integers(0, 1000, (num_words, 4))
        stale = rng.random(num_words) < np.linspace(0, 1, num_words)  # more towards the end
        old = np.where(stale[:, None], fresh + 1000, fresh)
        found = staleness(old, fresh, np.arange(num_words), num_words)
        # Of some 5000 words, a standard deviation of 0.007.
        self.assertAlmostEqual(float(found), stale.mean(), delta=0.03)


class SameGroupShareTest(absltest.TestCase):
    def test_by_hand(self):
        groups = jnp.array([0, 0, 1, 1, -1, 0, 0])
        # Of 0: 1 (same), 2 (not). Of 1: 2, 3 (not). Of 2: 1, 0 (not). Of 3: 0, 1 (not), of which
        # the words themselves do not count. Word 4 has no group.
        found = jax.jit(same_group_share)(FRESH, WORDS, groups)
        self.assertAlmostEqual(float(found), 1 / 8, places=6)

    def test_neighbours_without_a_group_do_not_count(self):
        neighbours, groups = np.array([[0, 1, 2]]), jnp.array([3, 3, -1])
        self.assertEqual(same_group_share(neighbours, np.array([0]), groups), 1)

    def test_words_may_be_any(self):
        groups = jnp.array([0, 0, 1, 1, 1, 0, 0])
        whole = same_group_share(FRESH, WORDS, groups)
        part = [same_group_share(FRESH[p], WORDS[p], groups) for p in ([1, 3], [0, 2, 4])]
        # Entries that count: two of each of the first four words, three of word 4.
        self.assertNotEqual(part[0], part[1])
        self.assertAlmostEqual(float(4 * part[0] + 6 * part[1]), float(10 * whole), places=5)

    def test_nothing_counts(self):
        self.assertEqual(same_group_share(FRESH, WORDS, jnp.full(7, -1)), 0)


if __name__ == "__main__":
    absltest.main()
