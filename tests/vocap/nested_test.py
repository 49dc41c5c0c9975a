"""Tests of training all sizes at once, against SentencePiece and against itself."""

import dataclasses
import random

import numpy as np
from absl.testing import parameterized

from tests.vocap.texts import assert_same
from tests.vocap.texts import sentences as sentences_of
from tests.vocap.texts import table as table_of
from vocap import lattice, nested, pretokens, seeds, unigram
from vocap.settings import TrainerSettings

OPTIONS = {"character_coverage": 0.9995, "max_piece_length": 16, "max_seeds": 10**6}


def train(sentences, sizes, **options) -> nested.NestedVocabularies:
    return nested.train(pretokens.count_pretokens(sentences), sizes, **(OPTIONS | options))


def sizes_of(found: nested.NestedVocabularies) -> list[int]:
    return [len(vocabulary.ids) for vocabulary in found.vocabularies]


def num_required(table: pretokens.PretokenTable, coverage: float = 0.9995) -> int:
    return len(seeds.cover(table, coverage).alphabet)


def strings(found: nested.NestedVocabularies) -> list[list[str]]:
    """The pieces of each vocabulary, highest score first."""
    return [[found.pieces[i] for i in vocabulary.ids] for vocabulary in found.vocabularies]


def relative_error(a, b):
    return abs(np.array(a) / np.array(b) - 1)


class AgreementTest(parameterized.TestCase):
    def agreement(self, sentences, sizes, **options) -> tuple[np.ndarray, np.ndarray]:
        settings = TrainerSettings(
            "nested", tuple(sizes), alp_probabilities="model", **(OPTIONS | options)
        )
        table = pretokens.count_pretokens(sentences)
        found = unigram.train_vocabularies(table, settings)
        settings = dataclasses.replace(settings, trainer="sentencepiece")
        expected = unigram.train_vocabularies(table, settings, sentences)
        self.assertEqual(found.curve.sizes, expected.curve.sizes)
        self.assertEqual(found.curve.sizes, tuple(sizes))
        common = []
        for s in range(len(sizes)):
            ours, theirs = set(found.curve.vocabulary(s)), set(expected.curve.vocabulary(s))
            common.append(len(ours & theirs) / len(ours | theirs))
        return relative_error(found.curve.alp, expected.curve.alp), np.array(common)

    @parameterized.named_parameters(
        ("latin", sentences_of("en"), (100, 200, 400, 700, 1000, 1500, 2000), {}),
        ("without_spaces", sentences_of("zh"), range(1220, 1700, 40), {}),
        ("combining_marks", sentences_of("hi"), range(70, 370, 30), {}),
        ("rare_characters", sentences_of("ka"), range(40, 300, 20), {"character_coverage": 0.99}),
        ("repeated", sentences_of("sw") * 3, range(60, 600, 60), {}),
        ("short_pieces", sentences_of("sw"), range(60, 300, 40), {"max_piece_length": 3}),
        ("few_seeds", sentences_of("sw"), range(60, 240, 30), {"max_seeds": 300}),
    )
    def test_sentencepiece_finds_the_same_at_each_size(self, sentences, sizes, options):
        difference, common = self.agreement(sentences, sizes, **options)
        self.assertLess(difference.max(), 5e-3)
        self.assertLess(difference.mean(), 1e-3)
        self.assertGreater(common.mean(), 0.97)
        # What differs does so where pieces tie but for the rounding of sums.
        self.assertGreater(((difference < 1e-5) & (common == 1)).mean(), 0.5)

    @parameterized.parameters("sw", "ka")
    def test_the_same_sizes_are_feasible(self, language):
        sentences = sentences_of(language)
        found = train(sentences, range(1, 1000))
        smallest, largest = sizes_of(found)[0], sizes_of(found)[-1]
        self.assertEqual(sizes_of(found), list(range(smallest, largest + 1)))
        self.assertEqual(smallest, num_required(table_of(language)))
        for size in (smallest - 1, smallest, largest, largest + 1):
            settings = TrainerSettings(
                "sentencepiece", (size,), alp_probabilities="model", **OPTIONS
            )
            if smallest <= size <= largest:
                unigram.sentencepiece_model(sentences, size, settings)
            else:
                with self.assertRaisesRegex(RuntimeError, "smaller than required|too high"):
                    unigram.sentencepiece_model(sentences, size, settings)


class NestedTest(parameterized.TestCase):
    def assert_valid(self, found: nested.NestedVocabularies, table: pretokens.PretokenTable):
        """Properties of every vocabulary, in particular that its counts are those of its scores."""
        self.assertLen(set(found.pieces), len(found.pieces))
        self.assertEqual(set(found.pieces), {p for pieces in strings(found) for p in pieces})
        for pieces, vocabulary in zip(strings(found), found.vocabularies, strict=True):
            self.assertLen(set(pieces), len(pieces))
            self.assertTrue(np.isfinite(vocabulary.log_probs).all())
            self.assertTrue((np.diff(vocabulary.log_probs) <= 0).all())
            self.assertLess(vocabulary.log_probs[0], 0)
            counts = unigram.segmented_counts(
                lattice.build_trie(pieces), vocabulary.log_probs, table
            )
            np.testing.assert_allclose(vocabulary.counts, counts[:-1], rtol=1e-9, atol=1e-6)
            np.testing.assert_allclose(found.num_unknown, counts[-1], rtol=1e-9)

    @parameterized.product(language=["en", "zh", "ar", "th"], coverage=[1.0, 0.995, 0.9])
    def test_counts_are_those_of_the_best_segmentation(self, language, coverage):
        sizes = range(20, 2500, 40)
        found = train(sentences_of(language), sizes, character_coverage=coverage)
        self.assertGreater(len(found.vocabularies), 3)
        self.assertEqual(found.num_unknown > 0, coverage < 1)
        self.assert_valid(found, table_of(language))

    def test_each_size_alone_gives_the_same(self):
        sentences = sentences_of("de")
        together = train(sentences, range(100, 2000, 190))
        self.assertGreater(len(together.vocabularies), 5)
        for s, size in enumerate(sizes_of(together)):
            alone = train(sentences, [size])
            self.assertEqual(strings(alone), [strings(together)[s]])
            for name in ("log_probs", "counts"):
                np.testing.assert_array_equal(
                    getattr(alone.vocabularies[0], name), getattr(together.vocabularies[s], name)
                )

    def test_neither_the_order_of_sentences_nor_that_of_sizes_matters(self):
        sentences, sizes = sentences_of("es"), [80, 200, 700, 1100]
        found = train(sentences, sizes)
        self.assertEqual(sizes_of(found), sizes)
        assert_same(found, train(random.Random(0).sample(sentences, len(sentences)), sizes))
        assert_same(found, train(sentences, [*reversed(sizes), *sizes]))

    @parameterized.product(seed=list(range(20)), coverage=[1.0, 0.8])
    def test_the_smallest_texts(self, seed, coverage):
        rng = random.Random(seed)
        alphabet = rng.choice(["a", "ab", "a\u0301\u0430", "\u6587\u5b57\U0001f600."])
        words = ["".join(rng.choices(alphabet, k=rng.randint(1, 9))) for _ in range(4)]
        sentences = [" ".join(rng.choices(words, k=rng.randint(1, 5))) for _ in range(5 * seed + 1)]
        found = train(sentences, range(1, 40), character_coverage=coverage)
        table = pretokens.count_pretokens(sentences)
        self.assertEqual(sizes_of(found)[0], num_required(table, coverage))
        self.assert_valid(found, table)

    def test_a_text_whose_characters_all_drop_out_of_the_model(self):
        # Every word is a piece; characters come back at the end.
        sentences = ["abcd", "efgh", "abcd efgh", "efgh abcd", "."] * 9
        found = train(sentences, range(1, 40), max_piece_length=5)
        self.assertEqual(strings(found)[-1][:2], ["\u2581abcd", "\u2581efgh"])
        self.assert_valid(found, pretokens.count_pretokens(sentences))
