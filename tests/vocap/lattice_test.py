"""Tests of lattices against the enumeration of all segmentations."""

import dataclasses
import random
from collections.abc import Iterator

import numpy as np
from absl.testing import parameterized

from vocap import lattice, pretokens
from vocap.settings import MAX_PIECE_LENGTH

ALPHABETS = ("ab", "abc", "\u2581a\u00e9\u0928\u6587\U0001f600")


@dataclasses.dataclass
class Problem:
    """Pieces and a text, some of whose characters are no piece.

    `scores` and `lengths` have one more element than `pieces`: the unknown.
    """

    pieces: list[str]
    scores: np.ndarray
    words: list[str]
    weights: np.ndarray

    @property
    def lengths(self) -> np.ndarray:
        return np.array([len(piece) for piece in self.pieces] + [1])

    @property
    def lattice(self) -> lattice.Lattice:
        return lattice.build_trie(self.pieces).match(pretokens.pack(self.words))

    def segmentations(self, word: str) -> Iterator[list[int]]:
        if not word:
            yield []
        for end in range(1, len(word) + 1):
            if word[:end] in self.pieces:
                piece = self.pieces.index(word[:end])
            elif end == 1:
                piece = len(self.pieces)
            else:
                continue
            for rest in self.segmentations(word[end:]):
                yield [piece, *rest]

    def best_path(self, word: str) -> list[int]:
        """The highest score; among equals the longest last piece, then the longest before it..."""
        ways = list(self.segmentations(word))
        return max(ways, key=lambda way: (self.scores[way].sum(), self.lengths[way[::-1]].tolist()))


def random_problem(
    seed: int, alphabet: str = "abc", num_pieces: int = 20, longest_word: int = 8
) -> Problem:
    rng = random.Random(seed)
    pieces = {"".join(rng.choices(alphabet, k=rng.randint(1, 4))) for _ in range(num_pieces)}
    words = [
        "".join(rng.choices(alphabet + "?", k=rng.randint(0, longest_word))) for _ in range(25)
    ]
    return Problem(
        pieces=rng.sample(sorted(pieces), len(pieces)),
        scores=np.array([rng.uniform(-9, -1) for _ in pieces] + [-12.5]),
        words=words,
        weights=np.array([rng.uniform(0.1, 9) for _ in words]),
    )


def with_ties(problem: Problem, seed: int) -> Problem:
    """The problem with scores that make many paths tie exactly."""
    costs = problem.lengths + np.random.default_rng(seed).integers(0, 2, len(problem.scores))
    return dataclasses.replace(problem, scores=-costs / 2)


class MatchTest(parameterized.TestCase):
    @parameterized.product(alphabet=ALPHABETS, num_pieces=[0, 300])
    def test_arcs_are_all_matches_shorter_first(self, alphabet, num_pieces):
        problem = random_problem(0, alphabet, num_pieces)
        found = problem.lattice
        joined, index = "".join(problem.words), problem.pieces.index
        self.assertLen(found.begins, len(joined) + 1)
        for word, first in zip(problem.words, found.offsets, strict=False):
            for i in range(len(word)):
                begin, end = found.begins[first + i : first + i + 2]
                arcs = found.arcs[begin:end].tolist()
                expected = []
                for length in range(1, len(word) - i + 1):
                    if word[i : i + length] in problem.pieces:
                        expected.append((index(word[i : i + length]), length))
                    elif length == 1:
                        expected.append((len(problem.pieces), 1))
                self.assertEqual([(arc >> 5, (arc & 31) + 1) for arc in arcs], expected)

    def test_pieces_may_be_as_long_as_an_arc_can_say(self):
        longest = "x" * MAX_PIECE_LENGTH
        paths = lattice.build_trie([longest, "x"]).match(pretokens.pack([longest + "x"]))
        np.testing.assert_array_equal(paths.best_paths(np.array([-1.0, -1.0, -9.0])).pieces, [1, 0])
        with self.assertRaisesRegex(ValueError, "has 33 characters; at most 32 fit"):
            lattice.build_trie(["a", longest + "x"])


class ExpectedCountsTest(parameterized.TestCase):
    def slow(self, problem: Problem) -> tuple[np.ndarray, float]:
        counts, log_likelihood = np.zeros(len(problem.scores)), 0.0
        for word, weight in zip(problem.words, problem.weights, strict=True):
            ways = list(problem.segmentations(word))
            scores = [problem.scores[way].sum() for way in ways]
            total = np.logaddexp.reduce(scores)
            log_likelihood += weight * total
            for way, score in zip(ways, scores, strict=True):
                np.add.at(counts, way, weight * np.exp(score - total))
        return counts, log_likelihood

    def check(self, problem: Problem, nats: float):
        expected, expected_log_likelihood = self.slow(problem)
        counts, log_likelihood = problem.lattice.expected_counts(
            problem.scores, problem.lengths, problem.weights, nats
        )
        np.testing.assert_allclose(counts, expected, rtol=1e-9, atol=1e-12)
        np.testing.assert_allclose(log_likelihood, expected_log_likelihood, rtol=1e-11)

    # From 300 nats a character on, all but the shortest runs leave the range of floats.
    @parameterized.product(alphabet=ALPHABETS, nats=[-300.0, -2.0, 0.0, 3.5, 300.0, 1000.0])
    def test_are_the_sum_over_all_segmentations(self, alphabet, nats):
        for seed in range(3):
            self.check(random_problem(seed, alphabet, 8 * 4**seed), nats)

    def test_no_score_is_too_low(self):
        problem = random_problem(0)
        problem.scores[-1], problem.scores[:5] = -1e4, 100 * problem.scores[:5]
        self.check(problem, nats=3.0)

    def test_minus_infinity_excludes_a_piece(self):
        problem = random_problem(1, num_pieces=40)
        scores = problem.scores.copy()
        excluded = (problem.lengths > 1) & (np.arange(len(scores)) % 2 == 0)
        scores[excluded] = -np.inf
        self.check(dataclasses.replace(problem, scores=scores), nats=3.0)
        counts, _ = problem.lattice.expected_counts(scores, problem.lengths, problem.weights, 3.0)
        self.assertEqual(counts[excluded].sum(), 0)

    def test_long_runs_among_short_ones(self):
        problem = random_problem(2)
        problem.words[3] = "".join(random.Random(0).choices("abc", k=5000))
        results = [
            problem.lattice.expected_counts(problem.scores, problem.lengths, problem.weights, nats)
            for nats in (0.0, 2.5, 6.0)  # only the second keeps the long run in range
        ]
        for counts, log_likelihood in results:
            np.testing.assert_allclose(counts, results[0][0], rtol=1e-8)
            np.testing.assert_allclose(log_likelihood, results[0][1], rtol=1e-11)
            num_characters = problem.weights @ [len(word) for word in problem.words]
            np.testing.assert_allclose(counts @ problem.lengths, num_characters, rtol=1e-9)


class BestPathsTest(parameterized.TestCase):
    def paths(self, problem: Problem) -> list[list[int]]:
        found = problem.lattice.best_paths(problem.scores)
        return [part.tolist() for part in np.split(found.pieces, found.offsets[1:-1])]

    @parameterized.product(alphabet=ALPHABETS, num_pieces=[3, 20, 300])
    def test_are_the_best_of_all_segmentations(self, alphabet, num_pieces):
        for seed in range(3):
            problem = random_problem(seed, alphabet, num_pieces)
            self.assertEqual(self.paths(problem), [problem.best_path(w) for w in problem.words])

    def test_among_equals_the_last_piece_is_the_longest(self):
        ties = 0
        for seed in range(10):
            problem = with_ties(random_problem(seed, "ab", 12), seed)
            self.assertEqual(self.paths(problem), [problem.best_path(w) for w in problem.words])
            for word in problem.words:
                scores = [problem.scores[way].sum() for way in problem.segmentations(word)]
                ties += scores.count(max(scores)) > 1
        self.assertGreater(ties, 20)

    def test_a_run_of_excluded_characters_is_these_characters(self):
        problem = Problem(["a", "b", "c", "bc"], np.array([-1, -np.inf, -1, -1, -9]), ["bab"], [1])
        self.assertEqual(self.paths(problem), [[1, 0, 1]])


class SecondBestTest(parameterized.TestCase):
    @parameterized.product(alphabet=ALPHABETS, seed=[0, 1])
    def test_is_the_best_of_all_other_segmentations(self, alphabet, seed):
        problem = random_problem(seed, alphabet, 80)
        # One character is no piece, so that pieces hold unknown ones.
        stays = np.array([*(piece != alphabet[0] for piece in problem.pieces), True])
        problem.pieces = [piece for piece in problem.pieces if piece != alphabet[0]]
        problem.scores = problem.scores[stays]
        rng = np.random.default_rng(seed)
        # Each piece occurs inside a longer run.
        around = ["".join(rng.choice(list(alphabet), 3)) for _ in problem.pieces]
        problem.words = [a + piece + a for a, piece in zip(around, problem.pieces, strict=True)]
        arcs = problem.lattice
        counts = rng.uniform(0.1, 50, len(problem.scores))
        unknown_as = np.arange(len(problem.scores))
        unknown_as[-1] = 0
        other, num_pieces, log_counts = lattice.second_best(
            arcs.begins, arcs.arcs, problem.scores, np.append(arcs.offsets[:-1] + 3, 0),
            problem.lengths, counts, unknown_as,
        )  # fmt: skip
        for i, piece in enumerate(problem.pieces):
            if len(piece) == 1:
                self.assertEqual((other[i], num_pieces[i], log_counts[i]), (-np.inf, 0, 0))
                continue
            ways = [way for way in problem.segmentations(piece) if way != [i]]
            best = max(ways, key=lambda way: problem.scores[way].sum())
            self.assertAlmostEqual(other[i], problem.scores[best].sum())
            self.assertEqual(num_pieces[i], len(best))
            expected = np.log(counts[unknown_as[best]] + counts[i]).sum()
            self.assertAlmostEqual(log_counts[i], expected)
