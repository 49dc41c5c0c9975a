"""Tests of the concave envelopes of curves."""

import random

from absl.testing import absltest

from vocap.curves import concave_envelope


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


class ConcaveEnvelopeTest(absltest.TestCase):
    def test_is_the_brute_force_hull(self):
        rng = random.Random(0)
        for _ in range(500):
            sizes = sorted(rng.sample(range(1, 50), rng.randint(1, 8)))
            alp = [rng.randint(-20, 0) for _ in sizes]  # few values: many points on one line
            self.assertEqual(concave_envelope(sizes, alp), slow_envelope(sizes, alp))
