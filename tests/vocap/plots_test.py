"""Plots of records that are large, short, or odd; the golden reports have those of usual ones."""

from absl.testing import parameterized

from tests.vocap import records
from vocap import plots

ALL = (
    plots.plot_curves, plots.plot_sizes, plots.plot_comparison,
)  # fmt: skip


class PlotsTest(parameterized.TestCase):
    @parameterized.product(
        plot=ALL[:2],
        changed=(
            # A single size, no step before it and none behind.
            {"sizes": [40], "alp": [-40.0], "less": None, "more": None},
            # ALP that falls: no gain for a logarithmic axis.
            {"alp": [-50.0, -40.0, -41.0], "more": {**records.STEP, "gain": -1e-3}},
        ),
    )
    def test_steps_that_gain_nothing(self, plot, changed):
        changes = {f"languages.xa.{key}": value for key, value in changed.items()}
        self.assertNotIn("nan", plot(records.record(changes, languages=["xa"])))
