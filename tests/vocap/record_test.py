"""The record of a build: whole as JSON, and readable as a table."""

import json
import math
import pathlib
import tempfile

from absl.testing import absltest

from vocap.allocation import Allocation, Curve, Step
from vocap.build import Vocabulary
from vocap.record import allocation_record, allocation_table, plot_curves, plot_sizes

PIECES = (("a",), ("a", "b"), ("a", "b", "c"))
VOCABULARY = Vocabulary(
    model=b"",
    curves={
        "sw": Curve(sizes=(100, 200, 300), alp=(-90.0, -85.0, -80.25), pieces=PIECES),
        "en": Curve(sizes=(100, 200), alp=(-70.0, -60.5), pieces=PIECES[:2]),
    },
    probabilities={"sw": 0.25, "en": 0.75},
    num_bytes={"sw": 20_400, "en": 61_000},
    allocation=Allocation(
        sizes={"sw": 300, "en": 100},
        pieces=("a", "b", "c", "d"),
        steps=(
            Step("en", 100, math.inf, 1),
            Step("sw", 100, math.inf, 2),
            Step("sw", 300, 0.5, 4),
        ),
        not_concave={"sw": (200,)},
        at_largest=("sw",),
    ),
)


class RecordTest(absltest.TestCase):
    def setUp(self):
        super().setUp()
        # As a report reads it.
        text = json.dumps(allocation_record(VOCABULARY), allow_nan=False)
        self.record = json.loads(text)

    def test_what_was_decided_and_why(self):
        self.assertEqual(self.record["pieces"], 4)
        self.assertEqual(
            self.record["languages"]["sw"],
            {
                "bytes": 20_400,
                "probability": 0.25,
                "sizes": [100, 200, 300],
                "alp": [-90.0, -85.0, -80.25],
                "allocated": 300,
                "not_concave": [200],
                "at_largest": True,
            },
        )
        self.assertFalse(self.record["languages"]["en"]["at_largest"])
        self.assertEmpty(self.record["languages"]["en"]["not_concave"])
        # First sizes, which every language gets, are no decisions.
        expected = [{"language": "sw", "size": 300, "gain": 0.5, "union": 4}]
        self.assertEqual(self.record["steps"], expected)

    def test_the_table_has_the_largest_language_first(self):
        rows = allocation_table(self.record).splitlines()[2:]
        self.assertEqual(
            rows,
            [
                "| en | 61 | 0.750 | 100 to 200 | 100 | -70.0 |",
                "| sw | 20 | 0.250 | 100 to 300 | 300 (largest) | -80.2 |",
            ],
        )

    def test_plots(self):
        folder = pathlib.Path(self.enter_context(tempfile.TemporaryDirectory()))
        plot_curves(self.record, folder / "curves.png")
        plot_sizes(self.record, folder / "sizes.png")
        many = {f"l{i}": self.record["languages"]["sw"] for i in range(45)}
        plot_curves({**self.record, "languages": many}, folder / "many_curves.png")
        plot_sizes({**self.record, "languages": many}, folder / "many_sizes.png")
        plots = {path.name: path.read_bytes() for path in folder.iterdir()}
        self.assertLen(plots, 4)
        self.assertLen(set(plots.values()), 4)
        for plot in plots.values():
            self.assertTrue(plot.startswith(b"\x89PNG"))


if __name__ == "__main__":
    absltest.main()
