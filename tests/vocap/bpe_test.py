"""Tests of byte-pair encoding: slow references for its merges and for its segmentation."""

import collections
import functools
import itertools

import numpy as np
import sentencepiece as spm
from absl.testing import parameterized

from tests.vocap.texts import sentences, table
from vocap import bpe, merge, pretokens
from vocap.allocation import language_probabilities
from vocap.settings import BPE

LANGUAGES = ("cy", "hi", "ka", "sw", "zh")
SIZE = 1600


@functools.cache
def mixture() -> pretokens.PretokenTable:
    tables = {language: table(language) for language in LANGUAGES}
    amounts = {language: one.num_bytes for language, one in tables.items()}
    return pretokens.mixture(tables, language_probabilities(amounts, 0.3))


def train(
    text: pretokens.PretokenTable, size: int = SIZE, coverage: float = 0.99, longest: int = 16
):
    return bpe.train(text, size, character_coverage=coverage, max_piece_length=longest)


@functools.cache
def trained() -> tuple[tuple[str, ...], np.ndarray]:
    return train(mixture())


def merged(run: str, rank: dict[str, int]) -> list[str]:
    """Segmentation of a run: the pair of the best piece is joined, the first of several."""
    parts = [*run]
    while len(parts) > 1:
        pairs = [rank.get(a + b, len(rank)) for a, b in itertools.pairwise(parts)]
        best = int(np.argmin(pairs))
        if pairs[best] == len(rank):
            break
        parts[best : best + 2] = [parts[best] + parts[best + 1]]
    return parts


class TrainTest(parameterized.TestCase):
    def test_the_pieces_are_merges_in_their_order_and_then_characters(self):
        pieces, scores = trained()
        self.assertLen(set(pieces), SIZE)
        np.testing.assert_array_equal(scores, -np.arange(SIZE))
        first = next(i for i, piece in enumerate(pieces) if len(piece) == 1)
        self.assertGreater(first, 200)
        self.assertEqual({len(piece) for piece in pieces[first:]}, {1})

    def test_each_merge_is_of_the_most_frequent_pair(self):
        table, (pieces, _) = mixture(), trained()
        known = {piece for piece in pieces if len(piece) == 1}
        weighted = list(zip(table.runs(), table.counts.tolist(), strict=True))
        for number in (0, 1, 5, 40, 150):
            rank = {piece: i for i, piece in enumerate(pieces[:number])}
            counts = collections.Counter()
            for run, count in weighted:
                parts = merged(run, rank)
                for a, b in itertools.pairwise(parts):
                    if known.issuperset(a + b):
                        counts[a + b] += count
            # Overlapping pairs, as of "aaa", count in full or once.
            most = max(counts.values())
            self.assertGreater(counts[pieces[number]], 0.99 * most, pieces[number])

    def test_no_piece_is_longer_than_the_limit(self):
        pieces, _ = train(mixture(), longest=3)
        self.assertEqual(max(map(len, pieces)), 3)

    @parameterized.named_parameters(("fewer_than_characters", 100), ("more_than_merges", 100_000))
    def test_a_size_out_of_reach_gives_nothing(self, size):
        self.assertIsNone(train(mixture(), size))


class CountTest(parameterized.TestCase):
    @parameterized.parameters(*LANGUAGES)
    def test_counts_are_those_of_the_segmented_sentences(self, language):
        pieces, scores = trained()
        model = merge.write_model(pieces, scores, BPE)
        processor = spm.SentencePieceProcessor(model_proto=model)
        text = [*sentences(language), "\u16a0\u16a1 1.5 \u16a2", "\u16a0a\u16a0"]
        table = pretokens.count_pretokens(text)
        expected = collections.Counter()
        for sentence in text:
            for piece in processor.encode(sentence, out_type=str):
                is_unknown = processor.piece_to_id(piece) == merge.UNK_ID
                expected["<unk>" if is_unknown else piece] += len(piece) if is_unknown else 1
        self.assertGreaterEqual(expected["<unk>"], 5)
        order = np.random.default_rng(0).permutation(SIZE)  # which does not matter
        moved = [pieces[i] for i in order]
        counts = bpe.segmented_counts(bpe.segmenter(moved, scores[order]), table)
        found = dict(zip((*moved, "<unk>"), counts.tolist(), strict=True))
        self.assertEqual({piece: n for piece, n in found.items() if n}, dict(expected))
