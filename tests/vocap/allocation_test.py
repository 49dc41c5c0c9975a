"""Tests of language probabilities and of the allocation by all methods."""

import dataclasses
import itertools
import random
from collections.abc import Mapping, Sequence

import numpy as np
from absl.testing import parameterized

from vocap.allocation import Change, allocate, language_probabilities
from vocap.curves import Curve, concave_envelope

METHODS = ("vocap", "proportional", "uniform")
REQUIRED = 2  # characters that each vocabulary of a made-up language holds


def make_curve(sizes, alp, vocabularies: Sequence[Sequence[str]]) -> Curve:
    pieces = tuple(sorted(set().union(*vocabularies)))
    members = tuple(np.array([pieces.index(p) for p in v], np.int32) for v in vocabularies)
    return Curve(tuple(sizes), tuple(alp), pieces, members)


def disjoint_curve(language: str, sizes, alp) -> Curve:
    """Nested vocabularies that share nothing with other languages."""
    return make_curve(sizes, alp, [[f"{language}{i}" for i in range(size)] for size in sizes])


def random_curves(
    rng: random.Random, *, concave: bool, nested: bool, ties: bool = False
) -> tuple[dict[str, Curve], dict[str, float]]:
    """Curves over one small pool of pieces, so that they overlap; each keeps its characters."""
    curves, amounts = {}, {}
    for language in rng.sample(["ar", "de", "en", "hi", "sw", "zh"], rng.randint(1, 5)):
        num_sizes = rng.randint(1, 6)
        sizes = sorted(rng.sample(range(4, 40), num_sizes))
        if ties:
            sizes = [5 * (i + 1) for i in range(num_sizes)]
        rises = [rng.randint(1, 1000) for _ in sizes]
        if concave:
            slopes = sorted(rng.sample(range(1, 9 if ties else 1000), num_sizes), reverse=True)
            rises = [s * (b - a) for s, a, b in zip(slopes, [0, *sizes], sizes, strict=False)]
        required = [f"{language[0]}{i}" for i in range(REQUIRED)]
        pool = [f"p{i}" for i in range(60)]
        rng.shuffle(pool)
        vocabularies = []
        for size in sizes:
            if not nested:
                rng.shuffle(pool)
            vocabularies.append((*required, *pool[: size - len(required)]))
        alp = tuple(float(x - 10**5) for x in itertools.accumulate(rises))
        curves[language] = make_curve(sizes, alp, vocabularies)
        amounts[language] = rng.choice([1.0, 2.0]) if ties else rng.uniform(1, 100)
    return curves, language_probabilities(amounts, 0.7)


def num_distinct(curves: Mapping[str, Curve], s: int) -> int:
    return len(set().union(*(curve.vocabulary(s) for curve in curves.values())))


def random_budget(rng: random.Random, curves: Mapping[str, Curve]) -> int:
    smallest, largest = num_distinct(curves, 0), num_distinct(curves, -1)
    return rng.randint(smallest, max(smallest, largest))


class SlowAllocation:
    """Algorithm 1 and its rivals word for word, with the union built anew at every step."""

    def __init__(self, curves, probabilities, beta, budget, method):
        self.curves, self.probabilities, self.beta = curves, probabilities, beta
        self.path = {lang: list(range(len(curve.sizes))) for lang, curve in curves.items()}
        if method == "vocap":
            self.path = {
                lang: concave_envelope(curve.sizes, curve.alp) for lang, curve in curves.items()
            }
        self.at = dict.fromkeys(sorted(curves), 0)
        self.held = {lang: set(self.vocabulary(lang, 0)) for lang in self.at}
        self.partial = None
        eagerness = {
            "vocap": self.gain,
            "proportional": lambda lang: -self.size(lang) / probabilities[lang],
            "uniform": lambda lang: -self.size(lang),
        }[method]
        while len(before := self.union()) < budget:
            language = max((lang for lang in self.at if self.can_grow(lang)), key=eagerness)
            self.at[language] += 1
            new, old = self.vocabulary(language, self.at[language]), self.held[language]
            self.held[language] = set(new)
            if len(self.union()) > budget:
                added = [piece for piece in new if piece not in before]
                self.held[language] = old | set(added[: budget - len(before)])
                self.partial = language

    def can_grow(self, language: str) -> bool:
        return self.at[language] + 1 < len(self.path[language])

    def size(self, language: str) -> int:
        return self.curves[language].sizes[self.path[language][self.at[language]]]

    def vocabulary(self, language: str, vertex: int) -> tuple[str, ...]:
        return self.curves[language].vocabulary(self.path[language][vertex])

    def union(self) -> set[str]:
        return set().union(*self.held.values())

    def gain(self, language: str, back: int = 0) -> float:
        """Weighted gain a piece of the next step, or of the last one taken with back = 1."""
        curve, vertex = self.curves[language], self.at[language] - back
        a, b = self.path[language][vertex], self.path[language][vertex + 1]
        slope = (curve.alp[b] - curve.alp[a]) / (curve.sizes[b] - curve.sizes[a])
        return self.probabilities[language] ** self.beta * slope

    def change(self, language: str, move: int) -> Change | None:
        """Change by one step more (+1) or less (-1), from the sets themselves."""
        vertex = self.at[language] + move
        if not 0 <= vertex < len(self.path[language]):
            return None
        curve, s = self.curves[language], self.path[language][vertex]
        moved = {**self.held, language: set(curve.vocabulary(s))}
        return Change(
            size=curve.sizes[s],
            alp=curve.alp[s] - curve.alp[self.path[language][self.at[language]]],
            gain=self.gain(language, back=move < 0),
            pieces=len(set().union(*moved.values())) - len(self.union()),
        )


class LanguageProbabilitiesTest(parameterized.TestCase):
    @parameterized.parameters(0.0, 0.7, 1.0, 1.5)
    def test_is_equation_3_in_any_unit_and_any_order(self, alpha):
        amounts = {"en": 60.0, "sw": 1.0, "ar": 30.0}
        total = sum(amount**alpha for amount in amounts.values())
        for factor in (1, 1e9):
            scaled = {lang: factor * amounts[lang] for lang in sorted(amounts)}
            probabilities = language_probabilities(scaled, alpha)
            self.assertEqual(list(probabilities), list(scaled))
            for language, amount in amounts.items():
                self.assertAlmostEqual(probabilities[language], amount**alpha / total)

    def test_order_does_not_change_a_bit(self):
        rng = random.Random(0)
        amounts = {f"l{i}": rng.uniform(0.1, 300) for i in range(50)}
        expected = language_probabilities(amounts, 0.7)
        shuffled = {lang: amounts[lang] for lang in rng.sample(list(amounts), len(amounts))}
        self.assertEqual(language_probabilities(shuffled, 0.7), expected)

    @parameterized.parameters(0.7, 1.0)
    def test_languages_that_are_not_wanted_leave_no_trace(self, alpha):
        table = {"en": 0.4, "xx": 0.3, "sw": 0.1, "yy": 0.2}
        few = language_probabilities({"sw": 0.1, "en": 0.4}, alpha)
        self.assertEqual(language_probabilities(table, alpha, ["sw", "en"]), few)

    @parameterized.parameters(
        (({"en": 1, "sw": 2}, 0.7, ["zh", "en", "hi"]), "for hi, zh; .* table of 2 languages"),
        (({"en": 1, "sw": 0}, 0.7), "'sw' has amount 0; must be pos"),
        (({"en": 1, "sw": -3}, 0.7), "'sw' has amount -3; must be pos"),
        (({"en": 1, "sw": float("inf")}, 0.7), "'sw' has amount inf; must be pos"),
        (({"en": 1, "sw": float("nan")}, 0.7), "'sw' has amount nan; must be pos"),
        (({}, 0.7), "no languages"),
        (({"en": 1}, -0.1), "alpha is -0.1; must be zero or more"),
    )
    def test_what_cannot_be(self, arguments, message):
        with self.assertRaisesRegex(ValueError, message):
            language_probabilities(*arguments)
        # Amounts of languages that are not wanted do not matter.
        self.assertEqual(language_probabilities({"en": 1, "sw": 0}, 0.7, ["en"]), {"en": 1.0})


class RandomCurvesTest(parameterized.TestCase):
    @parameterized.product(nested=[True, False], ties=[True, False], method=METHODS)
    def test_is_algorithm_1_on_random_curves(self, nested, ties, method):
        rng = random.Random(f"{nested} {ties} {method}")
        for i in range(100):
            beta = rng.choice([0.0, 0.7, 1.0])
            curves, q = random_curves(rng, concave=i % 2 == 0, nested=nested, ties=ties)
            budget = random_budget(rng, curves)
            slow = SlowAllocation(curves, q, beta, budget, method)
            result = allocate(curves, q, beta=beta, budget=budget, method=method)
            self.assertEqual(result.sizes, {lang: slow.size(lang) for lang in slow.at})
            self.assertEqual(result.pieces, tuple(sorted(slow.union())))
            self.assertLen(result.pieces, budget)
            self.assertEqual(result.at_largest, tuple(x for x in slow.at if not slow.can_grow(x)))
            self.assertEqual(result.partial, slow.partial)
            for lang, margin in result.margins.items():
                self.assertEqual(margin.less, slow.change(lang, -1))
                self.assertEqual(margin.more, slow.change(lang, 1))

    @parameterized.parameters(*METHODS)
    def test_neither_the_order_of_languages_nor_the_scale_of_alp_and_q_matters(self, method):
        rng = random.Random(1)
        for _ in range(30):
            curves, q = random_curves(rng, concave=False, nested=False, ties=True)
            arguments = {"beta": 1.0, "budget": random_budget(rng, curves), "method": method}
            expected = allocate(curves, q, **arguments)
            shuffled = {lang: curves[lang] for lang in rng.sample(list(curves), len(curves))}
            self.assertEqual(allocate(shuffled, q, **arguments), expected)
            scaled = {
                lang: dataclasses.replace(curve, alp=tuple(4 * x for x in curve.alp))
                for lang, curve in curves.items()
            }
            result = allocate(scaled, {lang: 1024 * q[lang] for lang in q}, **arguments)
            self.assertEqual((result.sizes, result.pieces), (expected.sizes, expected.pieces))

    def test_no_other_choice_of_sizes_reaches_a_better_objective(self):
        rng = random.Random(2)
        for _ in range(30):
            step, num_sizes = rng.randint(1, 5), 5
            curves, amounts = {}, {}
            for language in ("a", "b", "c", "d"):
                rises = sorted(rng.sample(range(1, 20), num_sizes), reverse=True)
                sizes = range(step, step * num_sizes + 1, step)
                curves[language] = disjoint_curve(language, sizes, itertools.accumulate(rises))
                amounts[language] = rng.choice([1.0, 1.0, rng.uniform(1, 9)])  # ties as well
            q = language_probabilities(amounts, 1.0)
            budget = step * rng.randint(len(curves), len(curves) * num_sizes)

            def objective(indices, curves=curves, q=q) -> float:
                pairs = zip(curves.items(), indices, strict=True)
                return sum(q[lang] ** 0.7 * curve.alp[i] for (lang, curve), i in pairs)

            feasible = [
                indices
                for indices in itertools.product(range(num_sizes), repeat=len(curves))
                if sum(step * (i + 1) for i in indices) == budget
            ]
            result = allocate(curves, q, beta=0.7, budget=budget)
            chosen = [result.sizes[lang] // step - 1 for lang in curves]
            self.assertIn(tuple(chosen), feasible)
            self.assertAlmostEqual(objective(chosen), max(map(objective, feasible)))
            self.assertIsNone(result.partial)


class AllocateTest(parameterized.TestCase):
    def test_reports_skipped_sizes_and_languages_at_their_largest(self):
        curves = {
            "dented": disjoint_curve("d", (2, 4, 6, 8), (-90.0, -89.0, -5.0, -4.0)),
            "flat": disjoint_curve("f", (2, 4), (-9.0, -8.9)),
        }
        q = {"dented": 0.5, "flat": 0.5}
        result = allocate(curves, q, beta=0.7, budget=10)
        self.assertEqual(result.sizes, {"dented": 8, "flat": 2})
        self.assertEqual(result.not_concave, {"dented": (4,)})
        self.assertEqual(result.at_largest, ("dented",))
        self.assertEqual([step.size for step in result.steps], [2, 2, 6, 8])
        visited = allocate(curves, q, beta=0.7, budget=12, method="uniform")
        self.assertEqual([step.size for step in visited.steps], [2, 2, 4, 4, 6, 8])
        self.assertEqual(visited.not_concave, {})

    def test_budgets_out_of_reach_name_the_numbers_and_the_remedies(self):
        curves = {lang: disjoint_curve(lang, (2, 4), (-9.0, -5.0)) for lang in ("a", "b")}

        def pieces(budget):
            q = {"a": 0.5, "b": 0.5}
            return allocate(curves, q, beta=0.7, budget=budget).pieces

        with self.assertRaisesRegex(ValueError, "target of 3 .*already hold 4 .*smaller vocab.siz"):
            pieces(3)
        with self.assertRaisesRegex(ValueError, "target of 9 .*together hold 8 .*larger vocab.siz"):
            pieces(9)
        self.assertLen(pieces(4), 4)
        self.assertLen(pieces(8), 8)
