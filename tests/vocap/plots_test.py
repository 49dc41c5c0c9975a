"""Plots of records that are large, short, or odd; the golden reports have those of usual ones."""

import pathlib
import struct
import tempfile

from absl.testing import parameterized

from tests.vocap import records
from vocap import plots

ALL = (
    plots.plot_curves,
    plots.plot_gains,
    plots.plot_sizes,
    plots.plot_margins,
    plots.plot_comparison,
)


class PlotsTest(parameterized.TestCase):
    def height(self, plot, record: dict) -> int:
        path = pathlib.Path(self.enter_context(tempfile.TemporaryDirectory())) / "plot.png"
        plot(record, path)
        return struct.unpack(">I", path.read_bytes()[20:24])[0]

    @parameterized.parameters(
        *((plot, 3, 0) for plot in ALL[:2]),  # a panel for each third
        *((plot, 1, 80 * 15) for plot in ALL[2:4]),  # a row for each language
        (ALL[4], 1, 0),
    )
    def test_many_languages_have_room(self, plot, times, more):
        few, many = (
            self.height(plot, records.record(languages=[f"x{i:03}" for i in range(number)]))
            for number in (20, 100)
        )
        self.assertBetween(many, times * few + more - 0.1 * few, 3.5 * few + more)

    @parameterized.product(
        plot=ALL[:4],
        changed=(
            # A single size, no step before it and none behind.
            {"sizes": [40], "alp": [-40.0], "less": None, "more": None},
            # ALP that falls: no gain for a logarithmic axis.
            {"alp": [-50.0, -40.0, -41.0], "more": {**records.STEP, "gain": -1e-3}},
        ),
    )
    def test_steps_that_gain_nothing(self, plot, changed):
        changes = {f"languages.xa.{key}": value for key, value in changed.items()}
        self.assertGreater(self.height(plot, records.record(changes, languages=["xa"])), 100)
