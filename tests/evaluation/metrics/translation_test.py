"""BLEU by hand and by a plain loop with the rules of multi-bleu.perl; properties of all scores."""

import math

from absl.testing import parameterized

from input_pipeline.tasks.tasks import TASKS
from xlm.evaluation.metrics import translation

REFERENCES = [
    "The cat sat on the mat .",
    "There is a dog in the garden , isn't there ?",
    "It rains today in London .",
]


class TranslationTest(parameterized.TestCase):
    def test_bleu_by_hand(self):
        # 1-grams 5 / 6, 2-grams 3 / 5, 3-grams 2 / 4, 4-grams 1 / 3, and 7 tokens in the reference.
        found = translation.scores(["a b c d e f g"], ["a b c d x f"], "en")
        expected = (5 / 6 * 3 / 5 * 2 / 4 * 1 / 3) ** 0.25 * math.exp(1 - 7 / 6)
        self.assertAlmostEqual(found["bleu"], expected, places=6)
        self.assertAlmostEqual(found["tokenized_bleu"], expected, places=6)
        # Without a common 4-gram it is 0, or smoothed.
        found = translation.scores(["a b c d e"], ["a b c x e"], "en")
        self.assertEqual(found["tokenized_bleu"], 0)
        self.assertGreater(found["bleu"], 0)

    def test_chrf_by_hand(self):
        # All n-grams of 1 and 2 letters but one each; none of 3 and more: of 1-grams P = R = 2/3,
        # of 2-grams 1/2, of 3-grams 0; longer ones there are none.
        found = translation.scores(["abc"], ["abd"], "en")
        self.assertAlmostEqual(found["chrf"], (2 / 3 + 1 / 2 + 0) / 3, places=6)

    def test_a_perfect_score_is_1(self):
        # As sacreBLEU computes it, BLEU is 100.00000000000004.
        found = translation.scores(REFERENCES, REFERENCES, "en")
        self.assertEqual(found, dict.fromkeys(TASKS["translation"].metrics, 1.0))
        # Case counts for BLEU alone.
        found = translation.scores(REFERENCES, [one.upper() for one in REFERENCES], "en")
        self.assertEqual(round(found["tokenized_bleu"], 9), 1)
        self.assertLess(found["bleu"], 0.5)

    @parameterized.parameters(
        ("zh", "今天下雨了", "今天又下雨了"),
        ("zh_Hant", "今天下雨了", "今天又下雨了"),
        ("zho-TW", "今天下雨了", "今天又下雨了"),
        ("jpn", "今日は雨です", "今日も雨です"),
        ("ja", "今日は雨です", "今日も雨です"),
        ("th", "วันนี้ฝนตก", "วันนี้ฝนไม่ตก"),
        ("ko", "오늘은비가온다", "오늘은비가안온다"),
    )
    def test_languages_without_blanks_are_cut(self, language, reference, hypothesis):
        found = translation.scores([reference], [hypothesis], language)
        self.assertBetween(found["bleu"], 0.2, 0.9)
        self.assertLess(translation.scores([reference], [hypothesis], "en")["bleu"], 1e-3)

    def test_signatures_tell_the_tokenizer(self):
        found = translation.signatures("de")
        self.assertRegex(found["bleu"], r"nrefs:1\|case:mixed\|eff:no\|tok:13a\|smooth:exp")
        self.assertRegex(found["tokenized_bleu"], "case:lc.*tok:13a.*smooth:none")
        self.assertRegex(found["chrf"], "nc:6.*nw:0")
        self.assertIn("tok:zh", translation.signatures("zh")["bleu"])

    @parameterized.parameters((["a"], ["a", "b"]), (["a"], []), ([], []))
    def test_one_translation_for_each_reference(self, references, hypotheses):
        with self.assertRaisesRegex(ValueError, f"{len(hypotheses)} translations for"):
            translation.scores(references, hypotheses, "en")
