"""Refreshed neighbour indices against their parts, and what is reported of them."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
from absl.testing import parameterized

from knn_sampling import inclusion
from knn_sampling.neighbours import nearest_neighbours
from knn_sampling.output_layer import OutputLayer
from tests.knn_sampling.batches import (
    CORRECTED,
    KNN,
    NUM_VALID,
    V,
    jitted_inclusion,
    random_batch,
    statistics_of,
)


@functools.partial(jax.jit, static_argnums=0)
def refresh(layer: OutputLayer, neighbours, table, statistics):
    return layer.refresh(neighbours, table, statistics)


class RefreshTest(parameterized.TestCase):
    @parameterized.parameters(KNN, CORRECTED, dataclasses.replace(CORRECTED, k=NUM_VALID))
    def test_equals_its_parts(self, layer: OutputLayer):
        table, statistics, initial = random_batch()["table"], statistics_of(), layer.init_index(V)
        index, found = refresh(layer, initial.neighbours, table, statistics)
        neighbours = nearest_neighbours(table, k=layer.k, num_valid=NUM_VALID)
        np.testing.assert_array_equal(index, neighbours)
        self.assertEqual((index.shape, index.dtype), (initial.neighbours.shape, jnp.int32))
        expected = {
            "staleness": inclusion.staleness(initial.neighbours, neighbours, NUM_VALID),
            "same_language": inclusion.same_group_share(neighbours, statistics.languages),
        }
        jax.tree.map(np.testing.assert_array_equal, found, expected)
        self.assertGreater(found["staleness"], found["same_language"])
        if layer.log_q_correction:
            found = jax.jit(layer.inclusion)(neighbours, statistics)
            q = jitted_inclusion(neighbours, statistics.probabilities)
            np.testing.assert_allclose(found, q, rtol=1e-6)
            self.assertEqual((found.shape, found.dtype), (initial.inclusion.shape, jnp.float32))
        else:
            self.assertIsNone(initial.inclusion)
