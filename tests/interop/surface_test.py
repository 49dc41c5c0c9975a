"""Forms of text that a tokenizer changes or lacks, as pieces: round trips, and what stays."""

import json

import sentencepiece as spm
from absl.testing import parameterized

from tests import tiny_tasks
from vocap import merge
from xlm.interop import huggingface, segmenter, surface

# Full-width signs, a joiner, SARA AM, letters with marks apart, Armenian, an exclusion of NFC.
TEXTS = (
    "a\u200ecat",
    "the，cat dog！",
    "a\u200cb cat",
    "กำ the",
    "the o\u0323 runs",
    "և cat",
    "\u09df dog",
)
PLAIN = ("the cat runs .", "dog  sleeps", "a b, c")
PIECES = [*"abcdefghijklmnopqrstuvwxyz", "▁", "▁the", "▁cat", "▁dog", "▁runs", ",", "!", "ก", "ํา",
          "ọ", "եւ", "য", "়", "."]  # fmt: skip


def model() -> bytes:
    return merge.write_model(PIECES, [-float(i + 1) for i in range(len(PIECES))])


def read(serialised: bytes) -> spm.SentencePieceProcessor:
    return spm.SentencePieceProcessor(model_proto=serialised)


class SurfaceTest(parameterized.TestCase):
    def test_text_comes_back_as_it_is_written(self):
        grown, parts = surface.with_forms(model(), surface.missing_forms(model(), TEXTS, 1))
        before, after = read(model()), read(grown)
        for text in TEXTS:
            self.assertEqual(after.decode(after.encode(text)), text)
            self.assertNotEqual(before.decode(before.encode(text)), text)
        added = [after.id_to_piece(len(before) + i) for i in range(len(parts))]
        expected = ["\u200e", "，", "！", "\u200c", "ำ", "o\u0323", "և", "\u09df"]
        self.assertCountEqual(added, expected)
        normal = [[before.id_to_piece(part) for part in one] for one in parts]
        for form, expected in (("，", [","]), ("o\u0323", ["ọ"]), ("ำ", ["ํา"]), ("\u200c", [])):
            self.assertEqual(normal[added.index(form)], expected, form)

    def test_it_is_idempotent_and_leaves_other_text_alone(self):
        forms = surface.missing_forms(model(), TEXTS, 1)
        grown, _ = surface.with_forms(model(), forms)
        self.assertEqual(surface.missing_forms(grown, [*TEXTS, *PLAIN], 1), [])
        self.assertEqual(surface.with_forms(grown, forms), (grown, []))
        self.assertEqual(surface.missing_forms(model(), PLAIN, 1), [])
        for text in PLAIN:
            self.assertEqual(read(grown).encode(text), read(model()).encode(text))
        # Sources have the ids of before, whether they have forms or not.
        for text in (*TEXTS, *PLAIN):
            self.assertEqual(surface.for_sources(grown).encode(text), read(model()).encode(text))
        # So do exported tokenizers, which spell forms as well.
        exported = surface.to_export(grown)
        tokenizer = huggingface.tokenizer_json(exported)
        self.assertEmpty(huggingface.compare(model(), tokenizer, (*TEXTS, *PLAIN)))
        ids = read(grown).encode(TEXTS[1])
        spelled = segmenter.tokenizer_of(json.dumps(tokenizer).encode(), "this test").decode(ids)
        self.assertEqual(spelled, TEXTS[1])

    def test_unknown_characters_are_forms_from_a_number_on(self):
        texts = ["the 漢 cat", "漢字", "字字"]
        self.assertEqual(surface.missing_forms(model(), texts, 3), ["字"])
        self.assertCountEqual(surface.missing_forms(model(), texts, 2), ["字", "漢"])
        grown, _ = surface.with_forms(model(), ["字"])
        self.assertEqual(surface.unknown(read(model()), "the 漢 cat 字 x"), ["漢", "字"])
        # A longer piece with a character goes before it, in targets and sources.
        tiny, _ = surface.with_forms(tiny_tasks.tokenizer(), ["ч", "ｔ"])
        twice, _ = surface.with_forms(tiny, ["и", "ｈ"])
        for processor in (read(tiny), surface.for_sources(twice)):
            self.assertEqual(processor.encode("чи ч", out_type=str), ["▁", "чи", "▁", "ч"])
        self.assertEqual(surface.for_sources(twice).encode("ｔｈe"), read(twice).encode("the"))
        # Sources know them, too.
        self.assertEqual(surface.unknown(surface.for_sources(grown), "the 漢 cat 字 x"), ["漢"])

    def test_kinds_of_blanks_are_no_forms(self):
        self.assertEqual(
            surface.missing_forms(model(), ["a\u00a0b", "a\u3000 b", "\ta  b "], 1), []
        )

    def test_the_tiny_tokenizer_has_none(self):
        self.assertEqual(surface.missing_forms(tiny_tasks.tokenizer(), ["the cat runs ."], 1), [])
