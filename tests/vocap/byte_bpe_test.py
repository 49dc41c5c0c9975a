"""Tests of byte-level BPE: a slow reference trainer, and `tokenizers` for cut and tokens."""

import collections
import functools
import itertools
import pathlib
import tempfile

import numpy as np
import tokenizers
from absl.testing import parameterized

from tests.vocap.texts import sentences
from vocap import byte_bpe, byte_tokens, pretokens, union
from vocap.allocation import language_probabilities
from vocap.building import build_vocabulary
from vocap.segmentation import gini
from vocap.settings import VocabularySettings

LANGUAGES = ("cy", "hi", "sw", "th")
SETTINGS = VocabularySettings(target_size=600)
# Sentences of which cut are hard to find.
HARD = [
    "", " ", "  two  \t tabs\u3000", "a\u00a0b\x85c\x1c\x1cd \x1ce", "line\r\n\r\n line\n", "'TIS",
    "12345 \u0663\u0664 \u2167", 'say "it\'s"  \u2014 (now)...\n\n', "\u2581 a\u2581b",
    "x\u0301\u0301 \u0301", "中文，标点。\uff11",
]  # fmt: skip


@functools.cache
def tables() -> dict[str, pretokens.PretokenTable]:
    return {language: byte_bpe.count(sentences(language)[::2]) for language in LANGUAGES}


@functools.cache
def shares() -> dict[str, float]:
    amounts = {one: pretokens.count_pretokens(sentences(one)[::2]).num_bytes for one in LANGUAGES}
    return language_probabilities(amounts, 0.5)


@functools.cache
def trained() -> tuple[tuple[str, ...], np.ndarray]:
    return byte_bpe.train(tables(), shares(), SETTINGS)


def loaded(tokens=None, scores=None) -> tokenizers.Tokenizer:
    tokens, scores = trained() if tokens is None else (tokens, scores)
    return tokenizers.Tokenizer.from_str(byte_tokens.tokenizer_json(tokens, scores).decode())


def pairs_of(parts: list[str]) -> collections.Counter:
    """Pairs of a run, each part in one pair of a kind at most."""
    found, ends = collections.Counter(), {}
    for i, pair in enumerate(itertools.pairwise(parts)):
        if ends.get(pair) != i:
            found[pair] += 1
            ends[pair] = i + 1
    return found


class PretokenTest(parameterized.TestCase):
    def test_each_byte_has_the_character_that_tokenizers_gives_it(self):
        encoded = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        for character in map(chr, (*range(0x800), 0x1100, 0xFFFF, *range(0x10000, 0x110000, 4096))):
            ((found, _),) = encoded.pre_tokenize_str(character)
            own = "".join(byte_tokens.CHARACTERS[byte] for byte in character.encode())
            self.assertEqual(found, own)
            self.assertEqual(byte_tokens.token_bytes(found), character.encode())
        self.assertLen(set(byte_tokens.CHARACTERS), 256)

    def test_the_runs_of_a_table_are_the_pretokens_of_the_tokenizer(self):
        expected, split = collections.Counter(), loaded().pre_tokenizer.pre_tokenize_str
        text = [*HARD, *itertools.chain.from_iterable(map(sentences, LANGUAGES))]
        for sentence in text:
            cut = [one for one, _ in split(sentence)]
            self.assertEqual(byte_tokens.token_bytes("".join(cut)), sentence.encode())
            expected.update(one.replace("\u0120", pretokens.SPACE) for one in cut)
        table = byte_bpe.count(text)
        self.assertEqual(table.num_sentences, len(text) - 2)
        found = collections.Counter()
        in_bytes = byte_bpe.in_bytes(table)
        for run, number in zip(in_bytes.runs(), in_bytes.counts.tolist(), strict=True):
            found[run.replace("\u0120", pretokens.SPACE)] += number
        # The table writes blanks as the space symbol, so one in the text counts as a blank.
        symbol = "".join(byte_tokens.CHARACTERS[byte] for byte in pretokens.SPACE.encode())
        for run in [one for one in expected if symbol in one]:
            expected[run.replace(symbol, pretokens.SPACE)] += expected.pop(run)
        self.assertEqual(found, expected)

    @parameterized.parameters("हिन्दी", "မြန်မာ", "ที่นี่", "שָׁלוֹם", "e\u0301te\u0301")
    def test_marks_stay_with_their_letters(self, word):
        self.assertEqual(byte_bpe.count([f"{word} {word}"]).runs(), [word, pretokens.SPACE + word])


class TrainTest(parameterized.TestCase):
    def test_each_merge_is_of_the_most_frequent_pair(self):
        settings = VocabularySettings(target_size=360)
        tokens, scores = byte_bpe.train(tables(), shares(), settings)
        self.assertEqual("".join(tokens[:256]), byte_tokens.CHARACTERS)
        self.assertLen(set(tokens), settings.budget)
        np.testing.assert_array_equal(scores, -np.arange(settings.budget))
        text = byte_bpe.in_bytes(pretokens.mixture(tables(), shares()))
        words = [([*run], count) for run, count in zip(text.runs(), text.counts, strict=True)]
        for token, pair in byte_tokens.merge_pairs(tokens[256:]).items():
            counts = collections.Counter()
            for parts, count in words:
                for one, number in pairs_of(parts).items():
                    counts[one] += count * number
            # The trainer rounds counts to thousandths.
            self.assertGreater(counts[pair], max(counts.values()) * 0.999, token)
            for parts, _ in words:
                for i in range(len(parts) - 1, 0, -1) if token in "".join(parts) else ():
                    if i < len(parts) and (parts[i - 1], parts[i]) == pair:
                        parts[i - 1 : i + 1] = [token]

    def test_no_token_has_more_bytes_than_four_a_character(self):
        settings = VocabularySettings(target_size=600, max_piece_length=1)
        tokens, _ = byte_bpe.train(tables(), shares(), settings)
        self.assertEqual(max(map(len, tokens)), 4)

    def test_tokens_that_never_arise_have_no_pair_and_take_no_part(self):
        found = byte_tokens.merge_pairs(["cd", "abcd", "ab", "bcd", "xabcd"])
        self.assertEqual(found, {"cd": ("c", "d"), "ab": ("a", "b"), "bcd": ("b", "cd")})
        # Of equal pairs the first is merged.
        self.assertEqual(byte_tokens.merge_pairs(["aa", "aaa"])["aaa"], ("aa", "a"))

    def test_parity_brings_the_costs_of_languages_closer(self):
        args = tables(), shares(), {one: byte_bpe.count(sentences(one)[1::2]) for one in LANGUAGES}
        contents = np.array([one.num_sentences for one in args[2].values()])
        found = []
        for parity in (0.0, 1.0):
            settings = VocabularySettings(target_size=600, method="byte_bpe", parity=parity)
            count = byte_bpe.count_tokens
            fairest = union.fairest_shares(*args, settings, is_parallel=True, count=count)
            moved = union.between(shares(), fairest, parity)
            tokens = count(args[0], moved, args[2], settings)
            found.append(gini(np.array(list(tokens.values())) / contents))
        self.assertLess(found[1], found[0] / 2)

    def test_sizes_out_of_reach(self):
        for size, message in ((261, "is 261, must be above the 261"), (90_000, "offers .* merges")):
            with self.assertRaisesRegex(ValueError, message):
                byte_bpe.train(tables(), shares(), VocabularySettings(target_size=size))


class BuildTest(parameterized.TestCase):
    def setUp(self):
        super().setUp()
        self.cache = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))

    def build(self, heldout=None, **changed):
        text = {one: sentences(one)[::2] for one in LANGUAGES}
        settings = VocabularySettings(
            sizes=(100, 200, 300), beta=1.0, alpha=0.5, num_workers=1,
            **{"target_size": 600, "method": "byte_bpe", **changed},
        )  # fmt: skip
        return build_vocabulary(text, heldout or {}, settings, self.cache)

    def test_a_build_is_the_training_at_the_shares_and_scored_on_its_own_pretokens(self):
        heldout = {one: sentences(one)[1::2] for one in LANGUAGES}
        built = self.build(heldout)
        self.assertEqual(built.model, byte_tokens.tokenizer_json(*trained()))
        for language, score in built.scores["byte_bpe"].items():
            ids = loaded().encode_batch(heldout[language])
            expected = sum(len(one.ids) for one in ids) / len(heldout[language])
            self.assertAlmostEqual(score.tokens_per_sentence, expected)
        other = self.build(heldout, method="joint", compare=("byte_bpe",))
        self.assertEqual(other.scores["byte_bpe"], built.scores["byte_bpe"])
        fair = self.build(heldout, parity=1.0)
        self.assertNotEqual(fair.model, built.model)

    def test_tables_and_small_sizes_are_refused_before_the_work(self):
        with self.assertRaisesRegex(ValueError, "is 200, must be above the 261"):
            self.build(target_size=200)
        with self.assertRaisesRegex(ValueError, "reads sentences, but x.runs.gz is a table"):
            self.build({"cy": pathlib.Path("x.runs.gz")})
