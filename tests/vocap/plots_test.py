"""Plots of records that are large, short, or odd."""

import pathlib
import tempfile
from unittest import mock

import matplotlib.pyplot as plt
import numpy as np
from absl.testing import absltest, parameterized

from vocap import plots

_STEP = {"size": 60, "alp": 1.0, "gain": 1e-3, "pieces": 20}
_LANGUAGE = {
    "probability": 0.1,
    "sizes": [20, 40, 60],
    "alp": [-50.0, -40.0, -38.0],
    "allocated": 40,
    "at_largest": False,
    "less": _STEP,
    "more": _STEP,
}


def record(num_languages: int, **changed) -> dict:
    names = [f"x{i:02}" for i in range(num_languages)]
    score = {"alp": -50.0, "tokens_per_sentence": 9.0, "unknown_rate": 0.0}
    return {
        "pieces": 35 * num_languages,
        "settings": {"beta": 0.7, "method": "vocap", "compare": ["joint"]},
        "languages": {
            name: {
                **_LANGUAGE,
                "amount": 1 + i,
                "resource": ("low", "mid", "high")[3 * i // num_languages],
                **changed,
            }
            for i, name in enumerate(names)
        },
        "clusters": {},
        "cut": 2e-3,
        "scores": {method: dict.fromkeys(names, score) for method in ("vocap", "joint")},
    }


def drawn(plot, shown: dict) -> list[list[tuple[list[float], list[float]]]]:
    """Coordinates of the lines of each panel."""
    found: list[list[tuple[list[float], list[float]]]] = []

    def read(figure, _):
        for axes in figure.axes:
            lines = [(line.get_xdata(), line.get_ydata()) for line in axes.get_lines()]
            found.append([(np.asarray(x).tolist(), np.asarray(y).tolist()) for x, y in lines])
        plt.close(figure)

    with mock.patch.object(plots, "_save", read):
        plot(shown, pathlib.Path("plot.png"))
    return found


class PlotsTest(parameterized.TestCase):
    def height(self, plot, shown: dict) -> int:
        path = pathlib.Path(self.enter_context(tempfile.TemporaryDirectory())) / "plot.png"
        plot(shown, path)
        self.assertLen(list(path.parent.iterdir()), 1)
        image = path.read_bytes()
        self.assertTrue(image.startswith(b"\x89PNG"))
        return int.from_bytes(image[20:24], "big")

    @parameterized.parameters(plots.plot_curves, plots.plot_gains)
    def test_many_languages_have_a_panel_for_each_third(self, plot):
        few, many = self.height(plot, record(20)), self.height(plot, record(21))
        self.assertAlmostEqual(many / few, 3, delta=0.1)

    # A line and a dot of each language; the cut in each panel.
    @parameterized.parameters((plots.plot_curves, 260), (plots.plot_gains, 263))
    def test_no_language_is_without_a_line_for_want_of_styles(self, plot, expected):
        self.assertEqual(sum(map(len, drawn(plot, record(130)))), expected)

    def test_the_dot_of_a_curve_is_at_the_allocated_size(self):
        curve, dot = drawn(plots.plot_curves, record(1))[0]
        self.assertEqual(curve, ([20, 40, 60], [-50.0, -40.0, -38.0]))
        self.assertEqual(dot, ([40], [-40.0]))

    @parameterized.parameters((40, "less"), (20, "more"))
    def test_the_dot_of_gains_is_on_its_step(self, allocated, side):
        steps = {"less": None, "more": _STEP, side: {**_STEP, "gain": 0.1**0.7 * 10 / 20}}
        shown = record(1, allocated=allocated, **steps)
        (sizes, heights), (x, y), cut = drawn(plots.plot_gains, shown)[0]
        self.assertEqual(sizes, [20, 40, 60])
        np.testing.assert_allclose(heights, 1000 * 0.1**0.7 * np.array([0.5, 0.1, 0.1]))
        self.assertEqual(x, [allocated])
        # The step to 40 is drawn from 20 on.
        np.testing.assert_allclose(y, heights[0])
        np.testing.assert_allclose(cut[1], 2.0)

    @parameterized.parameters(plots.plot_sizes, plots.plot_margins)
    def test_each_language_has_its_row(self, plot):
        # No row is squeezed: 80 languages more need 80 times the height of a label.
        self.assertGreater(self.height(plot, record(100)), self.height(plot, record(20)) + 80 * 15)

    def test_a_hundred_languages_compared(self):
        self.assertGreater(self.height(plots.plot_comparison, record(100)), 500)

    @parameterized.product(
        plot=(plots.plot_curves, plots.plot_gains, plots.plot_sizes, plots.plot_margins),
        changed=(
            # A single size, no step before it and none behind.
            {"sizes": [40], "alp": [-40.0], "less": None, "more": None},
            # ALP that falls: no gain for a logarithmic axis.
            {"alp": [-50.0, -40.0, -41.0], "more": {**_STEP, "gain": -1e-3}},
        ),
    )
    def test_steps_that_gain_nothing(self, plot, changed):
        self.height(plot, record(1, **changed))


if __name__ == "__main__":
    absltest.main()
