"""Tests of the overlap of held-out and training rows, against sets of n-grams."""

import collections
from unittest import mock

import numpy as np
from absl.testing import parameterized

from input_pipeline import overlap
from input_pipeline.packed_dataset import RowPacker
from tests import factories
from tests.folders import FolderTest

_LEFT_OUT = (*factories.SPECIAL, factories.UNK)


def packed(documents: list[np.ndarray], length: int) -> np.ndarray:
    packer = RowPacker(length, factories.SPECIAL_IDS, np.dtype(np.uint16))
    for document in documents:
        packer.add(document)
    return packer.take(is_last=True)


def slow(rows: np.ndarray, length: int) -> list[tuple[int, ...]]:
    """N-grams without specials, row by row."""
    grams = [tuple(row[i : i + length].tolist()) for row in rows for i in range(len(row))]
    return [one for one in grams if len(one) == length and not set(one) & {*_LEFT_OUT}]


class OverlapTest(FolderTest, parameterized.TestCase):
    def measure(self, heldout, train, per_character: float = 0.3) -> overlap.Overlap:
        paths = []
        for name, files in (("heldout", heldout), ("train", train)):
            paths.append([self.folder / f"{name}-{i}.npy" for i in range(len(files))])
            for path, rows in zip(paths[-1], files, strict=True):
                np.save(path, rows)
        return overlap.measure(*paths, _LEFT_OUT, per_character)

    @parameterized.product(pieces=(7, 8, 30), per_character=(0.1, 0.5), at_once=(1, 1 << 16))
    def test_it_is_the_share_of_sets(self, pieces, per_character, at_once):
        rng = np.random.default_rng(pieces)
        # Few pieces, so that many n-grams agree by chance, and unknown ones.
        texts = [rng.integers(5, pieces, rng.integers(1, 90)) for _ in range(420)]
        texts = [np.where(rng.random(len(one)) < 0.02, factories.UNK, one) for one in texts]
        heldout, train = texts[:20], texts[20:]
        heldout += [train[7][:40], train[9]]
        train[11:13] = [np.append(train[0], heldout[3]), heldout[4]]
        held, seen = packed(heldout, 64), packed(train, 64)
        with mock.patch.object(overlap, "_TOKENS_AT_ONCE", at_once):
            found = self.measure([held[:3], held[3:]], [seen[:5], seen[5:]], per_character)
        length = {0.1: 13, 0.5: 20}[per_character]
        self.assertEqual(found["length"], length)
        grams, known = slow(held, length), set(slow(seen, length))
        counts = collections.Counter(one for one in grams if one in known)
        self.assertEqual(found["ngrams"], len(grams))
        self.assertEqual(found["share"], counts.total() / len(grams))
        self.assertEqual(counts[tuple(found["example"])], max(counts.values()))

    def test_a_copied_line_is_found_and_shown(self):
        rng = np.random.default_rng(0)
        line = rng.integers(5, 60_000, 20)
        texts = [[rng.integers(5, 60_000, 60) for _ in range(n)] for n in (30, 300)]
        clean = self.measure(*([packed(one, 82)] for one in texts))
        self.assertEqual((clean["share"], clean["example"]), (0, []))
        with_line = [[np.insert(one, 30, line) for one in text] for text in texts]
        found = self.measure(*([packed(one, 82)] for one in with_line))
        self.assertAlmostEqual(found["share"], 8 / 68)  # of the n-grams of a text
        self.assertIn(str(found["example"])[1:-1], str(line.tolist()))

    def test_of_many_rows_a_part_is_compared(self):
        rows = np.tile(np.arange(5, 69, dtype=np.uint16), (100, 1))
        rows[:, 0] = factories.BOS
        with mock.patch.object(overlap, "_MOST_ROWS", 10):
            found = self.measure([rows[:50], rows[50:]], [rows[:1]])
        self.assertEqual((found["ngrams"], found["share"]), (10 * 51, 1.0))
        nothing = self.measure([rows[:0]], [rows])
        self.assertEqual((nothing["ngrams"], nothing["share"]), (0, 0.0))
