"""Planted defects: damaged pairs, kinds of damage, and unchanged other files."""

import lzma
import pathlib
import random

import numpy as np
from absl.testing import parameterized

from research.planted_defects import Defect, damaged, parse, plant
from research.studies.defects import between_seeds
from tests.folders import FolderTest
from tests.input_pipeline.reading import read_parallel
from xlm.common import artifacts

PAIRS = ("de-fr", "en-nl", "es-it", "fi-sv", "en-fi")
DEFECTS = (
    Defect("shuffled", "de-fr"),
    Defect("near_copies", "en-nl"),
    Defect("wrong_language", "es-it", "fi"),
)
LETTERS = {"de": "abc", "fr": "def", "en": "ghi", "nl": "jkl", "es": "mno", "it": "pqr"}


def sentence(language: str, number: int) -> str:
    """Synthetic sentence of at most 40 letters: the language, and unique text."""
    letters = LETTERS.get(language, "xyz")
    rng = random.Random(f"{language} {number}")
    words = ["".join(rng.choices(letters, k=rng.randint(2, 6))) for _ in range(6)]
    return f"{' '.join(words)} {number}."


def rows(pair: str, count: int = 30) -> list[tuple[str, ...]]:
    one, two = pair.split("-")
    return [(sentence(one, i), sentence(two, i)) for i in range(count)]


class DamagedTest(parameterized.TestCase):
    wrong = tuple(sentence("fi", i) for i in range(12))

    @parameterized.parameters(*((one,) for one in DEFECTS))
    def test_sources_and_incomplete_rows_stay(self, defect: Defect):
        given = rows(defect.pair)
        given[3], given[7] = ("", given[3][1]), (given[7][0], "")
        found = damaged(defect, given, self.wrong, seed=0)
        self.assertEqual([row[0] for row in found], [row[0] for row in given])
        self.assertEqual([found[3], found[7]], [given[3], given[7]])
        self.assertEqual(found, damaged(defect, given, self.wrong, seed=0))
        self.assertNotEqual(found, damaged(defect, given, self.wrong, seed=1))

    def test_shuffled_moves_every_sentence(self):
        for count in (2, 3, 30):
            given = rows("de-fr", count)
            found = damaged(DEFECTS[0], given, (), seed=0)
            self.assertCountEqual([row[1] for row in found], [row[1] for row in given])
            for old, new in zip(given, found, strict=True):
                self.assertNotEqual(old[1], new[1])

    def test_near_copies_differ_in_a_few_letters(self):
        given = rows("en-nl")
        for source, target in damaged(DEFECTS[1], given, (), seed=0):
            self.assertLen(target, len(source))
            changed = [i for i in range(len(source)) if source[i] != target[i]]
            self.assertBetween(len(changed), 1, 2)
            self.assertTrue(all(source[i].isalpha() and target[i] in "ghi" for i in changed))

    def test_wrong_language_takes_each_sentence_as_often(self):
        found = [row[1] for row in damaged(DEFECTS[2], rows("es-it"), self.wrong, seed=0)]
        counts = {found.count(text) for text in self.wrong}
        self.assertEqual(counts, {2, 3})  # 30 rows, 12 sentences
        self.assertEqual(set(found), set(self.wrong))


class PlantTest(FolderTest):
    def setUp(self):
        super().setUp()
        self.data, self.output = self.folder / "data", self.folder / "planted"
        (self.data / "bitext").mkdir(parents=True)
        for number, pair in enumerate(PAIRS):
            lines = ["\t".join(row) for row in rows(pair)]
            lines.insert(15, "")  # two documents
            text = ("\n".join(lines) + "\n").encode()
            name = f"{pair}.tsv" + ".xz" * (number % 2)
            (self.data / "bitext" / name).write_bytes(lzma.compress(text) if number % 2 else text)
        artifacts.write_text(self.data / "bitext" / "pairs.tsv", "lang1\tlang2\n")
        artifacts.write_text(self.data / "web" / "en.txt", "One.\n\nTwo.\n")
        self.before = self.contents(self.data)

    def contents(self, root: pathlib.Path) -> dict[str, bytes]:
        found = [path for path in root.glob("*/*") if path.is_file()]
        return {str(path.relative_to(root)): path.read_bytes() for path in found}

    def plant(self, defects=DEFECTS, seed=0, folder="bitext") -> None:
        plant(self.data, folder, self.output, defects, seed)

    def test_only_the_planted_pairs_differ(self):
        self.plant()
        after = self.contents(self.output)
        self.assertEqual(self.contents(self.data), self.before)
        self.assertEqual(set(after), set(self.before))
        differing = {name for name in after if after[name] != self.before[name]}
        planted = ["bitext/de-fr.tsv", "bitext/en-nl.tsv.xz", "bitext/es-it.tsv"]
        self.assertEqual(differing, set(planted))
        for name, defect in zip(planted, DEFECTS, strict=True):
            old, new = (read_parallel(root / name)[1] for root in (self.data, self.output))
            self.assertEqual([len(document) for document in new], [15, 15])
            given, found = ([row for one in both for row in one] for both in (old, new))
            wrong = [sentence("fi", i) for i in reversed(range(30))]
            self.assertEqual(found, damaged(defect, given, wrong, seed=0))
        self.plant()  # again, after a stop
        self.assertEqual(self.contents(self.output), after)

    @parameterized.parameters(
        ([Defect("shuffled", "de-xx")], "no de-xx.tsv .*pairs are de-fr, en-fi, en-nl"),
        ([DEFECTS[0], Defect("near_copies", "de-fr")], r"\['de-fr'\] are named twice"),
        ([Defect("wrong_language", "es-it", "it")], "'it' is a language of es-it itself"),
        ([Defect("wrong_language", "es-it", "tr")], "no other pair .* text of 'tr'"),
    )
    def test_bad_defects_leave_nothing(self, defects, message: str):
        with self.assertRaisesRegex(ValueError, message):
            self.plant(defects)
        with self.assertRaisesRegex(ValueError, "choose a folder outside it"):
            plant(self.data, "bitext", self.data / "new", DEFECTS, 0)
        self.assertFalse(self.output.exists())

    def test_flags(self):
        texts = ("shuffled:de-fr", "near_copies:en-nl", "wrong_language:es-it:fi")
        self.assertEqual([parse(one) for one in texts], list(DEFECTS))
        for text in ("upside_down:de-fr", "shuffled", "wrong_language:es-it", "shuffled:de-fr:fi"):
            with self.assertRaisesRegex(ValueError, "must be KIND:PAIR"):
                parse(text)


class ShrinkageTest(parameterized.TestCase):
    def test_what_seeds_or_pairs_share_is_no_deviation_between_seeds(self):
        losses = np.array([[0.0, 0, 0], [0, 2, 4], [1, 0, 5]])
        shared = losses + np.array([[3.0], [1], [-2]]) + np.array([0, 7.0, -7])
        self.assertAlmostEqual(between_seeds(shared), between_seeds(losses))
        # For two pairs it is the deviation of their difference, over the root of 2.
        two = losses[:, :2]
        expected = np.std(two[:, 0] - two[:, 1], ddof=1) / np.sqrt(2)
        self.assertAlmostEqual(between_seeds(two), expected)
