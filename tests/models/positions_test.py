"""Positions as a bias by distance, and the order of sentences whose positions restart."""

import functools

import flax.linen as nn
import jax
import numpy as np
from absl.testing import parameterized

from tests.models.factories import encoder_settings, random, random_params
from xlm.models.encoder import Encoder
from xlm.models.positions import (
    DistanceBias,
    DistanceTable,
    by_index,
    distance_buckets,
    rotate,
    slopes,
)

L = 12
matrix_of = jax.jit(DistanceBias.matrix)
turn = jax.jit(rotate, static_argnames="theta")


class BucketsTest(parameterized.TestCase):
    def test_of_t5(self):
        # Raffel et al. 2020: 32 buckets to 128; exact below 8, then eight up to 128 and beyond.
        buckets = distance_buckets(32, 128, 1000)
        of = dict(zip(range(-999, 1000), buckets, strict=True))
        for distance in range(8):
            self.assertEqual(of[-distance], distance)
        edges = [8 * 16 ** (i / 8) for i in range(9)]
        for distance in range(8, 1000):
            expected = 8 + min(sum(edge <= distance + 1e-6 for edge in edges) - 1, 7)
            self.assertEqual(of[-distance], expected, distance)
            self.assertEqual(of[distance], expected + 16)
        self.assertEqual(of[1], 17)


class DistanceBiasTest(parameterized.TestCase):
    def matrix(self, by_distance, positions) -> np.ndarray:
        zero = by_distance.shape[1] // 2
        return np.array([
            [[by_distance[h, j - i + zero] for j in positions] for i in positions]
            for h in range(len(by_distance))
        ])  # fmt: skip

    @parameterized.parameters(L, L + 3)
    def test_matrix_of_indices_and_of_positions(self, num_distances: int):
        by_distance = random(2, 2 * num_distances - 1)
        found = matrix_of(DistanceBias(by_distance, np.zeros((3, L), np.int32)))
        np.testing.assert_array_equal(found[0], self.matrix(by_distance, range(L)))
        positions = [0, 1, 2, 3, 0, 1, 2]
        rows = np.array([positions, [*range(7)]])
        found = matrix_of(DistanceBias(by_distance, np.zeros_like(rows), rows))
        np.testing.assert_array_equal(found[0], self.matrix(by_distance, positions))
        np.testing.assert_array_equal(found[1], self.matrix(by_distance, range(7)))

    def test_gradient_is_a_sum_along_diagonals(self):
        of_pairs = random(2, L, L)
        gradient = jax.jit(lambda table, of_pairs: jax.vjp(by_index, table)[1](of_pairs))
        (found,) = gradient(random(2, 2 * L - 1), of_pairs)
        expected = [[np.trace(x, offset) for offset in range(1 - L, L)] for x in of_pairs]
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)


class DistanceTableTest(parameterized.TestCase):
    def table(self, slope: float, num_heads: int = 3) -> np.ndarray:
        module = DistanceTable(num_heads, 8, 16, slope, max_length=20)
        initial = jax.jit(lambda key: module.apply(nn.unbox(module.init(key))))
        return np.asarray(initial(jax.random.key(0)))

    def test_falls_with_distance_more_slowly_from_head_to_head(self):
        by_distance = self.table(0.5)
        before, after = by_distance[:, :20], by_distance[:, 19:]
        np.testing.assert_array_equal(before[:, ::-1], after)
        self.assertTrue((np.diff(after, axis=1) <= 0).all())
        np.testing.assert_allclose(after[:, 1], [-0.5, -0.25, -0.125])
        np.testing.assert_array_equal(after[:, 0], 0)

    def test_a_bucket_begins_at_its_mean_distance(self):
        distances, buckets = np.abs(np.arange(-16, 17)), distance_buckets(8, 16, 17)
        found = self.table(0.5, num_heads=1)[0, 19 - 16 : 19 + 17]
        shared = [bucket for bucket in set(buckets) if len(set(distances[buckets == bucket])) > 1]
        self.assertNotEmpty(shared)
        for bucket in set(buckets):
            expected = -0.5 * distances[buckets == bucket].mean()
            np.testing.assert_allclose(found[buckets == bucket], expected, rtol=1e-6)

    def test_slopes_end_above_nothing_and_none_is_zero(self):
        np.testing.assert_array_equal(self.table(0.0), 0)
        self.assertEqual(slopes(16)[0], 1)
        self.assertGreater(slopes(16)[-1], 2**-8)


class RestartTest(parameterized.TestCase):
    """A pair of sentences that see each other, the second one's positions from 0 on."""

    @parameterized.parameters("relative", "gated", "rotary", "learned")
    def test_order_of_the_sentences_is_nothing(self, position: str):
        settings = encoder_settings(position=position, distance_buckets=8, max_distance=6)
        tokens = np.array([[5, 6, 7, 8, 9, 10, 11]], np.int32)
        positions = np.array([[0, 1, 2, 3, 0, 1, 2]], np.int32)
        swapped = [4, 5, 6, 0, 1, 2, 3]

        @functools.partial(jax.jit, static_argnames="positions_restart")
        def encode(tokens, positions, **kwargs):
            one_segment = np.ones(tokens.shape, np.int32)
            return Encoder(settings).apply(
                {"params": random_params(settings)}, tokens, one_segment, positions,
                deterministic=True, method="encode", **kwargs,
            )  # fmt: skip

        whole = np.asarray(encode(tokens, positions, positions_restart=True))
        other = encode(tokens[:, swapped], positions[:, swapped], positions_restart=True)
        np.testing.assert_allclose(other, whole[:, swapped], rtol=1e-4, atol=1e-5)
        if settings.has_bias:
            run_on = encode(tokens, np.arange(7)[None].astype(np.int32))
            self.assertGreater(np.abs(run_on - whole).max(), 0.01)
            again = encode(tokens, np.arange(7)[None].astype(np.int32), positions_restart=True)
            np.testing.assert_allclose(again, run_on, rtol=1e-4, atol=1e-5)
