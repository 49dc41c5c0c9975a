"""SentencePiece models rebuilt from a tokenizer.json, against the tokenizer and the first model."""

import base64
import functools
import io
import itertools
import json
import pathlib
import random
from typing import Any
from unittest import mock

import numpy as np
import sentencepiece as spm
import tokenizers
import transformers
from absl.testing import parameterized
from google.protobuf.message import Message

from tests import folders
from vocap import merge, model_proto
from xlm.interop import charsmap, huggingface, tokenizer_json, vocabulary
from xlm.interop.normalizer_json import added_token, typed

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
# Names of languages and numerals in their own scripts.
SCRIPTS = (
    "العربية ١٢٣", "עברית", "Ελληνικά", "Русский язык", "Հայերեն",
    "ქართული", "हिन्दी भाषा १२३", "বাংলা ১২৩", "ਪੰਜਾਬੀ", "ગુજરાતી",
    "ଓଡ଼ିଆ", "தமிழ்", "తెలుగు", "ಕನ್ನಡ", "മലയാളം",
    "සිංහල", "ภาษาไทย", "ລາວ", "བོད་སྐད", "မြန်မာဘာသာ",
    "ភាសាខ្មែរ", "አማርኛ", "한국어", "日本語 ひらがな カタカナ", "中文,繁體",
    "ᏣᎳᎩ", "ᠮᠣᠩᠭᠣᠯ", "ꆈꌠꉙ", "ⵜⴰⵎⴰⵣⵉⵖⵜ", "ދިވެހި",
    "ܣܘܪܝܝܐ", "ᐃᓄᒃᑎᑐᑦ", "Tiếng Việt", "ﬁne ﾊﾝｶｸ ＡＢＣ １２", "e\u0301a\u030a",
)  # fmt: skip
WHITE_SPACE = ("a\tb", "a \u3000 b", "  ab  c ", "ab\u00a0\u2009c\n", "", "   ", "a\u200bb")


@functools.cache
def texts() -> list[str]:
    """The embedded corpus, other scripts, and white space of all kinds."""
    files = sorted((ROOT / "corpus").glob("*.txt"))
    lines = [line for file in files for line in file.read_text("utf-8").splitlines()[:60]]
    return [*lines, *SCRIPTS, *WHITE_SPACE]


@functools.cache
def fairseq_model() -> bytes:
    """A model as XLM-R's: SentencePiece's own special tokens and normaliser."""
    model = io.BytesIO()
    spm.SentencePieceTrainer.train(
        sentence_iterator=iter(texts()), model_writer=model, vocab_size=2500,
        character_coverage=0.999, minloglevel=2,
    )  # fmt: skip
    return model.getvalue()


def proto() -> Message:
    return model_proto.ModelProto.FromString(fairseq_model())


def saved(folder: pathlib.Path, charsmap_of_model: bool = True) -> pathlib.Path:
    """The tokenizer of that model, as transformers saves it."""
    vocab = [(token, 0.0) for token in merge.SPECIALS[:4]]
    vocab += [(piece.piece, piece.score) for piece in proto().pieces[3:]]
    compiled = proto().normalizer_spec.precompiled_charsmap
    transformers.XLMRobertaTokenizer(
        vocab=[*vocab, ("<mask>", 0.0)],
        _spm_precompiled_charsmap=compiled if charsmap_of_model else None,
    ).save_pretrained(folder)
    return folder / "tokenizer.json"


def changed(path: pathlib.Path, **changes: Any) -> None:
    value = json.loads(path.read_text(encoding="utf-8"))
    path.write_text(json.dumps({**value, **changes}), encoding="utf-8")


def parsed(value: dict[str, Any]) -> tokenizer_json.Tokenizer:
    return tokenizer_json.read(json.dumps(value).encode())


# Half a second for the standard map, which most cases read twice.
_read_once = functools.cache(charsmap.read_charsmap)


class MapCase(folders.FolderTest):
    """Tests that read each character map once for all."""

    def setUp(self):
        super().setUp()
        self.enter_context(mock.patch.object(charsmap, "read_charsmap", _read_once))


class RebuiltTest(MapCase):
    def assert_segments_as(self, rebuilt: bytes, expected: bytes) -> None:
        found, of_model = (
            spm.SentencePieceProcessor(model_proto=model).encode(texts(), out_type=str)
            for model in (rebuilt, expected)
        )
        for text, pieces, expected_pieces in zip(texts(), found, of_model, strict=True):
            self.assertEqual(pieces, expected_pieces, text)

    def test_a_saved_tokenizer_is_the_model_that_it_was_made_of(self):
        saved(self.folder)
        self.assertFalse((self.folder / "sentencepiece.bpe.model").exists())
        rebuilt = vocabulary.sentencepiece_model(self.folder)
        self.assert_segments_as(rebuilt, fairseq_model())
        found = vocabulary.vocabulary(rebuilt)
        self.assertEqual(found.pieces[:5], merge.SPECIALS)
        self.assertEqual(found.pieces[5:], tuple(piece.piece for piece in proto().pieces[3:]))
        # As from the model that SentencePiece wrote; and its export has its ids.
        (self.folder / "sentencepiece.bpe.model").write_bytes(fairseq_model())
        of_fairseq = vocabulary.vocabulary(vocabulary.sentencepiece_model(self.folder))
        self.assertEqual(of_fairseq.pieces, found.pieces)
        np.testing.assert_array_equal(of_fairseq.scores, found.scores)
        exported = huggingface.tokenizer_json(rebuilt)
        self.assertEmpty(huggingface.compare(rebuilt, exported, texts()))

    def test_earlier_versions_collapse_blanks_in_the_normaliser(self):
        path = saved(self.folder)
        precompiled = json.loads(path.read_text("utf-8"))["normalizer"]
        early = typed("Metaspace", replacement="\u2581", add_prefix_space=True)
        nmt = [{"type": "Nmt"}, {"type": "NFKC"}]  # the standard map
        changed(path, normalizer=typed("Sequence", normalizers=nmt))
        self.assert_segments_as(vocabulary.sentencepiece_model(self.folder), fairseq_model())
        for steps in ([precompiled, merged(" ")], [precompiled, typed("Strip"), merged(" ")]):
            changed(path, normalizer=typed("Sequence", normalizers=steps), pre_tokenizer=early)
            self.assert_segments_as(vocabulary.sentencepiece_model(self.folder), fairseq_model())

    def test_without_a_normaliser_text_stays_as_it_is(self):
        path = saved(self.folder, charsmap_of_model=False)
        rebuilt = vocabulary.sentencepiece_model(self.folder)
        theirs = tokenizers.Tokenizer.from_file(str(path))
        ids = {piece: i for i, piece in enumerate(vocabulary.read_vocabulary(self.folder).pieces)}
        processor = spm.SentencePieceProcessor(model_proto=rebuilt)
        rng = random.Random(0)
        white = "".join(WHITE_SPACE) + "\u2028\x85\u1680"
        made_up = ["".join(rng.choices("ab cｆﬁé" + white, k=12)) for _ in range(300)]
        for text in texts() + made_up:
            found = [ids.get(processor.id_to_piece(i), i) for i in processor.encode(text)]
            self.assertEqual(found, theirs.encode(text, add_special_tokens=False).ids, repr(text))
        self.assertEmpty(huggingface.compare(rebuilt, huggingface.tokenizer_json(rebuilt), texts()))

    @parameterized.parameters(
        ({"model": {"type": "WordPiece"}}, "is of type 'WordPiece', must be Unigram"),
        ({"model": {"type": "Unigram", "byte_fallback": True, "vocab": []}}, "falls back to bytes"),
        ({"normalizer": {"type": "Lowercase"}}, "a step 'Lowercase'"),
        ({"normalizer": {"type": "NFKC"}}, "the normaliser is NFKC, must have both"),
        ({"pre_tokenizer": {"type": "BertPreTokenizer"}}, "is BertPreTokenizer, must be Metaspace"),
        ({"pre_tokenizer": None}, "is none, must be Metaspace"),
        ({"model": {"type": "Unigram", "vocab": [["a", "b"]]}}, 'vocab.0.1 is "b", must be a n'),
        ({"normalizer": {"type": "Precompiled", "precompiled_charsmap": "!"}}, "not in base64"),
        ({"normalizer": {"type": "Precompiled", "precompiled_charsmap": "AAAAAA=="}},
         "not a character map"),
    )  # fmt: skip
    def test_what_sentencepiece_cannot_do(self, changes, message):
        path = saved(self.folder)
        changed(path, **changes)
        with self.assertRaisesRegex(ValueError, rf"tokenizer.json: .*{message}"):
            vocabulary.sentencepiece_model(self.folder)


SPLIT = typed("WhitespaceSplit")
STANDARD = typed("Precompiled", precompiled_charsmap=base64.b64encode(charsmap.standard()).decode())
STRIP = typed("Strip", strip_left=True, strip_right=True)
STRIP_RIGHT = {**STRIP, "strip_left": False}


def metaspace(scheme: str, **more: Any) -> dict[str, Any]:
    return {**typed("Metaspace", replacement="▁", prepend_scheme=scheme), **more}


def merged(content: str) -> dict[str, Any]:
    return typed("Replace", pattern={"Regex": " {2,}"}, content=content)


class BlanksTest(MapCase):
    """Blanks at every place of short texts, against `tokenizers`."""

    def value(self, steps: tuple, splits: tuple, pieces: str = "") -> dict[str, Any]:
        vocab = [*merge.SPECIALS, *("▁", "▁a", "▁b", "a", "b", "▁ab", "ab"), *pieces.split()]
        scored = [[piece, -2 - i / 10] for i, piece in enumerate(vocab)]
        return {
            "version": "1.0",
            "added_tokens": [added_token(i, token) for i, token in enumerate(merge.SPECIALS)],
            "normalizer": {"type": "Sequence", "normalizers": steps} if steps else None,
            "pre_tokenizer": {"type": "Sequence", "pretokenizers": splits},
            "model": {"type": "Unigram", "unk_id": 3, "vocab": scored, "byte_fallback": False},
        }

    @parameterized.parameters(
        # XLM-R's, without and with its map.
        ((), (SPLIT, metaspace("always"))),
        ((STANDARD,), (SPLIT, metaspace("always"))),
        ((STANDARD, STRIP, merged(" ")), (SPLIT, metaspace("always"))),
        # Of transformers' converters, early and late, and of the package tokenizers.
        ((STANDARD, merged(" ")), (metaspace("always"),)),
        ((STANDARD, STRIP_RIGHT, merged("▁")), (metaspace("always"),)),
        ((STANDARD, STRIP_RIGHT, merged("▁")), (metaspace("first"),)),
        ((STANDARD, STRIP, merged(" ")), (metaspace("always", split=False),)),
        (({"type": "Nmt"}, {"type": "NFKC"}, merged(" ")), (metaspace("always"),)),
        ((STRIP_RIGHT, merged("▁")), (metaspace("always"),)),
        # All blanks are kept.
        ((), (metaspace("never"),)),
        ((STANDARD,), (metaspace("never", split=False),), "▁▁"),
    )
    def test_they_are_as_in_the_tokenizer(self, steps, splits, pieces=""):
        value = self.value(steps, splits, pieces)
        theirs = tokenizers.Tokenizer.from_str(json.dumps(value))
        self.write("tokenizer.json", json.dumps(value))
        model = vocabulary.sentencepiece_model(self.folder)
        processor = spm.SentencePieceProcessor(model_proto=model)
        for size in range(6):
            for text in map("".join, itertools.product("ab \t", repeat=size)):
                if text[-1:].isspace() and splits[0] != SPLIT:
                    continue  # which SentencePiece drops
                found = processor.encode(text, out_type=str)
                self.assertEqual(found, theirs.encode(text).tokens, repr(text))

    @parameterized.parameters(
        ((STRIP,), (metaspace("never"),), "a step 'Strip', but SentencePiece strips only if"),
        ((STANDARD,), (metaspace("always"),), "is 'always', must be 'never' if nothing merges"),
        ((), (metaspace("first"),), "is 'first', must be 'never' if nothing merges"),
        ((), (SPLIT, metaspace("first")), "is 'first', must be 'always' after WhitespaceSplit"),
        ((merged(" "),), (metaspace("never"),), "is 'never', must be 'always' or 'first' if"),
        # The map may make blanks after they were merged.
        ((merged(" "), STANDARD), (metaspace("always"),), "must be 'never' if nothing merges"),
        ((), (SPLIT, metaspace("always", replacement="_")), "a blank by '_', must be '▁'"),
        ((merged(""),), (metaspace("always"),), "several blanks by '', must be ' ' or '▁'"),
        ((merged("▁"),), (SPLIT, metaspace("always")), "several blanks by '▁', must be ' '"),
        ((STRIP, STANDARD, merged(" ")), (metaspace("first"),), "strips the left of a text"),
        ((), (metaspace("never"),), "piece '▁▁▁' has several blanks", "▁▁▁"),
    )
    def test_what_sentencepiece_has_not(self, steps, splits, message, pieces=""):
        remedy = "" if pieces else ".*put the model's sentencepiece.bpe"
        with self.assertRaisesRegex(ValueError, message + remedy):
            tokenizer_json.normalizer_spec(parsed(self.value(steps, splits, pieces)))

    def test_words_of_earlier_versions(self):
        split = {"type": "Metaspace", "replacement": "▁", "add_prefix_space": False}
        spec = tokenizer_json.normalizer_spec(parsed(self.value((STANDARD,), (split,))))
        self.assertFalse(spec.add_dummy_prefix)
        self.assertFalse(spec.remove_extra_whitespaces)
        with self.assertRaisesRegex(ValueError, "1 pieces have a blank inside, such as 'a▁b'"):
            tokenizer_json.check_pieces(["▁a", "▁▁", "▁", "a▁b"])


class CharsmapTest(MapCase):
    def test_maps(self):
        rules = {"a": "b", "\u3000": " ", "ab": "", "ｆﬁ": "xyz"}
        self.assertEqual(charsmap.read_charsmap(charsmap.compiled(rules)), rules)
        trained = proto().normalizer_spec.precompiled_charsmap
        self.assertTrue(charsmap.is_standard(trained))
        self.assertFalse(charsmap.is_standard(charsmap.compiled({"a": "b"})))
        folded = spm.SentencePieceNormalizer(rule_name="nmt_nfkc_cf").serialized_model_proto()
        folded = model_proto.ModelProto.FromString(folded).normalizer_spec.precompiled_charsmap
        self.assertFalse(charsmap.is_standard(folded))
