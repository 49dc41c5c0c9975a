"""Shares of list entries, counted by hand and on as many tokens as are looked at."""

import jax
import numpy as np
from absl.testing import absltest, parameterized

from knn_sampling import inclusion

staleness = jax.jit(inclusion.staleness, static_argnums=2)
same_group_share = jax.jit(inclusion.same_group_share)
FRESH = np.array([[0, 1, 2], [1, 2, 3], [2, 1, 0], [3, 0, 1], [4, 5, 6]], np.int32)


class StalenessTest(parameterized.TestCase):
    @parameterized.parameters((5, 3 / 15), (4, 1 / 12), (2, 0.0), (0, 1.0))
    def test_entries_that_were_not_there(self, num_valid: int, expected: float):
        old = FRESH.copy()
        old[2], old[4] = [7, 2, 0], [6, 8, 9]  # one of three is missing, and two
        found = staleness(old, FRESH, num_valid)
        self.assertAlmostEqual(float(found), expected, places=6)

    def test_it_is_the_share_of_the_fresh_entries(self):
        # A list that names one token twice has both entries, or lacks both.
        old, fresh = np.array([[1, 1]]), np.array([[1, 2]])
        self.assertEqual(staleness(old, fresh, 9), 0.5)
        self.assertEqual(staleness(fresh, old, 9), 0)

    def test_many_tokens_are_looked_at_evenly(self):
        rng = np.random.default_rng(0)
        num_tokens = 10_000
        fresh = rng.integers(0, 1000, (num_tokens, 4))
        stale = rng.random(num_tokens) < np.linspace(0, 1, num_tokens)  # more towards the end
        old = np.where(stale[:, None], fresh + 1000, fresh)
        found = staleness(old, fresh, num_tokens)
        # Of some 5000 tokens, a standard deviation of 0.007.
        self.assertAlmostEqual(float(found), stale.mean(), delta=0.03)


class SameGroupShareTest(absltest.TestCase):
    def test_by_hand(self):
        groups = np.array([0, 0, 1, 1, -1, 0, 0])
        # Of 0: 1 (same), 2 (not). Of 1: 2, 3 (not). Of 2: 1, 0 (not). Of 3: 0, 1 (not), of which
        # the tokens themselves do not count. Token 4 has no group.
        found = same_group_share(FRESH, groups)
        self.assertAlmostEqual(float(found), 1 / 8, places=6)

    def test_neighbours_without_a_group_do_not_count(self):
        neighbours, groups = np.array([[0, 1, 2]]), np.array([3, 3, -1])
        self.assertEqual(same_group_share(neighbours, groups), 1)
        self.assertEqual(same_group_share(FRESH, np.full(7, -1)), 0)

    def test_many_tokens_are_known_by_their_ids(self):
        # Even tokens list themselves and a token of their group, odd ones, not looked at, others.
        tokens = np.arange(8192)[:, None]
        lists = np.concatenate([tokens, (tokens + 2 + tokens % 2) % 8192], axis=1)
        self.assertEqual(same_group_share(lists, np.arange(8192) % 2), 1)
