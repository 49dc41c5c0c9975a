"""Growth of ALP with pieces, of made-up builds."""

from typing import Any

from absl.testing import absltest

from research import alp_growth


def build(size: int, joint: float, vocap: float) -> dict[str, Any]:
    """The record of a build, with scores of two languages, of which Swahili has one nat less."""
    return {
        "settings": {"method": "vocap", "compare": ["joint", "uniform"], "target_size": size},
        "languages": {
            name: {"sizes": [500, 1000], "alp": [-90.0, -80.0], "amount": amount, "resource": third}
            for name, amount, third in (("en", 5, "mid"), ("sw", 9, "high"), ("ka", 1, "low"))
        },
        "scores": {
            method: {"en": {"alp": alp}, "sw": {"alp": alp - 1}}
            for method, alp in (("vocap", vocap), ("joint", joint))
        },
    }


class AlpGrowthTest(absltest.TestCase):
    def test_steps(self):
        found = alp_growth.gains([500, 1000, 1500, 2000, 4000], [-9, -8, -6, -3, -1], 1000)
        self.assertEqual(found, {2000: 5})  # from 500 to 1,500 is no multiple, 3,000 not trained
        count, risen = alp_growth.rises({1000: 5, 2000: 3, 3000: 4, 5000: 9}, 1000)
        self.assertEqual((count, risen), (2, {3000: 1}))

    def test_methods(self):
        records = [build(60_000, -80, -80), build(120_000, -79, -70), build(240_000, -79.5, -60)]
        head, _, *rows = alp_growth.method_table(records).splitlines()
        self.assertEqual(head, "| languages | method | 60,000 pieces | to 120,000 | to 240,000 |")
        self.assertIn("| high (1) | vocap | -81.0 | +10.00 | +20.00 |", rows)
        self.assertIn("| all (2) | joint | -80.5 | +1.00 | +0.50 |", rows)
        self.assertNotIn("uniform", " ".join(rows))  # has no scores
