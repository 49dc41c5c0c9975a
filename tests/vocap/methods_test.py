"""Every method of choosing a vocabulary, and the clusters of one of them."""

import dataclasses
import functools
import itertools
import random
import types
from unittest import mock

import numpy as np
from absl.testing import absltest, parameterized

from tests.vocap.texts import table
from vocap import bpe, methods, pretokens, seeds, unigram, union
from vocap.allocation import allocate, language_probabilities
from vocap.clusters import cluster_languages
from vocap.settings import (
    BPE,
    BYTE_BPE,
    METHODS,
    SPECIALS,
    UNIGRAM,
    TrainerSettings,
    VocabularySettings,
)

LANGUAGES = ("cy", "eu", "hi", "ka", "sw")
SETTINGS = TrainerSettings(sizes=tuple(range(40, 400, 30)), character_coverage=0.99)
BETA = 0.7
BUDGET = 700


@functools.cache
def vocabularies() -> dict[str, unigram.Vocabularies]:
    return {lang: unigram.train_vocabularies(table(lang), SETTINGS) for lang in LANGUAGES}


@functools.cache
def probabilities() -> dict[str, float]:
    return language_probabilities({lang: table(lang).num_bytes for lang in LANGUAGES}, 0.3)


@functools.cache
def train_together(languages: tuple[str, ...], sizes: tuple[int, ...]) -> unigram.Vocabularies:
    mixture = pretokens.mixture({lang: table(lang) for lang in languages}, probabilities())
    return unigram.train_vocabularies(mixture, dataclasses.replace(SETTINGS, sizes=sizes))


@functools.cache
def train_merges(size: int) -> tuple[tuple[str, ...], np.ndarray]:
    mixture = pretokens.mixture({lang: table(lang) for lang in LANGUAGES}, probabilities())
    return bpe.train(mixture, size, character_coverage=0.99, max_piece_length=16)


@functools.cache
def train_union(size: int) -> tuple[tuple[str, ...], np.ndarray]:
    settings = VocabularySettings(target_size=size + len(SPECIALS), character_coverage=0.99)
    return union.train({lang: table(lang) for lang in LANGUAGES}, probabilities(), settings)


def required(text: pretokens.PretokenTable) -> set[str]:
    """The characters that each vocabulary of a text holds."""
    alphabet = seeds.cover(text, SETTINGS.character_coverage).alphabet
    return set(map(chr, alphabet.tolist()))


def choose(
    method: str, budget: int = BUDGET, num_clusters: int = 3, train=train_together, **changed
) -> methods.Choice:
    settings = VocabularySettings(
        target_size=budget + len(SPECIALS), beta=BETA, num_clusters=num_clusters
    )
    trainer = types.SimpleNamespace(
        train=train, train_merges=train_merges, train_fairly=lambda _, size: train_union(size)
    )
    arguments = {"vocabularies": vocabularies(), "probabilities": probabilities(), **changed}
    return methods.choose(method, settings=settings, trainer=trainer, **arguments)


def capacities() -> dict[str, int]:
    curves = {lang: v.curve for lang, v in vocabularies().items()}
    return allocate(curves, probabilities(), beta=BETA, budget=BUDGET).sizes


def mixed(choice: methods.Choice, parts, weights) -> dict[str, float]:
    """sum_i q_i p_i of each piece chosen, over the vocabularies of the allocated sizes."""
    sums = dict.fromkeys(choice.pieces, 0.0)
    for name, size in choice.allocation.sizes.items():
        part = parts[name]
        s = part.curve.sizes.index(size)
        for piece, log_prob in zip(part.curve.vocabulary(s), part.log_probs[s], strict=True):
            if piece in sums:
                sums[piece] += weights[name] * np.exp(float(log_prob))
    return sums


class ChooseTest(parameterized.TestCase):
    @parameterized.product(method=METHODS, budget=(420, 701, 999))
    def test_every_method_meets_the_target_exactly(self, method, budget):
        choice = choose(method, budget)
        self.assertLen(choice.pieces, budget)
        self.assertEqual(list(choice.pieces), sorted(set(choice.pieces)))
        self.assertEqual(choice.scores.shape, (budget,))
        self.assertTrue(np.isfinite(choice.scores).all())
        self.assertLessEqual(choice.scores.max(), 0)
        self.assertEqual(choice.kind, method if method in (BPE, BYTE_BPE) else UNIGRAM)
        grouped = [language for group in choice.groups.values() for language in group]
        self.assertCountEqual(grouped, LANGUAGES)

    @parameterized.parameters(*METHODS)
    def test_the_order_of_the_languages_does_not_matter(self, method):
        backwards = LANGUAGES[::-1]
        other = choose(
            method,
            vocabularies={lang: vocabularies()[lang] for lang in backwards},
            probabilities={lang: probabilities()[lang] for lang in backwards},
        )
        choice = choose(method)
        self.assertEqual(other.pieces, choice.pieces)
        self.assertEqual(other.groups, choice.groups)
        np.testing.assert_allclose(other.scores, choice.scores, rtol=1e-12)

    @parameterized.parameters("vocap", "proportional", "uniform")
    def test_languages_get_what_the_allocation_says(self, method):
        choice = choose(method)
        curves = {lang: v.curve for lang, v in vocabularies().items()}
        expected = allocate(curves, probabilities(), beta=BETA, budget=BUDGET, method=method)
        self.assertEqual(choice.allocation.sizes, expected.sizes)
        self.assertEqual(choice.pieces, expected.pieces)

    @parameterized.parameters("vocap", "proportional", "uniform")
    def test_em_starts_from_the_mixture_of_the_chosen_vocabularies(self, method):
        left = 0
        for budget in (BUDGET, *range(650, 750, 1 if method == "vocap" else 50)):
            choice = choose(method, budget)
            sums = mixed(choice, vocabularies(), probabilities())
            rarest = min(value for value in sums.values() if value)
            # A piece that is in no chosen vocabulary starts like the rarest.
            expected = [np.log(sums[piece] or rarest) for piece in choice.pieces]
            np.testing.assert_allclose(choice.scores, expected, rtol=1e-9)
            left += not all(sums.values())
        self.assertTrue(left or method != "vocap")

    @parameterized.parameters("vocap", "proportional", "uniform")
    def test_required_characters_stay_however_scarce_their_language_is(self, method):
        scarce = {lang: 1e-9 if lang in ("hi", "ka") else 1 / 3 for lang in LANGUAGES}
        smallest = {piece for v in vocabularies().values() for piece in v.curve.vocabulary(0)}
        choice = choose(method, len(smallest) + 20, probabilities=scarce)
        for language in LANGUAGES:
            self.assertContainsSubset(required(table(language)), choice.pieces, language)


class TogetherTest(absltest.TestCase):
    def test_pieces_and_scores_are_the_trainers(self):
        joint = train_together(LANGUAGES, (BUDGET,))
        trained = {"joint": (joint.curve.vocabulary(0), joint.log_probs[0])}
        trained["bpe"] = train_merges(BUDGET)
        for method, (pieces, scores) in trained.items():
            choice = choose(method)
            self.assertEqual(
                dict(zip(choice.pieces, choice.scores, strict=True)),
                dict(zip(pieces, scores, strict=True)),
            )
            self.assertIsNone(choice.allocation)
            self.assertEqual(choice.groups, {"all": LANGUAGES})


class ClusteredTest(parameterized.TestCase):
    @parameterized.parameters(len(LANGUAGES), len(LANGUAGES) + 3)
    def test_languages_alone_grow_in_proportion_to_their_capacities(self, num_clusters):
        def train(languages, _):
            self.fail(f"{languages} trained again")

        choice = choose("clustered", num_clusters=num_clusters, train=train)
        curves = {lang: v.curve for lang, v in vocabularies().items()}
        expected = allocate(curves, capacities(), beta=BETA, budget=BUDGET, method="proportional")
        self.assertEqual(choice.pieces, expected.pieces)
        names = {group: name for name, (group,) in choice.groups.items()}
        self.assertEqual(
            {lang: choice.allocation.sizes[names[lang]] for lang in LANGUAGES}, expected.sizes
        )
        parts = {names[lang]: v for lang, v in vocabularies().items()}
        weights = {names[lang]: q for lang, q in probabilities().items()}
        sums = mixed(choice, parts, weights)
        rarest = min(value for value in sums.values() if value)
        np.testing.assert_allclose(
            choice.scores, [np.log(s or rarest) for s in sums.values()], rtol=1e-9
        )

    def test_one_cluster_is_joint(self):
        choice, joint = choose("clustered", num_clusters=1), choose("joint")
        self.assertEqual(choice.pieces, joint.pieces)
        self.assertEqual(choice.groups, {"cluster 1": LANGUAGES})
        np.testing.assert_allclose(choice.scores, joint.scores, rtol=1e-6)

    @parameterized.parameters(2, 3)
    def test_clusters_get_the_capacity_of_their_languages(self, num_clusters):
        choice = choose("clustered", num_clusters=num_clusters)
        self.assertLen(choice.groups, num_clusters)
        capacity = {
            name: sum(capacities()[language] for language in group)
            for name, group in choice.groups.items()
        }
        fill, fill_before_last_step = {}, {}
        for step in choice.allocation.steps:
            fill_before_last_step[step.language] = fill.get(step.language, 0)
            fill[step.language] = step.size / capacity[step.language]
        self.assertLessEqual(max(fill_before_last_step.values()), min(fill.values()))
        self.assertLess(max(fill.values()) / min(fill.values()), 1.2)

    def test_a_cluster_is_tried_beyond_its_share(self):
        tried = {}

        def train(languages, sizes):
            tried[languages] = sizes
            return train_together(languages, sizes)

        choice = choose("clustered", num_clusters=2, train=train)
        self.assertNotEmpty(tried)
        for group, sizes in tried.items():
            share = sum(capacities()[lang] for lang in group) / sum(capacities().values())
            self.assertBetween(max(sizes), 2 * share * BUDGET, 2 * share * BUDGET + 1)
            self.assertContainsSubset(SETTINGS.sizes, sizes)
            self.assertGreater(len(sizes), len(SETTINGS.sizes) + 20)
            self.assertIn(group, choice.groups.values())

    def test_languages_are_compared_at_one_size(self):
        cluster = methods.clusters.cluster_languages
        self.enterContext(mock.patch.object(methods, "_FINGERPRINT", 150))
        with mock.patch.object(methods.clusters, "cluster_languages", wraps=cluster) as called:
            choose("clustered")
        pieces, log_probs, _ = called.call_args.args
        for language, one in vocabularies().items():
            nearest = min(one.curve.sizes, key=lambda size: abs(size - 150))
            self.assertEqual((len(pieces[language]), len(log_probs[language])), (nearest, nearest))


def random_vocabularies(rng: random.Random, names, pool_size: int = 12):
    pieces = {lang: rng.sample(range(pool_size), rng.randint(3, 8)) for lang in names}
    pieces = {lang: [f"p{i}" for i in numbers] for lang, numbers in pieces.items()}
    log_probs = {lang: -np.array([rng.uniform(1, 15) for _ in one]) for lang, one in pieces.items()}
    return pieces, log_probs


def dense_fingerprints(pieces, log_probs) -> dict[str, np.ndarray]:
    absent = 10.0 - min(one.min() for one in log_probs.values())
    union = sorted(set().union(*pieces.values()))
    fingerprints = {}
    for lang, one in pieces.items():
        prices = dict(zip(one, -log_probs[lang], strict=True))
        fingerprints[lang] = np.array([prices.get(piece, absent) for piece in union])
    return fingerprints


def inertia(points: np.ndarray, labels) -> float:
    labels = np.asarray(labels)
    groups = [points[labels == label] for label in set(labels.tolist())]
    return sum(((group - group.mean(axis=0)) ** 2).sum() for group in groups)


class ClusterLanguagesTest(parameterized.TestCase):
    @parameterized.parameters(1, 2, 3, 4)
    def test_no_other_partition_has_a_smaller_inertia(self, k):
        rng = random.Random(k)
        for _ in range(4):
            names = [f"l{i}" for i in range(6)]
            pieces, log_probs = random_vocabularies(rng, names)
            points = np.stack(list(dense_fingerprints(pieces, log_probs).values()))
            partitions = (
                p for p in itertools.product(range(k), repeat=len(names)) if len(set(p)) == k
            )
            best = min(inertia(points, p) for p in partitions)
            clusters = cluster_languages(pieces, log_probs, k)
            self.assertAlmostEqual(inertia(points, [clusters[lang] for lang in names]), best)

    def test_one_cluster_and_one_for_each_even_of_equal_languages(self):
        one = (["a", "b"], -np.array([1.0, 2.0]))
        pieces = {"en": one[0], "sw": ["c"], "xx": one[0], "yy": one[0]}
        log_probs = {"en": one[1], "sw": -np.array([1.0]), "xx": one[1], "yy": one[1]}
        self.assertEqual(set(cluster_languages(pieces, log_probs, 1).values()), {0})
        two = cluster_languages(pieces, log_probs, 2)
        self.assertEqual(two, {"en": 0, "sw": 1, "xx": 0, "yy": 0})
        each = cluster_languages(pieces, log_probs, 4)
        self.assertEqual(each, {"en": 0, "sw": 1, "xx": 2, "yy": 3})
        self.assertLen(set(cluster_languages(pieces, log_probs, 3).values()), 3)

    def test_rounding_does_not_decide_between_equally_good_clusters(self):
        rng = random.Random(6)
        prices = -np.array([rng.uniform(1, 15) for _ in range(50)])
        expected = None
        for _ in range(10):  # all languages are equally far from each other
            order = rng.sample(range(50), 50)
            pieces = {lang: [f"{lang}{i}" for i in order] for lang in "abcdef"}
            clusters = cluster_languages(pieces, dict.fromkeys(pieces, prices[order]), 3)
            expected = expected or clusters
            self.assertEqual(clusters, expected)
