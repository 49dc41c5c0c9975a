"""mmBERT's models at the published shapes, of which nothing is made."""

import jax
import numpy as np
from absl.testing import parameterized

from configs import mmbert
from tests.models.factories import boxed_shapes
from xlm.interop import model_folder
from xlm.models.settings import EncoderSettings


class ModelsTest(parameterized.TestCase):
    @parameterized.parameters(("base", 256_000, 307e6), ("small", 256_000, 140e6))
    def test_sizes_are_the_published_ones(self, name, vocab_size, published):
        model = mmbert.get_config(name).model.to_dict()
        settings = EncoderSettings(**model, vocab_size=vocab_size)
        self.assertEqual(model_folder.why_not_transformers(vars(settings)), "")
        count = sum(np.prod(x.shape) for x in jax.tree.leaves(boxed_shapes(settings)))
        self.assertAlmostEqual(count / published, 1, delta=0.01)

    def test_another_name(self):
        with self.assertRaisesRegex(ValueError, "mmbert has no 'large'; there are base, small"):
            mmbert.get_config("large")
