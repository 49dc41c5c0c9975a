"""Plots of records that are large, short, or odd; the golden reports have those of usual ones."""

import pathlib
import struct
import tempfile

from absl.testing import parameterized

from tests.vocap import records
from vocap import plots

ALL = (
    plots.plot_curves, plots.plot_gains, plots.plot_sizes, plots.plot_margins,
    plots.plot_comparison,
)  # fmt: skip


class PlotsTest(parameterized.TestCase):
    def height(self, plot, record: dict) -> int:
        path = pathlib.Path(self.enter_context(tempfile.TemporaryDirectory())) / "plot.png"
        plot(record, path)
        return struct.unpack(">I", path.read_bytes()[20:24])[0]

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
