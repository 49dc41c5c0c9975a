"""Q equals an enumeration of all batches and a simulation of truncated ones; list shares."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
from absl.testing import absltest, parameterized

from knn_sampling import inclusion as eager
from knn_sampling.noise import draw_distinct

inclusion, log_inclusion, log_inclusion_with_draws = map(
    jax.jit, (eager.inclusion, eager.log_inclusion, eager.log_inclusion_with_draws)
)
log_inclusion_after_overflow = jax.jit(
    eager.log_inclusion_after_overflow, static_argnames="capacity"
)


class InclusionTest(parameterized.TestCase):
    @parameterized.parameters(1, 2, 4)
    def test_equals_enumeration_of_all_batches(self, num_targets: int):
        # Tokens 0 and 3 do not list themselves. Token 4 is never a target or neighbour.
        lists = np.array([[1, 2], [1, 0], [2, 3], [1, 2], [4, 0]])
        p = np.array([0.1, 0.2, 0.3, 0.4, 0.0])
        chance = np.zeros(5)
        for targets in itertools.product(range(5), repeat=num_targets):
            union = set(targets) | set(lists[list(targets)].ravel())
            chance[list(union)] += p[list(targets)].prod()
        q = np.asarray(inclusion(lists, p))
        self.assertEqual((q.dtype, q[4]), (jnp.float32, 0))
        if num_targets == 1:
            np.testing.assert_allclose(q, chance, rtol=1e-6)
        actual = np.asarray(log_inclusion(q, num_targets))
        self.assertEqual(actual.dtype, jnp.float32)
        np.testing.assert_allclose(actual[:4], np.log(chance[:4]), rtol=1e-5, atol=1e-6)
        self.assertEqual(chance[4], 0)

    def test_rare_tokens_keep_their_precision(self):
        # Q is W p for rare tokens, far below what 1 - (1 - p)^W could resolve in float32.
        q = np.array([1 - 3e-9, 1e-9, 2e-9], np.float32)
        actual = log_inclusion(q, 100)
        np.testing.assert_allclose(actual, [0, np.log(1e-7), np.log(2e-7)], rtol=1e-5, atol=1e-6)

    def test_log_is_finite_at_most_zero_and_of_each_group(self):
        q = np.array([[0.0, 1e-30, 1e-9, 0.5], [0.5, 1.0, 1.0000002, 0.1]], np.float32)
        for num_targets in (3, 0):
            actual = np.asarray(log_inclusion(q, num_targets))
            self.assertEqual(actual.shape, q.shape)
            self.assertTrue(np.isfinite(actual).all())
            self.assertLessEqual(actual.max(), 0)
        both = np.asarray(log_inclusion(q, np.array([[5], [3]])))
        np.testing.assert_allclose(both[1, 3], np.log(1 - 0.9**3), rtol=1e-6)
        for group, num_targets in enumerate((5, 3)):
            np.testing.assert_array_equal(both[group], log_inclusion(q[group], num_targets))


class DrawsTest(absltest.TestCase):
    def test_equals_a_simulation(self):
        rng = np.random.default_rng(0)
        vocab_size, num_targets, num_draws, num_batches = 60, 12, 15, 50_000
        p = rng.dirichlet(np.full(vocab_size, 0.7)).astype(np.float32) + 2e-3
        p /= p.sum()
        targets = rng.choice(vocab_size, (num_batches, num_targets), p=p)
        in_set = np.zeros((num_batches, vocab_size + 1), bool)
        rows = np.arange(num_batches)[:, None]
        in_set[rows, targets] = True
        draw = jax.jit(draw_distinct, static_argnums=3)
        draws, time = draw(jax.random.key(0), p, in_set[:, :-1], num_draws)
        in_set[rows, np.asarray(draws)] = True
        self.assertFalse(in_set[:, -1].any())
        in_set = in_set[:, :-1]
        given_p = np.broadcast_to(p, in_set.shape)
        chance = np.exp(log_inclusion_with_draws(given_p, num_targets, time))
        # The mean over batches of [j in V'] / Q_j is one, with standard deviations up to 0.02.
        found = (in_set / chance).mean(axis=0)
        np.testing.assert_allclose(found, 1, atol=0.05)
        targets_alone = np.exp(log_inclusion(p, num_targets))
        self.assertGreater(np.abs((in_set / targets_alone).mean(axis=0) - 1).max(), 1)

    def test_without_time_it_is_that_of_targets(self):
        p = np.array([[0.3, 1e-9, 0.0], [0.5, 1.0, 0.1]], np.float32)
        num_targets = np.array([[5], [0]])
        found = log_inclusion_with_draws(p, num_targets, np.zeros((2, 1), np.float32))
        np.testing.assert_allclose(found, log_inclusion(p, num_targets), rtol=1e-6)
        # Everything possible is included.
        found = log_inclusion_with_draws(p, num_targets, np.full((2, 1), np.float32(2e30)))
        np.testing.assert_array_equal(found, 0)


class OverflowTest(absltest.TestCase):
    def test_equals_a_simulation(self):
        rng = np.random.default_rng(0)
        vocab_size, k, num_targets, capacity, num_batches = 60, 4, 12, 28, 20_000
        lists = np.stack([rng.permutation(vocab_size)[:k] for _ in range(vocab_size)])
        p = rng.dirichlet(np.full(vocab_size, 0.7))
        targets = rng.choice(vocab_size, (num_batches, num_targets), p=p)
        rows = np.arange(num_batches)[:, None]
        is_target = np.zeros((num_batches, vocab_size), bool)
        is_target[rows, targets] = True
        union = is_target.copy()
        union[rows, lists[targets].reshape(num_batches, -1)] = True
        # Targets stay. Others stay in random order, as far as there is room.
        order = np.where(is_target, -1.0, np.where(union, rng.random(union.shape), 2.0))
        rank = order.argsort(axis=1).argsort(axis=1)
        kept = union & (rank < capacity)
        union_size, distinct = (x.sum(axis=1, keepdims=True) for x in (union, is_target))
        self.assertBetween((union_size > capacity).mean(), 0.8, 0.99)  # most are truncated, not all

        q = inclusion(lists, p)
        log_q = log_inclusion_after_overflow(
            *(np.broadcast_to(np.float32(x), union.shape) for x in (q, p)),
            num_targets,
            union_size=union_size,
            capacity=capacity,
            distinct_targets=distinct,
        )
        expected = kept.mean(axis=0)
        # Standard deviations are up to 0.0035. The rest is bias: unions with a token are larger
        # than average, so a smaller share of them stays.
        np.testing.assert_allclose(np.exp(log_q).mean(axis=0), expected, rtol=0, atol=0.015)
        without = np.exp(log_inclusion(q, num_targets))
        self.assertGreater(np.abs(without - expected).max(), 0.2)

    def test_no_cut_changes_no_bit_and_the_deepest_leaves_targets(self):
        rng = np.random.default_rng(1)
        p = rng.uniform(0, 0.1, (4, 50)).astype(np.float32)
        q = p + rng.uniform(0, 0.3, (4, 50)).astype(np.float32)
        num_targets, sizes = np.array([[9], [9], [7], [9]]), np.array([[3], [20], [7], [400]])
        distinct = np.array([[3], [8], [7], [20]])
        log_q = log_inclusion_after_overflow(
            q, p, num_targets, union_size=sizes, capacity=20, distinct_targets=distinct
        )
        self.assertEqual((log_q.shape, log_q.dtype), (q.shape, jnp.float32))
        plain, of_targets = (np.asarray(log_inclusion(x, num_targets)) for x in (q, p))
        np.testing.assert_array_equal(log_q[:3], plain[:3])
        np.testing.assert_array_equal(log_q[3], of_targets[3])
        nothing = np.zeros((1, 3), np.float32)
        log_q = log_inclusion_after_overflow(
            nothing, nothing, 0, union_size=np.array([[0]]), capacity=2,
            distinct_targets=np.array([[0]]),
        )  # fmt: skip
        self.assertTrue(np.isfinite(log_q).all())


staleness = jax.jit(eager.staleness, static_argnums=2)
same_group_share = jax.jit(eager.same_group_share)
FRESH = np.array([[0, 1, 2], [1, 2, 3], [2, 1, 0], [3, 0, 1], [4, 5, 6]], np.int32)


class StalenessTest(parameterized.TestCase):
    @parameterized.parameters((5, 3 / 15), (4, 1 / 12), (2, 0.0), (0, 1.0))
    def test_entries_that_were_not_there(self, num_valid: int, expected: float):
        old = FRESH.copy()
        old[2], old[4] = [7, 2, 0], [6, 8, 9]  # one of three is missing, and two of three
        found = staleness(old, FRESH, num_valid)
        self.assertAlmostEqual(float(found), expected, places=6)

    def test_it_is_the_share_of_the_fresh_entries(self):
        # A list with a token twice has both entries or neither.
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
        # Even tokens list themselves and one of their group. Odd ones do not count.
        tokens = np.arange(8192)[:, None]
        lists = np.concatenate([tokens, (tokens + 2 + tokens % 2) % 8192], axis=1)
        self.assertEqual(same_group_share(lists, np.arange(8192) % 2), 1)
