"""Segments, positions and masks against loops that read a row token by token."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from absl.testing import parameterized

from xlm.models.segments import causal_mask, packed_segments, segment_mask, split_in_halves

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
