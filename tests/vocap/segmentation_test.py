"""Scores of tokenizers, by hand and against slow loops."""

import dataclasses
import math
from unittest import mock

import numpy as np
from absl.testing import absltest

from tests import golden
from vocap import segmentation, segmentation_report
from vocap.segmentation import TokenizerScore
from xlm.interop.segmenter import Segmenter

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


TOKENIZER = Segmenter("unigram", len(PIECES), np.arange(5) > 0, 0, encode)
RNG = np.random.default_rng(0)
SENTENCES = ["".join(RNG.choice(list("aabb x"), RNG.integers(1, 9))) for _ in range(60)]


class ResamplingTest(absltest.TestCase):
    def test_sums_are_of_as_many_sentences_and_paired(self):
        values = RNG.normal(size=(50, 2))
        found = segmentation.resampled(np.hstack([values, np.ones((50, 1)), values[:, :1] + 1]))
        np.testing.assert_allclose(found[0, :2], values.sum(axis=0))
        np.testing.assert_allclose(found[:, 2], 50)
        np.testing.assert_allclose(found[:, 3] - found[:, 0], 50)
        np.testing.assert_allclose(segmentation.resampled(values), found[:, :2])
        with mock.patch.object(segmentation, "_DRAWS", 170):  # three resamples at once
            np.testing.assert_allclose(segmentation.resampled(values), found[:, :2])
        self.assertLen(np.unique(found[:, 0]), 1001)


class TextTest(absltest.TestCase):
    def score(self, sentences, **changes):
        tokenizer = dataclasses.replace(TOKENIZER, **changes)
        (found,), (counts,) = segmentation.score_text([tokenizer], sentences)
        return {measure: samples[0] for measure, samples in found.items()}, counts

    def test_lengths_and_rates(self):
        score, counts = self.score(["ab b", "x", "a ab", "b\u00e9"])
        np.testing.assert_array_equal(counts, [2, 1, 2, 2, 2])
        self.assertEqual(score["tokens_per_sentence"], 9 / 4)
        self.assertEqual(score["tokens_per_word"], 9 / 6)
        self.assertEqual(score["characters_per_token"], 11 / 9)
        self.assertEqual(score["bytes_per_token"], 12 / 9)
        self.assertEqual(score["unknown_rate"], 2 / 9)
        score, _ = self.score(["ab b", "x"], unknown=None, kind="bpe")
        self.assertEqual(score["unknown_rate"], 0.0)
        self.assertNotIn("alp", score)
        self.assertNotIn("bits_per_byte", self.score(["ab"])[0])  # one sentence has no halves

    def test_a_script_without_blanks_has_no_words(self):
        self.assertNotIn("tokens_per_word", self.score(["ab" * 20, "ba" * 15])[0])
        self.assertIn("tokens_per_word", self.score(["ab" * 10])[0])

    def test_the_code_of_one_half_is_of_the_other(self):
        halves = [[], []]
        for sentence in SENTENCES:
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
        score, _ = self.score(SENTENCES)
        self.assertAlmostEqual(score["alp"], total / 60, places=9)
        of_bpe, _ = self.score(SENTENCES, kind="bpe")
        bits = -total / math.log(2) / sum(map(len, SENTENCES))
        for one in (score, of_bpe):
            self.assertAlmostEqual(one["bits_per_byte"], bits, places=9)

    def test_tokenizers_are_scored_on_the_same_resamples(self):
        double = dataclasses.replace(
            TOKENIZER, encode=lambda texts: [ids * 2 for ids in encode(texts)]
        )
        (one, other), _ = segmentation.score_text([TOKENIZER, double], SENTENCES)
        key = "tokens_per_sentence"
        np.testing.assert_allclose(other[key], 2 * one[key])
        self.assertGreater(np.ptp(one[key]), 0.1)
        scores = [TokenizerScore("", 5, 1.0, {"en": 60}, {"en": of}, {}) for of in (other, one)]
        np.testing.assert_allclose(segmentation_report.prices(*scores)["en"], 2.0)


class TaxTest(absltest.TestCase):
    def test_only_rows_with_both_count(self):
        rows = [("ab", "a b", "x", ""), ("ab ab", "", "b", ""), ("", "aaaa", "a", "a")]
        tokens = segmentation.row_tokens(TOKENIZER, rows)
        found = segmentation.taxes(tokens, 0)
        np.testing.assert_array_equal(found[0], [1, 3 / 1, 2 / 4, np.nan])
        with_both = found[~np.isnan(found[:, 1])]  # a resample may be without such a row
        np.testing.assert_array_equal(with_both[:, 1], 3.0)
        self.assertLess(len(with_both), len(found))

    def test_gini_of_each_resample(self):
        values = RNG.uniform(1, 3, size=(7, 5))
        slow = [np.abs(one[:, None] - one).mean() / (2 * one.mean()) for one in values]
        np.testing.assert_allclose(segmentation.gini(values), slow)


class ReportTest(absltest.TestCase):
    def test_tables_files_and_plots(self):
        def samples(*values: float) -> np.ndarray:
            return np.array([values[0], *np.linspace(values[-2], values[-1], 201)])

        def text(tokens: float, unknown: float, **more: float) -> dict[str, np.ndarray]:
            found = {"tokens_per_sentence": tokens, "characters_per_token": 4.0, **more}
            found |= {"unknown_rate": unknown, "bytes_per_token": 5.0, "bits_per_byte": 2.5}
            return {key: samples(one, 0.9 * one, 1.1 * one) for key, one in found.items()}

        english = text(20.0, 0.001, tokens_per_word=1.5, alp=-80.0)
        scores = {
            "our_s": TokenizerScore("unigram", 5000, 0.5, {"en": 10, "th": 1000, "ja": 40},
                {"en": english, "th": text(30.0, 0.0, alp=-90.0), "ja": text(5.0, 0.02, alp=-90.0)},
                {"th": samples(1.25, 1.2, 1.5), "ja": samples(3.0, 2.0, 4.0)}),
            "theirs": TokenizerScore("bpe", 300, 0.25, {"en": 10},
                {"en": text(25.0, 0.0, tokens_per_word=2.0)}, {}),
        }  # fmt: skip
        # As many as have markers.
        more = {f"tokenizer {i}": dataclasses.replace(scores["theirs"]) for i in range(10)}
        golden.check_report(
            self, __file__, "segmentation",
            lambda folder: segmentation_report.write_report(
                folder, scores | more, "en", "our_s", "- Text: TEXT"
            ),
        )  # fmt: skip
