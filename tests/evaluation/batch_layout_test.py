"""Rows of an evaluation that takes some of them."""

import numpy as np
from absl.testing import parameterized

from xlm.evaluation.batch_layout import spread_rows


class SpreadRowsTest(parameterized.TestCase):
    @parameterized.parameters((10, 0), (10, 10), (3, 5))
    def test_all_of_them(self, num_rows: int, max_sequences: int):
        rows = np.arange(2 * num_rows).reshape(num_rows, 2)
        np.testing.assert_array_equal(spread_rows(rows, max_sequences), rows)

    @parameterized.parameters((10, 4), (10, 9), (100, 7), (5, 1))
    def test_some_from_every_part(self, num_rows: int, max_sequences: int):
        found = spread_rows(np.arange(num_rows)[:, None], max_sequences)[:, 0]
        self.assertLen(found, max_sequences)
        steps = np.diff([*found, num_rows])
        self.assertLessEqual(steps.max() - steps.min(), 1)
        self.assertEqual(found[0], 0)
