"""Shares of frequency classes against plain sums."""

import jax.numpy as jnp
import numpy as np
from absl.testing import absltest

from evaluation.predicted_mass import classes_of, shares


class PredictedMassTest(absltest.TestCase):
    def test_classes_follow_the_counts(self):
        counts = np.array([5.0, 9, 0, 7, 1, 3, 0, 0])
        classes = classes_of(counts, [1, 3], vocab_size=7)
        # Ranks 2, 0, 5, 1, 4, 3 and 6; the last word only pads the table.
        np.testing.assert_array_equal(classes, [1, 0, 2, 1, 2, 2, 2, 3])

    def test_shares(self):
        rng = np.random.default_rng(0)
        probabilities = rng.dirichlet(np.ones(6), size=4).astype(np.float32)
        targets, weights = np.array([0, 5, 2, 3]), np.array([1, 1, 0, 1], np.float32)
        classes = np.array([0, 0, 1, 1, 2, 2])
        found = shares(*map(jnp.asarray, (probabilities, targets, weights, classes)), 3)
        counted = [0, 1, 3]
        given = probabilities[counted].sum(axis=0).reshape(3, 2).sum(axis=1)
        losses = -np.log(probabilities[counted, targets[counted]])
        expected = [[1, 1, 1], given, [losses[0], losses[2], losses[1]]]
        np.testing.assert_allclose(found, expected, rtol=1e-5)


if __name__ == "__main__":
    absltest.main()
