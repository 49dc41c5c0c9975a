"""Tests of language probabilities, concave envelopes and the greedy allocation."""

import itertools
import random
from collections.abc import Mapping

from absl.testing import absltest, parameterized

from vocap.allocation import Curve, allocate, concave_envelope, language_probabilities


def slow_envelope(sizes, alp) -> list[int]:
    """A point is a vertex unless it lies on or under the chord of two others."""
    indices = range(len(sizes))

    def on_or_under(a: int, i: int, b: int) -> bool:
        return (alp[i] - alp[a]) * (sizes[b] - sizes[a]) <= (alp[b] - alp[a]) * (
            sizes[i] - sizes[a]
        )

    return [
        i
        for i in indices
        if not any(on_or_under(a, i, b) for a in indices[:i] for b in indices[i + 1 :])
    ]


def slow_allocate(
    curves: Mapping[str, Curve], probabilities: Mapping[str, float], beta: float, budget: int
) -> tuple[dict[str, int], set[str]]:
    """Algorithm 1 word for word, with the union built anew at every step; sizes and pieces."""
    at = dict.fromkeys(sorted(curves), 0)
    envelopes = {lang: slow_envelope(curve.sizes, curve.alp) for lang, curve in curves.items()}

    def index(language: str, vertex: int) -> int:
        return envelopes[language][vertex]

    def union() -> set[str]:
        return set().union(*(curves[lang].pieces[index(lang, v)] for lang, v in at.items()))

    def gain(language: str) -> float:
        curve = curves[language]
        a, b = index(language, at[language]), index(language, at[language] + 1)
        slope = (curve.alp[b] - curve.alp[a]) / (curve.sizes[b] - curve.sizes[a])
        return probabilities[language] ** beta * slope

    pieces = union()
    while len(pieces) < budget:
        before = pieces
        language = max((lang for lang in at if at[lang] + 1 < len(envelopes[lang])), key=gain)
        at[language] += 1
        pieces = union()
        if len(pieces) > budget:
            new = curves[language].pieces[index(language, at[language])]
            added = [piece for piece in new if piece not in before]
            pieces = before | set(added[: budget - len(before)])
    return {lang: curves[lang].sizes[index(lang, v)] for lang, v in at.items()}, pieces


def random_curves(
    rng: random.Random, *, concave: bool, nested: bool
) -> tuple[dict[str, Curve], dict[str, float]]:
    """Curves over one small pool of pieces, so that they overlap; each keeps its characters."""
    curves, amounts = {}, {}
    for language in rng.sample(["ar", "de", "en", "hi", "sw", "zh"], rng.randint(1, 5)):
        num_sizes = rng.randint(1, 6)
        sizes = sorted(rng.sample(range(4, 40), num_sizes))
        rises = [rng.randint(1, 1000) for _ in sizes]
        if concave:
            slopes = sorted(rng.sample(range(1, 1000), num_sizes), reverse=True)
            rises = [s * (b - a) for s, a, b in zip(slopes, [0, *sizes], sizes, strict=False)]
        required = [f"{language[0]}{i}" for i in range(2)]
        pool = [f"p{i}" for i in range(60)]
        rng.shuffle(pool)
        pieces = []
        for size in sizes:
            if not nested:
                rng.shuffle(pool)
            pieces.append((*required, *pool[: size - len(required)]))
        alp = tuple(float(x - 10**5) for x in itertools.accumulate(rises))
        curves[language] = Curve(tuple(sizes), alp, tuple(pieces))
        amounts[language] = rng.uniform(1, 100)
    return curves, language_probabilities(amounts, 0.7)


def num_distinct(curves: Mapping[str, Curve], which: int) -> int:
    return len(set().union(*(curve.pieces[which] for curve in curves.values())))


def disjoint_curve(language: str, sizes, alp) -> Curve:
    pieces = tuple(tuple(f"{language}{i}" for i in range(size)) for size in sizes)
    return Curve(tuple(sizes), tuple(alp), pieces)


class LanguageProbabilitiesTest(parameterized.TestCase):
    def test_alpha_1_keeps_the_shares_and_alpha_0_makes_all_equal(self):
        amounts = {"en": 60.0, "sw": 10.0, "ar": 30.0}
        shares = language_probabilities(amounts, 1.0)
        for language, amount in amounts.items():
            self.assertAlmostEqual(shares[language], amount / 100)
        for share in language_probabilities(amounts, 0.0).values():
            self.assertAlmostEqual(share, 1 / 3)

    @parameterized.parameters(0.3, 0.7, 1.5)
    def test_is_equation_3_in_any_unit_and_any_order(self, alpha):
        amounts = {"en": 60.0, "sw": 1.0, "ar": 30.0}
        total = sum(amount**alpha for amount in amounts.values())
        for factor in (1, 1e9):
            scaled = {lang: factor * amounts[lang] for lang in sorted(amounts)}
            probabilities = language_probabilities(scaled, alpha)
            self.assertEqual(list(probabilities), list(scaled))
            for language, amount in amounts.items():
                self.assertAlmostEqual(probabilities[language], amount**alpha / total)

    @parameterized.parameters(0, -3, float("inf"), float("nan"))
    def test_an_amount_that_is_not_positive_names_its_language(self, amount):
        with self.assertRaisesRegex(ValueError, f"'sw' has corpus size {amount}; must be pos"):
            language_probabilities({"en": 1, "sw": amount}, 0.7)

    def test_no_languages_is_an_error(self):
        with self.assertRaisesRegex(ValueError, "no languages"):
            language_probabilities({}, 0.7)


class ConcaveEnvelopeTest(absltest.TestCase):
    def test_is_the_brute_force_hull(self):
        rng = random.Random(0)
        for _ in range(500):
            sizes = sorted(rng.sample(range(1, 50), rng.randint(1, 8)))
            alp = [rng.randint(-20, 0) for _ in sizes]  # few values: many points on one line
            self.assertEqual(concave_envelope(sizes, alp), slow_envelope(sizes, alp))


class AllocateTest(parameterized.TestCase):
    @parameterized.product(concave=[True, False], nested=[True, False], beta=[0.0, 0.7])
    def test_is_algorithm_1_on_random_curves(self, concave, nested, beta):
        rng = random.Random(f"{concave} {nested} {beta}")
        for _ in range(100):
            curves, probabilities = random_curves(rng, concave=concave, nested=nested)
            smallest, largest = num_distinct(curves, 0), num_distinct(curves, -1)
            budget = rng.randint(smallest, max(smallest, largest))
            sizes, pieces = slow_allocate(curves, probabilities, beta, budget)
            result = allocate(curves, probabilities, beta=beta, budget=budget)
            self.assertEqual(result.sizes, sizes)
            self.assertEqual(result.pieces, tuple(sorted(pieces)))
            self.assertLen(result.pieces, budget)
            self.assertEqual(result.steps[-1].union, budget)
            for curve in curves.values():
                always = curve.pieces[0] if nested else curve.pieces[0][:2]
                self.assertContainsSubset(always, result.pieces)

    def test_neither_the_order_of_languages_nor_the_scale_of_alp_matters(self):
        rng = random.Random(1)
        for _ in range(50):
            curves, probabilities = random_curves(rng, concave=False, nested=False)
            smallest, largest = num_distinct(curves, 0), num_distinct(curves, -1)
            budget = rng.randint(smallest, max(smallest, largest))
            expected = allocate(curves, probabilities, beta=0.7, budget=budget)
            order = rng.sample(list(curves), len(curves))
            shuffled = {lang: curves[lang] for lang in order}
            self.assertEqual(allocate(shuffled, probabilities, beta=0.7, budget=budget), expected)
            scaled = {
                lang: Curve(curve.sizes, tuple(4 * x for x in curve.alp), curve.pieces)
                for lang, curve in curves.items()
            }
            result = allocate(scaled, probabilities, beta=0.7, budget=budget)
            self.assertEqual((result.sizes, result.pieces), (expected.sizes, expected.pieces))

    def test_no_other_choice_of_sizes_reaches_a_better_objective(self):
        rng = random.Random(2)
        for _ in range(30):
            step, num_sizes = rng.randint(1, 5), 5
            curves, amounts = {}, {}
            for language in ("a", "b", "c", "d"):
                rises = sorted(rng.sample(range(1, 1000), num_sizes), reverse=True)
                sizes = range(step, step * num_sizes + 1, step)
                curves[language] = disjoint_curve(language, sizes, itertools.accumulate(rises))
                amounts[language] = rng.uniform(1, 9)
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
            self.assertAlmostEqual(objective(chosen), max(map(objective, feasible)))

    def test_a_step_that_overshoots_only_before_it_drops_its_old_pieces_is_taken_whole(self):
        curve = Curve((2, 3, 5), (-9.0, -5.0, -4.0), (tuple("xy"), tuple("zuv"), tuple("xyzuv")))
        result = allocate({"en": curve}, {"en": 1.0}, beta=0.7, budget=3)
        self.assertEqual((result.sizes, result.pieces), ({"en": 3}, ("u", "v", "z")))

    def test_a_last_step_that_overshoots_gives_its_most_probable_new_pieces(self):
        curve = Curve((2, 5), (-9.0, -5.0), (("a", "b"), ("z", "a", "x", "b", "y")))
        result = allocate({"en": curve}, {"en": 1.0}, beta=0.7, budget=4)
        self.assertEqual(result.pieces, ("a", "b", "x", "z"))

    def test_ties_go_to_the_first_language_in_code_point_order(self):
        curves = {lang: disjoint_curve(lang, (2, 4), (-9.0, -5.0)) for lang in ("b", "a")}
        result = allocate(curves, {"a": 0.5, "b": 0.5}, beta=0.7, budget=6)
        self.assertEqual(result.sizes, {"a": 4, "b": 2})

    def test_beta_0_ignores_the_probabilities_and_beta_1_heeds_them(self):
        curves = {
            "a": disjoint_curve("a", (2, 4), (-9.0, -5.0)),
            "b": disjoint_curve("b", (2, 4), (-9.0, -4.0)),
        }
        rich_a = {"a": 0.9, "b": 0.1}
        self.assertEqual(
            allocate(curves, rich_a, beta=0.0, budget=6).sizes,
            allocate(curves, {"a": 0.5, "b": 0.5}, beta=1.0, budget=6).sizes,
        )
        self.assertEqual(allocate(curves, rich_a, beta=1.0, budget=6).sizes, {"a": 4, "b": 2})

    def test_reports_skipped_sizes_and_languages_at_their_largest(self):
        curves = {
            "dented": disjoint_curve("d", (2, 4, 6, 8), (-90.0, -89.0, -5.0, -4.0)),
            "flat": disjoint_curve("f", (2, 4), (-9.0, -8.9)),
        }
        result = allocate(curves, {"dented": 0.5, "flat": 0.5}, beta=0.7, budget=10)
        self.assertEqual(result.sizes, {"dented": 8, "flat": 2})
        self.assertEqual(result.not_concave, {"dented": (4,)})
        self.assertEqual(result.at_largest, ("dented",))
        self.assertEqual([step.size for step in result.steps], [2, 2, 6, 8])

    def test_budgets_out_of_reach_name_the_numbers_and_the_remedies(self):
        curves = {lang: disjoint_curve(lang, (2, 4), (-9.0, -5.0)) for lang in ("a", "b")}
        q = {"a": 0.5, "b": 0.5}
        with self.assertRaisesRegex(ValueError, "target of 3 .*already hold 4 .*smaller vocab.siz"):
            allocate(curves, q, beta=0.7, budget=3)
        with self.assertRaisesRegex(ValueError, "target of 9 .*together hold 8 .*larger vocab.siz"):
            allocate(curves, q, beta=0.7, budget=9)
        self.assertLen(allocate(curves, q, beta=0.7, budget=4).pieces, 4)
        self.assertLen(allocate(curves, q, beta=0.7, budget=8).pieces, 8)


if __name__ == "__main__":
    absltest.main()
