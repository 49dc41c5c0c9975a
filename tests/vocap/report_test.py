"""The report against the build it tells of, recomputed the slow way."""

import collections
import dataclasses
import functools
import json
import pathlib
import random
import tempfile
from unittest import mock

import numpy as np
from absl.testing import absltest, parameterized

from tests.vocap import explorer_test
from vocap import bpe, comparison, explorer, methods, report, runs, unigram
from vocap.allocation import language_probabilities
from vocap.build import BuiltVocabulary, Language
from vocap.record import allocation_record
from vocap.settings import METHODS, VocabularySettings

SETTINGS = VocabularySettings(
    method="vocap",
    compare=METHODS[1:],
    target_size=200,
    amounts={},
    alpha=0.7,
    beta=0.7,
    initial_sizes={},
    num_clusters=2,
    trainer="nested",
    sizes=(8, 20, 30, 40, 50, 60, 70, 80),
    character_coverage=0.98,
    max_piece_length=8,
    max_seeds=10_000,
    max_characters=0,
    alp_probabilities="corpus",
    em_iterations=1,
    num_workers=1,
    seed=0,
)
SYLLABLES = {
    "xa": [c + v for c in "bdgklmn" for v in "aeiou"],
    "xb": [c + v for c in "fgklprst" for v in "aeo"],
    "xc": [c + v for c in "hklmnpw" for v in "aeiou"],
    "yd": [c + v for c in "\u043a\u043b\u043c\u043d\u0440" for v in "\u0430\u0438\u043e\u0443"],
    "ze": [c + v for c in "\u03b2\u03b3\u03b4\u03ba" for v in "\u03b1\u03b5\u03b9\u03bf"],
}
SENTENCES = {"xa": 120, "xb": 90, "xc": 60, "yd": 50, "ze": 30}
EXACT, PARTIAL = 200, 195  # target sizes that the last step meets exactly, and that it overshoots


def made_up_text(language: str, num_sentences: int, seed: str) -> list[str]:
    """Sentences of made-up words whose frequencies fall as Zipf has it."""
    rng = random.Random(language)
    lexicon = ["".join(rng.choices(SYLLABLES[language], k=rng.randint(1, 4))) for _ in range(120)]
    weights = [1 / (rank + 1) for rank in range(len(lexicon))]
    rng = random.Random(language + seed)
    return [
        " ".join(rng.choices(lexicon, weights, k=rng.randint(3, 9))) for _ in range(num_sentences)
    ]


@functools.cache
def tables() -> dict[str, runs.RunTable]:
    return {
        language: runs.count_runs(made_up_text(language, number, "train"))
        for language, number in SENTENCES.items()
    }


@functools.cache
def heldout(language: str) -> runs.RunTable:
    # One character that no training text has, and some that others have.
    return runs.count_runs([*made_up_text(language, 10, "heldout"), "q b \u03b2 \u043a"])


def train(table: runs.RunTable, sizes: tuple[int, ...]) -> unigram.Vocabularies:
    settings = dataclasses.replace(SETTINGS.training, sizes=sizes)
    found = unigram.train_vocabularies(table, settings)
    assert found is not None
    return found


@functools.cache
def trained(language: str) -> unigram.Vocabularies:
    return train(tables()[language], SETTINGS.sizes)


@functools.cache
def trained_together(languages: tuple[str, ...], sizes: tuple[int, ...]) -> unigram.Vocabularies:
    probabilities = dict.fromkeys(languages, 1 / len(languages))
    mixture = runs.mixture({lang: tables()[lang] for lang in languages}, probabilities)
    return train(mixture, sizes)


@functools.cache
def trained_merges(size: int) -> tuple[tuple[str, ...], np.ndarray]:
    mixture = runs.mixture(tables(), dict.fromkeys(tables(), 1 / len(tables())))
    return bpe.train(mixture, size, character_coverage=1.0, max_piece_length=16)


@functools.cache
def build(
    method: str = "vocap",
    languages: tuple[str, ...] = tuple(SENTENCES),
    target_size: int = EXACT,
    with_heldout: bool = True,
) -> tuple[BuiltVocabulary, VocabularySettings]:
    """A vocabulary made of its parts, and the settings that it is of."""
    settings = dataclasses.replace(SETTINGS, method=method, target_size=target_size)
    text = {language: tables()[language] for language in languages}
    held = {language: heldout(language) for language in languages} if with_heldout else {}
    amounts = {language: table.num_bytes for language, table in text.items()}
    probabilities = language_probabilities(amounts, settings.alpha)
    choices = {
        name: methods.choose(
            name,
            {language: trained(language) for language in languages},
            probabilities,
            beta=settings.beta,
            budget=settings.budget,
            num_clusters=settings.num_clusters,
            train_together=trained_together,
            train_merges=trained_merges,
        )
        for name in dict.fromkeys((method, *settings.compare))
    }
    vocabulary = BuiltVocabulary(
        model=b"",
        languages={
            language: Language(
                table=text[language],
                heldout=held.get(language),
                vocabularies=trained(language),
                amount=amounts[language],
                probability=probabilities[language],
            )
            for language in languages
        },
        choice=choices[method],
        scores={
            name: comparison.score(
                comparison.counter(choice.pieces, choice.initial_scores, choice.kind), text, held
            )
            for name, choice in choices.items()
        },
    )
    return vocabulary, settings


def cells(table: str) -> dict[str, list[str]]:
    """First cell of each row -> its other cells."""
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()]
    assert len({len(row) for row in rows}) == 1, "rows of unequal length are no table"
    return {row[0]: row[1:] for row in rows[2:]}


class RecordTest(parameterized.TestCase):
    @parameterized.parameters(*METHODS)
    def test_survives_json(self, method):
        record = allocation_record(*build(method))
        text = json.dumps(record, allow_nan=False, sort_keys=True)
        self.assertEqual(json.loads(text), json.loads(json.dumps(record)))
        self.assertEqual(report.page(json.loads(text)), report.page(record))

    def test_says_what_the_build_decided(self):
        vocabulary, settings = build(target_size=PARTIAL)
        record, allocation = allocation_record(vocabulary, settings), vocabulary.choice.allocation
        self.assertEqual(record["pieces"], PARTIAL - 5)
        for name, one in vocabulary.languages.items():
            found = record["languages"][name]
            self.assertEqual(found["bytes"], one.table.num_bytes)
            self.assertEqual(found["probability"], one.probability)
            self.assertEqual(found["sizes"], list(one.vocabularies.curve.sizes))
            self.assertEqual(found["alp"], list(one.vocabularies.curve.alp))
            self.assertEqual(found["allocated"], allocation.sizes[name])
            self.assertEqual(found["at_largest"], name in allocation.at_largest)
            self.assertEqual(found["not_concave"], list(allocation.not_concave.get(name, ())))
            self.assertEqual(found["sentences"], SENTENCES[name])
        # First sizes, which every language gets, are no decisions.
        taken = [step for step in allocation.steps if step.gain < float("inf")]
        self.assertEqual(
            [(s["language"], s["size"], s["gain"], s["union"]) for s in record["steps"]],
            [(s.language, s.size, s.gain, s.union) for s in taken],
        )
        firsts = [set(trained(name).curve.vocabulary(0)) for name in SENTENCES]
        self.assertEqual(record["first_pieces"], len(set.union(*firsts)))
        self.assertEqual(record["cut"], min(step.gain for step in taken))

    def test_a_partial_step_names_what_it_lacks(self):
        vocabulary, settings = build(target_size=PARTIAL)
        name = vocabulary.choice.allocation.partial
        wanted = set(allocated_vocabularies(vocabulary)[name])
        missing = len(wanted - set(vocabulary.choice.pieces))
        self.assertGreater(missing, 0)
        record = allocation_record(vocabulary, settings)
        self.assertEqual(record["partial"], {"name": name, "missing": missing})
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
    def test_margins_are_what_a_step_would_change(self, method):
        for target_size in (EXACT, *range(120, 220)):
            vocabulary, settings = build(method, target_size=target_size)
            if vocabulary.choice.allocation.partial is None:
                break
        vocabularies = allocated_vocabularies(vocabulary)
        record = allocation_record(vocabulary, settings)
        for name, one in record["languages"].items():
            curve, q = trained(name).curve, vocabulary.languages[name].probability
            at = curve.sizes.index(one["allocated"])
            slopes = {
                s: (curve.alp[s] - curve.alp[at]) / (curve.sizes[s] - curve.sizes[at])
                for s in range(len(curve.sizes))
                if s != at
            }
            above, below = (list(filter(test, slopes)) for test in (at.__lt__, at.__gt__))
            # The envelope goes on where it is steepest, and came from where it is flattest.
            steps = {
                "more": max(above, key=slopes.__getitem__, default=None),
                "less": min(below, key=slopes.__getitem__, default=None),
            }
            if method != "vocap":
                steps = {"more": min(above, default=None), "less": max(below, default=None)}
            for side, s in steps.items():
                if s is None:
                    self.assertIsNone(one[side])
                    continue
                moved = {**vocabularies, name: curve.vocabulary(s)}
                pieces = len(set().union(*moved.values())) - record["pieces"]
                self.assertEqual(one[side]["size"], curve.sizes[s])
                self.assertEqual(one[side]["pieces"], pieces)
                self.assertAlmostEqual(one[side]["alp"], curve.alp[s] - curve.alp[at])
                self.assertAlmostEqual(one[side]["gain"], q**settings.beta * slopes[s])

    def test_the_cut_lies_between_all_last_and_all_next_steps(self):
        record = allocation_record(*build())
        for one in record["languages"].values():
            if one["less"]:
                self.assertGreaterEqual(one["less"]["gain"], record["cut"] * (1 - 1e-9))
            if one["more"]:
                self.assertLessEqual(one["more"]["gain"], record["cut"] * (1 + 1e-9))
        self.assertIsNone(allocation_record(*build("uniform"))["cut"])

    def test_uncovered_characters_are_counted_in_the_text(self):
        vocabulary, settings = build("joint")
        single = {piece for piece in vocabulary.choice.pieces if len(piece) == 1}
        record = allocation_record(vocabulary, settings)
        for name, one in record["languages"].items():
            text, held = counted_characters(tables()[name]), counted_characters(heldout(name))
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

    def test_thirds_go_by_amount(self):
        record = allocation_record(*build())
        groups = collections.defaultdict(list)
        for one in record["languages"].values():
            groups[one["resource"]].append(one["amount"])
        self.assertEqual(
            {name: len(g) for name, g in groups.items()}, {"high": 2, "mid": 2, "low": 1}
        )
        self.assertGreater(min(groups["high"]), max(groups["mid"]))
        self.assertGreater(min(groups["mid"]), max(groups["low"]))

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


def counted_characters(table: runs.RunTable) -> collections.Counter[str]:
    counted: collections.Counter[str] = collections.Counter()
    for run, count in zip(table.runs(), table.counts.tolist(), strict=True):
        for character in run:
            counted[character] += count
    return counted


class TablesTest(absltest.TestCase):
    def test_most_text_comes_first_in_each(self):
        record = allocation_record(*build())
        order = sorted(record["languages"], key=lambda name: -record["languages"][name]["amount"])
        for table in (
            report.allocation_table(record),
            report.margin_table(record),
            report.score_table(record, "alp"),
        ):
            self.assertEqual(list(cells(table)), order)

    def test_sizes(self):
        record = allocation_record(*build())
        one = record["languages"]["xa"]
        alp = one["alp"][one["sizes"].index(one["allocated"])]
        expected = [
            f"{one['bytes'] / 1000:.0f}", f"{one['probability']:.3f}", "20 to 80",
            str(one["allocated"]), f"{alp:.1f}",
        ]  # fmt: skip
        self.assertEqual(cells(report.allocation_table(record))["xa"], expected)
        one["at_largest"] = True
        found = cells(report.allocation_table(record))["xa"]
        self.assertEqual(found[3], f"{one['allocated']} (largest)")
        # Without sizes there is nothing to say of them.
        joint = allocation_record(*build("joint"))
        self.assertEqual(cells(report.allocation_table(joint))["xa"], expected[:3])

    def test_margins(self):
        record = allocation_record(*build())
        one = record["languages"]["xa"]
        one["shared"] = 0.25
        one["less"] = {"size": 30, "alp": -4.5, "gain": 0.0625, "pieces": -8}
        one["more"] = {"size": 60, "alp": 2.25, "gain": 0.03125, "pieces": 7}
        self.assertEqual(
            cells(report.margin_table(record))["xa"],
            [
                str(one["allocated"]),
                "62.5",
                "31.2",
                "30: ALP -4.50, pieces -8",
                "60: ALP +2.25, pieces +7",
                "25%",
            ],
        )
        one["less"] = None
        self.assertEqual(cells(report.margin_table(record))["xa"][1:5:2], ["", "none"])

    def test_clusters(self):
        record = allocation_record(*build("clustered"))
        table = cells(report.cluster_table(record))
        for name, one in record["clusters"].items():
            self.assertEqual(table[name], [", ".join(one["languages"]), str(one["allocated"])])
        self.assertEqual(list(cells(report.margin_table(record))), list(record["clusters"]))

    def test_scores_per_language(self):
        vocabulary, settings = build()
        record = allocation_record(vocabulary, settings)
        for field, digits, factor in (("alp", 1, 1), ("unknown_rate", 2, 100)):
            row = cells(report.score_table(record, field))["yd"]
            values = {
                method: factor * getattr(scores["yd"], field)
                for method, scores in vocabulary.scores.items()
            }
            group = record["languages"]["yd"]["resource"]
            self.assertEqual(row[:3], [group, "11", f"{values['vocap']:.{digits}f}"])
            value, difference = values["joint"], values["joint"] - values["vocap"]
            sign = f"{difference:+.{digits}f}"
            sign = sign if float(sign) else sign[1:]
            self.assertEqual(row[5], f"{value:.{digits}f} ({sign})")
        row = cells(report.score_table(record, "tokens_per_sentence"))["yd"]
        joint, vocap = (vocabulary.scores[m]["yd"].tokens_per_sentence for m in ("joint", "vocap"))
        self.assertNotEqual(round(joint, 1), round(vocap, 1))
        self.assertEqual(row[5], f"{joint:.1f} ({100 * (joint / vocap - 1):+.1f} %)")

    def test_scores_of_a_group_are_means_over_its_languages(self):
        vocabulary, settings = build()
        record = allocation_record(vocabulary, settings)
        lines = report.group_table(record).splitlines()[2:]
        rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
        self.assertLen(rows, 4 * len(METHODS))
        found = {(row[0], row[1]): row[2:] for row in rows}
        groups = {"high (2)": [], "mid (2)": [], "low (1)": [], "all (5)": list(SENTENCES)}
        for name, one in record["languages"].items():
            next(names for group, names in groups.items() if one["resource"] in group).append(name)
        self.assertEqual({group for group, _ in found}, set(groups))
        for (group, method), row in found.items():
            scores = [vocabulary.scores[method][name] for name in groups[group]]
            first = [vocabulary.scores["vocap"][name] for name in groups[group]]
            self.assertStartsWith(row[0], f"{np.mean([s.alp for s in scores]):.1f}")
            self.assertStartsWith(row[2], f"{100 * np.mean([s.unknown_rate for s in scores]):.2f}")
            if method == "vocap":
                continue
            tokens = [
                (one.tokens_per_sentence, other.tokens_per_sentence)
                for one, other in zip(scores, first, strict=True)
            ]
            over = 100 * (np.mean([one / other for one, other in tokens]) - 1)
            bracket = float(row[1].split("(")[1].split(" ")[0])
            self.assertAlmostEqual(bracket, over, delta=0.051)


class PageTest(parameterized.TestCase):
    def write(self, folder: pathlib.Path, *args, **kwargs) -> str:
        report.write_report(folder, *build(*args, **kwargs))
        return (folder / "report.md").read_text(encoding="utf-8")

    def folder(self) -> pathlib.Path:
        return pathlib.Path(self.enter_context(tempfile.TemporaryDirectory()))

    @parameterized.parameters(
        ("vocap", {"alp", "sizes", "margins", "gains", "comparison"}),
        ("uniform", {"alp", "sizes", "margins", "gains", "comparison"}),
        ("clustered", {"alp", "sizes", "margins", "comparison"}),
        ("joint", {"alp", "comparison"}),
    )
    def test_each_method_has_its_page(self, method, plots_of):
        folder = self.folder()
        # Left by a build of another method.
        for name in ("sizes", "margins", "gains", "comparison"):
            (folder / f"{name}.png").write_bytes(b"old")
        (folder / "report.html").write_bytes(b"old")
        page = self.write(folder, method)
        names = {f"{name}.png" for name in plots_of}
        explorer = {"report.html"} if method == "vocap" else set()
        self.assertEqual(
            {path.name for path in folder.iterdir()},
            names | explorer | {"report.md", "allocation.json"},
        )
        for name in names:
            self.assertStartsWith((folder / name).read_bytes(), b"\x89PNG")
        for name in names | explorer:
            self.assertEqual(page.count(f"]({name})"), 1)
        self.assertEqual(page.count("]("), len(names | explorer))
        self.assertEqual("There is no report.html of this build" in page, not explorer)
        self.assertIn(f"Method *{method}*", page)
        self.assertIn("5 languages share 200 pieces, 5 of them special.", page)
        self.assertNotRegex(page, r"[+-]0\.0+[ )]")
        record = json.loads((folder / "allocation.json").read_text(encoding="utf-8"))
        self.assertEqual(page, report.page(record))

    def test_the_explorer_has_the_build_and_its_course(self):
        folder, (vocabulary, settings) = self.folder(), build(target_size=PARTIAL)
        with mock.patch.dict(report._PLOTS, clear=True):  # nothing is drawn
            self.write(folder, target_size=PARTIAL)
        data = explorer_test.embedded((folder / "report.html").read_text(encoding="utf-8"))
        sizes = vocabulary.choice.allocation.sizes
        self.assertEqual({one["name"]: one["built"] for one in data["languages"]}, sizes)
        self.assertEqual(explorer_test.sizes_at(data, PARTIAL, settings.beta), sizes)
        self.assertEqual([course["beta"] for course in data["courses"]], list(explorer.BETAS))

    def test_the_summary_tells_sizes_begun_at_from_the_smallest(self):
        record = allocation_record(*build())
        self.assertIn("The smallest trained vocabularies hold", report.summary(record))
        record["settings"]["initial_sizes"] = {"xa": 30}
        self.assertIn("of the sizes in vocab.allocation hold", report.summary(record))

    def test_the_summary_tells_shares_and_the_gain_at_the_cut(self):
        record = allocation_record(*build())
        record.update(first_pieces=50, pieces=200, steps=record["steps"][:3], cut=2e-3)
        text = report.summary(record)
        self.assertIn(
            "vocabularies hold 50 pieces together, 25% of all; 3 steps gave out the other 150.",
            text,
        )
        self.assertIn("At the cut 1,000 pieces gained 2 weighted nats of ALP: each step", text)

    def test_the_summary_names_who_got_most_and_least(self):
        record = allocation_record(*build())
        sizes = {name: one["allocated"] for name, one in record["languages"].items()}
        self.assertEqual(sizes, {"xa": 40, "xb": 60, "xc": 30, "yd": 60, "ze": 30})
        text = report.summary(record)
        self.assertRegex(text, r"Most pieces went to (xb and yd|yd and xb) \(60\)")
        self.assertRegex(text, r"fewest to (xc and ze|ze and xc) \(30\)")
        self.assertIn("the bytes of the training text to the power alpha = 0.7", text)
        record["settings"]["amounts"] = {"xa": 3.0}
        self.assertIn("the amounts in vocab.amounts to", report.summary(record))

    def test_warnings_and_skipped_sizes_are_listed(self):
        record = allocation_record(*build())
        record["languages"]["xc"]["not_concave"] = [20, 30]
        page = report.page(record)
        found = report.warnings(record)
        self.assertNotEmpty(found)
        for text in found:
            self.assertIn(f"\n- {text}\n", page)
        self.assertIn("| xc | 20, 30 |", page)
        for one in record["languages"].values():
            one["not_concave"] = []
        self.assertNotIn("Skipped sizes", report.page(record))

    def test_without_held_out_text(self):
        folder = self.folder()
        page = self.write(folder, with_heldout=False)
        self.assertIn("no held-out text", page)
        self.assertFalse((folder / "comparison.png").exists())

    def test_one_language(self):
        page = self.write(self.folder(), languages=("xa",), target_size=65)
        self.assertIn("1 language has 65 pieces, 5 of them special.", page)
        self.assertIn("| all (1) |", page)
        self.assertNotIn("| high", page)


if __name__ == "__main__":
    absltest.main()
