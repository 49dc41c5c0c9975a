"""Reports as HTML: the same content as in Markdown, no HTML of others, sorting and searching."""

import html
import html.parser
import json
import pathlib
import re
import tempfile

from absl.testing import parameterized

from tests import browser
from xlm.common import charts, html_report, languages, tables

ROWS = [
    {"language": "sw", "loss": 1.25, "tokens": "1,234", "note": "b"},
    {"language": "zh_Hant", "loss": None, "tokens": "* 56", "note": ""},
    {"language": "en", "loss": -2.0, "tokens": "9,000,000 (largest)", "note": "a | c"},
    *({"language": f"q{letter}a", "loss": 0.5, "tokens": "7", "note": "c"} for letter in "aeiouy"),
]
NAMED = ["sw Swahili", "zh_Hant Chinese (Traditional)", "en English"]
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


class PageTest(parameterized.TestCase):
    def setUp(self):
        super().setUp()
        self.folder = pathlib.Path(self.enter_context(tempfile.TemporaryDirectory()))

    def written(self, *parts: str) -> str:
        html_report.write(self.folder, tables.page(*parts))
        return (self.folder / "report.html").read_text(encoding="utf-8")

    def test_it_has_the_cells_names_and_images_of_the_report(self):
        svg = charts.chart([charts.Marks("a", [1, 2], [3, 4])])
        charts.save(svg, self.folder / "loss.svg")
        page = self.written("# A \\*report", tables.markdown(ROWS, ".2f"), "![Loss](loss.svg)")
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
