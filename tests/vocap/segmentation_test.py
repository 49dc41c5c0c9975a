"""Scores of tokenizers, by hand and against slow loops."""

import dataclasses
import math

import numpy as np
from absl.testing import absltest, parameterized

from tests import golden
from vocap import segmentation, segmentation_report
from vocap.segmentation import TextScore, TokenizerScore

PIECES = ("?", "a", "b", "ab", " ")


def encode(texts):
    """Longest match from the left; "?" is unknown."""
    found = []
    for text in texts:
        ids, rest = [], text
        while rest:
            piece = next((p for p in ("ab", "a", "b", " ") if rest.startswith(p)), "?")
            ids.append(PIECES.index(piece))
            rest = rest[len(piece) if piece != "?" else 1 :]
        found.append(ids)
    return found


class TextTest(parameterized.TestCase):
    def score(self, sentences, **kwargs):
        arguments = {"size": len(PIECES), "unknown": 0, "is_unigram": True, **kwargs}
        return segmentation.score_text(encode, sentences, **arguments)

    def test_lengths_and_rates(self):
        score, counts = self.score(["ab b", "x", "a ab", "ba"])
        np.testing.assert_array_equal(counts, [1, 2, 2, 2, 2])
        self.assertEqual(score.sentences, 4)
        self.assertEqual(score.tokens_per_sentence, 9 / 4)
        self.assertEqual(score.tokens_per_word, 9 / 6)
        self.assertEqual(score.characters_per_token, 11 / 9)
        self.assertEqual(score.unknown_rate, 1 / 9)
        score, _ = self.score(["ab b", "x"], unknown=None, is_unigram=False)
        self.assertEqual((score.unknown_rate, score.alp), (0.0, None))
        self.assertIsNone(self.score(["ab"])[0].alp)  # one sentence has no halves

    def test_a_script_without_blanks_has_no_words(self):
        score, _ = self.score(["ab" * 20, "ba" * 15])
        self.assertIsNone(score.tokens_per_word)
        self.assertIsNotNone(self.score(["ab" * 10])[0].tokens_per_word)

    def test_alp_is_that_of_one_half_under_the_other(self):
        rng = np.random.default_rng(0)
        sentences = ["".join(rng.choice(list("aabb x"), rng.integers(1, 9))) for _ in range(60)]
        halves = [[], []]
        for sentence in sentences:
            halves[segmentation._half(sentence)].append(sentence)
        total = 0.0
        for own, other in (halves, halves[::-1]):
            seen = [sum(ids.count(i) for ids in encode(other)) for i in range(1, 5)]
            types, unseen = 4 - seen.count(0), seen.count(0)
            smoothed = [
                (n or types / unseen) / (sum(seen) + (types if unseen else 0)) for n in seen
            ]
            rarest = min(one for one, n in zip(smoothed, seen, strict=True) if n)
            log_probs = [math.log(rarest) - 10, *map(math.log, smoothed)]
            total += sum(log_probs[i] for ids in encode(own) for i in ids)
        score, _ = self.score(sentences)
        self.assertAlmostEqual(score.alp, total / 60, places=9)


class TaxTest(absltest.TestCase):
    def test_only_rows_with_both_count(self):
        rows = [("ab", "a b", "x"), ("ab ab", "", "b"), ("", "aaaa", "a")]
        found = segmentation.tax(encode, rows, ("en", "sw", "de"), "en")
        self.assertEqual(found, {"sw": (3, 1), "de": (2, 4)})
        self.assertEqual(segmentation.tax(encode, rows, ("fr", "sw", "de"), "en"), {})


class ReportTest(absltest.TestCase):
    def test_tables_files_and_plots(self):
        text = TextScore(10, 20.0, 1.5, 4.0, 0.001, -80.0)
        blanks = TextScore(10, 30.0, None, 2.0, 0.0, -90.0)
        lacking = TextScore(10, 5.0, None, 2.0, 0.02, -90.0)
        scores = {
            "ours": TokenizerScore("unigram", 5000, 0.5, {"en": text, "th": blanks, "ja": lacking},
                {"th": 1.25, "ja": 3.0}),
            "theirs": TokenizerScore("bpe", 300, 0.25,
                {"en": TextScore(10, 25.0, 2.0, 3.0, 0.0, None)}, {}),
        }  # fmt: skip
        # As many as have markers.
        more = {f"tokenizer {i}": dataclasses.replace(scores["theirs"]) for i in range(10)}
        golden.check_report(
            self, __file__, "segmentation",
            lambda folder: segmentation_report.write_report(folder, scores | more, "en"),
        )  # fmt: skip
