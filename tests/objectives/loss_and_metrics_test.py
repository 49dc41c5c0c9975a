"""Losses and metrics are divided once, after merging."""

import math

import jax.numpy as jnp
from absl.testing import absltest

from xlm.objectives.objective import means


class MeansTest(absltest.TestCase):
    def test_each_metric_has_its_own_weight(self):
        found = {"loss": (jnp.float32(6), jnp.float32(4)), "overflow": (jnp.float32(3), 1.0)}
        self.assertEqual(means(found), {"loss": 1.5, "overflow": 3.0})

    def test_a_long_batch_weighs_more_than_a_short_one(self):
        short, long = (10.0, 1.0), (2.0, 5.0)
        merged = {"loss": tuple(map(sum, zip(short, long, strict=True)))}
        self.assertEqual(means(merged), {"loss": 2.0})

    def test_nothing_has_no_mean(self):
        self.assertTrue(math.isnan(means({"loss": (jnp.float32(0), jnp.float32(0))})["loss"]))


if __name__ == "__main__":
    absltest.main()
