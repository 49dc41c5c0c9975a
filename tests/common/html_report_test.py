"""Reports as HTML, their tables and charts: the content of Markdown, no HTML of others."""

import html
import html.parser
import json
import math
import pathlib
import re
from xml.etree import ElementTree

import numpy as np
from absl.testing import parameterized

from tests import browser
from tests.folders import FolderTest
from xlm.common import charts, html_report, languages, tables
from xlm.common.charts import Axis, Marks

ROWS = [
    {"language": "sw", "loss": 1.25, "tokens": "1,234", "note": "b"},
    {"language": "zh_Hant", "loss": None, "tokens": "* 56", "note": ""},
    {"language": "en", "loss": -2.0, "tokens": "9,000,000 (largest)", "note": "a | c"},
    *({"language": f"q{letter}a", "loss": 0.5, "tokens": "7", "note": "c"} for letter in "aeiouy"),
]
NAMED = ["sw Swahili · Latin", "zh_Hant Chinese (Traditional)", "en English · Latin"]
EVIL = "<img src=x onerror=alert(1)><script>alert(2)</script>"
VISIT = """<script>
const column = () => [...document.querySelectorAll("tbody tr")].filter((row) => !row.hidden)
  .map((row) => row.cells[0].textContent.split(" ")[0]);
const seen = [];
document.querySelectorAll("thead button").forEach((button) => {
  for (const time of [0, 1]) { button.click(); seen.push(column()); }
});
const input = document.querySelector("#filter");
for (const word of ["swah", "TRADI", "nowhere", ""]) {
  input.value = word;
  input.dispatchEvent(new Event("input"));
  seen.push(column());
}
document.title = JSON.stringify(seen);
</script>"""

POINT = """<script>
const paper = () => getComputedStyle(document.body).backgroundColor;
const before = paper();
document.querySelector("#theme").click();
const move = new PointerEvent("pointermove", { bubbles: true });
document.querySelector("circle").dispatchEvent(move);
document.title = JSON.stringify([before, paper(), document.querySelector("#tip").textContent]);
</script>"""


class Parsed(html.parser.HTMLParser):
    """Cells, images, tags and attributes of a page."""

    def __init__(self, page: str):
        super().__init__()
        self.cells, self.tags, self.attributes = [], [], []
        self.feed(page)

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)
        self.attributes += attributes
        if tag in ("td", "th"):
            self.cells.append("")

    def handle_data(self, data):
        if self.cells:
            self.cells[-1] += data


class PageTest(FolderTest):
    def written(self, *parts: str) -> str:
        html_report.write(self.folder, tables.page(*parts))
        return (self.folder / "report.html").read_text(encoding="utf-8")

    def test_it_has_the_cells_names_and_images_of_the_report(self):
        svg = charts.chart([charts.Marks("a", [1, 2], [3, 4])])
        charts.save(svg, self.folder / "loss.svg")
        rows = [row | {"language": tables.escaped(row["language"])} for row in ROWS]
        page = self.written("# A \\*report", tables.markdown(rows, ".2f"), "![Loss](loss.svg)")
        cells = [cell.strip() for cell in Parsed(page).cells]
        expected = [*ROWS[0]]
        for row, name in zip(ROWS[:3], NAMED, strict=True):
            expected += [name, tables.shown(row["loss"], ".2f"), row["tokens"], row["note"]]
        self.assertEqual(cells[: len(expected)], expected)
        self.assertIn("<title>A *report</title>", page)
        self.assertIn(svg, page)
        self.assertEqual(Parsed(page).tags.count("style"), 1)
        self.assertNotRegex(page, r"(src|href)=.(?!#)")
        self.assertIn("default-src 'none'; style-src", dict(Parsed(page).attributes)["content"])

    def test_what_others_wrote_stays_text(self):
        self.folder = self.folder / "in"
        (self.folder.parent / "out.svg").write_text("secret")
        rows = [{"language": f"sw_{EVIL}", EVIL: EVIL, "x": tables.escaped(EVIL)}]
        link = "[a](javascript:alert(3)) ![b](../out.svg)"
        page = self.written(f"# {EVIL}", EVIL, link, tables.markdown(rows))
        found, clean = Parsed(page), Parsed(self.written("# A"))
        self.assertEqual(found.tags.count("script"), clean.tags.count("script"))
        self.assertEmpty([name for name, _ in found.attributes if name.startswith("on")])
        self.assertEmpty([v for _, v in found.attributes if (v or "").startswith("javascript")])
        self.assertNotIn("secret", page)
        self.assertEqual(found.cells[-1].split("\n")[0].strip(), EVIL)

    def test_a_person_sorts_and_searches(self):
        table = tables.markdown(ROWS, ".2f", mean=["loss"])
        page = self.written("# A", table).replace("</body>", f"{VISIT}</body>")
        found = re.search("<title>(.*?)</title>", browser.document(self, page))
        *seen, swahili, chinese, nothing, everything = json.loads(html.unescape(found[1]))
        self.assertEqual((swahili, chinese, nothing), (["sw"], ["zh_Hant"], []))
        self.assertLen(everything, len(ROWS) + 1)
        self.assertEqual({order[-1] for order in seen}, {"mean"})
        codes = sorted(row["language"] for row in ROWS)
        self.assertEqual([seen[0][:-1], seen[1][:-1]], [codes, codes[::-1]])
        # Numbers, the largest first; without a value last, either way.
        self.assertEqual([seen[2][0], *seen[2][-3:-1]], ["sw", "en", "zh_Hant"])
        self.assertEqual([seen[3][0], *seen[3][-3:-1]], ["en", "sw", "zh_Hant"])
        self.assertEqual(seen[4][:3], ["en", "sw", "zh_Hant"])
        self.assertEqual([*seen[7][:2], *seen[7][-2:]], ["en", "sw", "zh_Hant", "mean"])

    def test_a_person_points_at_charts_and_chooses_dark(self):
        dots = charts.Marks(EVIL, [1], [2], "dots")
        charts.save(charts.chart([dots]), self.folder / "a.svg")
        page = self.written("# A", "![a](a.svg)").replace("</body>", f"{POINT}</body>")
        found = re.search("<title>(.*?)</title>", browser.document(self, page))
        before, after, said = json.loads(html.unescape(found[1]))
        self.assertNotEqual(before, after)
        self.assertEqual(said, f"{EVIL}: 2 at 1")

    def test_a_part_has_html_of_its_own_and_headings_have_links(self):
        table = tables.markdown([{"a": 1}])
        html_report.write(self.folder, tables.page("# A", "## B", "## C", "## D", table),
                          instead={table: "<b>other</b>"}, head="<base>")  # fmt: skip
        page = (self.folder / "report.html").read_text(encoding="utf-8")
        found = Parsed(page)
        links = [value[1:] for key, value in found.attributes if key == "href"]
        self.assertLen(links, 3)
        self.assertContainsSubset(links, [v for key, v in found.attributes if key == "id"])
        self.assertIn("<b>other</b>", page)
        self.assertIn("base", found.tags)
        self.assertEqual((self.folder / "report.md").read_text().count("| a |"), 1)
        self.assertNotIn("table", found.tags)

    @parameterized.parameters(
        ("sw", "Swahili"), ("swh_Latn", "Swahili (Latin)"), ("spa-MX", "Spanish (MX)"),
        ("zh_Hans", "Chinese (Simplified)"), ("xx", ""), ("Latn", ""), ("**mean**", ""),
        ("sw_<b>", ""), ("aze-Latn Azerbaijani (Latin)", ""),
    )  # fmt: skip
    def test_names(self, code, name):
        self.assertEqual(languages.name_of(code), name)
        self.assertEqual(languages.label(code), f"{code} {name}".rstrip())

    def test_scripts(self):
        found = [
            languages.with_script(one) for one in ("ur", "urd", "ur_Deva", "th", "es-MX", "xx")
        ]
        names = ["Urdu · Arabic"] * 2 + ["Urdu (Devanagari)", "Thai", "Spanish (MX) · Latin", ""]
        self.assertEqual(found, names)
        rows = pathlib.Path(languages.__file__).with_name("languages.tsv").read_text().splitlines()
        codes = [row.split("\t")[0] for row in rows]
        self.assertEmpty([one for one in codes if len(one) < 4 and not languages.with_script(one)])


TAG = '"><script>alert(1)</script>'


def elements(svg: str, name: str) -> list[ElementTree.Element]:
    return [one for one in ElementTree.fromstring(svg).iter() if one.tag.endswith(f"}}{name}")]


def centers(svg: str) -> np.ndarray:
    """Pixels [N, 2] of the dots of a chart."""
    return np.array([[float(one.get(key)) for key in ("cx", "cy")]
                     for one in elements(svg, "circle")])  # fmt: skip


class ChartsTest(FolderTest):
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
        marks = [Marks(TAG, [1], [0], "dots"), Marks(TAG, [], [0], "rule")]
        svg = charts.chart(marks, Axis(TAG), Axis(TAG, names=[TAG]), title=TAG)
        self.assertEmpty(elements(svg, "script"))
        self.assertEqual({TAG}, {one.text for one in elements(svg, "text") if "<" in one.text})
        path = self.folder / "a.svg"
        whole = charts.stacked([svg, svg])
        charts.save(whole, path)
        self.assertEqual(charts.markup(path), whole)
        self.assertNotIn("light-dark", path.read_text(encoding="utf-8"))
        self.assertLen(elements(whole, "circle"), 2)


class TablesTest(parameterized.TestCase):
    def test_a_table(self):
        rows = [
            {"name": "a|b", "loss": 1.25, "n": 1200},
            {"name": "<b> **c** \\|", "loss": math.nan, "share": 0.5},
            {"name": "", "loss": 2.5, "share": None, "n": "many"},
        ]
        formats = {"loss": ".1f", "n": ",", "share": "+.0%"}
        self.assertEqual(
            tables.markdown(rows, formats, mean=("loss", "share")).splitlines(),
            ["| name | loss | n | share |", "|---|---:|---:|---:|", r"| a\|b | 1.2 | 1,200 |  |",
             r"| \<b\> **c** \| |  |  | +50% |", "|  | 2.5 | many |  |",
             "| **mean** | 1.9 |  | +50% |"],
        )  # fmt: skip
        self.assertEqual(tables.markdown([]), "")
        self.assertEqual(tables.markdown([{"x": 1.0}], ".2f", left=0), "| x |\n|---:|\n| 1.00 |")

    def test_numbers_and_names(self):
        found = [tables.signed(value, ".1f") for value in (0.04, -0.04, 0.05001, -2.0)]
        self.assertEqual(found, ["0.0", "0.0", "+0.1", "-2.0"])
        self.assertTrue(math.isnan(tables.mean_of([None, math.nan])))
        self.assertEqual(tables.named(["a", "b", "c"], 2), "a, b and 1 more")
        self.assertEqual(tables.named(["a", "b"], 2), "a, b")

    def test_separated_by_commas(self):
        rows = [{"a": 'x,"y"', "b": None}, {"a": "", "b": 0.1}]
        self.assertEqual(tables.comma_separated(rows), 'a,b\n"x,""y""",\n,0.1\n')
