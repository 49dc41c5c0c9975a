"""Concave envelopes, allocations that begin at given sizes, and courses of all budgets at once."""

import dataclasses
import math
import random

from absl.testing import absltest, parameterized

from tests.vocap.allocation_test import (
    METHODS,
    disjoint_curve,
    make_curve,
    num_distinct,
    random_budget,
    random_curves,
)
from vocap.allocation import allocate, trace_courses
from vocap.curves import Curve, concave_envelope


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


class ConcaveEnvelopeTest(absltest.TestCase):
    def test_is_the_brute_force_hull(self):
        rng = random.Random(0)
        for _ in range(500):
            sizes = sorted(rng.sample(range(1, 50), rng.randint(1, 8)))
            alp = [rng.randint(-20, 0) for _ in sizes]  # few values: many points on one line
            self.assertEqual(concave_envelope(sizes, alp), slow_envelope(sizes, alp))


def sizes_before_a_partial_step(result) -> dict[str, int]:
    """Export of the explorer: sizes from which the last step leads to the outcome."""
    before = dict(result.sizes)
    if result.partial is not None:
        before[result.partial] = result.margins[result.partial].less.size
    return before


class InitialSizesTest(parameterized.TestCase):
    @parameterized.parameters(True, False)
    def test_from_sizes_before_its_last_step_it_ends_as_it_did(self, nested):
        rng = random.Random(f"{nested}")
        partial = 0
        for i in range(100):
            curves, q = random_curves(rng, concave=i % 2 == 0, nested=nested, ties=i % 3 == 0)
            arguments = {"beta": rng.choice([0.0, 0.7]), "budget": random_budget(rng, curves)}
            whole = allocate(curves, q, **arguments)
            sizes = sizes_before_a_partial_step(whole)
            again = allocate(curves, q, **arguments, initial_sizes=sizes)
            self.assertEqual(dataclasses.replace(again, steps=whole.steps), whole)
            taken = [step for step in again.steps if math.isfinite(step.gain)]
            self.assertEqual(taken, [whole.steps[-1]] if whole.partial else [])
            partial += whole.partial is not None
        self.assertBetween(partial, 20, 95)

    @parameterized.parameters(*METHODS)
    def test_goes_on_as_if_smaller_sizes_were_not_there(self, method):
        rng = random.Random(method)
        for _ in range(100):
            curves, q = random_curves(rng, concave=False, nested=False)
            named = rng.sample(sorted(curves), rng.randint(1, len(curves)))
            initial = {lang: rng.choice(curves[lang].sizes) for lang in named}
            rest = dict(curves)
            for lang, size in initial.items():
                c, first = curves[lang], curves[lang].sizes.index(size)
                rest[lang] = Curve(c.sizes[first:], c.alp[first:], c.pieces, c.members[first:])
            budget = random_budget(rng, rest)
            arguments = {"beta": 0.7, "budget": budget, "method": method}
            expected = allocate(rest, q, **arguments)
            result = allocate(curves, q, **arguments, initial_sizes=initial)
            for name in ("sizes", "pieces", "partial", "at_largest"):
                self.assertEqual(getattr(result, name), getattr(expected, name))
            for lang, margin in result.margins.items():
                self.assertEqual(margin.more, expected.margins[lang].more)

    def test_sizes_that_cannot_be_begun_at(self):
        curves = {lang: disjoint_curve(lang, (2, 4, 8), (-9.0, -5.0, -4.0)) for lang in ("a", "b")}

        def begin(**initial_sizes):
            q = {"a": 0.5, "b": 0.5}
            return allocate(curves, q, beta=0.7, budget=6, initial_sizes=initial_sizes)

        for sizes, message in (
            ({"b": 7}, "'b' has the initial size 7, .*3 sizes from 2 to 8, the nearest are 4, 8;"),
            ({"a": 8}, "target of 6 .*first voc.*, 1 of them of initial sizes, of 2 .*hold 10 "),
        ):
            with self.assertRaisesRegex(ValueError, message):
                begin(**sizes)
        self.assertLen(begin(a=4).pieces, 6)


class CoursesTest(parameterized.TestCase):
    @parameterized.parameters(True, False)
    def test_cut_at_any_budget_is_its_allocation(self, nested):
        rng = random.Random(f"{nested}")
        for _ in range(15):
            curves, q = random_curves(rng, concave=False, nested=nested)
            courses = trace_courses(curves, q, (0.0, 0.3, 1.0))
            for course in courses:
                self.assertEqual(course.first_pieces, num_distinct(curves, 0))
                most = max(course.first_pieces, *course.unions, 0)
                for budget in range(course.first_pieces, most + 1):
                    result = allocate(curves, q, beta=course.beta, budget=budget)
                    steps = result.steps[len(curves) :]
                    self.assertEqual(
                        course.languages[: len(steps)], tuple(step.language for step in steps)
                    )
                    unions = [min(union, budget) for union in course.unions[: len(steps)]]
                    self.assertEqual(unions, [step.union for step in steps])
                    end = course.unions[len(steps) - 1] if steps else course.first_pieces
                    self.assertEqual(end > budget, result.partial is not None)

    def test_goes_to_the_largest_sizes_through_unions_that_shrink(self):
        curves = {"a": make_curve((2, 4, 5), (-9.0, -1.0, 1.0), ("ab", "abcd", "abxyz"))}
        curves["b"] = make_curve((2, 3), (-9.0, -8.5), ("xy", "xyz"))
        (course,) = trace_courses(curves, {"a": 0.5, "b": 0.5}, (1.0,))
        self.assertEqual(course.languages, ("a", "a", "b"))
        self.assertEqual((course.first_pieces, course.unions), (4, (6, 5, 5)))
