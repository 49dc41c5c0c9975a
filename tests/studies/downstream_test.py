"""What the studies' statistics say of made-up values, beside scipy's tests."""

import math

import numpy as np
from absl.testing import absltest, parameterized
from scipy import stats

from studies.downstream import least_detectable


class LeastDetectableTest(parameterized.TestCase):
    @parameterized.parameters((3, 3), (3, 6), (2, 9))
    def test_of_two_runs_it_is_what_a_t_test_just_tells(self, *sizes: int):
        rng = np.random.default_rng(0)
        one, other = (some - some.mean() for some in map(rng.normal, (0, 0), (1, 1), sizes))
        least = least_detectable([list(one), list(other)])
        self.assertAlmostEqual(stats.ttest_ind(one + least, other).pvalue, 0.05, places=9)

    def test_of_several_runs_it_is_the_root_mean_square_over_pairs(self):
        rng = np.random.default_rng(1)
        sizes = (3, 3, 3, 6, 6, 1)
        groups = [list(rng.normal(size=size)) for size in sizes]
        freedom = sum(size - 1 for size in sizes)
        pooled = sum(np.var(one, ddof=1) * (len(one) - 1) for one in groups[:-1]) / freedom
        pairs = [1 / a + 1 / b for i, a in enumerate(sizes) for b in sizes[:i]]
        wanted = stats.t.ppf(0.975, freedom) * math.sqrt(pooled * np.mean(pairs))
        self.assertAlmostEqual(least_detectable([*groups, []]), wanted, places=12)

    def test_without_two_seeds_there_is_none(self):
        self.assertIsNone(least_detectable([[1.0], [], [2.0]]))


if __name__ == "__main__":
    absltest.main()
