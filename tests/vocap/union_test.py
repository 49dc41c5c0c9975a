"""The vocabulary of all languages as one problem, its tradeoff, and the choice of a method."""

import dataclasses
import functools
import pathlib
import re
import tempfile

import numpy as np
from absl.testing import absltest, parameterized

import vocap
from tests import browser
from tests.vocap import records, texts
from tests.vocap.texts import sentences, table
from vocap import (
    choosing,
    comparison,
    explorer,
    lattice,
    merge,
    nested,
    pretokens,
    report,
    seeds,
    union,
)
from vocap.allocation import language_probabilities
from vocap.building import build_vocabulary
from vocap.segmentation import gini
from vocap.settings import SPECIALS, UNIGRAM, VocabularySettings

LANGUAGES = ("cy", "eu", "hi", "sw")
BUDGET = 300
SETTINGS = VocabularySettings(target_size=BUDGET + len(SPECIALS), character_coverage=0.99)


@functools.cache
def halves() -> tuple[dict[str, pretokens.PretokenTable], dict[str, pretokens.PretokenTable]]:
    """Training text, of which hi and sw have little, and other text."""
    part = {"cy": 2, "eu": 2, "hi": 8, "sw": 8}
    texts = {lang: list(sentences(lang)) for lang in LANGUAGES}
    train = {lang: pretokens.count_pretokens(text[:: part[lang]]) for lang, text in texts.items()}
    return train, {lang: pretokens.count_pretokens(text[1::2]) for lang, text in texts.items()}


@functools.cache
def shares() -> dict[str, float]:
    return language_probabilities({lang: one.num_bytes for lang, one in halves()[0].items()}, 0.5)


def tokens(pieces, scores) -> dict[str, float]:
    """Tokens a sentence of the other text."""
    counts_of = comparison.counter(pieces, scores, UNIGRAM)
    return {lang: counts_of(one).sum() / one.num_sentences for lang, one in halves()[1].items()}


class UnionTest(parameterized.TestCase):
    def test_exactly_the_budget_with_the_characters_of_each_language(self):
        for weights in (shares(), {**shares(), "hi": 1e-9}):  # no weight drops a script
            pieces, log_probs = union.train(halves()[0], weights, SETTINGS)
            self.assertLen(set(pieces), BUDGET)
            self.assertEqual(log_probs.shape, (BUDGET,))
            for one in halves()[0].values():
                required = seeds.cover(one, SETTINGS.character_coverage).alphabet.tolist()
                self.assertContainsSubset(map(chr, required), pieces)

    def test_several_sizes_in_one_training(self):
        """The largest is that of a training alone, and smaller ones are as good."""
        found = union.train_sizes(halves()[0], shares(), SETTINGS, [BUDGET // 2, BUDGET])
        alone = union.train(halves()[0], shares(), SETTINGS)
        self.assertEqual(found[1][0], alone[0])
        np.testing.assert_array_equal(found[1][1], alone[1])
        smaller = dataclasses.replace(SETTINGS, target_size=BUDGET // 2 + len(SPECIALS))
        here = sum(tokens(*found[0]).values())
        there = sum(tokens(*union.train(halves()[0], shares(), smaller)).values())
        self.assertLen(found[0][0], BUDGET // 2)
        self.assertLess(here / there, 1.02)

    def test_costs_count_the_bytes_of_what_is_lost(self):
        """Or else a language would cost least where it has lost its characters."""
        settings = dataclasses.replace(SETTINGS, byte_fallback=True, target_size=BUDGET + 261)
        costs = [
            union.count_tokens(halves()[0], {**shares(), "hi": share}, halves()[1], settings)["hi"]
            for share in (1e-9, 0.5)
        ]
        self.assertGreater(costs[0], 2 * costs[1])

    def test_bytes_stand_in_for_rare_characters(self):
        """Of all characters only those are pieces that are frequent in the mixture."""
        with_bytes = dataclasses.replace(SETTINGS, byte_fallback=True, target_size=BUDGET + 261)
        tiny = {**shares(), "hi": 1e-9}
        pieces, _ = union.train(halves()[0], tiny, with_bytes)
        self.assertLen(pieces, BUDGET)
        self.assertEmpty([piece for piece in pieces if "\u0900" <= piece[-1] <= "\u097f"])

    def test_fewer_tokens_than_one_joint_training_of_equal_shares_and_characters(self):
        mixture = pretokens.mixture(halves()[0], shares())
        text = seeds.cover_each(mixture, halves()[0].values(), SETTINGS.character_coverage)
        strings = pretokens.Text(text.alphabet[text.characters], text.offsets)
        covered = pretokens.PretokenTable(strings, text.weights, text.follow, 1)
        joint = nested.train(
            covered, (BUDGET,), character_coverage=1.0, max_piece_length=16, max_seeds=10**6
        )
        of_joint = [joint.pieces[i] for i in joint.vocabularies[0].ids]
        there = tokens(of_joint, joint.vocabularies[0].log_probs)
        here = tokens(*union.train(halves()[0], shares(), SETTINGS))
        for language, count in here.items():
            self.assertLess(count, there[language], language)

    def test_a_piece_costs_the_tokens_that_its_absence_adds(self):
        """By segmenting each string again without the piece, whatever the trunk says."""
        text = seeds.cover(table("sw"), 1.0)
        found = seeds.match_seeds(text, ("wa", "an", "ha", "amba", "ungu", "isha", "enye", "moja"))
        trunk = nested.Trunk(text, found)
        trunk.fit()
        ranking = trunk.rank(by_tokens=True)
        ids, scores = trunk.first_ranked(ranking, 10**6)
        pieces = seeds.piece_strings(text, found.begins[ids], found.lengths[ids])
        strings = pretokens.Text(text.alphabet[text.characters], text.offsets)
        best = lattice.build_trie(pieces).match(strings).best_paths(scores)
        counts = best.counts(text.weights, len(pieces))
        added = []
        for i in range(len(text.alphabet), len(pieces)):
            rest = [one for one in range(len(pieces)) if one != i]
            trie = lattice.build_trie([pieces[one] for one in rest])
            again = trie.match(pretokens.pack([pieces[i]])).best_paths(scores[rest])
            added.append(counts[i] * (len(again.pieces) - 1))
        self.assertGreater(len(added), 3)
        self.assertEqual(added, sorted(added, reverse=True))

    def test_scores_are_those_of_em_on_its_mixture(self):
        pieces, log_probs = union.train(halves()[0], shares(), SETTINGS)
        mixture = pretokens.mixture(halves()[0], shares())
        again = merge.fit_scores(pieces, log_probs, mixture, 1)
        np.testing.assert_allclose(again, log_probs, atol=0.1)

    @parameterized.parameters(
        (40, "require .* characters .* more than the 35 pieces"),
        (90_000, "offers .* pieces that save tokens, fewer than the 89995"),
    )
    def test_impossible_sizes(self, size, message):
        settings = dataclasses.replace(SETTINGS, target_size=size)
        with self.assertRaisesRegex(ValueError, message):
            union.train(halves()[0], shares(), settings)


class FairSharesTest(parameterized.TestCase):
    def fair(self, parity: float, *, is_parallel: bool = True) -> dict[str, float]:
        args = halves()[0], shares(), halves()[1], SETTINGS
        fairest = union.fairest_shares(*args, is_parallel=is_parallel)
        return union.between(shares(), fairest, parity)

    def test_costs_come_closer_the_more_parity_is_asked_for(self):
        found = []
        for parity in (0.0, 0.5, 1.0):
            costs = tokens(*union.train(halves()[0], self.fair(parity), SETTINGS))
            found.append(gini(np.array(list(costs.values()))))
        self.assertGreater(found[0], found[1])
        self.assertGreater(found[1], found[2])
        self.assertLess(found[2], found[0] / 2)

    def test_between_are_geometric_means(self):
        ends = self.fair(0.0), self.fair(1.0)
        for language, share in self.fair(0.25).items():
            expected = ends[0][language] ** 0.75 * ends[1][language] ** 0.25
            self.assertAlmostEqual(share, expected, places=12)

    def test_without_parallel_text_content_is_the_entropy_of_characters(self):
        doubled = (
            pretokens.count_pretokens(["ab ab"]),
            pretokens.count_pretokens(["ab ab", "ab ab"]),
        )
        once, twice = map(union._character_entropy, doubled)
        self.assertAlmostEqual(twice, 2 * once)
        # Of two characters of equal share, ln 2 nats each; the space before each word is a third.
        self.assertAlmostEqual(once, 6 * np.log(3))
        self.assertNotEqual(self.fair(1.0, is_parallel=False), self.fair(1.0))


def candidate(parity: float, **ratios: float) -> choosing.Candidate:
    return choosing.Candidate({"method": "union", "parity": parity}, 20.0, ratios)


class ChoosingTest(parameterized.TestCase):
    def test_the_fewest_tokens_within_the_limit(self):
        few, fair = candidate(0, a=0.7, b=1.2), candidate(1, a=0.95, b=1.0)
        ranked = lambda limit: min((few, fair), key=lambda one: choosing._rank(one, limit))  # noqa: E731
        self.assertIs(ranked(1.3), few)
        self.assertIs(ranked(1.1), fair)
        self.assertIs(ranked(0.9), fair)  # neither is, and b pays least

    def test_builds_what_its_keys_build(self):
        train = {lang: texts.sentences(lang)[::2] for lang in ("en", "sw", "ka")}
        heldout = {lang: texts.sentences(lang)[1::2] for lang in train}
        chosen = vocap.build(train, 800, heldout=heldout, method="auto", max_ratio=9.0)
        found = chosen.candidates[0]
        again = vocap.build(train, 800, heldout=heldout, **found.settings)
        self.assertEqual(chosen.model, again.model)
        self.assertEqual(found.mean_ratio, min(one.mean_ratio for one in chosen.candidates))

    def test_held_out_text_is_needed(self):
        with self.assertRaisesRegex(ValueError, "no held-out text of sw to choose by"):
            vocap.build(
                {"en": texts.sentences("en"), "sw": texts.sentences("sw")}, 900,
                heldout={"en": ["a"]}, method="auto",
            )  # fmt: skip

    @parameterized.parameters((1.3, "fewest tokens of those within 1.3"), (1.1, "comes closest"))
    def test_the_report_says_what_and_why(self, limit, words):
        record = records.record()
        record["settings"]["max_ratio"] = limit
        record["candidates"] = [
            {"settings": one.settings, "tokens": one.tokens, "ratios": one.ratios}
            for one in (candidate(0.5, a=0.7, b=1.2), candidate(1, a=0.9, b=1.2))
        ]
        text = report.choice(record)
        self.assertStartsWith(text, "**Chosen: union with parity 0.5.**")
        self.assertIn(words, text)
        self.assertIn("`--config.vocab.parity=1`", text)


TEXTS = {name: list(sentences(name))[:40] for name in ("en", "hi", "sw")}
HELDOUT = {name: list(sentences(name))[40:80] for name in TEXTS}


class TradeoffTest(absltest.TestCase):
    def setUp(self):
        super().setUp()
        self.cache = pathlib.Path(self.enter_context(tempfile.TemporaryDirectory()))

    def build(self, parallel=None, size=450):
        settings = VocabularySettings(
            target_size=size, method="union", compare=(), sizes=(), num_workers=1,
            byte_fallback=True,
        )  # fmt: skip
        built = build_vocabulary(TEXTS, HELDOUT, settings, self.cache, parallel=parallel or {})
        return built.tradeoff, settings

    def test_the_build_is_a_point_of_it(self):
        settings = VocabularySettings(
            target_size=450, method="union", parity=0.5, sizes=(), num_workers=1
        )
        built = build_vocabulary(TEXTS, HELDOUT, settings, self.cache)
        found = built.tradeoff
        own = [built.scores["union"][name].tokens_per_sentence for name in found.languages]
        p, t = list(found.parities).index(0.5), list(found.sizes).index(450)
        self.assertSequenceAlmostEqual(found.tokens[p][t], own)

    def test_without_other_text_there_is_none(self):
        self.assertIsNone(vocap.build(TEXTS, 450, method="union").tradeoff)

    def test_one_cache_keeps_grids_of_several_sizes_and_of_parallel_text_apart(self):
        first, _ = self.build()
        self.assertIn(450, first.sizes)
        self.assertIn(500, self.build(size=500)[0].sizes)
        parallel, _ = self.build({name: text[:20] for name, text in HELDOUT.items()})
        self.assertEqual(parallel.contents, [1.0, 1.0, 1.0])
        self.assertNotEqual(parallel.tokens, first.tokens)
        self.assertGreater(first.contents[0], 30)

    def test_parity_evens_out_the_costs_that_the_page_shows(self):
        tradeoff, settings = self.build()

        ginis, size = [], tradeoff.sizes.index(450)
        for parity in (0, 1):
            page = explorer.tradeoff_page(tradeoff, settings, "")
            document = browser.document(self, page, f"#T=450&parity={parity}")
            shown = re.search(r"Gini of the costs</dt><dd>([\d.]+)", document)[1]
            tokens = tradeoff.tokens[tradeoff.parities.index(parity)][size]
            ginis.append(gini(np.divide(tokens, tradeoff.contents)))
            self.assertAlmostEqual(float(shown), ginis[-1], delta=6e-4)
        self.assertLess(ginis[1], ginis[0])
