"""Tests of ALP (Eq. 1) against sums over every sentence, and of the vocabularies it measures."""

import collections
import io
import math
import random

import numpy as np
import sentencepiece as spm
from absl.testing import absltest, parameterized
from sentencepiece import sentencepiece_model_pb2 as model_pb2

from vocap import unigram, words
from vocap.alp import average_log_probability


def made_up_text(num_sentences: int) -> list[str]:
    """Sentences of made-up words, frequent and rare, some with characters too rare to learn."""
    rng = random.Random(0)
    syllables = [c + v for c in "bdklmnprst" for v in "aeiou"]
    lexicon = ["".join(rng.choices(syllables, k=rng.randint(1, 4))) for _ in range(150)]
    weights = [1 / (rank + 1) for rank in range(len(lexicon))]
    text = [" ".join(rng.choices(lexicon, weights, k=rng.randint(3, 9))) for _ in range(200)]
    text[3] += "  \u00e9t\u00e9 \u6587\u5b57"  # a run of unknown characters, and double spaces
    text[7] = "\uff21 \ufb01ne \u00bd " + text[7]  # what normalisation takes apart
    return text[:num_sentences]


def train_reference(sentences: list[str], size: int, coverage: float) -> bytes:
    model = io.BytesIO()
    spm.SentencePieceTrainer.train(
        sentence_iterator=iter(sentences),
        model_writer=model,
        model_type="unigram",
        vocab_size=size + 1,
        character_coverage=coverage,
        unk_id=0,
        bos_id=-1,
        eos_id=-1,
        num_threads=1,
        minloglevel=2,
    )
    return model.getvalue()


class AverageLogProbabilityTest(absltest.TestCase):
    def test_is_the_sum_over_all_sentences(self):
        rng = np.random.default_rng(0)
        for _ in range(20):
            log_probs = np.log(rng.dirichlet(np.ones(30)))
            corpus = [rng.integers(30, size=rng.integers(1, 12)) for _ in range(rng.integers(1, 9))]
            slow = sum(log_probs[piece] for sentence in corpus for piece in sentence) / len(corpus)
            counts = np.bincount(np.concatenate(corpus), minlength=30)
            alp = average_log_probability(counts, log_probs, len(corpus))
            self.assertAlmostEqual(alp, slow, places=10)
            twice = average_log_probability(2 * counts, log_probs, 2 * len(corpus))
            self.assertAlmostEqual(twice, alp, places=10)

    def test_impossible_pieces_count_only_where_they_occur(self):
        log_probs = np.array([-1.0, -np.inf])
        self.assertEqual(average_log_probability(np.array([3, 0]), log_probs, 1), -3.0)
        self.assertEqual(average_log_probability(np.array([3, 1]), log_probs, 1), -np.inf)

    def test_errors_name_the_shapes_and_the_empty_corpus(self):
        with self.assertRaisesRegex(ValueError, r"shape \(2,\), log_probs \(3,\)"):
            average_log_probability(np.zeros(2), np.zeros(3), 1)
        with self.assertRaisesRegex(ValueError, "num_sentences is 0, must be positive"):
            average_log_probability(np.zeros(2), np.zeros(2), 0)


class TrainVocabulariesTest(parameterized.TestCase):
    @parameterized.product(
        size=[40, 90], coverage=[0.9995, 0.98], alp_probabilities=["model", "corpus"]
    )
    def test_alp_is_that_of_the_encoded_sentences(self, size, coverage, alp_probabilities):
        sentences = made_up_text(200)
        table = words.count_words(sentences)
        (vocabulary,) = unigram.train_vocabularies(
            sentences,
            table,
            [size],
            character_coverage=coverage,
            alp_probabilities=alp_probabilities,
        )
        model = train_reference(sentences, size, coverage)
        processor = spm.SentencePieceProcessor(model_proto=model)
        proto = model_pb2.ModelProto.FromString(model)
        scores = [piece.score for piece in proto.pieces]
        scores[processor.unk_id()] = min(scores) - 10  # the unknown piece itself has score 0
        encoded = processor.encode(sentences)
        self.assertTrue(any(processor.unk_id() in ids for ids in encoded))
        log_probs = scores
        if alp_probabilities == "corpus":
            counts = collections.Counter(i for ids in encoded for i in ids)
            log_probs = {i: math.log(count / counts.total()) for i, count in counts.items()}
        slow = sum(log_probs[i] for ids in encoded for i in ids) / len(sentences)
        np.testing.assert_allclose(vocabulary.alp, slow, rtol=1e-12)
        learned = {p.piece: p.score for p in proto.pieces[1:]}
        self.assertEqual(dict(zip(vocabulary.pieces, vocabulary.log_probs, strict=True)), learned)

    def test_sizes_are_exact_and_pieces_fall_in_probability(self):
        sentences = made_up_text(200)
        table = words.count_words(sentences)
        vocabularies = unigram.train_vocabularies(sentences, table, [50, 70, 100])
        self.assertEqual([v.size for v in vocabularies], [50, 70, 100])
        for vocabulary in vocabularies:
            self.assertLen(set(vocabulary.pieces), vocabulary.size)
            self.assertTrue((np.diff(vocabulary.log_probs) <= 0).all())
            self.assertNotIn("<unk>", vocabulary.pieces)
        self.assertEqual(sorted(v.alp for v in vocabularies), [v.alp for v in vocabularies])

    def test_infeasible_sizes_are_left_out_at_both_ends(self):
        sentences = made_up_text(20)
        table = words.count_words(sentences)
        vocabularies = unigram.train_vocabularies(sentences, table, [2, 5, 40, 50, 9000, 10000])
        self.assertEqual([v.size for v in vocabularies], [40, 50])

    @parameterized.parameters([[]], [["", "  "]])
    def test_no_text_gives_no_vocabulary(self, sentences):
        table = words.count_words(sentences)
        self.assertEmpty(unigram.train_vocabularies(sentences, table, [10]))

    def test_pieces_are_no_longer_than_asked(self):
        sentences = made_up_text(200)
        table = words.count_words(sentences)
        (long,) = unigram.train_vocabularies(sentences, table, [90])
        (short,) = unigram.train_vocabularies(sentences, table, [90], max_piece_length=3)
        self.assertGreater(max(map(len, long.pieces)), 3)
        self.assertLessEqual(max(map(len, short.pieces)), 3)


if __name__ == "__main__":
    absltest.main()
