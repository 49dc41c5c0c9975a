"""The grid of a union's sizes and parities, and its page in a browser."""

import pathlib
import re
import tempfile

import numpy as np
from absl.testing import absltest

import vocap
from tests import browser
from tests.vocap.texts import sentences
from vocap import explorer
from vocap.building import build_vocabulary
from vocap.segmentation import gini
from vocap.settings import VocabularySettings

TEXTS = {name: list(sentences(name))[:40] for name in ("en", "hi", "sw")}
HELDOUT = {name: list(sentences(name))[40:80] for name in TEXTS}


class TradeoffTest(absltest.TestCase):
    def setUp(self):
        super().setUp()
        self.cache = pathlib.Path(self.enter_context(tempfile.TemporaryDirectory()))

    def build(self, parallel=None, size=450):
        settings = VocabularySettings(
            target_size=size, method="union", compare=(), sizes=(), num_workers=1,
            byte_fallback=True,
        )  # fmt: skip
        built = build_vocabulary(TEXTS, HELDOUT, settings, self.cache, parallel=parallel or {})
        return built.tradeoff, settings

    def test_the_build_is_a_point_of_it(self):
        settings = VocabularySettings(
            target_size=450, method="union", parity=0.5, sizes=(), num_workers=1
        )
        built = build_vocabulary(TEXTS, HELDOUT, settings, self.cache)
        found = built.tradeoff
        own = [built.scores["union"][name].tokens_per_sentence for name in found.languages]
        p, t = list(found.parities).index(0.5), list(found.sizes).index(450)
        self.assertSequenceAlmostEqual(found.tokens[p][t], own)

    def test_without_other_text_there_is_none(self):
        self.assertIsNone(vocap.build(TEXTS, 450, method="union").tradeoff)

    def test_one_cache_keeps_grids_of_several_sizes_and_of_parallel_text_apart(self):
        first, _ = self.build()
        self.assertIn(450, first.sizes)
        self.assertIn(500, self.build(size=500)[0].sizes)
        parallel, _ = self.build({name: text[:20] for name, text in HELDOUT.items()})
        self.assertEqual(parallel.contents, [1.0, 1.0, 1.0])
        self.assertNotEqual(parallel.tokens, first.tokens)
        self.assertGreater(first.contents[0], 30)

    def test_parity_evens_out_the_costs_that_the_page_shows(self):
        tradeoff, settings = self.build()

        ginis, size = [], tradeoff.sizes.index(450)
        for parity in (0, 1):
            page = explorer.tradeoff_page(tradeoff, settings, "")
            document = browser.document(self, page, f"#T=450&parity={parity}")
            shown = re.search(r"Gini of the costs</dt><dd>([\d.]+)", document)[1]
            tokens = tradeoff.tokens[tradeoff.parities.index(parity)][size]
            ginis.append(gini(np.divide(tokens, tradeoff.contents)))
            self.assertAlmostEqual(float(shown), ginis[-1], delta=6e-4)
        self.assertLess(ginis[1], ginis[0])
