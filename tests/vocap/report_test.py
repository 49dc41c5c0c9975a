"""The report against the build it tells of, recomputed the slow way, and its warnings."""

import atexit
import collections
import dataclasses
import functools
import json
import pathlib
import re
import tempfile

from absl.testing import parameterized

from tests import golden
from tests.vocap import explorer_test, records
from tests.vocap.records import STEP, record
from tests.vocap.texts import made_up
from vocap import explorer, plots, pretokens, report
from vocap.building import BuiltVocabulary, build_vocabulary
from vocap.record import allocation_record
from vocap.report_warnings import enumerated, warnings
from vocap.settings import METHODS, VocabularySettings

SETTINGS = VocabularySettings(
    compare=METHODS[1:-1], target_size=200, num_clusters=2, sizes=(8, 20, 30, 40, 50, 60, 70, 80),
    character_coverage=0.98, max_piece_length=8, max_characters=0, em_iterations=1, num_workers=1,
)  # fmt: skip
SYLLABLES = {
    "xa": [c + v for c in "bdgklmn" for v in "aeiou"],
    "xb": [c + v for c in "fgklprst" for v in "aeo"],
    "xc": [c + v for c in "hklmnpw" for v in "aeiou"],
    "yd": [c + v for c in "\u043a\u043b\u043c\u043d\u0440" for v in "\u0430\u0438\u043e\u0443"],
    "ze": [c + v for c in "\u03b2\u03b3\u03b4\u03ba" for v in "\u03b1\u03b5\u03b9\u03bf"],
}
SENTENCES = {"xa": 120, "xb": 90, "xc": 60, "yd": 50, "ze": 30}
EXACT, PARTIAL = 200, 195  # target sizes that the last step meets exactly, and that it overshoots


TEXT = {name: made_up(SYLLABLES[name], n, name, "train") for name, n in SENTENCES.items()}
# One character that no training text has, and some that others have.
HELDOUT = {
    name: [*made_up(SYLLABLES[name], 10, name, "heldout"), "q b \u03b2 \u043a"]
    for name in SENTENCES
}


@functools.cache
def cache() -> pathlib.Path:
    folder = tempfile.TemporaryDirectory()
    atexit.register(folder.cleanup)
    return pathlib.Path(folder.name)


@functools.cache
def build(
    method: str = "vocap", target_size: int = EXACT, with_heldout: bool = True
) -> tuple[BuiltVocabulary, VocabularySettings]:
    settings = dataclasses.replace(SETTINGS, method=method, target_size=target_size)
    heldout = HELDOUT if with_heldout else {}
    return build_vocabulary(TEXT, heldout, settings, cache()), settings


class RecordTest(parameterized.TestCase):
    def test_says_what_the_build_decided(self):
        vocabulary, settings = build(target_size=PARTIAL)
        record, allocation = allocation_record(vocabulary, settings), vocabulary.choice.allocation
        self.assertEqual(record["pieces"], PARTIAL - 5)
        for name, one in vocabulary.languages.items():
            curve = one.vocabularies.curve
            expected = {
                "bytes": one.table.num_bytes, "probability": one.probability,
                "sizes": list(curve.sizes), "alp": list(curve.alp),
                "allocated": allocation.sizes[name], "at_largest": name in allocation.at_largest,
                "not_concave": list(allocation.not_concave.get(name, ())),
                "sentences": SENTENCES[name],
            }  # fmt: skip
            self.assertEqual(record["languages"][name] | expected, record["languages"][name])
        by_amount = sorted(record["languages"].values(), key=lambda one: one["amount"])
        thirds = [one["resource"] for one in by_amount]
        self.assertEqual(thirds, ["low", "mid", "mid", "high", "high"])
        # First sizes, which every language gets, are no decisions.
        taken = [step for step in allocation.steps if step.gain < float("inf")]
        self.assertEqual(
            [(s["language"], s["size"], s["gain"], s["union"]) for s in record["steps"]],
            [(s.language, s.size, s.gain, s.union) for s in taken],
        )
        firsts = [
            set(one.vocabularies.curve.vocabulary(0)) for one in vocabulary.languages.values()
        ]
        self.assertEqual(record["first_pieces"], len(set.union(*firsts)))
        self.assertEqual(record["cut"], min(step.gain for step in taken))

    def test_a_partial_step_names_what_it_lacks(self):
        vocabulary, settings = build(target_size=PARTIAL)
        name = vocabulary.choice.allocation.partial
        missing = {*allocated_vocabularies(vocabulary)[name]} - {*vocabulary.choice.pieces}
        self.assertNotEmpty(missing)
        record = allocation_record(vocabulary, settings)
        self.assertEqual(record["partial"], {"name": name, "missing": len(missing)})
        self.assertIsNone(allocation_record(*build(target_size=EXACT))["partial"])

    def test_shared_pieces_are_those_that_another_vocabulary_holds(self):
        vocabulary, settings = build()
        vocabularies = allocated_vocabularies(vocabulary)
        record = allocation_record(vocabulary, settings)
        for name, pieces in vocabularies.items():
            others = set().union(*(p for other, p in vocabularies.items() if other != name))
            expected = sum(piece in others for piece in pieces) / len(pieces)
            self.assertAlmostEqual(record["languages"][name]["shared"], expected)
        shares = [one["shared"] for one in record["languages"].values()]
        self.assertGreater(max(shares), 2 * min(shares))

    @parameterized.parameters("vocap", "uniform", "proportional")
    def test_margins_are_those_of_the_allocation_with_gains_by_q_and_beta(self, method):
        vocabulary, settings = build(method)
        allocation = vocabulary.choice.allocation
        for name, one in allocation_record(vocabulary, settings)["languages"].items():
            weight = vocabulary.languages[name].probability ** settings.beta
            for side in ("less", "more"):
                change = getattr(allocation.margins[name], side)
                if change is None:
                    self.assertIsNone(one[side])
                    continue
                gain = weight * change.alp / (change.size - allocation.sizes[name])
                self.assertEqual(one[side], dataclasses.asdict(change) | {"gain": gain})

    def test_uncovered_characters_are_counted_in_the_text(self):
        vocabulary, settings = build("joint")
        single = {piece for piece in vocabulary.choice.pieces if len(piece) == 1}
        record = allocation_record(vocabulary, settings)
        for name, one in record["languages"].items():
            language = vocabulary.languages[name]
            text, held = map(counted_characters, (language.table, language.heldout))
            lacking = {c: n for c, n in held.items() if c not in single}
            unseen = {c: n for c, n in lacking.items() if c not in text}
            self.assertGreater(sum(unseen.values()), 0)
            self.assertAlmostEqual(
                one["uncovered"],
                sum(n for c, n in text.items() if c not in single) / sum(text.values()),
            )
            self.assertAlmostEqual(
                one["heldout_uncovered"], sum(lacking.values()) / sum(held.values())
            )
            self.assertAlmostEqual(one["heldout_unseen"], sum(unseen.values()) / sum(held.values()))
        self.assertGreater(max(one["uncovered"] for one in record["languages"].values()), 0)
        one = allocation_record(*build("joint", with_heldout=False))["languages"]["xa"]
        self.assertEqual(one, record["languages"]["xa"] | {
            "heldout_sentences": 0, "heldout_uncovered": None, "heldout_unseen": None,
        })  # fmt: skip

    def test_clusters_have_what_languages_have_elsewhere(self):
        vocabulary, settings = build("clustered")
        record = allocation_record(vocabulary, settings)
        self.assertEqual(
            {name: one["allocated"] for name, one in record["clusters"].items()},
            vocabulary.choice.allocation.sizes,
        )
        together = [name for one in record["clusters"].values() for name in one["languages"]]
        self.assertCountEqual(together, SENTENCES)
        for one in record["clusters"].values():
            weight = sum(vocabulary.languages[name].probability for name in one["languages"])
            step = one["less"] or one["more"]
            slope = step["alp"] / (step["size"] - one["allocated"])
            self.assertAlmostEqual(step["gain"], weight**settings.beta * slope)
        for name in SENTENCES:
            self.assertIsNone(record["languages"][name]["allocated"])


def allocated_vocabularies(vocabulary: BuiltVocabulary) -> dict[str, tuple[str, ...]]:
    curves = {name: one.vocabularies.curve for name, one in vocabulary.languages.items()}
    return {
        name: curves[name].vocabulary(curves[name].sizes.index(size))
        for name, size in vocabulary.choice.allocation.sizes.items()
    }


def counted_characters(table: pretokens.PretokenTable) -> collections.Counter[str]:
    counted: collections.Counter[str] = collections.Counter()
    for run, count in zip(table.runs(), table.counts.tolist(), strict=True):
        for character in run:
            counted[character] += count
    return counted


class PageTest(parameterized.TestCase):
    def check(self, name: str, one: dict) -> None:
        golden.check_report(self, __file__, name, lambda folder: report.write_page(folder, one))

    def test_a_build_by_vocap(self):
        changes = {
            "scores.joint.yd": {"alp": -20.0, "tokens_per_sentence": 9.5, "unknown_rate": 0.02},
            "scores.vocap.ze.tokens_per_sentence": 10.0,
            "languages.xa.less": None,
            "languages.xb.shared": 1 / 3,
            "languages.yd.alp": [-50.0, -40.0, -41.0],  # a loss, which has no logarithm
            "languages.yd.more": {**records.STEP, "gain": -1e-3},
            "languages.xc.not_concave": [20, 30],
            "languages.ze.less": {"size": 8, "alp": -4.5, "gain": 0.0625, "pieces": -8},
            "languages.ze.more": None,
            "languages.ze.allocated": 80,
            "languages.ze.at_largest": True,
            "partial": {"name": "xc", "missing": 7},
            "settings.initial_sizes": {"xa": 8},
            "cut": 2e-3,
        }
        self.check("report", records.record(changes))

    def test_a_build_by_clusters(self):
        of_none = dict.fromkeys(("allocated", "less", "more", "shared"))
        changes = {f"languages.{name}.{key}": None for name in records.LANGUAGES for key in of_none}
        cluster = {"allocated": 95, "at_largest": False, "less": records.STEP, "not_concave": []}
        changes |= {
            "clusters": {"1": {**cluster, "languages": ["xa", "ze"], "more": records.STEP},
                         "2": {**cluster, "languages": ["xb", "xc", "yd"], "more": None,
                               "at_largest": True}},
            "settings.method": "clustered", "settings.amounts": {"xa": 3.0}, "scores": {},
            "steps": [{}], "cut": None,
        }  # fmt: skip
        self.check("report_clusters", records.record(changes))

    def test_one_language_without_a_size(self):
        changes = {
            "settings.method": "bpe", "settings.compare": [],
            "scores": {"bpe": records.record(languages=["xa"])["scores"]["joint"]},
            "languages.xa.allocated": None, "cut": None,
        }  # fmt: skip
        self.check("report_bpe", records.record(changes, languages=["xa"]))

    @parameterized.parameters("vocap", "uniform", "clustered", "joint")
    def test_a_report_replaces_that_of_another_method(self, method):
        folder = pathlib.Path(self.enter_context(tempfile.TemporaryDirectory()))
        for name in ("sizes.svg", "comparison.svg", "report.html"):
            (folder / name).write_bytes(b"old")
        report.write_report(folder, *build(method))
        page = (folder / "report.md").read_text(encoding="utf-8")
        named = set(re.findall(r"\]\((.*?)\)", page))
        self.assertEqual(
            {path.name for path in folder.iterdir()},
            named | {"report.md", "report.html", "allocation.json"},
        )
        content = (folder / "report.html").read_text(encoding="utf-8")
        self.assertEqual('id="explorer"' in content, method == "vocap")
        self.assertIn(">Sizes</h2>", content)
        for path in folder.iterdir():
            self.assertNotEqual(path.read_bytes(), b"old")
        record = json.loads((folder / "allocation.json").read_text(encoding="utf-8"))
        self.assertEqual(page, report.page(record))
        report.remove(folder)
        self.assertEmpty(list(folder.iterdir()))

    def test_the_explorer_has_the_build_and_its_course(self):
        vocabulary, settings = build(target_size=PARTIAL)
        record = allocation_record(vocabulary, settings)
        data = explorer_test.embedded(explorer.explorer_page(record, vocabulary, settings))
        sizes = vocabulary.choice.allocation.sizes
        self.assertEqual({one["name"]: one["built"] for one in data["languages"]}, sizes)
        self.assertEqual(explorer_test.sizes_at(data, PARTIAL, settings.beta), sizes)
        self.assertEqual([course["beta"] for course in data["courses"]], list(explorer.BETAS))


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


JOINT = {"settings.method": "joint"}
UNIFORM = {"settings.method": "uniform", "cut": None}
UNKNOWN = {"languages.yd.heldout_uncovered": 0.02, "languages.yd.heldout_unseen": 0.015}
LARGEST = {"languages.xb.at_largest": True}
FULL = {"languages.xb.sizes": [8, 40], "languages.xb.alp": [-50.0, -40.0]}
SMALLEST = {"languages.xa.less": None}
LONG = {"languages.xa.alp": [-80.0, -70.0, -65.0], "languages.yd.alp": [-20.0, -14.0, -13.0]}


class WarningsTest(parameterized.TestCase):
    @parameterized.parameters(
        {},
        # 1.49 times the median.
        {"languages.xa.alp": [-70.0, -60.0, -58.0]},
        # Methods that are not built.
        {**UNKNOWN, "scores.joint.yd.unknown_rate": 0.03},
        {"languages.yd.uncovered": 0.019},
        # One language alone is no reason, however much it gains.
        {"scores.uniform.xa.alp": -10.0},
        {"languages.ze.alp": [-50.0, -40.0, -36.1]},
        # 1 of 40 million characters, as coverage is compared in single precision.
        {"settings.character_coverage": 0.9995, "languages.yd.uncovered": 1 - 0.9995 + 2.5e-8},
        {"settings.character_coverage": 1.0, "languages.yd.uncovered": 2.5e-8},
        # ALP decides nothing, nor has each language the seeds of all.
        {**LONG, "settings.method": "uniform", "cut": None, "settings.compare": []},
        {"settings.max_seeds": 500, "settings.compare": ["uniform"]},
    )
    def test_no_warning(self, **changes):
        self.assertEmpty(warnings(record(changes)))

    @parameterized.parameters(
        ({**LARGEST, "languages.xb.allocated": 80},
         r"At the largest of vocab.sizes, .* xb \(80, at 2.0 times the gain of the cut\). Offer"),
        ({**LARGEST, **FULL, "languages.xb.more": None}, r"fill, .* xb \(40, at .*\). Add text."),
        (SMALLEST, "from the smallest of vocab.sizes, 8: xa. Offer smaller"),
        ({**SMALLEST, "languages.xa.sizes": [40, 60], "languages.xa.alp": [-40.0, -39.0]},
         r"holds all their characters: xa \(40\), 21% of all pieces. Lower vocab.character_cov"),
        (LONG, r"xa \(1.7 times\); yd \(0.3 times\). Cut the text"),
        ({"settings.max_seeds": 500},
         "joint vocabulary keeps 38% of the 500 seeds .* Raise vocab.max_seeds to at least 950"),
        ({**JOINT, "settings.max_seeds": 500, "settings.compare": []}, "vocabulary keeps 38%"),
        ({**UNKNOWN, "scores.vocap.yd.unknown_rate": 0.03},
         r"yd \(3.0%; 75% of them not in the training text\). Add text .* raise vocab.char"),
        ({"languages.yd.uncovered": 0.021}, r"is 0.98: yd \(2.10%\). Training .*max_characters"),
        ({**JOINT, "settings.compare": [], "languages.yd.uncovered": 0.021},
         r"yd \(2.10%\). .*each language separately"),
        ({"languages.yd.uncovered": 0.021, "settings.max_characters": 0},
         r"yd \(2.10%\). Raise it.$"),
        ({"settings.character_coverage": 1.0, "languages.yd.uncovered": 2e-7}, "have no piece"),
        ({f"scores.uniform.{name}.alp": -29.0 for name in ("xa", "xb", "xc")},
         r"ALP of vocap is below that of uniform \(by 0.20 nats, better for 3 of 5\). Compare"),
        ({"languages.ze.alp": [-50.0, -40.0, -35.9]},
         r"by more than 10% for 1 of 5 languages: ze \(10%\). The budget limits them; raise"),
        ({"partial": {"name": "xc", "missing": 7}},
         "The last step, xc to 40, had room .*; 7 were left out. Its ALP here .* all 40."),
        ({"partial": {"name": "xc", "missing": None}}, "most probable new pieces.$"),
        ({"languages.xc.not_concave": [20, 30], "languages.ze.not_concave": [30]},
         "2 curves are not concave, and steps skip 3 of their sizes"),
        ({**UNIFORM, "settings.compare": [], "languages.xa.more": {**STEP, "gain": 3.0}},
         r"gain 3e\+03 weighted nats in xa and 1e\+03 in .*With vocab.method = vocap"),
    )  # fmt: skip
    def test_a_warning(self, changes, expected):
        (text,) = warnings(record(changes))
        self.assertRegex(text, expected)

    def test_names_a_few(self):
        self.assertEqual(enumerated(["a"]), "a")
        self.assertEqual(enumerated(["a", "b", "c"]), "a, b and c")
        self.assertEqual(enumerated(list("abcdefghi")), "a, b, c, d, e, f, g, h and i")
        self.assertEqual(enumerated(list("abcdefghijk")), "a, b, c, d, e, f, g, h and 3 more")
