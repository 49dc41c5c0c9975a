"""Folders for sentence-transformers against `xlm.Encoder`, where that library is installed."""

import importlib.util
import warnings
from unittest import mock

import numpy as np
from absl.testing import absltest, parameterized

from tests.interop.model_folder_test import GATED
from tests.interop.xlm_roberta_parity_test import transformers
from tests.interop.xlm_roberta_test import SETTINGS, FolderTest
from xlm.experiment.encoder import Encoder
from xlm.interop import sentence_folder

TEXTS = ["the thing", "", "  a   \t b ", "unknown \U0001f642 thing", "cut because it is so long"]
HAS_LIBRARY = importlib.util.find_spec("sentence_transformers")


class SentenceFolderTest(FolderTest):
    @parameterized.parameters(SETTINGS, GATED)
    @absltest.skipUnless(HAS_LIBRARY, "sentence-transformers is not installed")
    def test_vectors(self, settings):
        transformers()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # theirs, about each other
            from sentence_transformers import SentenceTransformer
        from transformers import dynamic_module_utils

        cache = str(self.folder.parent / "modules")
        self.enter_context(mock.patch.object(dynamic_module_utils, "HF_MODULES_CACHE", cache))
        self.write_ours(settings)
        sentence_folder.add(self.folder)
        model = SentenceTransformer(
            str(self.folder), device="cpu", trust_remote_code=settings is GATED
        )
        found = model.encode(TEXTS, batch_size=3, show_progress_bar=False)
        expected = Encoder.load(self.folder).encode(TEXTS)
        np.testing.assert_allclose(found, expected, rtol=0, atol=1e-5)
        self.assertEqual(np.abs(found[1]).max(), 0)  # of no tokens
        self.assertGreater(np.abs(found[0]).max(), 0.1)

    def test_refused_without_a_tokenizer(self):
        self.write_ours()
        (self.folder / "tokenizer.json").unlink()
        with self.assertRaisesRegex(ValueError, "needs a tokenizer.json; leave it out"):
            sentence_folder.add(self.folder)
