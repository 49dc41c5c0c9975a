"""Packing documents into rows, the folder they lie in, and the overlap of held-out rows."""

import collections
import dataclasses
import itertools
from unittest import mock

import numpy as np
from absl.testing import absltest, parameterized

from input_pipeline import manifest, overlap, packed_dataset
from input_pipeline.packed_dataset import PackedDataset
from tests import factories
from tests.factories import write_rows
from tests.folders import FolderTest
from tests.input_pipeline import reading
from xlm.common import artifacts

_SPECIAL = factories.SPECIAL_IDS


def _documents(*lengths: int) -> list[np.ndarray]:
    ends = list(itertools.accumulate(lengths, initial=10))
    return [np.arange(a, b, dtype=np.uint32) for a, b in itertools.pairwise(ends)]


def _pack(documents: list[np.ndarray], length: int = 16) -> np.ndarray:
    return reading.pack_rows(documents, length, _SPECIAL, np.dtype(np.uint16))


def _segments(row: np.ndarray) -> tuple[list[list[int]], int]:
    """Read a row token by token: its segments, and the number of padding tokens at its end."""
    segments: list[list[int]] = []
    tokens = row.tolist()
    while tokens and tokens[0] == _SPECIAL.bos:
        end = tokens.index(_SPECIAL.eos)
        segments.append(tokens[1:end])
        tokens = tokens[end + 1 :]
    if set(tokens) - {_SPECIAL.pad}:
        raise AssertionError(f"not segments and then padding: {row}")
    return segments, len(tokens)


class PackRowsTest(parameterized.TestCase):
    def check_packing(self, documents: list[np.ndarray], length: int):
        rows = _pack(documents, length)
        self.assertEqual(rows.shape[1:], (length,))
        self.assertEqual(rows.dtype, np.uint16)
        parsed = [_segments(row) for row in rows]
        segments = [segment for row, _ in parsed for segment in row]
        self.assertEqual([*itertools.chain(*segments)], [*itertools.chain(*documents)])

        # Segments follow the documents one by one, and none crosses from one into the next.
        rest = iter(segments)
        for document in filter(len, documents):
            size = 0
            while size < len(document):
                size += len(next(rest))
            self.assertLen(document, size)

        # A row ends early only where not even the beginning of the next document fitted.
        beginnings = {int(document[0]): len(document) for document in documents if len(document)}
        for (_, padding), (following, _) in itertools.pairwise(parsed):
            whole = beginnings.get(following[0][0])
            self.assertLessEqual(padding, 0 if whole is None else min(whole, 8) + 1)

    # 14 fill exactly one row; 15 are one token into the next.
    @parameterized.parameters(
        ([],), ([0],), ([1] * 50,), ([14, 14],), ([15],), ([0, 3, 0],), ([4, 5, 40, 1, 1, 22],),
    )  # fmt: skip
    def test_rows_hold_the_documents(self, lengths):
        self.check_packing(_documents(*lengths), 16)

    @parameterized.parameters(range(10))
    def test_rows_hold_random_documents(self, seed):
        rng = np.random.default_rng(seed)
        sizes = rng.geometric(1 / rng.choice([2, 10, 100]), size=rng.integers(1, 60)) - 1
        self.check_packing(_documents(*sizes), int(rng.integers(16, 70)))

    def test_documents_are_laid_out_as_described(self):
        expected = [[0, 10, 11, 12, 2, 0, *range(13, 22), 2],
                    [0, *range(22, 33), 2, 1, 1, 1], [0, 33, 34, 2, *[1] * 12]]  # fmt: skip
        self.assertEqual(_pack(_documents(3, 20, 2)).tolist(), expected)


class PadSentencesTest(absltest.TestCase):
    def test_one_row_per_sentence_cut_to_length(self):
        documents, dtype = _documents(3, 0, 6, 9), np.dtype(np.uint32)
        rows = packed_dataset.pad_sentences(documents, 8, _SPECIAL, dtype)
        self.assertEqual(rows.dtype, np.uint32)
        expected = [[0, 10, 11, 12, 2, 1, 1, 1], [1] * 8,
                    [0, 13, 14, 15, 16, 17, 18, 2], [0, 19, 20, 21, 22, 23, 24, 2]]  # fmt: skip
        self.assertEqual(rows.tolist(), expected)


class PackedDatasetTest(FolderTest):
    def setUp(self):
        super().setUp()
        self.dataset = PackedDataset(
            folder=self.folder, vocab_size=1000, length=16,
            tokenizer=packed_dataset.tokenizer_hash(b"a tokenizer"), special=_SPECIAL,
            statistics=write_rows(self.folder, ("sw", "en"), 16, rows=3),
            parallel={"core": ["en", "sw"]},
        )  # fmt: skip
        for language in ("en", "sw"):
            np.save(self.folder / f"core.{language}.parallel.npy", np.ones((3, 8), np.uint16))
            np.save(self.folder / f"{language}.counts.npy", np.ones(1000, np.int64))

    @parameterized.parameters(
        (1000, np.uint16), (65_535, np.uint16), (65_536, np.uint16), (65_537, np.uint32)
    )
    def test_the_id_type_is_the_smallest_that_holds_every_id(self, vocab_size, expected):
        dtype = manifest.id_dtype(vocab_size)
        self.assertEqual(dtype, expected)
        self.assertLess(vocab_size - 1, 1 << 8 * dtype.itemsize)

    def test_a_store_comes_back_as_it_was_written(self):
        self.dataset.write_meta()
        opened = PackedDataset.open(self.folder)
        self.assertEqual(dataclasses.asdict(opened), dataclasses.asdict(self.dataset))
        self.assertEqual(opened.languages, ("en", "sw"))

    def write_manifest(self) -> None:
        self.dataset.write_meta()
        names = [path.name for path in self.folder.glob("*.npy")]
        files = {name: manifest.describe(self.folder / name) for name in names}
        artifacts.write_json(self.folder / "manifest.json", {"files": files})

    def change(self, name: str, *path: str, value) -> None:
        """Change a value of a JSON file; None removes it."""
        whole = found = artifacts.read_json(self.folder / name)
        for key in path[:-1]:
            found = found[key]
        found[path[-1]] = value
        if value is None:
            del found[path[-1]]
        artifacts.write_json(self.folder / name, whole)

    @parameterized.parameters("en.train.npy", "sw.counts.npy", "core.sw.parallel.npy")
    def test_a_changed_bit_is_seen_at_a_start_and_by_verify(self, name):
        self.write_manifest()
        self.assertEqual(PackedDataset.open(self.folder).verify(), 8)
        content = bytearray((self.folder / name).read_bytes())
        content[-1] ^= 1
        (self.folder / name).write_bytes(content)
        with self.assertRaisesRegex(ValueError, f"{name}: the MiB from byte 0 on has another"):
            PackedDataset.open(self.folder)
        with self.assertRaisesRegex(ValueError, f"{name}: its SHA-256 is .* remove .*meta.json"):
            self.dataset.verify()
        self.change("manifest.json", "files", name, "blocks", value=None)  # of an older version
        PackedDataset.open(self.folder)

    def test_blocks_of_a_file_are_drawn(self):
        np.save(self.folder / "en.counts.npy", np.zeros(1 << 19, np.int64))
        self.write_manifest()
        with (self.folder / "en.counts.npy").open("r+b") as file:
            file.seek(3 << 20)
            file.write(b"\1")
        with self.assertRaisesRegex(ValueError, f"en.counts.npy: the MiB from byte {3 << 20} on"):
            for seed in range(100):
                manifest.check_sample(self.folder, (), 1000, seed)

    def test_files_that_lack_or_have_another_size(self):
        self.write_manifest()
        self.change("manifest.json", "files", "en.counts.npy", value=None)
        with self.assertRaisesRegex(ValueError, "manifest.json: lacks en.counts.npy and 0"):
            PackedDataset.open(self.folder)
        self.change("manifest.json", "files", value={})
        with self.assertRaisesRegex(ValueError, "manifest.json: lacks core.* and 7 other"):
            self.dataset.verify()
        self.write_manifest()
        (self.folder / "en.heldout.npy").write_bytes(b"")
        with self.assertRaisesRegex(ValueError, "en.heldout.npy: 0 bytes, must have 224;"):
            PackedDataset.open(self.folder)

    @parameterized.parameters(
        ("statistics", "en", "train", "rows", 0, "statistics.en.train.rows is 0, must be at"),
        ("statistics", "../en", {}, "a key of statistics must be text without slashes"),
        ("shards", {"en": {"train": [1, 1]}}, "shards.en.train have 2 rows, must have 3"),
        ("special", "mask", 1000, "special has the id 1000, must be below vocab_size, 1000"),
    )
    def test_wrong_metadata(self, *path_value_message):
        *path, value, message = path_value_message
        self.dataset.write_meta()
        self.change("meta.json", *path, value=value)
        with self.assertRaisesRegex(ValueError, f"meta.json: {message}.*; copy the dataset"):
            PackedDataset.open(self.folder)

    @parameterized.parameters("sw.heldout.npy", "core.en.parallel.npy")
    def test_ids_beyond_the_vocabulary_are_seen_at_a_start(self, name):
        np.save(self.folder / name, np.full((3, 16), 1000, np.uint16))
        self.write_manifest()
        with self.assertRaisesRegex(ValueError, f"{name}: .* holds token ids .* not below 1000"):
            PackedDataset.open(self.folder)


_LEFT_OUT = (*factories.SPECIAL, factories.UNK)


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
        held, seen = _pack(heldout, 64), _pack(train, 64)
        with mock.patch.object(overlap, "_TOKENS_AT_ONCE", at_once):
            found = self.measure([held[:3], held[3:]], [seen[:5], seen[5:]], per_character)
        length = {0.1: 13, 0.5: 20}[per_character]
        self.assertEqual(found["length"], length)
        grams, known = slow(held, length), set(slow(seen, length))
        counts = collections.Counter(one for one in grams if one in known)
        self.assertEqual(found["ngrams"], len(grams))
        self.assertEqual(found["share"], counts.total() / len(grams))
        self.assertEqual(counts[tuple(found["example"])], max(counts.values()))

    def test_of_many_rows_a_part_is_compared(self):
        rows = np.tile(np.arange(5, 69, dtype=np.uint16), (100, 1))
        rows[:, 0] = factories.BOS
        with mock.patch.object(overlap, "_MOST_ROWS", 10):
            found = self.measure([rows[:50], rows[50:]], [rows[:1]])
        self.assertEqual((found["ngrams"], found["share"]), (10 * 51, 1.0))
        nothing = self.measure([rows[:0]], [rows])
        self.assertEqual((nothing["ngrams"], nothing["share"]), (0, 0.0))
        other = self.measure([rows], [rows[:, ::-1]])
        self.assertEqual((other["share"], other["example"]), (0, []))
