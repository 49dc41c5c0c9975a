"""The explorer in a real browser, from a file, without a network; skipped where there is none."""

import html.parser
import json
import pathlib
import re
import tempfile

from absl.testing import absltest
from ml_collections import ConfigDict

from tests import browser
from tests.vocap.explorer_test import BUILD, allocated, made_up_curves, made_up_data
from vocap import explorer
from xlm.experiment import data as data_builders
from xlm.experiment.schema import default_config

VIEWS = [(T, beta) for T in (700, 1500, 3000, 4321, 6000) for beta in (0.0, 0.3, 1.0)]
KEYS = ["ArrowDown", "ArrowDown", "ArrowUp", "End", "ArrowDown", "Home", "ArrowUp"]
VISIT = pathlib.Path(__file__).with_name("explorer_visit.js")
# Before the page's own scripts.
WATCH = """
<script>
window.seen = { errors: [] };
window.onerror = (message) => { seen.errors.push(message); };
</script>
"""


class BrowserTest(absltest.TestCase):
    def setUp(self):
        super().setUp()
        self.folder = pathlib.Path(self.enter_context(tempfile.TemporaryDirectory()))
        self.page = explorer.fill_template(made_up_data())

    def open(self, page: str, fragment: str = "") -> str:
        return browser.document(self, page, fragment)

    def visit(self) -> dict:
        """Page as a person sees it who uses it."""
        given = f"const VIEWS = {json.dumps(VIEWS)}, KEYS = {json.dumps(KEYS)};"
        visit = f"<script>{given}</script><script>{VISIT.read_text(encoding='utf-8')}</script>"
        page = self.page.replace("<body>", f"<body>{WATCH}").replace("</body>", f"{visit}</body>")
        document = self.open(page)
        found = re.search(r'<pre id="seen">(.*?)</pre>', document, re.DOTALL)
        self.assertIsNotNone(found, re.findall("<title>(.*?)</title>", document, re.DOTALL))
        return json.loads(html.unescape(found[1]))

    def test_a_person_finds_sorts_moves_and_exports(self):
        seen = self.visit()
        self.assertEmpty(seen["errors"])
        self.assertEmpty(seen["nameless"])
        for (target_size, beta), shown in zip(VIEWS, seen["views"], strict=True):
            self.assertEqual(shown, allocated(target_size, beta).sizes)
        by_amount = ["en", "de", "zh", "hi", "sw"]
        self.assertEqual(seen["nonsense"], ["3000", "0.3", by_amount])
        most = len(allocated(seen["clamped"], 0.0).pieces)
        self.assertEqual(seen["clamped"], most + made_up_data()["specials"])
        with self.assertRaisesRegex(ValueError, "too large"):
            allocated(seen["clamped"] + 1, 0.0)
        self.check_sorting(seen, by_amount)
        self.assertEqual(seen["found"], [["sw"], "1 of 5"])
        self.assertEqual(seen["missing"], [[], False])
        moved = ["hi", "sw", "hi", "zh", "zh", "de", "de"]
        self.assertEqual(seen["keys"], [[name, name] for name in moved])
        self.assertEqual(seen["stops"], [0, -1, -1, -1, -1])
        self.assertEqual(seen["slid"], ["4000", "0.3", allocated(4000, 0.3).sizes])
        self.assertEqual(seen["summary"][0], "3,995and 5 special")
        self.check_next(seen["next"], 4000, 0.3)
        sizes, disabled, changes = seen["reset"]
        self.assertEqual((sizes, disabled, changes), (allocated(**BUILD).sizes, True, ""))
        self.check_exports(seen)

    def check_sorting(self, seen: dict, by_amount: list[str]) -> None:
        """Each column ascends and descends, by the values that it has in the build."""
        curves, result = made_up_curves(), allocated(**BUILD)
        at = {name: curve.sizes.index(result.sizes[name]) for name, curve in curves.items()}
        alp = {name: curve.alp[at[name]] for name, curve in curves.items()}
        more = {name: margin.more for name, margin in result.margins.items()}
        values = {
            "language": {name: name for name in curves},
            "amount": {name: -by_amount.index(name) for name in curves},
            "q": {name: -by_amount.index(name) for name in curves},
            "size": result.sizes,
            "change": dict.fromkeys(curves, 0),
            "curve": {
                name: (alp[name] - min(c.alp)) / (max(c.alp) - min(c.alp))
                for name, c in curves.items()
            },
            "alp": alp,
            "next": {name: more[name].gain if more[name] else float("-inf") for name in curves},
        }
        self.assertEqual(set(seen["sorted"]), set(values))
        for key, clicks in seen["sorted"].items():
            value = values[key]
            self.assertEqual({direction for direction, _ in clicks}, {"ascending", "descending"})
            for direction, order in clicks:
                sign = 1 if direction == "ascending" else -1
                shown = [value[name] for name in order]
                self.assertEqual(shown, sorted(value.values(), reverse=sign < 0), key)
        address, status = seen["settled"]
        self.assertRegex(address, r"^#T=3000&beta=0.7&sort=-?next&language=en$")
        self.assertEqual(status, "T 3,000, beta 0.7: 0 languages unlike the build")

    def check_next(self, cells: list[str], target_size: int, beta: float) -> None:
        """The pieces of each next thousand are those of the steps to it."""
        before = allocated(target_size, beta)
        for target, gain, shares in zip(cells[::3], cells[1::3], cells[2::3], strict=False):
            self.assertEqual(target, f"{target_size + 1000:,}")
            after = allocated(target_size + 1000, beta)
            unions = [len(before.pieces), *(s.union for s in after.steps[len(before.steps) - 1 :])]
            expected = dict.fromkeys(made_up_curves(), 0)
            for step, start, end in zip(
                after.steps[len(before.steps) - 1 :], unions, unions[1:], strict=False
            ):
                expected[step.language] += end - start
            shown = re.findall(r"([a-z]{2}) (−?[\d,]+)", shares)
            found = {name: int(re.sub(",", "", n).replace("−", "-")) for name, n in shown}
            self.assertEqual(found, {name: n for name, n in expected.items() if n})
            self.assertEqual(sum(found.values()), 1000)
            self.assertAlmostEqual(float(gain), 1000 * after.steps[-1].gain, delta=0.01)
            target_size, before = target_size + 1000, after
        self.assertRegex(cells[-1], r"suffice for T up to 6,\d\d\d\.")
        self.assertLen(cells, 2 * 3 + 1)

    def check_exports(self, seen: dict) -> None:
        """A build begins at the exported sizes and ends at the allocation that was shown."""
        self.assertEqual(seen["file"], "allocation-T4000-beta0.3.json")
        flags = re.findall(r"--config\.vocab\.(\w+)=(\S+)", seen["command"])
        self.assertEqual(
            flags, [("allocation", seen["file"]), ("target_size", "4000"), ("beta", "0.3")]
        )
        partial = 0
        for target_size, beta in [*VIEWS, (4000, 0.3)]:
            path = self.folder / seen["file"]
            path.write_text(json.dumps(seen["exports"].pop(0)))
            config = ConfigDict(default_config())
            config.vocab.update(allocation=str(path), target_size=target_size, beta=beta)
            sizes = data_builders.vocabulary_settings(config).initial_sizes
            expected = allocated(target_size, beta)
            again = allocated(target_size, beta, initial_sizes=sizes)
            self.assertEqual((again.sizes, again.pieces), (expected.sizes, expected.pieces))
            partial += sizes != expected.sizes
        self.assertGreater(partial, 3)
