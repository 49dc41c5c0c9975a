"""Tests of the scores on held-out text, against SentencePiece's own encoding of it."""

import collections
import math

import numpy as np
import sentencepiece as spm
from absl.testing import parameterized

from tests.vocap.texts import sentences
from vocap import comparison, merge, pretokens, unigram
from vocap.settings import UNIGRAM, TrainerSettings, VocabularySettings

SETTINGS = TrainerSettings(sizes=(900,), character_coverage=0.999)
# Characters that no vocabulary here has: alone, in a row, within a word, in a script of their own.
UNKNOWN = ["\u0416\u0416\u0416 a", "wor\u0148\u0148d", "\u6f22\u5b57, \u6f22", "a\u00fe \u00fe"]


def read(language: str) -> tuple[list[str], list[str]]:
    return sentences(language)[20:], sentences(language)[:20]


def token_counts(
    processor: spm.SentencePieceProcessor, sentences: list[str]
) -> collections.Counter[str]:
    """Pieces of SentencePiece's encoding; each unknown character, None, is one."""
    counts = collections.Counter()
    for sentence in sentences:
        for piece in processor.encode(sentence, out_type=str):
            if processor.piece_to_id(piece) == merge.UNK_ID:
                counts[None] += len(piece)  # SentencePiece makes one token of several
            else:
                counts[piece] += 1
    return counts


class ScoreTest(parameterized.TestCase):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.text = {language: read(language) for language in ("cy", "hi", "ka", "sw")}
        cls.text["sw"][1].extend(UNKNOWN)
        cls.text["ka"][0].append("\u10d0\u0416\u0416")  # unknown in training, too
        cls.train = {
            lang: pretokens.count_pretokens(train) for lang, (train, _) in cls.text.items()
        }
        cls.heldout = {
            lang: pretokens.count_pretokens(heldout) for lang, (_, heldout) in cls.text.items()
        }
        trained = unigram.train_vocabularies(
            pretokens.mixture(cls.train, dict.fromkeys(cls.train, 0.25)), SETTINGS
        )
        pieces = trained.curve.vocabulary(0)
        # And some pieces that the training text does not use, but that held-out text does.
        cls.pieces = (*pieces, "wor", "\u6f22\u5b57", "\u0128")
        cls.log_probs = np.append(trained.log_probs[0], [-9.5, -11.25, -12.75]).astype(np.float32)
        cls.scores = cls.score(cls.pieces, cls.log_probs, cls.train, cls.heldout)

    @staticmethod
    def score(pieces, log_probs, train, heldout):
        counts_of = comparison.counter(pieces, np.asarray(log_probs, np.float64), UNIGRAM)
        return comparison.score(counts_of, train, heldout)

    @parameterized.parameters("cy", "hi", "ka", "sw")
    def test_scores_are_those_of_the_merged_model(self, language):
        train, heldout = self.text[language]
        model = merge.write_model(self.pieces, self.log_probs)
        processor = spm.SentencePieceProcessor(model_proto=model)
        seen = token_counts(processor, train)
        del seen[None]
        total, unseen = seen.total() + len(seen), len(self.pieces) - len(seen)
        nats = {
            piece: math.log((seen[piece] or len(seen) / unseen) / total) for piece in self.pieces
        }
        nats[None] = min(nats[piece] for piece in seen) - 10  # SentencePiece's price of the unknown
        counts = token_counts(processor, heldout)
        alp = sum(n * nats[piece] for piece, n in counts.items())
        score = self.scores[language]
        self.assertAlmostEqual(score.alp, alp / len(heldout))
        self.assertAlmostEqual(score.tokens_per_sentence, counts.total() / len(heldout))
        self.assertAlmostEqual(score.unknown_rate, counts[None] / counts.total())

    def test_bytes_spell_what_is_unknown(self):
        """The tokens of a model that falls back to bytes, where a score counts characters."""
        settings = VocabularySettings(byte_fallback=True)
        # Without the last ones, whose characters are no pieces.
        pieces, log_probs = self.pieces[:-3], np.float64(self.log_probs[:-3])
        model = merge.write_model(pieces, log_probs, settings=settings)
        processor = spm.SentencePieceProcessor(model_proto=model)
        counts_of = comparison.counter(pieces, log_probs, UNIGRAM)
        found = comparison.score(counts_of, self.train, self.heldout, pieces)
        for language, score in found.items():
            heldout = self.text[language][1]
            tokens = sum(map(len, processor.encode(heldout)))
            self.assertAlmostEqual(score.tokens_per_sentence, tokens / len(heldout))
        self.assertGreater(found["sw"].tokens_per_sentence, self.scores["sw"].tokens_per_sentence)

    def test_languages_without_heldout_text_have_no_score(self):
        heldout = {"cy": pretokens.count_pretokens(["", "  "]), "hi": self.heldout["hi"]}
        scores = self.score(self.pieces, self.log_probs, self.train, heldout)
        self.assertEqual(scores, {"hi": self.scores["hi"]})
