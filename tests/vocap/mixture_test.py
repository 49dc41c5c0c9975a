"""Tests of mixing the tables of languages, and of choosing a table's most frequent runs."""

import dataclasses
import math
import pathlib

import numpy as np
from absl.testing import absltest, parameterized

from vocap import lattice, runs, seeds, unigram

CORPUS = pathlib.Path(__file__).resolve().parents[2] / "corpus"
LANGUAGES = ("cy", "ka", "sw", "zh")


def sentences_of(language: str) -> list[str]:
    return (CORPUS / f"{language}.txt").read_text(encoding="utf-8").splitlines()


def tables_of(*languages: str) -> dict[str, runs.RunTable]:
    return {language: runs.count_runs(sentences_of(language)) for language in languages}


def rows(table: runs.RunTable) -> list[tuple[str, float, int]]:
    """Each run with its count and what follows it."""
    return list(zip(table.runs(), table.counts.tolist(), table.follow.tolist(), strict=True))


def num_bytes(text: str) -> int:
    return len(text.replace(runs.SPACE, " ").encode())


class MixtureTest(parameterized.TestCase):
    @parameterized.parameters(
        ((0.1, 0.2, 0.3, 0.4),), ((0.25, 0.25, 0.25, 0.25),), ((1.0, 2.0, 30.0, 0.01),)
    )
    def test_each_language_has_its_share_of_the_bytes(self, shares):
        tables = tables_of(*LANGUAGES)
        mixed = runs.mixture(tables, dict(zip(LANGUAGES, shares, strict=True)))
        everything, found = iter(rows(mixed)), []
        for language in LANGUAGES:
            table = tables[language]
            counts = []
            for run, follow in zip(table.runs(), table.follow, strict=True):
                mixed_run, count, mixed_follow = next(everything)
                self.assertEqual((mixed_run, mixed_follow), (run, follow))
                counts.append(count)
            scale = counts[0] / table.counts[0]
            np.testing.assert_allclose(counts, scale * table.counts, rtol=1e-12)
            found.append(sum(n * num_bytes(r) for r, n in zip(table.runs(), counts, strict=True)))
        self.assertEmpty(list(everything))
        np.testing.assert_allclose(np.array(found) / sum(found), np.array(shares) / sum(shares))
        self.assertAlmostEqual(sum(found), sum(table.num_bytes for table in tables.values()))
        self.assertAlmostEqual(sum(found), mixed.num_bytes)
        num_sentences = sum(table.num_sentences for table in tables.values())
        self.assertEqual(mixed.num_sentences, num_sentences)

    def test_the_order_of_languages_does_not_matter(self):
        tables, shares = tables_of(*LANGUAGES), {"cy": 0.1, "ka": 0.2, "sw": 0.3, "zh": 0.4}
        backwards = {language: tables[language] for language in reversed(LANGUAGES)}
        self.assertEqual(rows(runs.mixture(tables, shares)), rows(runs.mixture(backwards, shares)))

    def test_of_some_languages_shares_are_relative(self):
        tables, shares = tables_of("cy", "sw"), {"cy": 0.1, "ka": 0.2, "sw": 0.3, "zh": 0.4}
        mixed = runs.mixture(tables, shares)
        expected = runs.mixture(tables, {"cy": 0.25, "sw": 0.75})
        np.testing.assert_allclose(mixed.counts, expected.counts, rtol=1e-12)

    def test_more_text_of_a_language_leaves_its_share(self):
        shares = {"cy": 0.5, "sw": 0.5}
        tables = tables_of("cy", "sw")
        once = runs.mixture(tables, shares)
        tables["cy"] = runs.count_runs(sentences_of("cy") * 5)
        often = runs.mixture(tables, shares)
        np.testing.assert_allclose(once.counts / once.num_bytes, often.counts / often.num_bytes)
        self.assertGreater(often.num_bytes, once.num_bytes)

    def test_in_its_own_shares_it_is_the_text_of_all(self):
        # Names and punctuation stand there for each language that has them.
        tables = tables_of("cy", "sw")
        sentences = sentences_of("cy") + sentences_of("sw")
        whole = runs.count_runs(sentences)
        mixed = runs.mixture(tables, {name: table.num_bytes for name, table in tables.items()})
        self.assertGreater(len(mixed.text), len(whole.text))
        summed = dict.fromkeys(whole.runs(), 0.0)
        for run, count, _ in rows(mixed):
            summed[run] += count
        np.testing.assert_allclose(list(summed.values()), whole.counts, rtol=1e-12)
        self.assertEqual(mixed.num_sentences, whole.num_sentences)
        self.assertAlmostEqual(mixed.num_bytes, whole.num_bytes, places=6)

        # Nor does it make a difference to training.
        rounded = dataclasses.replace(mixed, counts=np.round(mixed.counts, 9))
        found = [seeds.find_seeds(seeds.cover(t, 0.99), 16, 10**6) for t in (whole, rounded)]
        np.testing.assert_array_equal(found[0].scores, found[1].scores)
        pieces = ["\u2581", "a", "ni", "\u2581kwa", "wa"]
        counts = [
            unigram.segmented_counts(lattice.build_trie(pieces), np.arange(-6.0, -1), table)
            for table in (whole, mixed)
        ]
        np.testing.assert_allclose(counts[0], counts[1], rtol=1e-12)


class MostFrequentTest(parameterized.TestCase):
    @parameterized.product(language=["en", "zh"], max_characters=[1, 50, 777, 3000])
    def test_rarer_runs_go_first(self, language, max_characters):
        table = runs.count_runs(sentences_of(language))
        chosen = runs.most_frequent(table, max_characters)
        kept, everything = rows(chosen), rows(table)
        dropped = set(everything) - set(kept)
        self.assertEqual(kept, [row for row in everything if row not in dropped])
        share = sum(count * num_bytes(run) for run, count, _ in kept) / table.num_bytes
        self.assertEqual(chosen.num_sentences, math.ceil(share * table.num_sentences))
        # As many as fit, and none that is rarer than one that was dropped.
        free = max_characters - sum(len(run) for run, _, _ in kept)
        self.assertGreaterEqual(free, 0)
        most = max(count for _, count, _ in dropped)
        self.assertGreaterEqual(min([count for _, count, _ in kept], default=most), most)
        self.assertGreater(max(len(run) for run, count, _ in dropped if count == most), free)

    def test_all_fit_or_are_wanted(self):
        table = runs.count_runs(sentences_of("sw"))
        num_characters = len(table.text.characters)
        self.assertIs(runs.most_frequent(table, 0), table)
        self.assertIs(runs.most_frequent(table, num_characters), table)
        self.assertLen(runs.most_frequent(table, num_characters - 1).text, len(table.text) - 1)

    def test_more_room_keeps_what_less_room_kept(self):
        table = runs.count_runs(sentences_of("zh"))
        kept: set = set()
        for max_characters in range(500, 5000, 500):
            larger = set(rows(runs.most_frequent(table, max_characters)))
            self.assertTrue(kept < larger)
            kept = larger

    def test_which_of_equals_stay_is_no_matter_of_their_order(self):
        table = runs.count_runs(sentences_of("zh"))
        backwards = runs.RunTable(
            runs.pack(table.runs()[::-1]),
            table.counts[::-1],
            table.follow[::-1],
            table.num_sentences,
        )
        kept = rows(runs.most_frequent(table, 3000))
        self.assertEqual(kept, rows(runs.most_frequent(backwards, 3000))[::-1])
        # Of the runs that occur once, some of the first half stay and some of the second.
        once = [row for row in rows(table) if row[1] == 1]
        stays = np.array([row in kept for row in once])
        self.assertGreater(stays.mean(), 0.1)
        for half in np.array_split(stays, 2):
            self.assertLess(abs(half.mean() - stays.mean()), 0.1)

    def test_a_mixture_is_cut_by_its_weights(self):
        mixed = runs.mixture(tables_of("cy", "sw"), {"cy": 0.001, "sw": 0.999})
        num_welsh = len(tables_of("cy")["cy"].text)
        chosen = runs.most_frequent(mixed, 1000)
        self.assertTrue(set(chosen.runs()) <= set(mixed.runs()[num_welsh:]))


if __name__ == "__main__":
    absltest.main()
