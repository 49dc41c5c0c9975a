"""Losses and metrics are divided once, after merging."""

import math

import jax.numpy as jnp
from absl.testing import absltest

from xlm.objectives.objective import means


class MeansTest(absltest.TestCase):
    def test_each_metric_has_its_own_weight(self):
        found = means({"loss": (jnp.float32(6), 4.0), "overflow": (3.0, 1.0), "none": (0.0, 0.0)})
        self.assertEqual((found["loss"], found["overflow"]), (1.5, 3.0))
        self.assertTrue(math.isnan(found["none"]))
