"""Warnings of a record, one at a time, on both sides of the limits."""

from absl.testing import parameterized

from tests.vocap.records import STEP, record
from vocap.report_warnings import enumerated, warnings

JOINT = {"settings.method": "joint"}
UNIFORM = {"settings.method": "uniform", "cut": None}
UNKNOWN = {"languages.yd.heldout_uncovered": 0.02, "languages.yd.heldout_unseen": 0.015}
LARGEST = {"languages.xb.at_largest": True}
FULL = {"languages.xb.sizes": [8, 40], "languages.xb.alp": [-50.0, -40.0]}
SMALLEST = {"languages.xa.less": None}
LONG = {"languages.xa.alp": [-80.0, -70.0, -65.0], "languages.yd.alp": [-20.0, -14.0, -13.0]}


class WarningsTest(parameterized.TestCase):
    @parameterized.parameters(
        {},
        # 1.49 times the median.
        {"languages.xa.alp": [-70.0, -60.0, -58.0]},
        # Methods that are not built.
        {**UNKNOWN, "scores.joint.yd.unknown_rate": 0.03},
        {"languages.yd.uncovered": 0.019},
        # One language alone is no reason, however much it gains.
        {"scores.uniform.xa.alp": -10.0},
        {"languages.ze.alp": [-50.0, -40.0, -36.1]},
        # 1 of 40 million characters, as coverage is compared in single precision.
        {"settings.character_coverage": 0.9995, "languages.yd.uncovered": 1 - 0.9995 + 2.5e-8},
        {"settings.character_coverage": 1.0, "languages.yd.uncovered": 2.5e-8},
        # ALP decides nothing, nor has each language the seeds of all.
        {**LONG, "settings.method": "uniform", "cut": None, "settings.compare": []},
        {"settings.max_seeds": 500, "settings.compare": ["uniform"]},
    )
    def test_no_warning(self, **changes):
        self.assertEmpty(warnings(record(changes)))

    @parameterized.parameters(
        ({**LARGEST, "languages.xb.allocated": 80},
         r"At the largest of vocab.sizes, .* xb \(80, at 2.0 times the gain of the cut\). Offer"),
        ({**LARGEST, **FULL, "languages.xb.more": None}, r"fill, .* xb \(40, at .*\). Add text."),
        (SMALLEST, "from the smallest of vocab.sizes, 8: xa. Offer smaller"),
        ({**SMALLEST, "languages.xa.sizes": [40, 60], "languages.xa.alp": [-40.0, -39.0]},
         r"holds all their characters: xa \(40\), 21% of all pieces. Lower vocab.character_cov"),
        (LONG, r"xa \(1.7 times\); yd \(0.3 times\). Cut the text"),
        ({"settings.max_seeds": 500},
         "joint vocabulary has 38% of the 500 seeds .* Raise vocab.max_seeds to 950 or more"),
        ({**JOINT, "settings.max_seeds": 500, "settings.compare": []}, "joint vocabulary has 38%"),
        ({**UNKNOWN, "scores.vocap.yd.unknown_rate": 0.03},
         r"yd \(3.0%; 75% of them not in the training text\). Add text .* raise vocab.char"),
        ({"languages.yd.uncovered": 0.021}, r"is 0.98: yd \(2.10%\). Training .*max_characters"),
        ({**JOINT, "settings.compare": [], "languages.yd.uncovered": 0.021},
         r"yd \(2.10%\). .*train them apart"),
        ({"languages.yd.uncovered": 0.021, "settings.max_characters": 0},
         r"yd \(2.10%\). Raise it.$"),
        ({"settings.character_coverage": 1.0, "languages.yd.uncovered": 2e-7}, "have no piece"),
        ({f"scores.uniform.{name}.alp": -29.0 for name in ("xa", "xb", "xc")},
         r"ALP of vocap is below that of uniform \(by 0.20 nats, better for 3 of 5\). Compare"),
        ({"languages.ze.alp": [-50.0, -40.0, -35.9]},
         r"by more than 10% for 1 of 5 languages: ze \(10%\). The budget holds them; raise"),
        ({"partial": {"name": "xc", "missing": 7}},
         "The last step, xc to 40, had room .*; 7 were left out. Its ALP here .* whole 40."),
        ({"partial": {"name": "xc", "missing": None}}, "most probable ones.$"),
        ({"languages.xc.not_concave": [20, 30], "languages.ze.not_concave": [30]},
         "2 curves are not concave, and steps skip 3 of their sizes"),
        ({**UNIFORM, "settings.compare": [], "languages.xa.more": {**STEP, "gain": 3.0}},
         r"gain 3e\+03 weighted nats in xa and 1e\+03 in .*With vocab.method = vocap"),
    )  # fmt: skip
    def test_a_warning(self, changes, expected):
        (text,) = warnings(record(changes))
        self.assertRegex(text, expected)

    def test_names_a_few(self):
        self.assertEqual(enumerated(["a"]), "a")
        self.assertEqual(enumerated(["a", "b", "c"]), "a, b and c")
        self.assertEqual(enumerated(list("abcdefghi")), "a, b, c, d, e, f, g, h and i")
        self.assertEqual(enumerated(list("abcdefghijk")), "a, b, c, d, e, f, g, h and 3 more")
