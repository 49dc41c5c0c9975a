import pathlib
import re
import tempfile

from absl.testing import absltest

import vocap
from tests import browser
from tests.vocap import texts
from vocap import building, explorer
from vocap.settings import VocabularySettings

LANGUAGES = ("en", "ka", "sw")
TRAIN = {one: texts.sentences(one)[::2] for one in LANGUAGES}
OTHER = {one: texts.sentences(one)[1::2] for one in LANGUAGES}
SETTINGS = VocabularySettings(
    target_size=700, sizes=(), method="union", parity=0.5, byte_fallback=True, num_workers=1
)


def build(**options) -> building.BuiltVocabulary:
    with tempfile.TemporaryDirectory() as folder:
        return building.build_vocabulary(TRAIN, OTHER, SETTINGS, pathlib.Path(folder), **options)


class TradeoffTest(absltest.TestCase):
    def test_the_build_is_a_point_of_it(self):
        built = build()
        found = built.tradeoff
        p, t = found.parities.index(0.5), found.sizes.index(700)
        own = [built.scores["union"][one].tokens_per_sentence for one in found.languages]
        self.assertSequenceAlmostEqual(found.tokens[p][t], own)

    def test_more_pieces_need_fewer_tokens_and_parity_evens_costs(self):
        found = build(parallel=OTHER).tradeoff
        self.assertEqual(set(found.contents), {1.0})
        t = found.sizes.index(700)
        means = [sum(of) for of in found.tokens[0][: t + 1]]
        self.assertEqual(means, sorted(means, reverse=True))
        self.assertGreater(t, 1)
        ratios = [max(of[t]) / min(of[t]) for of in (found.tokens[0], found.tokens[-1])]
        self.assertLess(ratios[1], ratios[0])

    def test_without_other_text_there_is_none(self):
        self.assertIsNone(vocap.build(TRAIN, 700, method="union").tradeoff)

    def test_the_page_shows_the_point_of_its_address(self):
        built = build()
        page = explorer.tradeoff_page(built.tradeoff, SETTINGS, "<h1>Report</h1>")
        document = browser.document(self, page, "#T=700&parity=1")
        rows = re.findall(r"<tr><td>(\w+)</td><td>([\d.]+)</td>", document)
        p, t = built.tradeoff.parities.index(1.0), built.tradeoff.sizes.index(700)
        expected = dict(zip(built.tradeoff.languages, built.tradeoff.tokens[p][t], strict=True))
        self.assertLen(rows, len(expected))
        for language, tokens in rows:
            self.assertEqual(tokens, f"{expected[language]:.1f}")
        self.assertIn("--config.vocab.parity=1<", document)
