"""Examples in the docstrings of functions for models of one's own."""

import doctest

from absl.testing import parameterized

from knn_sampling import blockwise, softmax
from xlm.training import row_adamw


class DoctestsTest(parameterized.TestCase):
    @parameterized.parameters(blockwise, softmax, row_adamw)
    def test_examples(self, module):
        found = doctest.testmod(module)
        self.assertGreater(found.attempted, 0)
        self.assertEqual(found.failed, 0)
