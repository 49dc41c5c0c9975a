"""mmBERT's models at the published shapes, of which nothing is made, and in miniature."""

import dataclasses
from unittest import mock

import jax
import numpy as np
from absl.testing import absltest, parameterized

import xlm
from configs import mmbert
from tests import factories, folders
from tests.interop.xlm_roberta_parity_test import HAS_TORCH, transformers
from tests.models.factories import boxed_shapes
from xlm.experiment import model as builders
from xlm.experiment import phase_runs
from xlm.experiment.pretrained import read_pretrained
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

    @parameterized.parameters(*mmbert.MODELS)
    def test_phases(self, name):
        """Their tokens, masks, shares and rates, which fall, at lengths that rise."""
        config = mmbert.get_config(name)
        phases = [one.config for one in phase_runs.phases_of(config)]
        self.assertEqual([one.mask.rate for one in phases], [0.3, 0.15, 0.05])
        self.assertEqual([one.data.alpha for one in phases], [0.7, 0.5, 0.3])
        self.assertEqual([one.store.length for one in phases], [1024, 8192, 8192])
        self.assertEqual([one.train.num_tokens / 1e9 for one in phases], [2000, 600, 100])
        self.assertEqual([one.optimizer.final_rate_ratio for one in phases], [1, 1, 0.02])
        xlm.Experiment(config, "nowhere")  # checks all of them

    def test_another_name(self):
        with self.assertRaisesRegex(ValueError, "mmbert has no 'large'; there are base, small"):
            mmbert.get_config("large")


@absltest.skipUnless(HAS_TORCH, "torch and transformers are not installed")
class MiniatureTest(folders.FolderTest):
    def test_from_text_through_three_phases_to_transformers(self):
        import torch

        self.enter_context(mock.patch.object(builders, "mesh", factories.one_device))
        config = mmbert.get_config("runlocal")
        work, output = self.folder / "work", self.folder / "hf"
        xlm.Experiment(config, work).build_vocab().prepare().train()
        found = read_pretrained(str(work))
        sizes = dataclasses.asdict(found.settings)
        model_folder.write_model(output, found.params, sizes, found.tokenizer)
        model = transformers().AutoModel.from_pretrained(output).eval()
        self.assertEqual(type(model).__name__, "ModernBertModel")
        tokenizer = transformers().AutoTokenizer.from_pretrained(output)
        text = "In the beginning there was a word, and it was long. " * 3  # beyond the window
        row = tokenizer([text], return_tensors="pt")
        with torch.no_grad():
            states = model(**row).last_hidden_state[0].numpy()
        self.assertGreater(len(states), 16)
        mean = states[1:-1].mean(0)  # without special tokens
        np.testing.assert_allclose(xlm.Encoder.load(work).encode([text])[0], mean, atol=1e-4)
