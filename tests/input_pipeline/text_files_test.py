"""Tests of reading files of text that others made."""

import itertools
import json
import os
import pathlib
import sys
from unittest import mock

import zstandard
from absl.testing import parameterized

from input_pipeline import text_files
from tests.input_pipeline.reading import PACKERS, PackedFolderTest, read_documents, read_parallel

_DOCUMENTS = [["Ein Satz.", "Noch ein Satz."], ["Größe, 大きさ, ขนาด"], ["x"]]
_TEXT = {
    ".txt": "\n\n".join("\n".join(document) for document in _DOCUMENTS) + "\n",
    ".jsonl": "\n".join(json.dumps({"text": "\n".join(d), "url": 1}) for d in _DOCUMENTS) + "\n",
}
_PARALLEL = [[("one", "eins"), ("two", "")], [("three", "drei")]]
_TSV = "id\ten\tde\na.1\tone\teins\na.2\ttwo\t\n\nb.1\tthree\tdrei\n"


class FormatsTest(PackedFolderTest):
    @parameterized.parameters(*PACKERS)
    def test_text_is_the_same_in_all_formats(self, compression):
        for kind, text in _TEXT.items():
            path = self.write(f"de{kind}{compression}", text)
            self.assertEqual(read_documents(path), _DOCUMENTS)
            found = list(text_files.read_sentences(path))
            self.assertEqual(found, [*itertools.chain(*_DOCUMENTS)])
        path = self.write(f"talks.tsv{compression}", _TSV)
        self.assertEqual(read_parallel(path), (("en", "de"), _PARALLEL))

    @parameterized.parameters("en-de.tsv", "news.2014.en-de.tsv")
    def test_a_file_named_by_two_languages_has_no_header(self, name):
        path = self.write(name, "one\teins\ntwo\t\n\nthree\tdrei\n")
        self.assertEqual(read_parallel(path), (("en", "de"), _PARALLEL))

    @parameterized.product(bom=(b"", b"\xef\xbb\xbf"), line_end=("\n", "\r\n"), last=(True, False))
    def test_byte_order_marks_and_line_ends_do_not_matter(self, bom, line_end, last):
        def encoded(text):
            text = text if last else text.removesuffix("\n")
            return bom + text.replace("\n", line_end).encode()

        for kind, text in _TEXT.items():
            path = self.write(f"de{kind}", encoded(text))
            self.assertEqual(read_documents(path), _DOCUMENTS)
        path = self.write("talks.tsv", encoded(_TSV))
        self.assertEqual(read_parallel(path)[1], _PARALLEL)

    def test_blank_lines_and_outer_spaces_carry_no_meaning_of_their_own(self):
        path = self.write("de.txt", "\n\n  a \n\tb\n \n\n\nc\n\n")
        self.assertEqual(read_documents(path), [["a", "b"], ["c"]])
        self.assertEqual(list(text_files.read_sentences(path)), ["a", "b", "c"])
        path = self.write("de.jsonl", '\n{"text": " a \\n\\n b"}\n\n{"text": ""}\n{"text": "c"}\n')
        self.assertEqual(read_documents(path), [["a", "b"], ["c"]])
        self.assertEqual(list(text_files.read_sentences(path)), ["a", "b", "c"])

    @parameterized.parameters(
        ("en.txt", ("en", "txt", "")),
        ("zh_Hant.jsonl.xz", ("zh_Hant", "jsonl", "xz")),
        ("pt-BR.TXT.GZ", ("pt-BR", "txt", "gz")),
        ("news.2014.en-de.tsv.gz", ("news.2014.en-de", "tsv", "gz")),
        ("train.docs.txt", ("train.docs", "txt", "")),
        ("ar.ids.xz", ("ar", "ids", "xz")),
        *((name, None) for name in ("README.md", "en", "en.csv", "notes.zip")),
    )
    def test_file_names_are_taken_apart(self, name, expected):
        self.assertEqual(text_files.file_format(pathlib.Path(name)), expected)

    def test_language_codes_are_told_from_other_names(self):
        for code in ("en", "ceb", "zh_Hant", "aze-Latn", "spa-2", "sr_Latn_RS"):
            self.assertTrue(text_files.is_language(code), code)
        for name in ("", "e", "docs", "English", "EN", "en.docs", "en_", "_en", "en Latn", "én"):
            self.assertFalse(text_files.is_language(name), name)


class RangesTest(PackedFolderTest):
    @parameterized.parameters(
        ("de.txt", "\n"), ("de.txt", "\r\n"), ("de.txt", "\n \n"), ("de.jsonl", "\n")
    )
    def test_two_ranges_hold_each_document_once(self, name, line_end):
        text = "\n" + _TEXT[name[2:]] + "\n\n" + _TEXT[name[2:]]
        path = self.write(name, text.replace("\n", line_end))
        size = path.stat().st_size
        for middle in range(size + 1):
            found = [
                sentence
                for start, end in ((0, middle), (middle, size))
                for sentence in (*text_files.read_marked(path, start, end), "")
            ]
            documents = [[*one] for is_text, one in itertools.groupby(found, key=bool) if is_text]
            self.assertEqual(documents, read_documents(path), middle)
        path = self.write("de.txt", b"a\n\nb\nc\n\xf6\n")
        with self.assertRaisesRegex(ValueError, "de.txt, line 3 after byte 2: not UTF-8"):
            list(text_files.read_marked(path, 2, 9))


class FaultsTest(PackedFolderTest):
    def assert_fault(self, path: pathlib.Path, *words: str):
        """Reading `path` fails with a message that names it, and then `words` in this order."""
        read = read_parallel if ".tsv" in path.name else read_documents
        pattern = "(?s)" + ".*".join([path.name.replace(".", "[.]"), *words])
        with self.assertRaisesRegex(ValueError, pattern):
            read(path)
        if ".tsv" not in path.name:
            with self.assertRaisesRegex(ValueError, pattern):
                list(text_files.read_sentences(path))

    @parameterized.product(name=("en.txt", "en.jsonl", "en-de.tsv"), compression=("", ".gz"))
    def test_files_without_text(self, name, compression):
        path = self.write(name + compression, "")
        self.assert_fault(path, "is empty", "add text or remove")
        path = self.write(name + compression, " \n\n\r\n\t\n" if ".tsv" not in name else "\n\n")
        words = "no sentence pairs" if ".tsv" in name else "only blank lines.*add text or remove"
        self.assert_fault(path, words)

    @parameterized.parameters(
        *(("talks.tsv", f"{header}\n1\ta\tb\n", ("line 1: expected a header such as", "<lang>-"))
          for header in ("en\tde", "id\ten", "id\ten\tDeutsch", "nr\ten\tde", "a sentence", "")),
        ("talks.tsv", "id\ten\tde\n\n", ("no sentence pairs",)),
        ("talks.tsv", "id\ten\tde\n1\ta\tb\n2\ta\n", (r"line 3: 2 columns, .* 3 \(id, en, de",)),
        ("talks.tsv", "id\ten\tde\n1\ta\tb\tc\n", (r"line 2: 4 columns, expected 3 \(id, en, de",)),
        ("en-de.tsv", "a\tb\n\na\tb\tc\n", (r"line 3: 3 columns, expected 2 \(en, de",
                                           "keeps its empty cell")),
    )  # fmt: skip
    def test_tables(self, name, text, words):
        self.assert_fault(self.write(name, text), *words)

    @parameterized.product(name=("en.txt", "en.jsonl", "en-de.tsv"), compression=tuple(PACKERS))
    def test_not_utf8(self, name, compression):
        first = {"en.txt": b"a", "en.jsonl": b'{"text": "a"}', "en-de.tsv": b"a\tb"}[name]
        path = self.write(name + compression, first + b"\nb\xf6se\n")
        self.assert_fault(path, "line 2: not UTF-8", "byte 0xf6 at position 2", "iconv")
        path = self.write(name + compression, first + b"\n" + b"\0" * 9)  # zeros of a crash
        self.assert_fault(path, "line 2: a NUL byte")

    @parameterized.parameters(".gz", ".xz", ".bz2", ".zst")
    def test_cut_off_anywhere(self, compression):
        path = self.write(f"de.txt{compression}", _TEXT[".txt"])
        whole = path.read_bytes()
        for length in range(1, len(whole)):
            path.write_bytes(whole[:length])
            self.assert_fault(path, "after line", "cut off or damaged")
        path = self.write("de.txt.gz", "\n".join(map(str, range(50_000))))
        path.write_bytes(path.read_bytes()[:-100])
        self.assert_fault(path, r"after line 4\d\d\d\d: cannot be read")

    @parameterized.parameters(".gz", ".xz", ".bz2", ".zst")
    def test_a_damaged_byte_is_a_named_fault_or_harmless(self, compression):
        path = self.write(f"de.txt{compression}", _TEXT[".txt"])
        whole = path.read_bytes()
        num_faults = 0
        for i in range(len(whole)):
            path.write_bytes(whole[:i] + bytes([whole[i] ^ 0xFF]) + whole[i + 1 :])
            try:
                self.assertEqual(read_documents(path), _DOCUMENTS)
            except ValueError as error:
                self.assertIn(str(path), str(error))
                num_faults += 1
        self.assertGreater(num_faults, len(whole) // 2)

    def test_sentences_of_parallel_text_are_refused(self):
        path = self.write("en-de.tsv", "one\teins\n")
        with self.assertRaisesRegex(ValueError, "en-de.tsv: this is parallel text.*cut -f 2"):
            next(text_files.read_sentences(path))

    @parameterized.parameters(
        ("en.txt.lz4", "lz4"), ("en.jsonl.Z", "Z"), ("core.tsv.zip", "zip"), ("en.zip", "zip"),
        ("en.txt.bak", "bak"), ("en-de.tar.gz", "tar"),
    )  # fmt: skip
    def test_unknown_compression(self, name, compression):
        with self.assertRaisesRegex(ValueError, f"{name}.*compression '{compression}'.*recompress"):
            text_files.file_format(pathlib.Path(name))

    def test_zstandard_files_of_several_frames_and_of_wide_windows(self):
        wide = zstandard.ZstdCompressor(
            compression_params=zstandard.ZstdCompressionParameters(window_log=28)
        )
        halves = [text.encode() for text in ("Ein Satz.\nNoch ein", " Satz.\n\nx\n")]
        path = self.folder / "de.txt.zst"
        path.write_bytes(wide.compress(halves[0]) + zstandard.compress(halves[1]))
        documents = [["Ein Satz.", "Noch ein Satz."], ["x"]]
        self.assertEqual(read_documents(path), documents)

    def test_the_package_for_zstandard_is_named(self):
        path = self.write("de.txt.zst", "a\n")
        with (
            mock.patch.dict(sys.modules, {"zstandard": None}),
            self.assertRaisesRegex(ValueError, r"de.txt.zst: .* pip install '\.\[train"),
        ):
            read_documents(path)

    @parameterized.product(name=("en.txt", "en.jsonl"), compression=tuple(PACKERS))
    def test_a_line_and_a_file_of_too_much_text(self, name, compression):
        zeros = self.write(name + compression, b"a" * (1 << 20))
        lines = self.write("de.txt" + compression, b"a\n" * (1 << 19))
        with mock.patch.object(text_files, "MAX_LINE_BYTES", 1 << 17):
            with self.assertRaisesRegex(ValueError, f"{name}.*, line 1: a line of more than 0 MiB"):
                list(text_files.read_marked(zeros))
            if not compression:
                self.assertLen(list(text_files.read_marked(lines)), 1 << 19)
                return
            with self.assertRaisesRegex(ValueError, "de.txt.*, line .* more than 200 times its"):
                list(text_files.read_marked(lines))

    def test_a_pipe(self):
        os.mkfifo(self.folder / "en.txt")
        with self.assertRaisesRegex(ValueError, "en.txt: is a pipe, .* regular file"):
            list(text_files.read_marked(self.folder / "en.txt"))

    @parameterized.parameters(
        ('{"text": "a"', "not JSON", "one JSON object"),
        ("plain text", "not JSON", "one JSON object"),
        ('{"content": "a"}', "no text field", '"text": "First'),
        ('{"text": 3}', "no text field", '"text": "First'),
        ('["a"]', "no text field", '"text": "First'),
        (r'{"text": "a \ud83d b"}', r"holds '\\ud83d'", "remove it"),
        (r'{"text": "a \u0000 b"}', "holds a NUL character", "remove it"),
        ('{"text": "a", "id": ' + 5000 * "1" + "}", "not JSON", "one JSON object"),
    )
    def test_json_lines(self, line, *words):
        path = self.write("en.jsonl", f'{{"text": "fine"}}\n\n{line}\n')
        self.assert_fault(path, "line 3: ", *words)
