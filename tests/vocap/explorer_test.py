"""The explorer's page and what is in it; explorer_browser_test.py opens it in a browser."""

import copy
import functools
import json
import random
import re

from absl.testing import parameterized

from tests.vocap.allocation_test import make_curve
from vocap import explorer
from vocap.allocation import allocate, language_probabilities, trace_courses
from vocap.curves import Curve
from vocap.settings import SPECIALS

BETAS = (0.0, 0.3, 0.7, 1.0)
BUILD = {"target_size": 3000, "beta": 0.7}
AMOUNTS = {"de": 5e6, "en": 9e6, "hi": 4e5, "sw": 7e4, "zh": 2e6}


@functools.cache
def made_up_curves() -> dict[str, Curve]:
    """Curves of languages that share pieces, neither concave nor nested everywhere."""
    rng, curves = random.Random(0), {}
    shared = [f"p{i}" for i in range(2000)]
    for language in AMOUNTS:
        sizes = [*range(100, 1000, 100), *range(1000, 2600 - 200 * len(curves), 200)]
        rng.shuffle(shared)
        own = [f"{language}{i}" for i in range(2000)]
        pool = [piece for pair in zip(own, shared, strict=True) for piece in pair]
        vocabularies = [pool[s // 10 :][:size] for s, size in enumerate(sizes)]
        alp = [-2000 / (size + 200) * rng.uniform(19, 20) for size in sizes]
        curves[language] = make_curve(sizes, alp, vocabularies)
    return curves


def made_up_probabilities() -> dict[str, float]:
    return language_probabilities(AMOUNTS, 0.7)


def allocated(target_size: int, beta: float, **options):
    budget = target_size - len(SPECIALS)
    return allocate(made_up_curves(), made_up_probabilities(), beta=beta, budget=budget, **options)


@functools.cache
def made_up_data() -> dict:
    curves, q = made_up_curves(), made_up_probabilities()
    built = allocated(**BUILD).sizes
    languages = {}
    for name, curve in curves.items():
        languages[name] = {"amount": AMOUNTS[name], "probability": q[name], "alp": list(curve.alp),
                           "sizes": list(curve.sizes), "allocated": built[name]}  # fmt: skip
    pieces = BUILD["target_size"] - len(SPECIALS)
    record = {"settings": {"amounts": {}, **BUILD}, "languages": languages, "pieces": pieces}
    return explorer.explorer_data(record, trace_courses(curves, q, BETAS))


def embedded(page: str) -> dict:
    (text,) = re.findall(
        r'<script type="application/json" id="data">(.*?)</script>', page, re.DOTALL
    )
    return json.loads(text)


def sizes_at(data: dict, target_size: int, beta: float) -> dict[str, int]:
    """Sizes by the page's data: the first steps of a course, until there are enough pieces."""
    (course,) = (course for course in data["courses"] if course["beta"] == beta)
    at, union = [0] * len(data["languages"]), course["first"]
    for language, change in zip(course["order"], course["changes"], strict=True):
        if union >= target_size - data["specials"]:
            break
        at[language] += 1
        union += change
    return {
        one["name"]: one["sizes"][one["vertices"][vertex]]
        for one, vertex in zip(data["languages"], at, strict=True)
    }


class DataTest(parameterized.TestCase):
    def test_holds_the_allocations_of_each_target_size(self):
        data = made_up_data()
        for beta in BETAS:
            for target_size in range(600, 6000, 371):
                expected = allocated(target_size, beta).sizes
                self.assertEqual(sizes_at(data, target_size, beta), expected)

    def test_survives_the_page_whatever_the_languages_are_called(self):
        data = copy.deepcopy(made_up_data())
        data["languages"][0]["name"] = "</script><!-- <script> /*SCRIPT*/ \u2028"
        page = explorer.fill_template(data)
        self.assertEqual(embedded(page), data)
        self.assertEqual(page.count("</script>"), 2)

    def test_a_page_asks_for_nothing_outside_of_it(self):
        page = explorer.fill_template(made_up_data())
        self.assertEqual(set(re.findall(r"https?://[^\"]*", page)), {"http://www.w3.org/2000/svg"})
        for loads in (r"\ssrc=", r"<link", r"@import", r"url\(", r"\bfetch\(", r"\bimport\b"):
            self.assertNotRegex(page, loads)
