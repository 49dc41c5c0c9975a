"""Refreshed neighbour indices against their parts, and what is reported of them."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
from absl.testing import absltest, parameterized

from knn_sampling.neighbours import nearest_neighbours
from knn_sampling.output_layer import OutputLayer
from tests.knn_sampling.batches import (
    CORRECTED,
    KNN,
    NUM_VALID,
    D,
    V,
    index_of,
    jitted_inclusion,
    random_batch,
    statistics_of,
)


@functools.partial(jax.jit, static_argnums=0)
def refresh(layer: OutputLayer, neighbours, table, statistics):
    return layer.refresh(neighbours, table, statistics)


def one_hot_table(directions: list[int]) -> np.ndarray:
    """Rows [V, D] each along one axis, those of an axis longer the smaller their id."""
    table = np.zeros((V, D), np.float32)
    for token, axis in enumerate(directions):
        table[token, axis] = 2 - token / V
    return table


class RefreshTest(parameterized.TestCase):
    @parameterized.parameters(KNN, CORRECTED, dataclasses.replace(CORRECTED, k=NUM_VALID))
    def test_equals_its_parts(self, layer: OutputLayer):
        table, statistics, initial = random_batch()["table"], statistics_of(), layer.init_index(V)
        index, _ = refresh(layer, initial.neighbours, table, statistics)
        neighbours = nearest_neighbours(table, k=layer.k, num_valid=NUM_VALID)
        np.testing.assert_array_equal(index, neighbours)
        self.assertEqual((index.shape, index.dtype), (initial.neighbours.shape, jnp.int32))
        if layer.log_q_correction:
            found = jax.jit(layer.inclusion)(neighbours, statistics)
            q = jitted_inclusion(neighbours, statistics.probabilities)
            np.testing.assert_allclose(found, q, rtol=1e-6)
            self.assertEqual((found.shape, found.dtype), (initial.inclusion.shape, jnp.float32))
        else:
            self.assertIsNone(initial.inclusion)

    def test_the_same_table_makes_nothing_stale(self):
        table = random_batch()["table"]
        _, report = refresh(KNN, index_of(KNN).neighbours, table, statistics_of())
        self.assertEqual(report["staleness"], 0)

    def test_report_by_hand(self):
        # Tokens of even and odd ids are two directions; each lists the three longest of its own.
        layer = dataclasses.replace(KNN, k=3)
        statistics = statistics_of()._replace(
            languages=np.array([0, 0, 0, 1] + [1] * 17 + [-1] * 3, np.int32)
        )
        old = one_hot_table([token % 2 for token in range(V)])
        index = jax.device_get(index_of(layer, {"table": old}, statistics))
        self.assertEqual(index.neighbours[6].tolist(), [0, 2, 4])
        # Token 0 leaves the even ones: their lists begin at 2 now, one entry of three is new.
        table = one_hot_table([2] + [token % 2 for token in range(1, V)])
        refreshed = refresh(layer, index.neighbours, table, statistics)
        neighbours, report = jax.device_get(refreshed)
        self.assertEqual(neighbours[12].tolist(), [2, 4, 6])
        # Ten even tokens with one new entry each; token 0 is alone, so its list is itself and then
        # 1 and 2, which tie with all others: it had 0, 2 and 4. Padding, ids 21 to 23, is left out.
        self.assertEqual(neighbours[0].tolist(), [0, 1, 2])
        self.assertAlmostEqual(float(report["staleness"]), 11 / 63, places=6)
        # Same language, itself aside. Token 0, of language 0: both. 2: 4 and 6 are of language 1,
        # none. 4, 6: one of two. 8 to 20: two of three. 1: 3 and 5, none. 3, 5: one of two. 7 to
        # 19: two of three.
        same, listed = 2 + 0 + 2 * 1 + 7 * 2 + 0 + 2 * 1 + 7 * 2, 2 + 2 + 4 + 21 + 2 + 4 + 21
        self.assertAlmostEqual(float(report["same_language"]), same / listed, places=6)


if __name__ == "__main__":
    absltest.main()
