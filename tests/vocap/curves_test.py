"""Tests of curves and their concave envelopes."""

import random

import numpy as np
from absl.testing import absltest, parameterized

from vocap.curves import Curve, concave_envelope


def slow_envelope(sizes, alp) -> list[int]:
    """A point is a vertex unless it lies on or under the chord of two others."""
    indices = range(len(sizes))

    def on_or_under(a: int, i: int, b: int) -> bool:
        return (alp[i] - alp[a]) * (sizes[b] - sizes[a]) <= (alp[b] - alp[a]) * (
            sizes[i] - sizes[a]
        )

    return [
        i
        for i in indices
        if not any(on_or_under(a, i, b) for a in indices[:i] for b in indices[i + 1 :])
    ]


class CurveTest(parameterized.TestCase):
    @parameterized.parameters(
        ((), (), (), "must be one or more, ascending"),
        ((2, 1), (-2.0, -1.0), (2, 1), "must be one or more, ascending"),
        ((2, 2), (-2.0, -1.0), (2, 2), "must be one or more, ascending"),
        ((1, 2), (-2.0, -1.0), (1, 3), r"\(1, 2\), but its vocabularies hold \(1, 3\)"),
        ((1, 2), (-2.0,), (1, 2), "must be 2 finite numbers"),
        ((1, 2), (-2.0, float("nan")), (1, 2), "must be 2 finite numbers"),
    )
    def test_a_curve_that_contradicts_itself_is_an_error(self, sizes, alp, held, message):
        members = tuple(np.arange(n, dtype=np.int32) for n in held)
        with self.assertRaisesRegex(ValueError, message):
            Curve(sizes, alp, ("a", "b", "c"), members)


class ConcaveEnvelopeTest(absltest.TestCase):
    def test_is_the_brute_force_hull(self):
        rng = random.Random(0)
        for _ in range(500):
            sizes = sorted(rng.sample(range(1, 50), rng.randint(1, 8)))
            alp = [rng.randint(-20, 0) for _ in sizes]  # few values: many points on one line
            self.assertEqual(concave_envelope(sizes, alp), slow_envelope(sizes, alp))
