"""Tests of the word counts."""

import collections
import random

import numpy as np
from absl.testing import absltest

from vocap.words import SPACE, count_words

SENTENCES = ["a b  a", " b\tc", "\uff21\uff42 \u0915\u093f", "", "   ", "\ufb01n", "a"]


class CountWordsTest(absltest.TestCase):
    def test_counts_the_normalised_words_and_the_sentences_that_hold_any(self):
        table = count_words(SENTENCES)
        counts = dict(zip(table.words, table.counts.tolist(), strict=True))
        expected = collections.Counter(["a", "b", "a", "b", "c", "Ab", "\u0915\u093f", "fin", "a"])
        self.assertEqual(counts, {SPACE + word: count for word, count in expected.items()})
        self.assertEqual(table.num_sentences, 5)

    def test_bytes_are_those_of_the_words_and_a_space_each(self):
        expected = len("a b a b c Ab \u0915\u093f fin a ".encode())
        self.assertEqual(count_words(SENTENCES).num_bytes, expected)
        self.assertEqual(count_words([]).num_bytes, 0)

    def test_order_does_not_matter_and_repetition_multiplies(self):
        table = count_words(SENTENCES)
        shuffled = count_words(random.Random(0).sample(SENTENCES * 3, 3 * len(SENTENCES)))
        self.assertEqual(shuffled.words, table.words)
        np.testing.assert_array_equal(shuffled.counts, 3 * table.counts)
        self.assertEqual(shuffled.num_sentences, 3 * table.num_sentences)
        self.assertEqual(shuffled.num_bytes, 3 * table.num_bytes)


if __name__ == "__main__":
    absltest.main()
