"""Moving averages of the losses of pairs against a loop over examples."""

import jax
import jax.numpy as jnp
import numpy as np
from absl.testing import absltest

from xlm.objectives.pair_losses import (
    init_pair_losses,
    mean_pair_losses,
    pair_sums,
    standard_errors,
    update_pair_losses,
)

N, B, RATE = 5, 16, 0.3


def batches(number: int) -> list[tuple[np.ndarray, ...]]:
    """Losses, weights and pairs of batches; pair 3 is rare, and pair 4 never there."""
    rng = np.random.default_rng(0)
    of_pair = [0.4, 0.3, 0.28, 0.02, 0.0]
    return [
        (
            rng.normal(3, 1, B).astype(np.float32),
            rng.integers(1, 9, B).astype(np.float32),
            rng.choice(N, B, p=of_pair).astype(np.int32),
        )
        for _ in range(number)
    ]


def looped(given: list[tuple[np.ndarray, ...]]) -> list[float]:
    """Moving averages in float64: the mean of all examples, discounted by later batches."""
    means = []
    for pair in range(N):
        total = weight = age = 0.0
        for losses, weights, pairs in reversed(given):
            for i in np.flatnonzero(pairs == pair):
                discount = (1 - RATE) ** age
                total += discount * float(losses[i]) * float(weights[i])
                weight += discount * float(weights[i])
            age += (pairs == pair).any()
        means.append(total / weight if weight else np.nan)
    return means


def updated(state, losses, weights, pair):
    return update_pair_losses(state, pair_sums(losses, weights, pair, N), RATE)


class PairLossesTest(absltest.TestCase):
    def test_equals_a_loop(self):
        state, given = init_pair_losses(N), batches(40)
        for number, batch in enumerate(given, start=1):
            state = jax.jit(updated)(state, *batch)
            if number in (1, 2, 40):
                expected = looped(given[:number])
                np.testing.assert_allclose(mean_pair_losses(state), expected, rtol=1e-5)
        for one in state:
            self.assertEqual((one.shape, one.dtype), ((N,), jnp.float32))
        is_seen = np.isfinite(mean_pair_losses(state)).tolist()
        self.assertEqual(is_seen, [True] * 4 + [False])

    def test_errors_are_those_of_the_discounted_examples(self):
        state, given = init_pair_losses(N), batches(40)
        for batch in given:
            state = updated(state, *batch)
        squares = freedom = 0.0
        numbers = []
        for pair in range(N - 1):
            weights, losses, age = [], [], 0
            for one, weight, pairs in reversed(given):
                chosen = pairs == pair
                weights += ((1 - RATE) ** age * weight[chosen].astype(float)).tolist()
                losses += one[chosen].tolist()
                age += chosen.any()
            numbers.append(np.sum(weights) ** 2 / np.sum(np.square(weights)))
            squares += numbers[-1] * np.cov(losses, aweights=weights, ddof=0)
            freedom += numbers[-1] - 1
            self.assertEqual(float(state.examples[pair]), len(losses))
        expected = np.sqrt(squares / freedom / np.array(numbers))
        np.testing.assert_allclose(standard_errors(state)[:-1], expected, rtol=1e-3)
        self.assertTrue(np.isnan(standard_errors(state)[-1]))
        once = updated(init_pair_losses(N), *(one[:1] for one in given[0]))
        self.assertEqual(np.nanmax(standard_errors(once)), np.inf)

    def test_absent_pair_keeps_its_sums_however_long(self):
        state = updated(init_pair_losses(N), *batches(1)[0])
        only_one = (jnp.ones(B), jnp.ones(B), jnp.ones(B, jnp.int32))
        later = jax.lax.fori_loop(0, 2000, lambda _, state: updated(state, *only_one), state)
        others = np.arange(N) != 1
        for one, two in zip(later, state, strict=True):
            np.testing.assert_array_equal(one[others], two[others])
        np.testing.assert_allclose(mean_pair_losses(later)[1], 1, rtol=1e-5)

    def test_examples_without_a_pair_or_a_weight_do_not_count(self):
        (batch,) = batches(1)
        others = (
            np.array([100, 100, 100, np.nan], np.float32),
            np.array([1, 1, 1, 0], np.float32),
            np.array([N, -1, 1000, 0], np.int32),
        )
        joined = [np.concatenate(both) for both in zip(batch, others, strict=True)]
        for one, two in zip(pair_sums(*joined, N), pair_sums(*batch, N), strict=True):
            np.testing.assert_array_equal(one, two)

    def test_a_loss_that_is_not_finite_is_no_unseen_pair(self):
        losses = jnp.array([1.0, jnp.nan, jnp.inf])
        state = updated(init_pair_losses(N), losses, jnp.ones(3), jnp.arange(3))
        np.testing.assert_array_equal(mean_pair_losses(state), [1, np.inf, np.inf, np.nan, np.nan])
