"""Texts, pairs, tagged words and translations as token ids; symbols of languages."""

import numpy as np
import sentencepiece as spm
from absl.testing import parameterized

from input_pipeline.tasks import features
from input_pipeline.tasks.examples import TaggedExample, TextExample, TranslationExample
from input_pipeline.tasks.features import sentence_features, tagging_features, text_features
from input_pipeline.tokenization import special_ids
from vocap import merge, model_proto

PIECES = [*"▁abcdefghij.", "▁ab", "▁c", "äö", "日本", "▁กา", "<2de>"]
MODEL = merge.write_model(PIECES, np.full(len(PIECES), -5.0))
PROCESSOR = spm.SentencePieceProcessor(model_proto=MODEL)
SPECIAL = special_ids(PROCESSOR)
BOS, EOS = [SPECIAL.bos], [SPECIAL.eos]
SYMBOLS = {"de": 90, "fr": 91}


def encode(text: str) -> list[int]:
    return PROCESSOR.encode(text)


class TextFeaturesTest(parameterized.TestCase):
    def features(self, *examples: tuple, max_length: int = 20):
        found = [TextExample(str(i), *one) for i, one in enumerate(examples)]
        return text_features(found, PROCESSOR, SPECIAL, max_length)

    def test_single_texts(self):
        with self.assertRaisesRegex(ValueError, "max_length is 7, must be at least 8"):
            self.features(("a", None, 0), max_length=7)
        texts = ["ab c.", "", "abcdefghij" * 3]
        found = self.features(*((text, None, 1) for text in texts))
        for number, (feature, text) in enumerate(zip(found, texts, strict=True)):
            expected = BOS + encode(text)[:18] + EOS
            np.testing.assert_array_equal(feature.tokens, expected)
            self.assertEqual((feature.example, feature.tokens.dtype), (number, np.int32))
        sentences = sentence_features(texts, PROCESSOR, SPECIAL, 20)
        for one, two in zip(found, sentences, strict=True):
            np.testing.assert_array_equal(one.tokens, two.tokens)
            self.assertIsNone(two.label)

    def test_pairs(self):
        found = self.features(("ab", "c.", 0), ("ab", "", 0), ("a" * 30, "cc", 0))
        np.testing.assert_array_equal(
            found[0].tokens, BOS + encode("ab") + EOS + EOS + encode("c.") + EOS
        )
        np.testing.assert_array_equal(found[1].tokens, BOS + encode("ab") + EOS + EOS + EOS)
        cut = encode("a" * 30)[: 16 - len(encode("cc"))]
        np.testing.assert_array_equal(found[2].tokens, BOS + cut + EOS + EOS + encode("cc") + EOS)

    def test_what_is_cut_is_counted(self):
        fits, one_more, long = "b" * 17, "b" * 18, "c" * 30  # a space before them is a token, too
        with self.assertLogs(level="WARNING") as logs:
            self.features(("a", None, 0), (long, None, 1), (fits, None, 0), (one_more, None, 1))
            self.features(("a", "b", 0), ("a" * 10, "c" * 10, 1), ("", long, 1))
            sentence_features(["ab", long], PROCESSOR, SPECIAL, 20)
        texts, pairs, sentences = logs.output
        self.assertRegex(texts, r"2 of 4 texts have more than 18 tokens .*\(example 1, 3\)")
        self.assertIn("raise task.max_length of finetune.py", texts)
        self.assertRegex(pairs, r"2 of 3 pairs have more than 16 tokens .*\(example 1, 2\)")
        self.assertRegex(sentences, r"1 of 2 texts have more than 18 tokens .*\(example 1\)")
        with self.assertNoLogs(level="WARNING"):
            self.features(("ab", None, 0), (fits, None, 0))

    def test_pairs_with_a_segment_for_each_text(self):
        example = [TextExample("0", "ab", "c.", 1)]
        (found,) = text_features(example, PROCESSOR, SPECIAL, 20, separate_segments=True)
        texts = [BOS + encode(text) + EOS for text in ("ab", "c.")]
        np.testing.assert_array_equal(found.tokens, texts[0] + texts[1])
        arrays = found.arrays(12, SPECIAL.pad)
        sizes = [len(text) for text in texts]
        rest = 12 - sum(sizes)
        np.testing.assert_array_equal(arrays["segments"], np.repeat([1, 2, 0], [*sizes, rest]))
        positions = arrays["positions"][: sum(sizes)]
        np.testing.assert_array_equal(positions, [*range(sizes[0]), *range(sizes[1])])


class TaggingFeaturesTest(parameterized.TestCase):
    def features(
        self, *sentences: list[str], max_length: int = 8, tagged: bool = True, processor=PROCESSOR
    ):
        examples = [
            TaggedExample(str(i), tuple(words), tuple(range(len(words))) if tagged else ())
            for i, words in enumerate(sentences)
        ]
        return tagging_features(examples, processor, SPECIAL, max_length)

    @parameterized.product(seed=tuple(range(5)), max_length=(8, 9, 30))
    def test_every_word_is_in_one_row(self, seed, max_length):
        rng = np.random.default_rng(seed)
        words = ["ab", "c", "日本日", "กา", "abcdefghij", "ghijghij", "\x02", "äö."]
        sentences = [list(rng.choice(words, rng.integers(1, 20))) for _ in range(20)]
        seen: list[list] = [[] for _ in sentences]
        for feature in self.features(*sentences, max_length=max_length):
            self.assertLessEqual(len(feature.tokens), max_length)
            np.testing.assert_array_equal(feature.tokens[[0, -1]], BOS + EOS)
            ends = [0, len(feature.words) - 1]
            np.testing.assert_array_equal(np.flatnonzero(feature.words < 0), ends)
            self.assertEqual(feature.first_word, len(seen[feature.example]))
            np.testing.assert_array_equal(
                feature.tags, feature.first_word + np.arange(feature.num_words)
            )
            for number in range(feature.num_words):
                seen[feature.example].append(feature.tokens[feature.words == number].tolist())
        for sentence, found in zip(sentences, seen, strict=True):
            expected = [encode(word)[: max_length - 2] or [SPECIAL.unk] for word in sentence]
            self.assertEqual(found, expected)

    def test_a_tokenizer_that_adds_no_blank_is_given_one(self):
        proto = model_proto.ModelProto.FromString(MODEL)
        (found,) = self.features(["ab", "c"], processor=model_proto.plain_processor(proto))
        np.testing.assert_array_equal(found.tokens, self.features(["ab", "c"])[0].tokens)

    def test_rows_are_as_full_as_can_be(self):
        words = ["ab", "c", "ef", "g", "hi", "ab", "c"]  # 1, 1, 3, 2, 3, 1, 1 tokens
        self.assertEqual([len(encode(word)) for word in words], [1, 1, 3, 2, 3, 1, 1])
        found = self.features(words)
        self.assertEqual([(f.first_word, f.num_words) for f in found], [(0, 3), (3, 3), (6, 1)])

    def test_arrays(self):
        feature = self.features(["gh", "ab"])[0]
        arrays = feature.arrays(8, SPECIAL.pad)
        np.testing.assert_array_equal(arrays["words"], [-1, 0, 0, 0, 1, -1, -1, -1])
        np.testing.assert_array_equal(arrays["tags"], [0, 1, *[-1] * 6])
        self.assertEqual({array.dtype for array in arrays.values()}, {np.dtype(np.int32)})
        untagged = self.features(["gh", "ab"], tagged=False)[0]
        self.assertEqual(untagged.num_words, 2)
        np.testing.assert_array_equal(untagged.arrays(8, 1)["tags"], [-1] * 8)


def translations(*pairs: tuple, max_length: int = 20, language: str = "de"):
    examples = [TranslationExample(str(i), *pair, language) for i, pair in enumerate(pairs)]
    return features.translation_features(examples, PROCESSOR, SPECIAL, max_length, SYMBOLS)


class TranslationFeaturesTest(parameterized.TestCase):
    def test_arrays(self):
        one, two = translations(("ab c", "d."), ("a", None))
        x, y = PROCESSOR.encode("ab c"), PROCESSOR.encode("d.")
        arrays = one.arrays(12, SPECIAL.pad)

        def padded(ids, fill):
            return ids + [fill] * (12 - len(ids))

        source = [SPECIAL.bos, *x, SPECIAL.eos]
        expected = {
            "tokens": padded(source, SPECIAL.pad), "segments": padded([1] * len(source), 0),
            "positions": list(range(12)), "first_token": 90,
            "target_inputs": padded([90, *y], SPECIAL.pad),
            "target_outputs": padded([*y, SPECIAL.eos], -1),
        }  # fmt: skip
        self.assertSameElements(arrays, expected)
        for name, value in expected.items():
            np.testing.assert_array_equal(arrays[name], value, name)
            self.assertEqual(arrays[name].dtype, np.int32)
        self.assertEqual((one.example, one.size), (0, max(len(source), len(y) + 1)))
        # A text without translation has a source alone.
        names = {"tokens", "segments", "positions", "first_token"}
        self.assertEqual(set(two.arrays(12, SPECIAL.pad)), names)
        self.assertEqual((two.example, two.size), (1, len(two.tokens)))

    def test_long_texts_are_cut_and_counted(self):
        long = "abcdefghij" * 3
        ids = PROCESSOR.encode(long)
        with self.assertLogs(level="WARNING") as logs:
            found = translations(("a", "b"), (long, long), ("a", long), max_length=16)
        np.testing.assert_array_equal(found[1].tokens, [SPECIAL.bos, *ids[:14], SPECIAL.eos])
        for feature in found[1:]:
            np.testing.assert_array_equal(feature.target, [*ids[:15], SPECIAL.eos])
            self.assertEqual(feature.size, 16)
        sources, targets = logs.output
        self.assertRegex(sources, r"1 of 3 sources have more than 14 tokens .*\(example 1\)")
        self.assertRegex(targets, r"2 of 3 targets have more than 15 tokens .*\(example 1, 2\)")
        self.assertRegex(targets, "task.max_length")

    def test_what_just_fits_is_not_cut(self):
        text = "bcdefghij"
        room = len(PROCESSOR.encode(text))
        with self.assertNoLogs(level="WARNING"):
            found = translations((text, text), ("a", text), max_length=room + 2)
        self.assertEqual([one.size for one in found], [room + 2, room + 1])  # of the longer side
        for error, options in (("max_length is 7", {"max_length": 7}),
                               ("target language cs; the model was made for de, fr",
                                {"language": "cs"})):  # fmt: skip
            with self.assertRaisesRegex(ValueError, error):
                translations(("a", "b"), **options)


class SymbolsTest(parameterized.TestCase):
    def symbols(self, *languages: str, **pieces: str):
        size = PROCESSOR.get_piece_size()
        return features.language_symbols(languages, size, pieces, PROCESSOR.piece_to_id, SPECIAL)

    def test_rows_beyond_the_pieces(self):
        size = PROCESSOR.get_piece_size()
        self.assertEqual(self.symbols("fr", "de", "fr"), {"fr": size, "de": size + 1})
        more = self.symbols("fr", "de", "cs")
        self.assertEqual((more["fr"], more["de"]), (size, size + 1))

    def test_pieces_of_the_vocabulary(self):
        found = self.symbols("fr", "de", "cs", de="<2de>")
        size = PROCESSOR.get_piece_size()
        expected = {"fr": size, "de": PROCESSOR.piece_to_id("<2de>"), "cs": size + 1}
        self.assertEqual(found, expected)
        eos = PROCESSOR.id_to_piece(SPECIAL.eos)
        self.assertEqual(self.symbols("fr", "de", fr=eos)["fr"], SPECIAL.eos)

    @parameterized.parameters(
        ({"fr": "<2fr>"}, "'<2fr>' of 'fr' is not a piece of the vocabulary"),
        ({"fr": "<2de>", "de": "<2de>"}, "'<2de>' of 'de' is also the piece of 'fr'; name another"),
        ({"se": "<2de>"}, "names 'se', but the target languages are fr, de; correct"),
        *(
            ({"de": PROCESSOR.id_to_piece(id)}, ".* of 'de' is a special token; name another")
            for id in (SPECIAL.bos, SPECIAL.pad, SPECIAL.mask)
        ),
    )
    def test_pieces_that_can_be_no_symbols(self, pieces, message):
        with self.assertRaisesRegex(ValueError, f"translation.language_pieces:? {message}"):
            self.symbols("fr", "de", **pieces)
