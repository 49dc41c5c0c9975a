"""Warnings of a record, one at a time."""

import copy

from absl.testing import absltest

from vocap.report_warnings import enumerated, warnings

_STEP = {"size": 50, "alp": 1.0, "gain": 1.0, "pieces": 1}
# Nothing to warn of.
RECORD = {
    "pieces": 190,
    "settings": {
        "method": "vocap",
        "compare": ["uniform", "joint"],
        "sizes": [8, 40, 80],
        "character_coverage": 0.98,
        "max_characters": 1000,
        "max_seeds": 1000,
    },
    "languages": {
        name: {
            "amount": amount,
            "resource": "all",
            "sizes": [8, 40, 80],
            "alp": [-50.0, -40.0, -39.0],
            "allocated": 40,
            "at_largest": False,
            "not_concave": [],
            "less": _STEP,
            "more": _STEP,
            "uncovered": 0.0,
            "heldout_uncovered": 0.0,
            "heldout_unseen": 0.0,
        }
        for amount, name in enumerate(("xa", "xb", "xc", "yd", "ze"))
    },
    "clusters": {},
    "cut": 0.5,
    "partial": None,
    "scores": {
        method: {
            name: {"alp": alp, "tokens_per_sentence": 9.0, "unknown_rate": 0.001}
            for name in ("xa", "xb", "xc", "yd", "ze")
        }
        for method, alp in (("vocap", -30.0), ("uniform", -31.0), ("joint", -31.0))
    },
}


class WarningsTest(absltest.TestCase):
    def setUp(self):
        super().setUp()
        self.record = copy.deepcopy(RECORD)

    def only_warning(self) -> str:
        found = warnings(self.record)
        self.assertLen(found, 1, found)
        return found[0]

    def test_none(self):
        self.assertEmpty(warnings(self.record))

    def test_at_the_largest_size_on_offer(self):
        self.record["languages"]["xb"].update(at_largest=True, allocated=80)
        text = self.only_warning()
        self.assertIn("xb (80, at 2.0 times the gain of the cut)", text)
        self.assertIn("larger sizes", text)

    def test_at_the_largest_size_that_text_can_fill(self):
        self.record["languages"]["xb"].update(
            at_largest=True, sizes=[8, 40], alp=[-50.0, -40.0], more=None
        )
        text = self.only_warning()
        self.assertIn("xb (40,", text)
        self.assertIn("Add text", text)

    def test_smallest_sizes_that_nobody_chose(self):
        self.record["languages"]["xa"]["less"] = None
        text = self.only_warning()
        self.assertIn("from the smallest of vocab.sizes, 8: xa.", text)
        self.record["languages"]["xa"].update(sizes=[40, 60, 80], alp=[-40.0, -39.5, -39.0])
        text = self.only_warning()
        self.assertIn("holds all their characters: xa (40), 21% of all pieces", text)
        self.assertIn("vocab.character_coverage", text)

    def test_sentences_of_unlike_length(self):
        self.record["languages"]["xa"]["alp"] = [-70.0, -60.0, -58.0]  # 1.49 times the median
        self.assertEmpty(warnings(self.record))
        self.record["languages"]["xa"]["alp"] = [-80.0, -70.0, -65.0]
        self.record["languages"]["yd"]["alp"] = [-20.0, -14.0, -13.0]
        self.assertIn("xa (1.7 times); yd (0.3 times). Cut", self.only_warning())
        # Nor does ALP decide elsewhere.
        self.record["settings"]["method"] = "uniform"
        self.assertNotIn("Cut", " ".join(warnings(self.record)))

    def test_a_joint_vocabulary_with_few_seeds_to_choose_from(self):
        self.record["settings"]["max_seeds"] = 500
        text = self.only_warning()
        self.assertIn("joint vocabulary has 38% of the 500 seeds", text)
        self.assertIn("vocab.max_seeds to 950 or more", text)
        self.record["settings"]["compare"] = ["uniform"]  # each language has its own seeds
        self.assertNotIn("seeds", " ".join(warnings(self.record)))
        self.record["settings"]["method"] = "joint"
        self.assertIn("joint vocabulary has 38%", " ".join(warnings(self.record)))

    def test_unknown_tokens(self):
        self.record["scores"]["vocap"]["yd"]["unknown_rate"] = 0.03
        self.record["languages"]["yd"].update(heldout_uncovered=0.02, heldout_unseen=0.015)
        self.assertIn("yd (3.0%; 75% of them not in the training text)", self.only_warning())
        # Other methods are not what was built.
        self.record["scores"]["vocap"]["yd"]["unknown_rate"] = 0.0
        self.record["scores"]["joint"]["yd"]["unknown_rate"] = 0.03
        self.assertEmpty(warnings(self.record))

    def test_uncovered_characters(self):
        self.record["languages"]["yd"]["uncovered"] = 0.019  # 0.02 is allowed
        self.assertEmpty(warnings(self.record))
        self.record["languages"]["yd"]["uncovered"] = 0.021
        text = self.only_warning()
        self.assertIn("yd (2.10%)", text)
        self.assertIn("vocab.max_characters", text)
        self.record["settings"]["method"] = "joint"
        self.assertIn("train them apart", self.only_warning())

    def test_coverage_is_compared_in_single_precision(self):
        for coverage in (0.9995, 1.0):
            self.record["settings"]["character_coverage"] = coverage
            # As 1 of 40 million characters.
            self.record["languages"]["yd"]["uncovered"] = 1 - coverage + 2.5e-8
            self.assertEmpty(warnings(self.record))
            self.record["languages"]["yd"]["uncovered"] = 1 - coverage + 2e-7
            self.assertIn("have no piece", self.only_warning())

    def test_no_limit_on_the_text_is_no_cause_of_uncovered_characters(self):
        self.record["settings"]["max_characters"] = 0
        self.record["languages"]["yd"]["uncovered"] = 0.021
        self.assertRegex(self.only_warning(), r"yd \(2.10%\). Raise it.$")

    def test_methods_that_do_better(self):
        scores = self.record["scores"]["uniform"]
        for name in ("xa", "xb", "xc"):
            scores[name]["alp"] = -29.0
        text = self.only_warning()
        self.assertIn("below that of uniform (by 0.20 nats, better for 3 of 5)", text)
        # One language alone is no reason, however much it gains.
        scores["xb"]["alp"] = scores["xc"]["alp"] = -31.0
        scores["xa"]["alp"] = -10.0
        self.assertEmpty(warnings(self.record))

    def test_a_budget_that_leaves_much(self):
        self.record["languages"]["ze"]["alp"][-1] = -36.1
        self.assertEmpty(warnings(self.record))
        self.record["languages"]["ze"]["alp"][-1] = -35.9
        self.assertIn("for 1 of 5 languages: ze (10%)", self.only_warning())

    def test_a_partial_step(self):
        self.record["partial"] = {"name": "xc", "missing": 7}
        self.assertIn("The last step, xc to 40, had room", self.only_warning())
        self.assertIn("7 were left out", self.only_warning())

    def test_curves_that_are_not_concave(self):
        self.record["languages"]["xc"]["not_concave"] = [20, 30]
        self.record["languages"]["ze"]["not_concave"] = [30]
        self.assertIn("2 curves are not concave, and steps skip 3", self.only_warning())

    def test_gains_that_no_method_compared(self):
        self.record["settings"]["method"] = "uniform"
        self.record["cut"] = None
        self.record["languages"]["xa"]["more"] = {"size": 50, "alp": 1, "gain": 3.0, "pieces": 1}
        found = " ".join(warnings(self.record))
        self.assertIn("3e+03 weighted nats in xa and 1e+03 in ", found)


class EnumeratedTest(absltest.TestCase):
    def test_names_a_few(self):
        self.assertEqual(enumerated(["a"]), "a")
        self.assertEqual(enumerated(["a", "b", "c"]), "a, b and c")
        self.assertEqual(enumerated(list("abcdefghi")), "a, b, c, d, e, f, g, h and i")
        self.assertEqual(enumerated(list("abcdefghijk")), "a, b, c, d, e, f, g, h and 3 more")


if __name__ == "__main__":
    absltest.main()
