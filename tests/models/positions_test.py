"""Segments, positions and masks against loops; positions as a bias, and those that restart."""

import functools

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from absl.testing import parameterized

from tests.models.factories import encoder_settings, random, random_params
from xlm.models.encoder import Encoder
from xlm.models.positions import DistanceBias, DistanceTable, by_index, distance_buckets, slopes
from xlm.models.segments import causal_mask, packed_segments, segment_mask, split_in_halves

L = 12
matrix_of = jax.jit(DistanceBias.matrix)


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


BOS, PAD, EOS = 0, 1, 2
compiled = jax.jit(packed_segments, static_argnames=("bos", "pad", "across_documents"))


def random_rows(seed: int, num_rows: int = 8, length: int = 24) -> np.ndarray:
    """Rows of whole documents of random lengths, then padding; some are full, one is empty."""
    rng = np.random.default_rng(seed)
    rows = np.full((num_rows, length), PAD, np.int32)
    for row in rows[1:]:
        at, stop = 0, rng.choice([length, length // 2])
        while (size := min(int(rng.integers(2, 9)), stop - at)) >= 2:
            row[at : at + size] = [BOS, *rng.integers(3, 50, size - 2), EOS]
            at += size
    return rows


def slow_segments(row: np.ndarray) -> tuple[list[int], list[int]]:
    """Segments, and positions in them, of the tokens before the padding."""
    segments, positions = [], []
    for token in row:
        if token == PAD:
            break
        if token == BOS:
            segments.append(segments[-1] + 1 if segments else 1)
            positions.append(0)
        else:
            segments.append(segments[-1])
            positions.append(positions[-1] + 1)
    return segments, positions


class PackedSegmentsTest(parameterized.TestCase):
    def test_equals_loop(self):
        for seed in range(20):
            tokens = random_rows(seed)
            segments, positions = map(
                np.asarray, compiled(tokens, bos=BOS, pad=PAD, across_documents=False)
            )
            self.assertEqual((segments.dtype, positions.dtype), (np.int32, np.int32))
            for row, *actual in zip(tokens, segments, positions, strict=True):
                for values, expected in zip(actual, slow_segments(row), strict=True):
                    self.assertEqual(values[: len(expected)].tolist(), expected)
            np.testing.assert_array_equal(segments == 0, tokens == PAD)
            # Padding needs some position that exists.
            self.assertTrue(((positions >= 0) & (positions < tokens.shape[1])).all())

    def test_across_documents_a_row_is_one_segment(self):
        tokens = random_rows(0)
        segments, positions = compiled(tokens, bos=BOS, pad=PAD, across_documents=True)
        np.testing.assert_array_equal(segments, tokens != PAD)
        np.testing.assert_array_equal(positions, np.tile(np.arange(tokens.shape[1]), (8, 1)))

    @parameterized.parameters(True, False)
    def test_each_half_is_numbered_as_if_alone(self, across_documents):
        rows = np.array([[0, 7, 2, 0, 7, 7, 7, 2, 1, 1], [0, 7, 7, 7, 2, 0, 7, 2, 0, 2]])
        layout = functools.partial(compiled, bos=0, pad=1, across_documents=across_documents)
        found = jax.jit(split_in_halves)(*layout(rows))
        segments, positions, halves = map(np.asarray, found)
        np.testing.assert_array_equal(halves, (rows != 1) * np.repeat([1, 2], 5))
        self.assertFalse((segments[:, :5, None] == segments[:, None, 5:]).any())
        for half in (slice(0, 5), slice(5, 10)):
            alone, places = map(np.asarray, layout(rows[:, half]))
            is_text = rows[:, half] != 1
            if not across_documents:  # the rest of a document has no <s>
                alone = np.where(is_text & (alone == 0), 9, alone)
            np.testing.assert_array_equal(
                np.where(is_text, positions[:, half], 0), np.where(is_text, places, 0)
            )
            same = segments[:, half, None] == segments[:, None, half]
            np.testing.assert_array_equal(same, alone[:, :, None] == alone[:, None, :])


class MasksTest(parameterized.TestCase):
    """Against loops over queries and keys."""

    @parameterized.parameters((4, 4, 0), (1, 6, 3), (2, 6, 3), (3, 2, 0))
    def test_queries_see_themselves_and_what_is_before(self, num_queries, num_keys, first):
        mask = causal_mask(num_queries, num_keys, first=jnp.int32(first))
        expected = [
            [key <= first + query for key in range(num_keys)] for query in range(num_queries)
        ]
        np.testing.assert_array_equal(mask[0, 0], expected)

    def test_tokens_see_their_segment(self):
        segments = jnp.array([[1, 1, 2, 0], [1, 2, 2, 2]])
        of_keys = jnp.array([[1, 2, 2], [2, 1, 0]])
        np.testing.assert_array_equal(segment_mask(segments), segment_mask(segments, segments))
        mask = segment_mask(segments, of_keys)
        self.assertEqual(mask.shape, (2, 1, 4, 3))
        for (row, _, query, key), is_seen in np.ndenumerate(mask):
            self.assertEqual(is_seen, segments[row, query] == of_keys[row, key])
