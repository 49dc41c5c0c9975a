"""Losses of pairs beyond their languages."""

import itertools

import numpy as np
from absl.testing import absltest

from input_pipeline.pair_phases import PairRecord, Phase
from xlm.evaluation.pair_report import excess_losses, mean_losses

LANGUAGES = {"-".join(pair): pair for pair in itertools.combinations("abcdef", 2)}
HARDNESS = dict(zip("abcdef", (5.0, 1.0, 2.5, 7.0, 0.0, 3.0), strict=True))
ADDITIVE = {name: HARDNESS[one] + HARDNESS[two] for name, (one, two) in LANGUAGES.items()}


class ExcessTest(absltest.TestCase):
    def test_languages_explain_a_sum_and_nothing_else(self):
        for excess in excess_losses(ADDITIVE, LANGUAGES).values():
            self.assertAlmostEqual(excess, 0.0)
        found = excess_losses({**ADDITIVE, "b-d": ADDITIVE["b-d"] + 1.5}, LANGUAGES)
        self.assertAlmostEqual(found["b-d"], 1.5)
        self.assertLess(max(abs(found[name]) for name in found if name != "b-d"), 1.0)

    def test_it_is_the_error_of_a_fit_to_all_others(self):
        losses = dict(zip(LANGUAGES, np.random.default_rng(0).normal(size=15), strict=True))
        found = excess_losses(losses, LANGUAGES)
        for name, pair in LANGUAGES.items():
            others = [other for other in LANGUAGES if other != name]
            design = np.array([[one in LANGUAGES[other] for one in "abcdef"] for other in others])
            fitted = np.linalg.lstsq(design.astype(float), [losses[x] for x in others], rcond=None)
            expected = sum(fitted[0]["abcdef".index(one)] for one in pair)
            self.assertAlmostEqual(found[name], losses[name] - expected)

    def test_pairs_that_no_others_tell(self):
        # f has one partner; a, b and c are as many pairs as languages.
        pairs = {"a-b": ("a", "b"), "a-c": ("a", "c"), "b-c": ("b", "c"), "a-f": ("a", "f")}
        found = excess_losses(dict(zip(pairs, (1.0, 2.0, 9.0, 4.0), strict=True)), pairs)
        self.assertEqual(found, dict.fromkeys(sorted(pairs)))
        self.assertEqual(excess_losses({}, {}), {})


class MeanTest(absltest.TestCase):
    def test_the_second_half_without_the_fall_of_all(self):
        base = {"a": 0.5, "b": 0.25, "c": 0.25}
        of_phases = [(90.0, 0.0, None), (7.0, 5.0, None), (5.0, 1.0, 3.0), (4.0, 0.0, None)]
        phases = [
            Phase(step, base, dict(zip(base, losses, strict=True)), 0.0, None)
            for step, losses in enumerate(of_phases)
        ]
        found = mean_losses(PairRecord(base, tuple(phases)))
        self.assertEqual(found, {"a": 2.0, "b": -2.0, "c": 0.0})
        self.assertEqual(mean_losses(PairRecord(base, tuple(phases[:2]))), {"a": 1.0, "b": -1.0})
        with self.assertRaisesRegex(ValueError, "robust.num_phases"):
            mean_losses(PairRecord({"a": 1.0}))
