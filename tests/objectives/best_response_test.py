"""Moving averages of pair losses, and the worst distribution against a general solver."""

import jax
import jax.numpy as jnp
import numpy as np
import scipy.optimize
from absl.testing import absltest, parameterized

from xlm.objectives.best_response import best_response, shrunk
from xlm.objectives.pair_losses import (
    init_pair_losses,
    mean_pair_losses,
    pair_sums,
    standard_errors,
    update_pair_losses,
)
from xlm.objectives.settings import RobustSettings


def instance(seed: int) -> tuple[np.ndarray, np.ndarray, float]:
    """Losses, base weights (some are 0) and a radius, for 3 to 12 pairs."""
    rng = np.random.default_rng(seed)
    size = 3 + seed % 10
    base = rng.dirichlet(np.ones(size))
    if size > 4:
        base[rng.integers(size)] = 0
    return rng.normal(5.0, 2.0, size), base / base.sum(), 10 ** rng.uniform(-2.5, 0)


def assert_solved(
    weights: np.ndarray, losses: np.ndarray, base: np.ndarray, rho: float,
    lowest: np.ndarray | float, highest: np.ndarray | float,
):  # fmt: skip
    """Check against SLSQP's maximum over ratios p / q between `lowest` and `highest`."""
    inside = base > 0
    q, bounds = base[inside], np.broadcast_arrays(lowest, highest, base)
    value = (losses[inside] - losses[inside].mean()) / np.ptp(losses[inside])
    in_ball = {
        "type": "ineq", "fun": lambda r: rho - 0.5 * q @ (r - 1) ** 2, "jac": lambda r: -q * (r - 1)
    }  # fmt: skip
    reference = scipy.optimize.minimize(
        lambda r: -(q * r) @ value,
        np.ones(q.size),
        jac=lambda r: -q * value,
        method="SLSQP",
        bounds=list(zip(bounds[0][inside], bounds[1][inside], strict=True)),
        constraints=[{"type": "eq", "fun": lambda r: q @ r - 1, "jac": lambda r: q}, in_ball],
        options={"ftol": 1e-14, "maxiter": 1000},
    )
    ratios = weights[inside] / q
    np.testing.assert_allclose(ratios, reference.x, rtol=0, atol=2e-5)
    # Worse than the solver by at most its violation of the constraints.
    assert weights @ losses >= q * reference.x @ losses[inside] - 1e-6
    assert (ratios >= bounds[0][inside] - 1e-12).all()


class SolverTest(parameterized.TestCase):
    @parameterized.product(seed=tuple(range(20)), min_ratio=(0.0, 0.3))
    def test_equals_a_general_solver(self, seed: int, min_ratio: float):
        losses, base, rho = instance(seed)
        found = best_response(losses, base, rho, min_ratio=min_ratio)
        assert_solved(found.weights, losses, base, rho, min_ratio, np.inf)

    @parameterized.parameters(range(10))
    def test_unknown_losses_keep_their_base_weight(self, seed: int):
        losses, base, rho = instance(20 + seed)
        unknown = np.arange(base.size) == np.argmax(base)
        found = best_response(np.where(unknown, np.nan, losses), base, rho)
        np.testing.assert_allclose(found.weights[unknown], base[unknown], rtol=1e-12)
        bounds = np.where(unknown, 1.0, 0.0), np.where(unknown, 1.0, np.inf)
        assert_solved(found.weights, losses, base, rho, *bounds)


class BestResponseTest(parameterized.TestCase):
    def assert_same(self, one: np.ndarray, two: np.ndarray):
        np.testing.assert_allclose(one, two, rtol=0, atol=1e-12)

    @parameterized.parameters(range(10))
    def test_invariances(self, seed: int):
        losses, base, rho = instance(seed)
        weights = best_response(losses, base, rho).weights
        for other in (losses + 100, losses * 1e6, losses * 1e-6):
            self.assert_same(best_response(other, base, rho).weights, weights)
        self.assert_same(best_response(losses, base * 7, rho).weights, weights)
        order = np.random.default_rng(seed).permutation(base.size)
        self.assert_same(best_response(losses[order], base[order], rho).weights, weights[order])
        # Splitting a pair into halves with equal losses changes nothing.
        halves = np.append(base, base[0] / 2)
        halves[0] /= 2
        split = best_response(np.append(losses, losses[0]), halves, rho).weights
        self.assert_same(np.append(split[0] + split[-1], split[1:-1]), weights)

    def test_limits(self):
        losses, base, rho = instance(7)
        for found in (
            best_response(losses, base, 0),
            best_response(np.full(base.size, 3.3), base, rho),
            best_response(np.full(base.size, np.nan), base, rho),
        ):
            np.testing.assert_array_equal(found.weights, base)
            self.assertEqual((found.divergence, found.eta), (0.0, -np.inf))
        near = best_response(losses, base, 1e-14).weights
        self.assertLess(np.abs(near - base).max(), 1e-6)
        self.assertGreater(np.abs(near - base).max(), 0)
        top = np.argmax(np.where(base > 0, losses, -np.inf))
        found = best_response(losses, base, 1e6)
        np.testing.assert_array_equal(found.weights, np.arange(base.size) == top)
        self.assertEqual(found.eta, losses[top])
        ties = best_response([1.0, 2.0, 2.0, 9.0], [0.5, 0.3, 0.2, 0.0], 1e6)
        self.assert_same(ties.weights, [0, 0.6, 0.4, 0])
        bounded = best_response([1.0, 2.0], [0.5, 0.5], 1e6, min_ratio=0.2)
        self.assert_same(bounded.weights, [0.1, 0.9])

    @parameterized.parameters(
        *(({"base": base}, "base weights .*data.pair_alpha")
          for base in ([0.0, 0.0], [-0.1, 1.1], [np.nan, 1.0])),
        *(({"losses": x}, "needs a finite loss or NaN") for x in ([1.0, np.inf], [1.0, 2.0, 3.0])),
    )  # fmt: skip
    def test_bad_input(self, changes, message):
        given = {"losses": [1.0, 2.0], "base": [0.5, 0.5], "rho": 0.1, **changes}
        with self.assertRaisesRegex(ValueError, message):
            best_response(**given)

    def test_phase_steps_are_equally_far_from_each_other_and_ends(self):
        settings = RobustSettings(num_phases=10)
        self.assertEqual(settings.phase_steps(1100), tuple(range(100, 1100, 100)))
        for num_steps in (11, 12, 125_000):
            ends = np.diff([0, *settings.phase_steps(num_steps), num_steps])
            self.assertLen(ends, 11)
            self.assertLessEqual(np.ptp(ends), 1)
            self.assertGreater(ends.min(), 0)
        with self.assertRaisesRegex(ValueError, "robust.num_phases is 10.*train.num_steps, 10"):
            settings.phase_steps(10)


class ShrunkTest(parameterized.TestCase):
    def test_errors_decide(self):
        values = np.array([1.0, 5.0, np.nan, 3.0])
        exact = shrunk(values, [0.0, 0.0, np.nan, 0.0])
        np.testing.assert_allclose(exact, values)
        few = shrunk(values, [0.1, np.inf, np.nan, 0.1])
        np.testing.assert_allclose(few[1], (few[0] + few[3]) / 2)  # has no losses yet
        self.assertTrue(np.isnan(few[2]))
        noise = shrunk(values, [9.0, 9.0, np.nan, 9.0])
        np.testing.assert_allclose(noise[[0, 1, 3]], 3.0)
        unknown = shrunk(values, [np.inf, np.inf, np.nan, np.inf])
        np.testing.assert_allclose(unknown[[0, 1, 3]], 3.0)
        moved = shrunk(values + 7, [0.5, 1.0, np.nan, 0.1])
        np.testing.assert_allclose(moved, shrunk(values, [0.5, 1.0, np.nan, 0.1]) + 7)


N, B, RATE = 5, 16, 0.3


def batches(number: int) -> list[tuple[np.ndarray, ...]]:
    """Losses, weights and pairs of batches; pair 3 is rare, and pair 4 absent."""
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
