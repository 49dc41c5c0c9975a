"""Masks against loops over queries and keys."""

import jax.numpy as jnp
import numpy as np
from absl.testing import absltest, parameterized

from xlm.models.segments import causal_mask, segment_mask


class MasksTest(parameterized.TestCase):
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


if __name__ == "__main__":
    absltest.main()
