"""Distributions over language pairs, against slow solvers and what is known of them."""

import dataclasses
import itertools

import numpy as np
import scipy.optimize
import scipy.special
from absl.testing import parameterized

from input_pipeline import pair_sampling
from input_pipeline.pair_sampling import (
    m2m_sampling,
    sample_pairs,
    sinkhorn_sampling,
    soft_sampling,
)

SETTINGS = pair_sampling.PairSamplingSettings("sinkhorn")
SOLVERS = (m2m_sampling, sinkhorn_sampling)
# One language with three partners, and nothing between these.
STAR = {("en", "sw"): 50, ("am", "en"): 40, ("en", "yo"): 30}


def random_counts(seed: int, num_languages: int, density: float = 0.7) -> np.ndarray:
    """Counts over five orders of magnitude, with a cycle that connects all languages."""
    rng = np.random.default_rng(seed)
    counts = np.round(np.exp(rng.uniform(1, 12, (num_languages, num_languages))))
    counts *= rng.random(counts.shape) < density
    around = np.arange(num_languages)
    counts[around, (around + 1) % num_languages] += 50.0
    counts = np.triu(counts, 1) + np.tril(counts, -1).T
    return counts + counts.T


def edges(counts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Sums over the pairs at each language, [N, E], and the pairs, [E, 2]."""
    pairs = np.argwhere(np.triu(counts) > 0)
    return (pairs.T[..., None] == np.arange(len(counts))).any(axis=0).T.astype(float), pairs


def matrix(values: np.ndarray, pairs: np.ndarray, size: int) -> np.ndarray:
    found = np.zeros((size, size))
    found[pairs[:, 0], pairs[:, 1]] = found[pairs[:, 1], pairs[:, 0]] = values
    return found


class Eq2Test(parameterized.TestCase):
    @parameterized.parameters(0, 1, 2)
    def test_it_is_what_a_general_solver_finds(self, seed):
        """KL(P || Q) is minimised over P itself, its marginals as constraints."""
        counts = random_counts(seed, 5)
        sums, pairs = edges(counts)
        joint = (counts / counts.sum())[pairs[:, 0], pairs[:, 1]]
        marginals = pair_sampling.tempered_marginals(counts, 1.4)
        found = sinkhorn_sampling(counts, 1.4)
        self.assertTrue(found.converged)
        met = {"type": "eq", "fun": lambda x: sums @ x - marginals, "jac": lambda x: sums}
        solved = scipy.optimize.minimize(
            lambda x: 1e2 * np.sum(x * np.log(x / joint)), joint,
            jac=lambda x: 1e2 * (np.log(x / joint) + 1), bounds=[(1e-12, 1)] * len(pairs),
            constraints=met, method="SLSQP", options={"maxiter": 1000, "ftol": 1e-14},
        )  # fmt: skip
        self.assertTrue(solved.success)
        expected = matrix(solved.x, pairs, 5)
        np.testing.assert_allclose(found.probabilities, expected, atol=1e-6)
        self.assertGreater(np.abs(expected - counts / counts.sum()).max(), 0.01)


class Eq1Test(parameterized.TestCase):
    @parameterized.parameters(0, 1, 2, 3)
    def test_it_is_the_best_corner(self, seed):
        """All corners of the polytope: as many pairs as languages, the rest zero."""
        counts = random_counts(seed, 5)
        sums, pairs = edges(counts)
        joint = (counts / counts.sum())[pairs[:, 0], pairs[:, 1]]
        marginals, best = pair_sampling.tempered_marginals(counts, 1.4), (-np.inf, np.zeros(0))
        for basis in itertools.combinations(range(len(pairs)), 5):
            values = np.zeros(len(pairs))
            if abs(np.linalg.det(sums[:, basis])) > 1e-9:
                values[list(basis)] = np.linalg.solve(sums[:, basis], marginals)
                if values.min() >= -1e-12:
                    best = max(best, (values @ joint, values), key=lambda corner: corner[0])
        found = m2m_sampling(counts, 1.4)
        self.assertTrue(found.converged)
        np.testing.assert_allclose(found.probabilities, matrix(best[1], pairs, 5), atol=1e-10)


class MarginalsTest(parameterized.TestCase):
    @parameterized.product(solve=SOLVERS, temperature=(1.0, 1.5, 5.0), size=(3, 30))
    def test_they_are_met(self, solve, temperature, size):
        counts = random_counts(7, size)
        shares = counts.sum(axis=1) / counts.sum()
        expected = shares ** (1 / temperature)
        expected /= expected.sum()
        found = solve(counts, temperature)
        self.assertTrue(found.converged and found.is_feasible)
        for axis in (0, 1):
            np.testing.assert_allclose(found.probabilities.sum(axis), expected, atol=1e-9, rtol=0)
        np.testing.assert_array_equal(found.probabilities, found.probabilities.T)
        np.testing.assert_array_equal(found.probabilities.diagonal(), 0)
        self.assertLess(np.abs(found.residuals).max(), 1e-9)

    @parameterized.parameters("m2m", "sinkhorn")
    def test_a_star_cannot_meet_them(self, method):
        """Its centre has half of any distribution; at T = 4 it was to have less."""
        sizes = {pair: [size] for pair, size in STAR.items()}
        found = sample_pairs(
            sizes, dataclasses.replace(SETTINGS, pair_sampling=method, pair_temperature=4.0)
        )
        sampling, wanted = found.sampling, np.array([40, 120, 50, 30]) ** 0.25
        wanted /= wanted.sum()
        self.assertFalse(sampling.converged or sampling.is_feasible or found.is_met)
        self.assertAlmostEqual(sampling.probabilities.sum(), 1)
        self.assertAlmostEqual(sampling.residuals[1], 0.5 - wanted[1])
        self.assertLess(sampling.iterations, 100)
        self.assertRegex(
            found.certificate(),
            rf"residual of a marginal \+{0.5 - wanted[1]:.1e} \(en, wanted {wanted[1]:.4f}\); "
            "no distribution has these marginals: lower data.pair_temperature towards 1.*; "
            "4 languages miss their shares, 3 of them with a single partner: sw, am, yo$",
        )
        missed, places = found.missed_shares(), [1, 2, 0, 3]
        named = [(one.language, one.partners) for one in missed]
        self.assertEqual(named, [("en", 3), ("sw", 1), ("am", 1), ("yo", 1)])
        np.testing.assert_allclose([one.wanted for one in missed], wanted[places])
        sums = sampling.probabilities.sum(axis=1)[places]
        np.testing.assert_allclose([one.found for one in missed], sums)
        # What is missed is shared out among the partners.
        others = [0, 2, 3]
        shares = 0.5 * wanted[others] / wanted[others].sum()
        np.testing.assert_allclose(sampling.probabilities[1, others], shares, rtol=1e-9)
        met = sample_pairs(
            sizes, dataclasses.replace(SETTINGS, pair_sampling=method, pair_temperature=1.0)
        )
        self.assertTrue(met.is_met)
        self.assertEmpty(met.missed_shares())

    def test_those_met_only_at_a_bound_do_not_converge_but_are_feasible(self):
        """A path a-b-c-d with equal marginals has no mass on b-c, which scaling reaches slowly."""
        counts = pair_sampling.pair_matrix({("a", "b"): 10, ("b", "c"): 10, ("c", "d"): 10})[1]
        found = sinkhorn_sampling(counts, 1e9)
        self.assertTrue(found.is_feasible)
        self.assertFalse(found.converged)
        self.assertLess(np.abs(found.residuals).max(), 1e-3)
        self.assertBetween(found.probabilities[1, 2], 1e-9, 1e-2)
        linear = m2m_sampling(counts, 1e9)
        self.assertTrue(linear.converged)
        self.assertLess(linear.probabilities[1, 2], 1e-9)


class SoftTest(parameterized.TestCase):
    @parameterized.parameters((0, 0.5), (1, 4.0), (2, 20.0))
    def test_it_is_what_a_general_solver_finds(self, seed, strength):
        """Over distributions P itself, not by the form of its solution."""
        counts = random_counts(seed, 5)
        sums, pairs = edges(counts)
        joint = 2 * (counts / counts.sum())[pairs[:, 0], pairs[:, 1]]
        marginals = pair_sampling.tempered_marginals(counts, 2.0)

        def price(logits: np.ndarray) -> float:
            shares = scipy.special.softmax(logits)
            missed = scipy.special.rel_entr(sums @ shares / 2, marginals).sum()
            return scipy.special.rel_entr(shares, joint).sum() + 2 * strength * missed

        options = {"gtol": 1e-9, "maxiter": 5000}
        solved = scipy.optimize.minimize(price, np.log(joint), method="BFGS", options=options)
        found = soft_sampling(counts, 2.0, strength)
        self.assertTrue(found.converged)
        expected = matrix(scipy.special.softmax(solved.x) / 2, pairs, 5)
        np.testing.assert_allclose(found.probabilities, expected, atol=1e-6)

    def test_pairs_keep_shares_where_marginals_cannot_be_met(self):
        """A triangle, one of whose corners is the only partner of two more languages."""
        sizes = {("a", "b"): 90, ("a", "c"): 80, ("b", "c"): 70, ("a", "d"): 9, ("a", "e"): 8}
        counts = pair_sampling.pair_matrix(sizes)[1]
        hard = sinkhorn_sampling(counts, 50.0)
        self.assertFalse(hard.is_feasible)
        self.assertLess(hard.probabilities[0, 1], 1e-6)
        found = soft_sampling(counts, 50.0, 3.0)
        self.assertGreater(found.probabilities[np.nonzero(counts)].min(), 0.02)
        sampled = pair_sampling.PairSampling("soft", ("a", "b", "c", "d", "e"), counts, found)
        self.assertTrue(sampled.is_met)
        share = np.abs(found.probabilities.sum(axis=1) - found.marginals).sum() / 2
        self.assertEndsWith(
            sampled.certificate(),
            f"; {share:.1%} of the draws are from other languages than wanted",
        )


class MethodsTest(parameterized.TestCase):
    def test_languages_of_few_sentence_pairs_are_left_out(self):
        sizes = {("de", "en"): [60, 40], ("de", "sw"): [5], ("en", "sw"): [4], ("de", "fr"): [50]}
        settings = dataclasses.replace(SETTINGS, pair_least=10)
        kept = {pair: of for pair, of in sizes.items() if "sw" not in pair}
        expected = sample_pairs(kept, SETTINGS).shares() | {("de", "sw"): 0.0, ("en", "sw"): 0.0}
        self.assertEqual(sample_pairs(sizes, settings).shares(), expected)
        with self.assertRaisesRegex(ValueError, "data.pair_least is 999, .* most are 155: lower"):
            sample_pairs(sizes, dataclasses.replace(SETTINGS, pair_least=999))
        with self.assertRaisesRegex(ValueError, "data.pair_least is 1, .*'alpha'"):
            dataclasses.replace(SETTINGS, pair_sampling="alpha", pair_least=1)

    def test_shares_by_the_numbers_of_sentence_pairs(self):
        # The second pair has two sets.
        sizes = {("de", "en"): [400], ("de", "fr"): [100, 25], ("en", "fr"): [225]}
        expected = {"alpha": [20, 10 + 5, 15], "proportional": [400, 125, 225],
                    "uniform": [1, 1, 1], "pivot": [20, 0, 15]}  # fmt: skip
        for method in pair_sampling.METHODS:
            found = sample_pairs(sizes, dataclasses.replace(SETTINGS, pair_sampling=method))
            shares = found.shares()
            self.assertEqual(list(shares), list(sizes))
            self.assertAlmostEqual(sum(shares.values()), 1)
            self.assertIn(f"data.pair_sampling {method}: ", found.certificate())
            if method in expected:
                weights = np.array(expected[method])
                np.testing.assert_allclose([*shares.values()], weights / weights.sum(), rtol=1e-12)
                self.assertTrue(found.is_met)
