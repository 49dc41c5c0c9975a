"""Tests of unigram vocabularies and their ALP, against SentencePiece encoding every sentence."""

import collections
import dataclasses
import math
from unittest import mock

import numpy as np
import sentencepiece as spm
from absl.testing import parameterized

from tests.vocap.texts import made_up
from vocap import lattice, model_proto, pretokens, unigram
from vocap.settings import TrainerSettings

SETTINGS = TrainerSettings(sizes=(40, 60, 90))
REFERENCE = dataclasses.replace(SETTINGS, trainer="sentencepiece")


def made_up_text() -> list[str]:
    """Sentences of made-up words, frequent and rare, some with characters too rare to learn."""
    text = made_up([c + v for c in "bdklmnprst" for v in "aeiou"], 200, "xx")
    text[3] += "  \u00e9t\u00e9 \u6587\u5b57"  # a run of unknown characters, and double spaces
    text[7] = "\uff21 \ufb01ne \u00bd " + text[7]  # what normalisation takes apart
    return text


def processor(pieces, scores) -> spm.SentencePieceProcessor:
    """SentencePiece with these pieces; their ids follow that of the unknown, 0."""
    settings = dataclasses.replace(REFERENCE, sizes=(40,))
    proto = model_proto.ModelProto.FromString(
        unigram.sentencepiece_model(made_up_text(), 40, settings)
    )
    del proto.pieces[1:]
    for piece, score in zip(pieces, scores, strict=True):
        proto.pieces.add(piece=piece, score=score)
    proto.trainer_spec.vocab_size = len(proto.pieces)
    return spm.SentencePieceProcessor(model_proto=proto.SerializeToString())


def encoded_counts(pieces, scores, sentences) -> np.ndarray:
    """Occurrences of each piece and of unknown characters where SentencePiece encodes sentences."""
    counts: collections.Counter[int] = collections.Counter()
    encoder = processor(pieces, scores)
    for sentence in sentences:
        ids, found = encoder.encode(sentence), encoder.encode(sentence, out_type=str)
        for i, piece in zip(ids, found, strict=True):
            # A row of unknown characters comes as one unknown piece.
            counts[i] += 1 if i else len(piece)
    return np.array([counts[i] for i in range(1, len(pieces) + 1)] + [counts[0]])


def slow_alp(counts, scores, num_sentences: int, alp_probabilities: str) -> float:
    log_probs = [*scores, min(scores) - 10]
    if alp_probabilities == "corpus":
        log_probs = [math.log(count / sum(counts)) if count > 0 else 0.0 for count in counts]
    return sum(c * p for c, p in zip(counts, log_probs, strict=True)) / num_sentences


class TrainVocabulariesTest(parameterized.TestCase):
    @parameterized.product(
        trainer=["nested", "sentencepiece"],
        coverage=[1.0, 0.9995, 0.98],
        alp_probabilities=["model", "corpus"],
    )
    def test_alp_is_that_of_the_encoded_sentences(self, trainer, coverage, alp_probabilities):
        sentences = made_up_text()
        settings = dataclasses.replace(
            SETTINGS,
            trainer=trainer,
            character_coverage=coverage,
            alp_probabilities=alp_probabilities,
        )
        found = unigram.train_vocabularies(
            pretokens.count_pretokens(sentences), settings, sentences
        )
        self.assertEqual(found.curve.sizes, SETTINGS.sizes)
        for s, alp in enumerate(found.curve.alp):
            scores = found.log_probs[s].tolist()
            counts = encoded_counts(found.curve.vocabulary(s), scores, sentences)
            self.assertEqual(counts[-1] > 0, coverage < 1)
            slow = slow_alp(counts, scores, len(sentences), alp_probabilities)
            np.testing.assert_allclose(alp, slow, rtol=1e-6)

    @parameterized.parameters(40, 90)
    def test_the_reference_is_sentencepiece(self, size):
        sentences = made_up_text()
        settings = dataclasses.replace(REFERENCE, sizes=(size,))
        found = unigram.train_vocabularies(
            pretokens.count_pretokens(sentences), settings, iter(sentences)
        )
        proto = model_proto.ModelProto.FromString(
            unigram.sentencepiece_model(sentences, size, settings)
        )
        self.assertEqual(proto.pieces[0].piece, "<unk>")
        learned = {piece.piece: piece.score for piece in proto.pieces[1:]}
        scores = dict(zip(found.curve.vocabulary(0), found.log_probs[0].tolist(), strict=True))
        self.assertEqual(scores, learned)

    @parameterized.parameters("nested", "sentencepiece")
    def test_sizes_are_exact_and_pieces_fall_in_probability(self, trainer):
        sentences, sizes = made_up_text(), (2, 50, 70, 100, 9000)  # two of them are infeasible
        settings = dataclasses.replace(SETTINGS, trainer=trainer, sizes=sizes)
        found = unigram.train_vocabularies(
            pretokens.count_pretokens(sentences), settings, sentences
        )
        self.assertEqual(found.curve.sizes, (50, 70, 100))
        self.assertLen(set(found.curve.pieces), len(found.curve.pieces))
        for s, size in enumerate(found.curve.sizes):
            pieces = set(found.curve.vocabulary(s))
            self.assertEqual((len(pieces), len(found.log_probs[s])), (size, size))
            self.assertTrue((np.diff(found.log_probs[s]) <= 0).all())
            self.assertNotIn("<unk>", pieces)
        self.assertEqual(sorted(found.curve.alp), list(found.curve.alp))

    @parameterized.parameters("nested", "sentencepiece")
    def test_limits_on_pieces_and_seeds(self, trainer):
        sentences = made_up_text()
        table = pretokens.count_pretokens(sentences)
        settings = dataclasses.replace(SETTINGS, trainer=trainer, max_piece_length=3)
        found = unigram.train_vocabularies(table, settings, sentences)
        self.assertEqual(max(map(len, found.curve.pieces)), 3)
        settings = dataclasses.replace(SETTINGS, trainer=trainer, sizes=(30, 40), max_seeds=30)
        found = unigram.train_vocabularies(table, settings, sentences)
        self.assertEqual(found.curve.sizes, (30,))
        for nothing in ([], ["", "  "]):
            found = unigram.train_vocabularies(
                pretokens.count_pretokens(nothing), settings, nothing
            )
            self.assertIsNone(found)
        with self.assertRaisesRegex(ValueError, "needs text, but the source is a table"):
            unigram.train_vocabularies(table, REFERENCE)

    @parameterized.parameters(1, 5, 11, 40)
    def test_text_is_segmented_in_slices(self, size):
        # "ab" and "cde" fill 5 characters, "abcdeabcdex" is longer than 10.
        strings = ["ab", "cde", "abcdeabcdex", "bc", "e", "abab", "cdecde"]
        follow = np.zeros(7, np.int16)
        table = pretokens.PretokenTable(
            pretokens.pack(strings), np.arange(1, 8), follow, num_sentences=9
        )
        trie, scores = lattice.build_trie(["a", "b", "c", "d", "e", "ab", "cde"]), np.full(7, -2.0)
        whole = unigram.segmented_counts(trie, scores, table)
        match = mock.Mock(side_effect=lattice.Trie.match)
        self.enterContext(mock.patch.object(unigram, "_CHARACTERS_AT_ONCE", size))
        self.enterContext(mock.patch.object(lattice.Trie, "match", lambda *args: match(*args)))
        found = unigram.segmented_counts(trie, scores, table)
        np.testing.assert_array_equal(found, whole, strict=True)
        sizes = [len(call.args[1].characters) for call in match.call_args_list]
        self.assertLessEqual(max(sizes), max(size, 11))

    def test_alp_of_fractional_counts(self):
        table = pretokens.count_pretokens(made_up_text())
        scaled = dataclasses.replace(table, counts=table.counts / 7)
        found = unigram.train_vocabularies(scaled, SETTINGS)
        for s, alp in enumerate(found.curve.alp):
            trie = lattice.build_trie(found.curve.vocabulary(s))
            counts = unigram.segmented_counts(trie, found.log_probs[s], scaled)
            self.assertTrue(((counts > 0) & (counts < 1)).any())
            slow = slow_alp(counts, found.log_probs[s], table.num_sentences, "corpus")
            np.testing.assert_allclose(alp, slow, rtol=1e-6)


class TrainerSettingsTest(parameterized.TestCase):
    def test_sentencepiece_takes_no_low_coverage(self):
        message = "coverage is 0.9; SentencePiece takes 0.98 or more, vocab.trainer = nested"
        with self.assertRaisesRegex(ValueError, message):
            dataclasses.replace(SETTINGS, character_coverage=0.9, trainer="sentencepiece")
