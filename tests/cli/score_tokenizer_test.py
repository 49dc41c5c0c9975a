"""Tokenizers of each kind, read and scored by the command."""

import json
import pathlib
from unittest import mock

import numpy as np
import tokenizers
from tokenizers import decoders, models, pre_tokenizers, trainers

from input_pipeline import text_files
from tests import commands
from tests.folders import FolderTest
from vocap import merge
from xlm.common import artifacts
from xlm.interop import huggingface
from xlm.interop.segmenter import read_segmenter

score_tokenizer = commands.load("score_tokenizer")
SPACE = "\u2581"
PIECES = [*"abcdefgh", SPACE, SPACE + "ab", "cd", "abc"]
MODEL = merge.write_model(PIECES, -np.arange(1.0, len(PIECES) + 1))
LINES = ["ab cd", "abc abc", "h g f", "\u017e ab"]


class SegmenterTest(FolderTest):
    def setUp(self):
        super().setUp()
        (self.folder / "spm.model").write_bytes(MODEL)

    def trained(self, model, trainer, **parts) -> pathlib.Path:
        tokenizer = tokenizers.Tokenizer(model)
        for name, part in parts.items():
            setattr(tokenizer, name, part)
        tokenizer.train_from_iterator(LINES * 10, trainer)
        tokenizer.save(str(self.folder / "tokenizer.json"))
        return self.folder / "tokenizer.json"

    def test_sentencepiece_and_its_export_are_alike(self):
        of_model = read_segmenter(self.folder / "spm.model")
        self.assertEqual((of_model.kind, of_model.size, of_model.unknown), ("unigram", 17, 3))
        self.assertEqual(of_model.is_piece.tolist(), [False] * 5 + [True] * 12)
        export = self.folder / "export"
        huggingface.export_tokenizer(MODEL, export)
        exported = read_segmenter(export)
        self.assertEqual(exported.encode(LINES), of_model.encode(LINES))
        np.testing.assert_array_equal(exported.is_piece, of_model.is_piece)
        self.assertEqual((exported.kind, exported.unknown), ("unigram", 3))
        (export / "spm.model").write_bytes(MODEL)
        self.assertEqual(read_segmenter(export).encode(LINES), of_model.encode(LINES))

    def test_wordpiece_has_an_unknown_and_no_alp(self):
        trainer = trainers.WordPieceTrainer(vocab_size=40, special_tokens=["[UNK]", "[CLS]"])
        path = self.trained(
            models.WordPiece(unk_token="[UNK]"), trainer, pre_tokenizer=pre_tokenizers.Whitespace()
        )
        found = read_segmenter(path)
        self.assertEqual((found.kind, found.unknown), ("wordpiece", 0))
        self.assertEqual(found.is_piece[:3].tolist(), [False, False, True])
        self.assertIn(0, found.encode(["q"])[0])

    def test_bytes_have_no_unknown(self):
        alphabet = pre_tokenizers.ByteLevel.alphabet()
        path = self.trained(
            models.BPE(), trainers.BpeTrainer(vocab_size=300, initial_alphabet=alphabet),
            pre_tokenizer=pre_tokenizers.ByteLevel(), decoder=decoders.ByteLevel(),
        )  # fmt: skip
        found = read_segmenter(path)
        self.assertEqual((found.kind, found.unknown), ("bpe", None))
        self.assertTrue(found.is_piece.all())
        self.assertGreater(len(found.encode(["\u0e01"])[0]), 1)

    def test_gaps_between_ids_are_no_pieces(self):
        ids = {"[UNK]": 0, "ab": 1, "cd": 7}
        tokenizer = tokenizers.Tokenizer(models.WordLevel(ids, unk_token="[UNK]"))
        tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
        path = self.folder / "gaps.json"
        tokenizer.save(str(path))
        found = read_segmenter(path)
        self.assertEqual(found.size, 8)
        self.assertEqual(np.flatnonzero(found.is_piece).tolist(), [1, 7])
        self.assertEqual(found.encode(["ab cd x"]), [[1, 7, 0]])

    def test_what_is_no_tokenizer(self):
        with self.assertRaisesRegex(ValueError, "none: no such file"):
            read_segmenter(self.folder / "none")
        for name in ("bad.json", "bad.model"):
            (self.folder / name).write_text(json.dumps({"x": 1}), encoding="utf-8")
            with self.assertRaisesRegex(ValueError, rf"{name}: .*Hugging Face"):
                read_segmenter(self.folder / name)
        (self.folder / "empty").mkdir()
        with self.assertRaisesRegex(ValueError, "has none of spm.model, "):
            read_segmenter(self.folder / "empty")


def taxes(record: dict) -> dict[str, float]:
    return {language: one["tax"] for language, one in record["tax"].items()}


class CommandTest(FolderTest):
    def setUp(self):
        super().setUp()
        self.write("spm.model", MODEL)
        self.write("text/en.txt", "\n".join(LINES * 3))
        self.write("text/sw.txt", "\n".join(["cd cd cd", "e f g h"] * 3))
        self.write("pairs.tsv", "id\ten\tsw\n1\tab\tcd cd\n2\tabc\th\n")

    def run_main(self, *flags: str) -> None:
        named = (f"--text={self.folder / 'text'}", f"--output={self.folder / 'out'}", "--overwrite")
        with commands.parsed("score_tokenizer", *named, *flags):
            score_tokenizer.main([])

    def test_report(self):
        model = self.folder / "spm.model"
        more = self.write("more.tsv", "id\ten\tsw\n1\th g f\tcd cd cd\n")
        parallel = f"--parallel={self.folder / 'pairs.tsv'},{more}"
        self.run_main(f"--tokenizers=one={model},two={model}", parallel)
        results = artifacts.read_json(self.folder / "out" / "results.json")
        self.assertEqual(results["one"], results["two"])
        processor = read_segmenter(model)
        tokens = [sum(map(len, processor.encode(side)))
                  for side in (["cd cd", "h", "cd cd cd"], ["ab", "abc", "h g f"])]  # fmt: skip
        self.assertEqual(taxes(results["one"]), {"sw": tokens[0] / tokens[1]})
        self.assertEqual(list(results["one"]["texts"]), ["en", "sw"])
        self.assertIn(
            "## Tax against en English\n", (self.folder / "out" / "report.md").read_text("utf-8")
        )

    def test_the_text_may_be_the_parallel_text(self):
        for language, lines in (("en", LINES), ("sw", ["cd", "", "e f", "h"])):
            self.write(f"text/{language}.txt", "\n".join(lines) + "\n")
        flags = (f"--tokenizers=a={self.folder / 'spm.model'}", f"--parallel={self.folder}/text")
        self.run_main(*flags)
        results = artifacts.read_json(self.folder / "out" / "results.json")
        encode = read_segmenter(self.folder / "spm.model").encode
        tokens = [sum(map(len, encode(side)))
                  for side in (["cd", "e f", "h"], [LINES[0], *LINES[2:]])]  # fmt: skip
        self.assertEqual(taxes(results["a"]), {"sw": tokens[0] / tokens[1]})
        counts = {name: one["sentences"] for name, one in results["a"]["texts"].items()}
        self.assertEqual(counts, {"en": 4, "sw": 3})

    @mock.patch.object(score_tokenizer, "_score", mock.Mock(side_effect=AssertionError))
    def test_a_pivot_without_parallel_text_is_refused_before_scoring(self):
        self.write("lone/en.txt", "ab\n")
        tokenizer = f"--tokenizers=a={self.folder / 'spm.model'}"
        for path, message in (
            ("pairs.tsv", "--pivot: no parallel text is in 'de'; there are en, sw; name one"),
            ("lone", "--parallel=.*lone has no text in two languages; add the files"),
        ):
            with self.assertRaisesRegex(ValueError, message):
                self.run_main(tokenizer, f"--parallel={self.folder / path}", "--pivot=de")
        self.assertFalse((self.folder / "out").exists())

    def test_languages_that_lose_their_tax_are_named(self):
        more = self.write("more.tsv", "id\ten\tsw\tde\tfr\n1\tab\tcd cd\tabc\th\n")
        self.write("text/ta.txt", "ab cd\n")
        apart = self.write("apart.tsv", "id\tta\tsw\n1\tab\tcd\n")
        model = f"--tokenizers=a={self.folder / 'spm.model'}"
        parallel = f"--parallel={more},{apart}"
        told = ("no tax of de, fr, which --parallel has and --text has not",
                "no tax of ta: --parallel has no text of these beside")  # fmt: skip
        with self.assert_told(*told):
            self.run_main(model, parallel)
        results = artifacts.read_json(self.folder / "out" / "results.json")
        self.assertEqual(list(results["a"]["tax"]), ["sw"])
        with self.assertNoLogs(level="WARNING"):
            self.run_main(model, parallel, "--languages=sw")
            self.run_main(model, f"--parallel={self.folder / 'pairs.tsv'}")

    def test_bad_lines_are_counted_and_skipped(self):
        flags = (f"--tokenizers=a={self.folder / 'spm.model'}", f"--parallel={self.folder}/rows")
        record = [{"text": "e f g h"}, {"text": "\ud800 cd"}, {"text": "ab\0"}, {"text": "cd"}]
        lines = [f"{json.dumps(one)}\n".encode() for one in record]
        self.write("text/de.jsonl", b"".join(lines))
        self.write("text/en.txt", b"ab cd\nab \xff\nc\0d\n\xed\xa0\x80\nabc\n")
        self.write("rows/en.txt", b"ab\nabc \xff\nab\n")
        self.write("rows/sw.txt", b"cd\nh h h h h h h h\ncd cd\n")
        told = (
            r"en.txt: skipped 3 lines .*iconv",
            "de.jsonl: skipped 2 ",
            "rows.en.txt: skipped 1 ",
        )
        with self.assert_told(*told):
            self.run_main(*flags)
        with self.assertRaisesRegex(ValueError, "not UTF-8"):  # elsewhere
            list(text_files.read_lines(self.folder / "text/en.txt"))
        found = artifacts.read_json(self.folder / "out" / "results.json")["a"]
        sentences = {name: one["sentences"] for name, one in found["texts"].items()}
        self.assertEqual(sentences, {"de": 2, "en": 2, "sw": 6})
        encode = read_segmenter(self.folder / "spm.model").encode
        tokens = [sum(map(len, encode(side))) for side in (["cd", "cd cd"], ["ab", "ab"])]
        self.assertEqual(taxes(found), {"sw": tokens[0] / tokens[1]})

    def test_the_reference_is_a_tokenizer(self):
        model = self.folder / "spm.model"
        flags = (f"--tokenizers=a={model},b={model}", "--reference=b")
        self.run_main(*flags)
        page = (self.folder / "out" / "report.md").read_text("utf-8")
        self.assertIn("## Against b\n", page)
        self.assertIn("| a | +0.0% | +0.0% to +0.0% | 0 | 0 | 2 |", page)
        with self.assertRaisesRegex(ValueError, "--reference: no tokenizer is called 'c'; .* a, b"):
            self.run_main(*flags[:1], "--reference=c")

    def test_languages(self):
        model = self.folder / "spm.model"
        self.run_main(f"--tokenizers=a={model}", "--languages=sw")
        results = artifacts.read_json(self.folder / "out" / "results.json")
        self.assertEqual(list(results["a"]["texts"]), ["sw"])
        for flags, message in (
            ((f"--tokenizers=a={model}", "--languages=sw,de"), "no text in de; there are en, sw"),
            (("--tokenizers=spm.model",), "must be NAME=PATH"),
            (("--tokenizers=a=x.model",), "no such file"),
            ((f"--tokenizers=a={model},a={model}",), "'a' comes twice"),
        ):
            with self.assertRaisesRegex(ValueError, message):
                self.run_main(*flags)
