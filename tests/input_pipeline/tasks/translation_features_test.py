"""Sources and targets as token ids, symbols of languages, and what is cut."""

import numpy as np
import sentencepiece as spm
from absl.testing import parameterized

from input_pipeline.tasks.examples import TranslationExample
from input_pipeline.tasks.translation_features import language_symbols, translation_features
from input_pipeline.tokenization import special_ids
from vocap import merge

PIECES = [*"▁abcdefghij.", "▁ab", "<2de>"]
PROCESSOR = spm.SentencePieceProcessor(
    model_proto=merge.write_model(PIECES, np.full(len(PIECES), -5.0))
)
SPECIAL = special_ids(PROCESSOR)
SYMBOLS = {"de": 90, "fr": 91}


def features(*pairs: tuple, max_length: int = 20, language: str = "de"):
    examples = [TranslationExample(str(i), *pair, language) for i, pair in enumerate(pairs)]
    return translation_features(examples, PROCESSOR, SPECIAL, max_length, SYMBOLS)


class FeatureTest(parameterized.TestCase):
    def test_arrays(self):
        one, two = features(("ab c", "d."), ("a", None))
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
            found = features(("a", "b"), (long, long), ("a", long), max_length=16)
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
            found = features((text, text), ("a", text), max_length=room + 2)
        self.assertEqual([one.size for one in found], [room + 2, room + 1])  # of the longer side
        for error, options in (("max_length is 7", {"max_length": 7}),
                               ("target language cs; the model was made for de, fr",
                                {"language": "cs"})):  # fmt: skip
            with self.assertRaisesRegex(ValueError, error):
                features(("a", "b"), **options)


class SymbolsTest(parameterized.TestCase):
    def symbols(self, *languages: str, **pieces: str):
        size = PROCESSOR.get_piece_size()
        return language_symbols(languages, size, pieces, PROCESSOR.piece_to_id, SPECIAL)

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
        ({"fr": "<2fr>"}, "'<2fr>' of 'fr' is no piece of the vocabulary"),
        ({"fr": "<2de>", "de": "<2de>"}, "'<2de>' of 'de' is that of 'fr', too; name another"),
        ({"se": "<2de>"}, "names 'se', but the target languages are fr, de; correct"),
        *(
            ({"de": PROCESSOR.id_to_piece(id)}, ".* of 'de' is a special token; name another")
            for id in (SPECIAL.bos, SPECIAL.pad, SPECIAL.mask)
        ),
    )
    def test_pieces_that_can_be_no_symbols(self, pieces, message):
        with self.assertRaisesRegex(ValueError, f"translation.language_pieces:? {message}"):
            self.symbols("fr", "de", **pieces)
