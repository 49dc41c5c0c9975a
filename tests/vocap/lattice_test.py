"""Tests of the E-step against the enumeration of all segmentations."""

import random
from collections.abc import Iterator, Sequence

import numpy as np
from absl.testing import absltest, parameterized

from vocap import lattice

UNKNOWN = -7.5


def segmentations(word: str, pieces: Sequence[str]) -> Iterator[list[str]]:
    """All ways to write `word` in pieces; a character that is no piece stands for itself."""
    if not word:
        yield []
    for end in range(1, len(word) + 1):
        if word[:end] in pieces or end == 1:
            for rest in segmentations(word[end:], pieces):
                yield [word[:end], *rest]


def slow_expected_counts(pieces, log_probs, words, weights) -> tuple[np.ndarray, float]:
    index = {piece: i for i, piece in enumerate(pieces)}
    counts, log_likelihood = np.zeros(len(pieces)), 0.0
    for word, weight in zip(words, weights, strict=True):
        ways = list(segmentations(word, pieces))
        scores = [sum(log_probs[index[p]] if p in index else UNKNOWN for p in w) for w in ways]
        total = np.logaddexp.reduce(scores)
        log_likelihood += weight * total
        for way, score in zip(ways, scores, strict=True):
            for piece in way:
                if piece in index:
                    counts[index[piece]] += weight * np.exp(score - total)
    return counts, log_likelihood


def random_problem(
    seed: int, alphabet: str, num_pieces: int
) -> tuple[list[str], np.ndarray, list[str], np.ndarray]:
    """Pieces, log probabilities, words and weights; some characters of the words are no piece."""
    rng = random.Random(seed)
    pieces = {"".join(rng.choices(alphabet, k=rng.randint(1, 4))) for _ in range(num_pieces)}
    words = ["".join(rng.choices(alphabet + "?", k=rng.randint(0, 8))) for _ in range(30)]
    ordered = rng.sample(sorted(pieces), len(pieces))
    log_probs = np.array([rng.uniform(-9, -1) for _ in ordered])
    return ordered, log_probs, words, np.array([rng.uniform(0.1, 9) for _ in words])


def expected_counts(pieces, log_probs, words, weights) -> tuple[np.ndarray, float]:
    trie, text = lattice.build_trie(pieces), lattice.pack_words(words)
    return lattice.expected_counts(trie, log_probs, text, weights, UNKNOWN)


class ExpectedCountsTest(parameterized.TestCase):
    @parameterized.parameters(
        ("ab", 4), ("abc", 20), ("\u2581a\u00e9\u0928\u6587\U0001f600", 60), ("abcdef", 400)
    )
    def test_is_the_sum_over_all_segmentations(self, alphabet, num_pieces):
        for seed in range(5):
            problem = random_problem(seed, alphabet, num_pieces)
            expected_count, expected_log_likelihood = slow_expected_counts(*problem)
            counts, log_likelihood = expected_counts(*problem)
            np.testing.assert_allclose(counts, expected_count, rtol=1e-10, atol=1e-12)
            self.assertAlmostEqual(log_likelihood, expected_log_likelihood, places=8)

    def test_a_weight_of_two_is_the_word_twice(self):
        pieces, log_probs, words, weights = random_problem(0, "abc", 20)
        doubled = expected_counts(pieces, log_probs, words, 2 * weights)
        twice = expected_counts(pieces, log_probs, words * 2, np.tile(weights, 2))
        np.testing.assert_allclose(doubled[0], twice[0], rtol=1e-12)
        self.assertAlmostEqual(doubled[1], twice[1], places=9)

    def test_counts_cover_every_character_of_a_long_word_without_underflow(self):
        pieces = ["a", "b", "ab", "ba", "bab"]
        word = "".join(random.Random(0).choices("ab", k=5000))
        counts, log_likelihood = expected_counts(pieces, np.full(5, -9.0), [word], np.ones(1))
        num_characters = counts @ [len(piece) for piece in pieces]
        np.testing.assert_allclose(num_characters, len(word), rtol=1e-9)
        self.assertTrue(np.isfinite(log_likelihood))

    def test_no_words_expect_nothing(self):
        counts, log_likelihood = expected_counts(["a", "b"], np.zeros(2), [], np.zeros(0))
        np.testing.assert_array_equal(counts, [0, 0])
        self.assertEqual(log_likelihood, 0.0)


if __name__ == "__main__":
    absltest.main()
