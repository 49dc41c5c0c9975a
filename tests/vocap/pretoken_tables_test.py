"""Tests of run tables as files: merging, bounded memory, held-out text, and faults."""

import gzip
import itertools
import pathlib
import random
from unittest import mock

import numpy as np
from absl.testing import parameterized

from tests.folders import FolderTest
from tests.vocap.texts import CORPUS, assert_same
from vocap import pretoken_tables, pretokens

CORPORA = [(CORPUS / f"{one}.txt").read_text(encoding="utf-8") for one in ("en", "hi", "zh")]
ODD = ["odd \x85\x00\u2028 characters", "\U00020000\uffee", "", "  ", "It's", "\uff29t's"]
TEXT = [*"\n".join(CORPORA).split("\n")[::7], *ODD]
HEADER = b"vocap-runs=1\tnormalizer=nmt_nfkc\tsentences=3\n"


class _FolderTest(FolderTest):
    def files(self) -> list[str]:
        return sorted(str(path.relative_to(self.folder)) for path in self.folder.rglob("*"))

    def table_of(self, sentences, name: str) -> pathlib.Path:
        path = self.folder / name
        pretoken_tables.write_table(path, pretokens.count_pretokens(sentences))
        return path

    def parts(self, count: int, seed: int = 0) -> list[pathlib.Path]:
        rng = random.Random(seed)
        parts: list[list[str]] = [[] for _ in range(count)]
        for sentence in TEXT:
            rng.choice(parts).append(sentence)
        return [self.table_of(["x", *part], f"{i}.gz") for i, part in enumerate(parts)]


class FormatTest(_FolderTest):
    def test_the_file_is_lines_of_text_as_documented(self):
        table = pretokens.count_pretokens(TEXT)
        lines = [f"vocap-runs=1\tnormalizer=nmt_nfkc\tsentences={table.num_sentences}"]
        for run, count, follow in zip(table.runs(), table.counts, table.follow, strict=True):
            lines.append(f"{run}\t{count}\t{follow}")
        text = gzip.decompress(self.table_of(TEXT, "a").read_bytes()).decode()
        self.assertEqual(text, "\n".join([*lines, ""]))
        written = text.encode().split(b"\n")[1:-1]
        keys = [line.split(b"\t")[0] for line in written]
        self.assertEqual(keys, sorted(keys))

    @parameterized.parameters([TEXT], [["a"]], [[]])
    def test_what_was_written_is_read(self, sentences):
        table = pretokens.count_pretokens(sentences)
        read = pretoken_tables.read_table(self.table_of(sentences, "a"))
        assert_same(read, table)
        self.assertEqual((read.counts.dtype, read.follow.dtype), (np.int64, np.int16))

    def test_equal_tables_make_equal_bytes_and_others_do_not(self):
        shuffled = random.Random(0).sample(TEXT, len(TEXT))
        first = self.table_of(TEXT, "first.gz").read_bytes()
        with mock.patch("time.time", return_value=1e9):
            self.assertEqual(self.table_of(shuffled, "second.gz").read_bytes(), first)
        self.assertNotEqual(self.table_of(TEXT[1:], "third.gz").read_bytes(), first)


class MergeTest(_FolderTest):
    def setUp(self):
        super().setUp()
        self.out = self.folder / "merged"

    def assert_merges(self, paths, expected: bytes):
        size = pretoken_tables.merge_tables(paths, self.out)
        self.assertEqual(self.out.read_bytes(), expected)
        table = pretoken_tables.read_table(self.out)
        self.assertEqual(size, (table.num_sentences, len(table.text)))

    def test_order_and_grouping_do_not_matter(self):
        whole = self.table_of(TEXT + ["x"] * 4, "whole").read_bytes()
        a, b, c, d = self.parts(4)
        for order in itertools.permutations((a, b, c, d)):
            self.assert_merges(order, whole)
        pretoken_tables.merge_tables([a, c], self.folder / "ac")
        pretoken_tables.merge_tables([self.folder / "ac", d], self.folder / "acd")
        self.assert_merges([b, self.folder / "acd"], whole)
        pretoken_tables.merge_tables([d, b], self.folder / "bd")
        self.assert_merges([self.folder / "ac", self.folder / "bd"], whole)

    def test_a_table_without_runs_changes_nothing(self):
        whole = self.table_of(TEXT, "whole")
        empty = self.table_of([], "empty")
        self.assert_merges([empty, whole, empty], whole.read_bytes())
        self.assert_merges([empty, empty], empty.read_bytes())

    @parameterized.parameters(2, 3, 64)
    def test_few_files_are_open_at_once(self, limit):
        parts = self.parts(70)
        whole = self.table_of(TEXT + ["x"] * 70, "whole").read_bytes()
        before = self.files()
        with (
            mock.patch.object(pretoken_tables, "_MAX_OPEN_FILES", limit),
            mock.patch.object(
                pretoken_tables, "_merge", side_effect=pretoken_tables._merge
            ) as merge,
        ):
            self.assert_merges(parts, whole)
        opened = [len(call.args[0]) for call in merge.call_args_list]
        self.assertLessEqual(max(opened), limit)
        # Each merge of m tables leaves m - 1 fewer.
        self.assertEqual(sum(number - 1 for number in opened), 69)
        self.assertEqual(self.files(), sorted([*before, "merged"]))

    @parameterized.parameters("-", "_", ".")
    def test_missing_parts_are_noticed(self, separator):
        paths = [self.folder / f"part{separator}{i:05d}-of-00003.runs.gz" for i in range(3)]
        for i, path in enumerate(paths):
            self.table_of(TEXT[i::3], path.name)
        self.assert_merges(paths, self.table_of(TEXT, "whole").read_bytes())
        other = self.table_of(["a"], "other.gz")
        message = rf"part[{separator}]NNNNN-of-00003.*parts \[1\] are missing"
        with self.assertRaisesRegex(ValueError, message):
            pretoken_tables.merge_tables([paths[0], other, paths[2]], self.out)
        with self.assertRaisesRegex(ValueError, "no tables to merge"):
            pretoken_tables.merge_tables([], self.out)

    def test_what_was_held_out_is_merged_alone(self):
        for i in range(2):
            self.table_of(TEXT[i::4], f"en-{i}.runs.gz")
            self.table_of(TEXT[i + 2 :: 4], f"en-{i}.heldout.runs.gz")
        message = (
            r"en-0.heldout.runs.gz is a table of held-out text, .*en-0.runs.gz is not; together"
        )
        with self.assertRaisesRegex(ValueError, message):
            pretoken_tables.merge_tables(sorted(self.folder.glob("*.runs.gz")), self.out)
        aside = sorted(self.folder.glob("*.heldout.runs.gz"))
        expected = self.table_of([*TEXT[2::4], *TEXT[3::4]], "whole").read_bytes()
        self.assert_merges(aside, expected)

    def test_a_folder_is_no_part_whatever_its_name(self):
        path = self.table_of(TEXT, "job-1-of-2/en.runs.gz")
        self.assert_merges([path], path.read_bytes())


class CountToTableTest(_FolderTest):
    @parameterized.parameters(
        (1, "out"), (30, "en-00003-of-00032.runs.gz"), (400, "out"), (10**9, "out")
    )
    def test_the_table_does_not_depend_on_the_memory(self, max_runs, name):
        expected = self.table_of(TEXT, "expected").read_bytes()
        out = self.folder / "new" / name
        with (
            mock.patch.object(pretoken_tables, "_BATCH_SENTENCES", 20),
            mock.patch.object(
                pretoken_tables, "_write_packed", wraps=pretoken_tables._write_packed
            ) as write,
        ):
            size = pretoken_tables.count_to_table(iter(TEXT), out, max_runs)
        self.assertEqual(out.read_bytes(), expected)
        table = pretoken_tables.read_table(out)
        self.assertEqual(size, (table.num_sentences, len(table.text)))
        self.assertEqual(self.files(), ["expected", "new", f"new/{name}"])
        if max_runs < 2000:
            self.assertGreater(write.call_count, 1)
        for call in write.call_args_list:
            # The words of a batch are counted before anything is written.
            self.assertLess(len(call.args[2]), max_runs + 400)

    def test_batches_are_the_text_in_pieces_that_fit(self):
        rng = random.Random(0)
        sentences = ["a" * rng.randrange(60) for _ in range(500)]
        self.enterContext(mock.patch.object(pretoken_tables, "_BATCH_SENTENCES", 8))
        self.enterContext(mock.patch.object(pretoken_tables, "_BATCH_CHARACTERS", 200))
        batches = list(pretoken_tables.batches(iter(sentences)))
        self.assertEqual(list(itertools.chain(*batches)), sentences)
        for batch in batches[:-1]:
            full = len(batch) == 8 or sum(map(len, batch)) >= 200
            self.assertTrue(full and sum(map(len, batch[:-1])) < 200, batch)


class HeldOutTest(_FolderTest):
    def test_repetitions_of_a_sentence_are_on_one_side(self):
        heldout = pretoken_tables.HeldOut(0.3)
        sentences = sorted({*TEXT, *(f"Sentence {i}." for i in range(1000))})
        kept, aside = map(set, heldout.split(sentences))
        self.assertEqual(kept | aside, set(sentences))
        shuffled = random.Random(0).sample(sentences * 2, 2 * len(sentences))
        for batch in (shuffled[:700], shuffled[700:], sentences[:1], []):
            batch_kept, batch_aside = heldout.split(batch)
            self.assertEqual(batch_kept, [s for s in batch if s in kept])
            self.assertEqual(batch_aside, [s for s in batch if s in aside])

    def test_sentences_that_look_alike_to_the_trainer_are_one(self):
        heldout = pretoken_tables.HeldOut(0.5)
        for i in range(50):
            same = [f"\uff21 {i} \ufb01", f" A  {i} fi ", f"A\t{i}\u200bfi"]
            self.assertIn(same, heldout.split(same))

    def test_shares(self):
        sentences = [f"Sentence {i}." for i in range(10_000)]
        last: set[str] = set()
        for wrong in (-0.1, 1.0):
            with self.assertRaisesRegex(ValueError, f"heldout_fraction is {wrong}, must be"):
                pretoken_tables.HeldOut(wrong)
        for fraction in (0.0, 0.01, 0.1, 0.99):
            aside = set(pretoken_tables.HeldOut(fraction).split(sentences)[1])
            # Six standard deviations.
            self.assertAlmostEqual(
                len(aside), 1e4 * fraction, delta=600 * (fraction * (1 - fraction)) ** 0.5
            )
            self.assertContainsSubset(last, aside)
            last = aside

        # Seeds choose independently.
        a, b = (set(pretoken_tables.HeldOut(0.1, seed).split(sentences)[1]) for seed in (0, 1))
        self.assertAlmostEqual(len(a & b), 100, delta=60)


class FaultsTest(_FolderTest):
    def assert_fault(self, data: bytes, *words: str):
        """Reading and merging both fail with these words and leave nothing behind."""
        path = self.folder / "en.runs.gz"
        path.write_bytes(data)
        fine = self.table_of(["a"], "fine")
        pattern = "(?s)" + ".*".join(["en[.]runs[.]gz", *words])
        with self.assertRaisesRegex(ValueError, pattern):
            pretoken_tables.read_table(path)
        with self.assertRaisesRegex(ValueError, pattern):
            pretoken_tables.merge_tables([fine, path], self.folder / "out")
        self.assertEqual(self.files(), ["en.runs.gz", "fine"])

    @parameterized.parameters(
        b"a\t1", b"a\t1\t2\t3", b"a 1 2", b"\t1\t2", b"a\t0\t2", b"a\t-1\t2", b"a\t1.5\t2",
        b"a\t01\t2", b"a\t12345678901234567\t2", b"a\t1\t257", b"a\t1\t-1", b"a\t1\t1000",
        b"a\t1\tb", b"a\t1\t2\r", b"a\xff\t1\t2", b"", HEADER[:-1],
    )  # fmt: skip
    def test_lines(self, line):
        data = gzip.compress(HEADER + b"A\t1\t2\n" + line + b"\n")
        self.assert_fault(data, "line 3: expected a run, a tab", "count the text again")

    @parameterized.parameters((b"a", b"a"), (b"b", b"a"), ("\uffee".encode(), "\uabcd".encode()))
    def test_order(self, first, second):
        lines = b"".join(run + b"\t1\t2\n" for run in (b"A", first, second))
        self.assert_fault(
            gzip.compress(HEADER + lines), "line 4: ", "distinct and in code point order"
        )

    @parameterized.parameters(
        b"", b"a\t1\t2\n", HEADER.replace(b"=1", b"=2"), HEADER.replace(b"nfkc", b"NFKC"),
        HEADER.replace(b"=3", b"="), HEADER.rstrip(),
    )  # fmt: skip
    def test_headers(self, header):
        data = gzip.compress(header)
        self.assert_fault(data, "line 1: expected 'vocap-runs=1", "count the text again")
        self.assert_fault(HEADER, "after line 0: cannot be read", "copy the file again")
        cut = gzip.compress(HEADER + b"a\t1\t22")  # a last line that is cut
        self.assert_fault(cut, "line 2: expected a run", "count the text again")

    def test_cut_off_anywhere(self):
        whole = self.table_of(TEXT[:3], "whole").read_bytes()
        (self.folder / "whole").unlink()
        for length in range(1, len(whole)):
            self.assert_fault(whole[:length], "cannot be read", "copy the file again")

    @parameterized.parameters(
        ("_UNCHECKED_BYTES", b"".join(b"a%d%05000d\t1\t2\n" % (i, 0) for i in range(9)),
         "after li"),
        ("_MAX_LINE_BYTES", b"a" * 50_000 + b"\t1\t2\n", "line 2: expected a run"),
    )  # fmt: skip
    def test_what_unpacks_to_far_more_than_text_is_not_read(self, limit, lines, message):
        data = gzip.compress(HEADER + lines)
        with mock.patch.object(pretoken_tables, limit, 1 << 12):
            self.assert_fault(data, message, "the text again")
        (self.folder / "en.runs.gz").write_bytes(data)
        pretoken_tables.read_table(self.folder / "en.runs.gz")

    def test_the_line_before_the_damage_is_named(self):
        lines = (b"%06d\t1\t2\n" % i for i in range(50_000))
        data = gzip.compress(HEADER + b"".join(lines))
        self.assert_fault(data[:-200], r"after line 4\d\d\d\d: cannot be read")
