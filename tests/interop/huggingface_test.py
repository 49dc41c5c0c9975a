"""Tests of the export to Hugging Face: SentencePiece is the reference for every id."""

import functools
import json
import subprocess
import sys
import unicodedata
from unittest import mock

import numpy as np
import sentencepiece as spm
import tokenizers
import transformers
from absl.testing import absltest, parameterized

from tests import commands, folders
from tests import fuzz_tokenizers as fuzz
from vocap import merge, model_proto
from vocap.settings import BPE
from xlm.common import artifacts
from xlm.interop import charsmap, huggingface, vocabulary
from xlm.interop.segmenter import read_segmenter

NASTY = {
    "nothing": ["", " ", "\n", "\u3000\u00a0 ", "\x01", "\u200b\x02 "],
    "white space": ["  two  \t tabs\u3000", "line\r\nline\u2028x", "a\u00a0b\u2009c\u0085d \u0085"],
    "the space symbol": ["\u2581", "a\u2581b", "\u2581\u2581 a \u2581", "a\u2581\u0301"],
    "controls": ["a\x01b\x02c\x00d\x7fe", "\x01\u0301", "e\x01\u0301", "\ufeffa\u200bb\u200cc"],
    "stand-ins": ["\x02\uff5e\x02~", "10\uff5e20", "\uff5e\u0338", "\uff5e\x01\uff5e"],
    "decomposed": [unicodedata.normalize("NFD", t) for t in ("Tiếng Việt rất đẹp", "각하", "ガギ")],
    "marks out of order": ["e\u0302\u0323", "o\u0301\u0323", "ọ\u0301\u0300", "a\u0316\u0301"],
    "marks upon marks": ["\u00e9\u0301\u0301", "\ufb01\u0301", "\u00bd\u0301", "\u0344", "a\u0344"],
    "marks upon nothing": ["\u0301a", "\u200c\u064b", " \u0301", "\ufffd\u05b0", "\u1680\u0327"],
    "Arabic": ["\u064a\u0651\u064b", "\u0627\u0653\u064b", "\ufef5\u0651", "\ufdfa \u0600\u0661"],
    "Hebrew": ["\ufb2a\u05bc\u05b0", "\u05e9\u05bc\u05c1", "\ufb1d\u05b4"],
    "Indic": ["\u0995\u09c7\u09be", "\u0ba4\u0bc6\u0bbe", "\u0d46\u0d3e", "\u0930\u093c\u094d"],
    "Hangul": ["\u1100\u1161\u11a8", "\u314e\u314f\u3133", "다\u3135", "가\u11a8", "\u3275\u11b0"],
    "kana": ["\uff76\uff9e\uff8a\uff9f", "か\u3099\u3099", "\u0301\uff9e", "\u30fb\uff9e"],
    "emoji": ["\U0001f468\u200d\U0001f469\u200d\U0001f467", "\U0001f44d\U0001f3fd \u2764\ufe0f x"],
    "unknown": ["\u16a0\u16a1 \u16a2x\u16a3", "a\u16a0\u16a1b", "\u16a0", "\u16a0\u2581\u16a1"],
    "almost special": ["<s", "< mask >", "mask>", "<<s >>", "<unk", "s>", "<MASK>", "[MASK]"],
    "special once normalised": ["\uff1cs\uff1e", "x<\x01mask>", "<\uff53> a", "<\x02/s>"],
    "long": ["wort " * 20_000, "ab" * 20_000, "\u16a0" * 5_000, "e\u0323\u0302" * 3_000],
}  # fmt: skip


@functools.cache
def exported(mode: str) -> dict:
    return huggingface.tokenizer_json(fuzz.model(mode))


@functools.cache
def rules() -> dict[str, str]:
    proto = model_proto.ModelProto.FromString(fuzz.model("standard"))
    return charsmap.read_charsmap(proto.normalizer_spec.precompiled_charsmap)


def load(value: dict) -> tokenizers.Tokenizer:
    return tokenizers.Tokenizer.from_str(json.dumps(value))


def normalized(tokenizer: tokenizers.Tokenizer, text: str) -> str:
    """The words of a text, in which visible spaces are, joined."""
    words = tokenizer.pre_tokenizer.pre_tokenize_str(tokenizer.normalizer.normalize_str(text))
    return "".join(word for word, _ in words)


def small_model(pieces: dict[str, float]) -> bytes:
    """A model of these pieces with exactly these scores, however `write_model` rounds them."""
    model = merge.write_model(list(pieces), np.array(list(pieces.values())))
    proto = model_proto.ModelProto.FromString(model)
    for piece in proto.pieces[len(merge.SPECIALS) :]:
        piece.score = pieces[piece.piece]
    return proto.SerializeToString()


def small_json(model: bytes) -> dict:
    """As `tokenizer_json`, which takes its time for the normaliser, the same in all models."""
    pieces = model_proto.ModelProto.FromString(model).pieces
    vocab = [[piece.piece, piece.score] for piece in pieces]
    return exported("standard") | {"model": exported("standard")["model"] | {"vocab": vocab}}


class SameIdsTest(parameterized.TestCase):
    """Of a unigram model, and of one of byte-pair encoding, whose normaliser is the same."""

    KINDS = ("standard", "bpe_standard")

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.processor, cls.tokenizer = fuzz.loaded("standard")

    def assert_same(self, texts, mode: str = "standard"):
        for text in texts:  # where pieces are unknown, ids say little
            self.assertEqual(
                normalized(self.tokenizer, text), self.processor.normalize(text), ascii(text[:200])
            )
        self.assertEqual(huggingface.compare(fuzz.model(mode), exported(mode), texts), [])

    @parameterized.parameters(*KINDS)
    def test_on_the_embedded_corpus(self, kind):
        sentences = fuzz.corpus()
        self.assertGreater(len(sentences), 5000)
        self.assert_same(sentences, kind)

    @parameterized.product(kind=tuple(KINDS), what=tuple(NASTY))
    def test_on_nasty_text(self, kind, what):
        self.assert_same(NASTY[what], kind)
        self.assert_same([f"ab {text} cd" for text in NASTY[what]], kind)
        self.assert_same([f"{text}{text}" for text in NASTY[what]], kind)

    def test_text_is_normalised_alike_by_every_rule_of_the_character_map(self):
        self.assertGreater(len(rules()), 200_000)
        hangul = [key for key, value in rules().items() if "\uac00" <= value <= "\ud7a3"]
        others = sorted(rules().keys() - hangul)
        wrong = [
            key
            for key in [*others, *sorted(hangul)[::50]]
            if normalized(self.tokenizer, f"a{key}b") != self.processor.normalize(f"a{key}b")
        ]
        self.assertNotEmpty(wrong)
        for key in wrong:
            self.assertGreater(len(key), 1, ascii(key))
            self.assertFalse(fuzz.YOUNG.isdisjoint(map(ord, key)), ascii(key))

    def test_the_character_map_is_read_as_sentencepiece_reads_it(self):
        for key, value in list(rules().items())[::100]:
            value = f"x{value}x".replace("  ", " ").replace(" ", "\u2581")
            self.assertEqual(self.processor.normalize(f"x{key}x"), f"\u2581{value}", ascii(key))
        # One character alone is spared by the map and not by NFKC.
        compatible = {c for c in map(chr, range(0x30000)) if unicodedata.normalize("NFKC", c) != c}
        spared = {c for c in compatible - rules().keys() if not "\ud800" <= c <= "\udfff"}
        self.assertEqual(spared, {"\uff5e"})

    def test_special_tokens_go_around_texts_and_pairs(self):
        a, b = (self.processor.encode(text) for text in ("Guten Morgen", "zwei Katzen"))
        encode = functools.partial(self.tokenizer.encode, "Guten Morgen")
        self.assertEqual(encode(add_special_tokens=False).ids, a)
        self.assertEqual(encode().ids, [0, *a, 2])
        pair = encode("zwei Katzen")
        self.assertEqual(pair.ids, [0, *a, 2, 2, *b, 2])
        self.assertEqual(set(pair.type_ids), {0})

    def test_pieces_with_the_first_characters_of_a_special_token(self):
        pieces = ["<s", "\u2581", "<", "s", ">"]
        model = merge.write_model(pieces, -np.arange(5.0), BPE)
        tokenizer = huggingface.tokenizer_json(model)
        text = "\uff1cs\uff1e"  # the text "<s>" only once it is normalised
        self.assertEqual(huggingface.compare(model, tokenizer, [text, "<s s>"]), [])
        found = load(tokenizer).encode(text, add_special_tokens=False).tokens
        self.assertEqual(found, ["\u2581", "<s", ">"])


class ModesTest(folders.FolderTest):
    """Every form of the model: ids of SentencePiece, and words and offsets as of XLM-R."""

    @parameterized.parameters(*fuzz.MODES)
    def test_random_texts_have_the_same_ids_everywhere(self, name):
        # Symbols that compete with white space, whose pieces score 0.
        texts = [*fuzz.texts(100, seed=0), *("\n" * n for n in range(9)), "a``\n\n``<code>"]
        self.assertEqual([x for text in texts if (x := fuzz.wrong(name, text))], [])
        if name.startswith("bpe_"):
            return
        huggingface.export_tokenizer(fuzz.model(name), self.folder / "out")
        # What transformers writes again is read as well.
        loaded = transformers.AutoTokenizer.from_pretrained(self.folder / "out")
        loaded.save_pretrained(self.folder / "again")
        back = vocabulary.sentencepiece_model(self.folder / "again")
        processor, _ = fuzz.loaded(name)
        again = spm.SentencePieceProcessor(model_proto=back)
        self.assertEqual(again.encode(texts), processor.encode(texts))
        found, expected = (
            vocabulary.read_vocabulary(self.folder / "again"),
            vocabulary.vocabulary(fuzz.model(name)),
        )
        self.assertEqual(found.pieces, expected.pieces)
        np.testing.assert_array_equal(found.scores, expected.scores)

    @parameterized.parameters("standard", "identity", "lossless", "keep_nfc", "bpe_symbols")
    def test_words_and_offsets(self, name):
        huggingface.export_tokenizer(fuzz.model(name), self.folder)
        tokenizer = transformers.AutoTokenizer.from_pretrained(self.folder)
        words = ["Guten", "Morgen,", "日本", "и", "(das)", "각", "x"]
        text, begins = " ".join(words), np.cumsum([0, *(len(word) + 1 for word in words)])
        for second in (None, "noch eins"):
            found = tokenizer(text, second, return_offsets_mapping=True)
            spans = {}
            for word, sequence, (begin, end) in zip(
                found.word_ids(), found.sequence_ids(), found["offset_mapping"], strict=True
            ):
                if sequence == 0:
                    first, _ = spans.get(word, (begin, end))
                    spans[word] = (first, end)
            expected = [(b, b + len(word)) for b, word in zip(begins, words, strict=False)]
            self.assertEqual(list(spans.items()), list(enumerate(expected)))
        if "whitespace" in fuzz.MODES[name]:
            self.assertLen(set(tokenizer("ab   cd\tef").word_ids()) - {None}, 4)
        split = tokenizer([*words, "New York"], is_split_into_words=True)
        self.assertEqual(sorted(set(split.word_ids()) - {None}), list(range(8)))
        self.assertLen([w for w in split.word_ids()[-3:] if w == 7], 2)

    def test_offsets_are_those_of_sentencepiece_but_for_what_the_module_names(self):
        processor, tokenizer = fuzz.loaded("standard")
        for text in [*fuzz.corpus()[::25], "\x01\x02abc", "\ufeff\x01Hallo", "e\u0301 ab"]:
            characters = np.cumsum([0, *(len(c.encode()) for c in text)]).tolist()
            pieces = processor.encode(text, return_type="proto").pieces
            offsets = tokenizer.encode(text, add_special_tokens=False).offsets
            for piece, found in zip(pieces, offsets, strict=True):
                begin, end = (characters.index(at) for at in (piece.begin, piece.end))
                covered = text[begin:end].strip(" \t\u200b\ufeff\x01\x02")
                if piece.piece != "\u2581" and covered:  # a part of "½" has no width
                    shown = text[slice(*found)]
                    self.assertIn(covered, (shown, shown + "\u0301"), ascii(text))

    def test_half_of_a_surrogate_pair_is_named(self):
        for act in (
            lambda: huggingface.compare(
                fuzz.model("standard"), exported("standard"), ["a", "b\ud83d"]
            ),
            lambda: read_segmenter(self.write("a.model", fuzz.model("standard"))).encode(
                ["b\ud83d"]
            ),
        ):
            with self.assertRaisesRegex(ValueError, r"character 1 of .*half.*U\+D83D, must"):
                act()


class KnownDifferencesTest(parameterized.TestCase):
    """Differences that the module's docstring names. A test that fails here is good news."""

    @parameterized.parameters(*enumerate(merge.SPECIALS))
    def test_the_literal_text_of_a_special_token_is_that_token(self, token_id, token):
        tokenizer = load(exported("standard"))
        processor = spm.SentencePieceProcessor(model_proto=fuzz.model("standard"))
        text = f"ein {token} Haus"
        ids = tokenizer.encode(text, add_special_tokens=False).ids
        self.assertEqual(ids, [*processor.encode("ein"), token_id, *processor.encode("Haus")])
        self.assertLen(
            huggingface.compare(fuzz.model("standard"), exported("standard"), [text, "ein"]), 1
        )
        tokenizer.encode_special_tokens = True  # transformers: split_special_tokens
        as_text = tokenizer.encode(text, add_special_tokens=False).ids
        self.assertEqual(as_text, processor.encode(text))

    def test_no_piece_reaches_over_the_first_character_of_a_special_token_made_by_normalising(self):
        model = small_model({"\u2581": -1.0, "<": -9.0, "s": -9.0, ">": -9.0, "<s": -2.0})
        value = small_json(model)
        self.assertEqual(huggingface.compare(model, value, ["<s", "< s>", "<s<s"]), [])
        (difference,) = huggingface.compare(model, value, ["\uff1cs>"])
        self.assertEqual(difference.expected, ["\u2581", "<s", ">"])
        self.assertEqual(difference.found, ["\u2581", "<", "s", ">"])

    @parameterized.parameters(
        ("\U00016d67\U00016d67", "\U00016d68", "\U00016d67\U00016d67"),
        ("\U0001e030\u0308", "\u04d3", "\u0430\u0308"),
        ("\ua7f2\u0327", "\u00c7", "C"),
    )
    def test_young_characters_are_not_joined(self, text, expected, found):
        processor = spm.SentencePieceProcessor(model_proto=fuzz.model("standard"))
        self.assertEqual(processor.normalize(text), f"\u2581{expected}")
        self.assertEqual(normalized(load(exported("standard")), text), f"\u2581{found}")


class CompareTest(absltest.TestCase):
    def test_tells_each_text_that_differs_in_their_order(self):
        model = small_model({"\u2581": -3.0, "a": -3.0, "b": -3.0, "ab": -4.0, "c": -1.0})
        value = small_json(model)
        for entry in value["model"]["vocab"]:
            if entry[0] == "ab":
                entry[1] = -20.0
        texts = ["c", "cab", "a b", *["c"] * 3000, "ab\u16a0"]
        first, second = huggingface.compare(model, value, iter(texts))
        self.assertEqual((first.text, second.text), ("cab", "ab\u16a0"))
        self.assertEqual(first.expected, ["\u2581", "c", "ab"])
        self.assertEqual(first.found, ["\u2581", "c", "a", "b"])

    def test_padding_and_truncation_that_a_file_stores_make_none(self):
        model = small_model({"\u2581": -3.0, "a": -3.0})
        tokenizer = load(small_json(model))
        texts = ["a", "a a a a"]
        for dataset in (tokenizer.enable_padding, lambda: tokenizer.enable_truncation(4)):
            dataset()
            value = json.loads(tokenizer.to_str())
            self.assertTrue(value["padding"] or value["truncation"])
            self.assertEqual(huggingface.compare(model, value, texts), [])
        # Special tokens that are left out are one.
        value = small_json(model) | {"post_processor": None}
        self.assertLen(huggingface.compare(model, value, ["a", ""]), 2)

    def test_without_the_library_says_what_to_install(self):
        with (
            mock.patch.dict(sys.modules, {"tokenizers": None}),
            self.assertRaisesRegex(ValueError, r"tokenizers.*; pip install '\.\[train"),
        ):
            huggingface.compare(fuzz.model("standard"), exported("standard"), ["a"])


def with_map(compiled: bytes):
    return lambda proto: setattr(proto.normalizer_spec, "precompiled_charsmap", compiled)


class ExportTest(folders.FolderTest):
    def setUp(self):
        super().setUp()
        self.folder = self.folder / "new" / "folder"

    def test_the_folder_says_what_the_model_says(self):
        huggingface.export_tokenizer(fuzz.model("standard"), self.folder)
        value = artifacts.read_json(self.folder / "tokenizer.json")
        self.assertEqual(value, exported("standard"))
        self.assertEqual(json.loads(load(value).to_str())["model"], value["model"])
        self.assertEqual(
            huggingface.compare(fuzz.model("standard"), self.folder, fuzz.corpus()[::50]), []
        )
        proto = model_proto.ModelProto.FromString(fuzz.model("standard"))
        self.assertEqual(value["model"]["vocab"], [[p.piece, p.score] for p in proto.pieces])
        ids = {token["content"]: token["id"] for token in value["added_tokens"]}
        self.assertEqual(ids, {token: i for i, token in enumerate(merge.SPECIALS)})
        special = artifacts.read_json(self.folder / "special_tokens_map.json")
        config = artifacts.read_json(self.folder / "tokenizer_config.json")
        names = {"bos": "<s>", "eos": "</s>", "cls": "<s>", "sep": "</s>", "pad": "<pad>",
                 "unk": "<unk>"}  # fmt: skip
        self.assertEqual(special, special | {f"{key}_token": one for key, one in names.items()})
        self.assertEqual(special["mask_token"], "<mask>")
        self.assertEqual(config, config | special)
        self.assertEqual(config["tokenizer_class"], "PreTrainedTokenizerFast")

    @parameterized.named_parameters(
        ("words", lambda p: setattr(p.trainer_spec, "model_type", 3), "of type WORD, must be"),
        ("specials", lambda p: setattr(p.pieces[4], "piece", "<m>"), "begins with.*<m>, must"),
        ("unused", lambda p: setattr(p.pieces[5], "type", 5), "has unused pieces"),
        ("suffix", lambda p: setattr(p.trainer_spec, "treat_whitespace_as_suffix", True), "puts"),
        ("prefix", lambda p: setattr(p.normalizer_spec, "add_dummy_prefix", False), "white space"),
        ("folding", with_map(charsmap.of("nmt_nfkc_cf")), "several characters that are neither"),
        ("again", with_map(charsmap.compiled({"ab": "c", "c": "d"})), "by 'c', which its rules"),
        ("controls", with_map(charsmap.compiled({"\x01": "c"})), "rules for the controls"),
        (
            "symbols",
            lambda p: p.pieces.extend(type(p.pieces[0])(piece=f"{i}e", type=4) for i in range(64)),
            "64 user-defined",
        ),
    )
    def test_models_of_other_kinds_are_refused(self, change, message):
        proto = model_proto.ModelProto.FromString(small_model({"\u2581": -3.0, "a": -3.0}))
        change(proto)
        with self.assertRaisesRegex(ValueError, f"{message}.*(; read this one|, or BPE)"):
            huggingface.tokenizer_json(proto.SerializeToString())
        for model, message in ((b"abc", ""), (b"", ": it has no pieces")):
            with self.assertRaisesRegex(ValueError, f"not a SentencePiece model{message}"):
                huggingface.export_tokenizer(model, self.folder)
        self.assertFalse(self.folder.exists())


class EntryPointTest(folders.FolderTest):
    def setUp(self):
        super().setUp()
        (self.folder / "spm.model").write_bytes(fuzz.model("standard"))

    def export(self, *flags: str) -> subprocess.CompletedProcess:
        given = (f"--model={self.folder / 'spm.model'}", f"--output={self.folder / 'out'}", *flags)
        return commands.execute("export_tokenizer", *given)

    def test_exports_and_checks(self):
        text = self.folder / "some.txt"
        text.write_text("Guten Morgen\n\nein <mask> Haus\n", encoding="utf-8")
        documents = self.folder / "some.jsonl"
        documents.write_text(json.dumps({"text": "ein <mask>\n\u10d3\u10d0"}), encoding="utf-8")
        checks = (f"{text},corpus/ka.txt", documents)
        done = self.export(*(f"--check={one}" for one in checks))
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn(f"{text}: 1 of 2 lines agree", done.stdout)
        self.assertRegex(done.stdout, r"ka\.txt: 50 of 50 lines agree")
        self.assertIn(f"{documents}: 1 of 2 lines agree", done.stdout)
        self.assertRegex(done.stdout, r"ein <mask> Haus\n  SentencePiece .*<.*>.*\n  tokenizers  ")
        self.assertTrue((self.folder / "out/tokenizer.json").exists())

    def test_the_folder_of_a_model_keeps_its_tokenizer(self):
        huggingface.export_tokenizer(small_model({"\u2581": -3.0}), self.folder / "out", 16)
        (self.folder / "out/config.json").write_text("{}", encoding="utf-8")
        files = {path: path.read_bytes() for path in (self.folder / "out").iterdir()}
        done = self.export()
        self.assertEqual(done.returncode, 2, done.stderr)
        self.assertRegex(done.stderr, "out holds a model.*, whose tokenizer .*another --output")
        self.assertEqual(files, {path: path.read_bytes() for path in files})
