"""Charts: marks are where their values are, and text of others stays text."""

import math
import pathlib
import tempfile
from xml.etree import ElementTree

import numpy as np
from absl.testing import parameterized

from xlm.common import charts
from xlm.common.charts import Axis, Marks

EVIL = '"><script>alert(1)</script>'


def elements(svg: str, name: str) -> list[ElementTree.Element]:
    return [one for one in ElementTree.fromstring(svg).iter() if one.tag.endswith(f"}}{name}")]


def centers(svg: str) -> np.ndarray:
    """Pixels [N, 2] of the dots of a chart."""
    return np.array([[float(one.get(key)) for key in ("cx", "cy")]
                     for one in elements(svg, "circle")])  # fmt: skip


class ChartsTest(parameterized.TestCase):
    @parameterized.product(is_log=((False, False), (True, False), (False, True), (True, True)))
    def test_places_are_affine_in_the_values_of_an_axis(self, is_log):
        values = np.array([[1.0, 2.0], [5.0, 40.0], [30.0, 3.0], [900.0, 0.5]])
        x, y = (Axis(is_log=one) for one in is_log)
        found = centers(charts.chart([Marks("a", *values.T, "dots")], x, y))
        for axis in (0, 1):
            given = np.log(values[:, axis]) if is_log[axis] else values[:, axis]
            slope, start = np.polyfit(given, found[:, axis], 1)
            np.testing.assert_allclose(slope * given + start, found[:, axis], atol=0.1)
            self.assertEqual(slope > 0, axis == 0)  # pixels count downwards

    def test_ticks_lie_where_dots_of_their_values_would(self):
        for is_log in (False, True):
            axis = Axis(is_log=is_log, ends=(3.0, 700.0))
            svg = charts.chart([], axis)
            found = [one for one in elements(svg, "text") if one.get("class") == "mid"]
            ticks = {float(one.text.replace(",", "")): one for one in found}
            for value, one in ticks.items():
                if not 3 <= value <= 700:  # a dot there would move the ends
                    continue
                (dot,) = centers(charts.chart([Marks("", [value], [3], "dots")], axis))
                self.assertAlmostEqual(dot[0], float(one.get("x")), delta=0.1)
            self.assertGreater(len(ticks), 3)

    def test_rows_go_down_in_order_and_bars_begin_at_their_starts(self):
        rows = Axis(names=["one", "two", "three"])
        marks = Marks("b", [3, 9, 6], [0, 1, 2], "bars", [1, 3, 6])
        svg = charts.chart([marks, Marks("", [1, 3, 6], [0, 1, 2], "dots")], y=rows)
        bars, dots = elements(svg, "rect"), centers(svg)
        names = {one.text: float(one.get("y")) for one in elements(svg, "text")}
        self.assertEqual(sorted(names, key=names.get)[1:4], ["one", "two", "three"])
        np.testing.assert_allclose([float(one.get("x")) for one in bars], dots[:, 0], atol=0.1)
        self.assertEqual(bars[0].find("{*}title").text, "one, b: 1 to 3")

    def test_short_names_of_wide_letters_are_not_cut(self):
        svg = charts.chart([Marks("", [1], [0], "dots")], y=Axis(names=["M1"]))
        (x,) = (float(one.get("x")) for one in elements(svg, "text") if one.text == "M1")
        self.assertGreater(x, 2 * 11)  # its end, in letters as wide as high

    def test_what_an_axis_cannot_show_is_left_out(self):
        marks = Marks("a", [0, 1, 2, math.nan], [1, -1, 2, 3], "dots", tips=["a", "b", "c", "d"])
        x = Axis(is_log=True)
        self.assertLen(centers(charts.chart([marks])), 3)
        svg = charts.chart([marks], x, x)
        self.assertEqual([one.text for one in elements(svg, "title")], ["c"])
        self.assertNotIn("nan", charts.chart([Marks("a", [], []), Marks("b", [1], [7])]))

    def test_a_long_line_keeps_its_ends(self):
        steps = list(range(5000))
        tips = [one.text for one in elements(charts.chart([Marks("a", steps, steps)]), "title")]
        self.assertEqual([tips[0], tips[-1]], ["a: 0 at 0", "a: 4,999 at 4,999"])
        self.assertLess(len(tips), 300)

    def test_text_of_others_stays_text_and_a_file_is_the_page_s_chart(self):
        marks = [Marks(EVIL, [1], [0], "dots"), Marks(EVIL, [], [0], "rule")]
        svg = charts.chart(marks, Axis(EVIL), Axis(EVIL, names=[EVIL]), title=EVIL)
        self.assertEmpty(elements(svg, "script"))
        self.assertEqual({EVIL}, {one.text for one in elements(svg, "text") if "<" in one.text})
        path = pathlib.Path(self.enter_context(tempfile.TemporaryDirectory())) / "a.svg"
        whole = charts.stacked([svg, svg])
        charts.save(whole, path)
        self.assertEqual(charts.markup(path), whole)
        self.assertNotIn("light-dark", path.read_text(encoding="utf-8"))
        self.assertLen(elements(whole, "circle"), 2)
