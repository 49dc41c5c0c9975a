"""Tests of seed pieces against an enumeration of the substrings of the sentences."""

import collections
import dataclasses
import random
import re
from unittest import mock

import numpy as np
from absl.testing import parameterized

from tests.vocap.pretokens_test import runs_of
from tests.vocap.texts import assert_same
from tests.vocap.texts import sentences as lines
from vocap import lattice, pretokens, seeds
from vocap.text_rules import TextRules


def random_sentences(seed: int, alphabet: str) -> list[str]:
    """Sentences of few words, so that whole runs and their endings recur."""
    rng = random.Random(seed)
    words = ["".join(rng.choices(alphabet, k=rng.randint(1, 7))) for _ in range(rng.randint(1, 9))]
    return [" ".join(rng.choices(words, k=rng.randint(1, 6))) for _ in range(rng.randint(1, 40))]


TEXTS = {
    **{language: lines(language)[:40] for language in ("en", "zh", "ko", "hi", "ka", "ar")},
    "repeated": lines("ru")[:10] * 3,
    "once": lines("de")[:1],
    "mixed scripts": ["ab\u0430\u0431.ab", "ab\u0430\u0431 12ab", "\u0430\u0431ab, ab\u03b1"] * 2,
    "marks": ["a\u0325\u0331o\u0331 \u0331a", "\u0915\u094d\u0937\u093f \u0915\u094d\u0937"] * 2,
    "kana": ["\u30ab\u30fc\u30c9\u3068\u6f22\u5b57\u30fc a\u30fc\u30ab\u30fc", "\u30ab\u30fc"] * 2,
    "four bytes": ["\U0001f600\U0001f601 \U00020000\U00020001", "\U0001f600\U0001f601."] * 2,
    "beyond the longest": ["x" * 70, "y" + "x" * 40, "xy" * 30, "xy" * 25],
    **{f"random {seed}": random_sentences(seed, "ab") for seed in range(12)},
    **{f"random {seed}": random_sentences(seed, "\u00e9\u0101\u4e00x") for seed in range(12, 24)},
}  # fmt: skip


def normalized(sentences) -> list[str]:
    return [n for n in map(TextRules().processor().normalize, sentences) if n]


def required_characters(sentences, coverage: float) -> dict[str, int]:
    counts = collections.Counter("".join(normalized(sentences)))
    required, covered = {}, 0
    for character, count in sorted(counts.items(), key=lambda item: (-item[1], item[0])):
        if np.float32(covered / counts.total()) >= np.float32(coverage):
            break
        required[character] = count
        covered += count
    return required


def _first(text: str) -> int:
    return text.encode()[0] if text else 0


def slow_seeds(sentences, coverage: float, max_length: int) -> list[tuple[str, int]]:
    """Every seed with its count x length, best first."""
    required = required_characters(sentences, coverage)
    counts, follow = collections.Counter(), collections.defaultdict(set)
    for sentence in normalized(sentences):
        found = runs_of(sentence)
        for run, behind in zip(found, [*found[1:], ""], strict=True):
            for begin in range(len(run)):
                for end in range(begin + 1, min(len(run), begin + max_length) + 1):
                    if run[end - 1] not in required:
                        break
                    next_character = run[end] if end < len(run) else behind
                    if end < len(run) and run[end] not in required:
                        next_character = pretokens.SPACE
                    counts[run[begin:end]] += 1
                    follow[run[begin:end]].add(_first(next_character))
    scores = {
        piece: count * len(piece)
        for piece, count in counts.items()
        if len(piece) >= 2 and count >= 2 and len(follow[piece]) > 1
    }
    return sorted(scores.items(), key=lambda item: (-item[1], -len(item[0].encode()), item[0]))


def found_seeds(text: seeds.TrainingText, max_length: int, max_seeds: int = 10**6):
    """The seeds that are no characters, with their scores, and the strings of all."""
    found = seeds.find_seeds(text, max_length, max_seeds)
    strings = seeds.piece_strings(text, found.begins, found.lengths)
    size = len(text.alphabet)
    return list(zip(strings[size:], found.scores[size:].tolist(), strict=True)), strings, found


class CoverTest(parameterized.TestCase):
    @parameterized.product(text=sorted(TEXTS), coverage=[1.0, 0.995, 0.95, 0.6])
    def test_the_most_frequent_characters_are_required(self, text, coverage):
        sentences = TEXTS[text]
        table = pretokens.count_pretokens(sentences)
        covered = seeds.cover(table, coverage)
        required = required_characters(sentences, coverage)
        self.assertEqual("".join(map(chr, covered.alphabet)), "".join(sorted(required)))
        frequency = [required[chr(c)] for c in covered.alphabet]
        np.testing.assert_array_equal(covered.frequency, frequency)
        num_characters = len("".join(normalized(sentences)))
        self.assertEqual(covered.num_unknown, num_characters - sum(frequency))

        expected = []
        for run, count, follow in zip(table.runs(), table.counts, table.follow, strict=True):
            cut = "".join(c if c in required else "\n" for c in run)
            for part in re.finditer(r"[^\n]+", cut):
                at_end = part.end() == len(run)
                expected.append(
                    (part.group(), count, follow if at_end else _first(pretokens.SPACE))
                )
        parts = np.split(covered.alphabet[covered.characters], covered.offsets[1:-1])
        strings = ["".join(map(chr, part)) for part in parts]
        found = list(zip(strings, covered.weights, covered.follow, strict=True))
        self.assertEqual(found, expected)

    def test_coverage_is_compared_in_single_precision(self):
        table = pretokens.count_pretokens(["ab"] * 3 + ["a"])  # spaces 4, a 4, b 3
        just_below = float(np.float32(8 / 11)) - 1e-10  # of b's eleven predecessors, 8 are covered
        self.assertLen(seeds.cover(table, just_below).alphabet, 2)
        self.assertLen(seeds.cover(table, just_below + 1e-6).alphabet, 3)

    def test_full_coverage_requires_the_rarest_character_of_large_text(self):
        table = pretokens.PretokenTable(
            pretokens.pack(["\u2581a", "\u2581b"]),
            np.array([40_000_000, 1]),
            np.zeros(2, np.int16),
            10,
        )
        covered = seeds.cover(table, 1.0)
        self.assertEqual("".join(map(chr, covered.alphabet)), "ab\u2581")
        self.assertEqual(covered.num_unknown, 0)


class FindSeedsTest(parameterized.TestCase):
    @parameterized.product(text=sorted(TEXTS), coverage=[1.0, 0.9])
    def test_are_the_substrings_that_different_bytes_follow(self, text, coverage):
        covered = seeds.cover(pretokens.count_pretokens(TEXTS[text]), coverage)
        found, strings, of_all = found_seeds(covered, 16)
        self.assertEqual(found, slow_seeds(TEXTS[text], coverage, 16))
        size = len(covered.alphabet)
        self.assertEqual("".join(strings[:size]), "".join(map(chr, covered.alphabet)))
        np.testing.assert_array_equal(of_all.scores[:size], covered.frequency)

    @parameterized.product(text=["beyond the longest", "zh", "en"], max_length=[1, 2, 5, 31, 32])
    def test_no_seed_is_longer_than_asked(self, text, max_length):
        found, _, _ = found_seeds(
            seeds.cover(pretokens.count_pretokens(TEXTS[text]), 1.0), max_length
        )
        self.assertEqual(found, slow_seeds(TEXTS[text], 1.0, max_length))

    def test_more_characters_than_positions_can_count(self):
        covered = seeds.cover(pretokens.count_pretokens(TEXTS["en"]), 1.0)
        count = len(covered.characters)
        with mock.patch.object(seeds, "_MAX_CHARACTERS", count):
            expected = seeds.find_seeds(covered, 16, 100)
        np.testing.assert_array_equal(expected.scores, seeds.find_seeds(covered, 16, 100).scores)
        message = (
            f"have {count:,} characters, must have at most {count - 1:,}; set vocab.max_characters"
        )
        with (
            mock.patch.object(seeds, "_MAX_CHARACTERS", count - 1),
            self.assertRaisesRegex(ValueError, message),
        ):
            seeds.find_seeds(covered, 16, 100)

    def test_the_byte_behind_decides(self):
        both = {"\u2581ab": 6, "ab": 4}
        for sentences, expected in (
            (["ab x"] * 3, {}),  # a space follows ab each time, the end of a sentence x
            (["ab x", "ab"], both),
            (["ab\u00e9", "ab\u00e8"], {}),  # both continue with the byte C3
            (["ab\u0430", "ab\u0431"], {}),  # in the next run, both D0
            (["ab\u0430", "ab\u0440"], both),
        ):
            found, _, _ = found_seeds(seeds.cover(pretokens.count_pretokens(sentences), 1.0), 16)
            self.assertEqual(dict(found), expected)

    @parameterized.parameters(1, 7, 100, 10**6)
    def test_the_best_are_kept(self, max_seeds):
        covered = seeds.cover(pretokens.count_pretokens(TEXTS["hi"]), 1.0)
        found, _, _ = found_seeds(covered, 16, max_seeds)
        self.assertEqual(found, slow_seeds(TEXTS["hi"], 1.0, 16)[:max_seeds])

    @parameterized.product(
        text=["en", "zh", "marks", "random 3", "random 15"], max_seeds=[20, 10**6]
    )
    def test_the_lattice_holds_their_occurrences(self, text, max_seeds):
        covered = seeds.cover(pretokens.count_pretokens(TEXTS[text]), 0.98)
        _, strings, found = found_seeds(covered, 16, max_seeds)
        text = pretokens.Text(covered.alphabet[covered.characters], covered.offsets)
        matched = lattice.build_trie(strings).match(text)
        assert_same(found.lattice, matched)

    def test_a_run_may_stand_in_the_table_twice(self):
        sentences = TEXTS["en"] + TEXTS["random 0"]
        halves = [
            pretokens.count_pretokens(sentences[::2]),
            pretokens.count_pretokens(sentences[1::2]),
        ]
        joined = pretokens.PretokenTable(
            text=pretokens.pack([run for table in halves for run in table.runs()]),
            counts=np.concatenate([table.counts for table in halves]),
            follow=np.concatenate([table.follow for table in halves]),
            num_sentences=sum(table.num_sentences for table in halves),
        )
        found, _, _ = found_seeds(seeds.cover(joined, 0.999), 16)
        whole, _, _ = found_seeds(seeds.cover(pretokens.count_pretokens(sentences), 0.999), 16)
        self.assertEqual(found, whole)

    @parameterized.parameters("en", "repeated", "random 1", "random 5")
    def test_fractions_of_a_count_count(self, text):
        table = pretokens.count_pretokens(TEXTS[text])
        scaled = dataclasses.replace(table, counts=table.counts / 4)
        found, _, _ = found_seeds(seeds.cover(scaled, 1.0), 16)
        everything = slow_seeds(TEXTS[text], 1.0, 16)
        frequent = [(piece, score / 4) for piece, score in everything if score >= 8 * len(piece)]
        self.assertEqual(found, frequent)
        self.assertLess(len(frequent), len(everything))
