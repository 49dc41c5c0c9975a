"""Merge of an allocation into one SentencePiece model: EM over fixed pieces, then the proto."""

import collections
from collections.abc import Sequence

import numpy as np
import scipy.special
import sentencepiece as spm
from google.protobuf.message import Message

from vocap import lattice, model_proto
from vocap.nested import with_unknown
from vocap.pretokens import PretokenTable
from vocap.settings import (
    BOS_ID,
    EOS_ID,
    MASK_ID,
    PAD_ID,
    SPECIALS,
    UNIGRAM,
    UNK_ID,
    VocabularySettings,
)

# SentencePiece's trainer drops a piece that EM expects less often than this. The pieces here are
# the choice of their languages and stay; their expected counts are clipped to this minimum.
_MIN_EXPECTED_COUNT = 0.5
_SCORE_STEPS = 1024  # per nat


def fit_scores(
    pieces: Sequence[str], initial_log_probs: np.ndarray, text: PretokenTable, num_iterations: int
) -> np.ndarray:
    """Fit natural-log unigram probabilities [V] float64 of a fixed set of pieces by variational EM.

    The M-step is SentencePiece's, log p = digamma(count) - digamma(sum of counts), which gives rare
    pieces less than their share (a sparse Dirichlet prior). 4 or 5 iterations converge.
    """
    matches = lattice.build_trie(pieces).match(text.text)
    weights = text.counts.astype(np.float64)
    num_characters = weights @ np.diff(text.text.offsets)
    lengths = np.array([*map(len, pieces), 1])  # the unknown comes last
    log_probs = np.asarray(initial_log_probs, np.float64)
    nats = 3.0
    for _ in range(num_iterations):
        counts, log_likelihood = matches.expected_counts(
            with_unknown(log_probs), lengths, weights, nats
        )
        nats = float(-log_likelihood / num_characters)
        counts = np.maximum(counts[:-1], _MIN_EXPECTED_COUNT)
        log_probs = scipy.special.digamma(counts) - scipy.special.digamma(counts.sum())
    return log_probs


def write_model(
    pieces: Sequence[str],
    scores: np.ndarray,
    kind: str = UNIGRAM,
    settings: VocabularySettings | None = None,
) -> bytes:
    """Serialise a ModelProto: `settings.fixed`, then pieces by descending score.

    `settings` have the fixed pieces, of which ids 0-4 are `SPECIALS`, and the normaliser.

    Scores are natural-log probabilities, `rounded`; for `BPE` any numbers, the larger the earlier
    merged. Raise ValueError if a piece is empty, repeated, or equal to a fixed one.
    """
    settings = settings or VocabularySettings()
    occurrences = collections.Counter([*pieces, *settings.fixed, ""])
    wrong = [piece for piece, count in occurrences.items() if count > 1]
    if wrong:
        raise ValueError(
            f"pieces {wrong[:5]} are repeated, empty or fixed; they must be distinct, not empty, "
            f"and none of {' '.join(settings.fixed)[:80]}"
        )
    proto = model_proto.ModelProto()
    scores = rounded(scores)
    _add_fixed(proto, settings, scores, kind)
    piece_type = model_proto.ModelProto.SentencePiece
    for i in sorted(range(len(pieces)), key=lambda i: (-scores[i], pieces[i])):
        proto.pieces.add(piece=pieces[i], score=float(scores[i]), type=piece_type.NORMAL)

    spec = proto.trainer_spec
    spec.model_type = model_proto.TrainerSpec.ModelType.Value(kind.upper())
    spec.vocab_size = len(proto.pieces)
    spec.bos_id, spec.pad_id, spec.eos_id, spec.unk_id = BOS_ID, PAD_ID, EOS_ID, UNK_ID
    spec.bos_piece, spec.pad_piece, spec.eos_piece, spec.unk_piece = SPECIALS[:4]
    # A control symbol, not user-defined: the literal text "<mask>" must not become a mask.
    spec.control_symbols.extend([SPECIALS[MASK_ID], *settings.controls])
    spec.user_defined_symbols.extend(settings.user_defined_symbols)
    spec.byte_fallback = settings.byte_fallback
    settings.write_spec(proto.normalizer_spec)

    serialized = proto.SerializeToString()
    _check_loads(serialized, len(proto.pieces))
    return serialized


def rounded(scores: np.ndarray) -> np.ndarray:
    """Round scores to 1/1024 nat: sums of such numbers are exact in SentencePiece's 32-bit floats.

    So paths of equal score stay equal in any order of the pieces, and all libraries break ties
    alike.
    """
    return np.round(np.asarray(scores) * _SCORE_STEPS) / _SCORE_STEPS


def _add_fixed(proto: Message, settings: VocabularySettings, scores: np.ndarray, kind: str) -> None:
    """Add the pieces that are not learned, in the order of `settings.fixed`."""
    kinds = model_proto.ModelProto.SentencePiece
    types = dict.fromkeys(settings.fixed, kinds.CONTROL)
    types |= {SPECIALS[UNK_ID]: kinds.UNKNOWN}
    types |= dict.fromkeys(settings.user_defined_symbols, kinds.USER_DEFINED)
    types |= dict.fromkeys(settings.byte_pieces, kinds.BYTE)
    types |= dict.fromkeys(settings.whitespace_pieces, kinds.NORMAL)
    # All pieces of blanks score alike, so that the longest wins. Merges make words first. They have
    # different scores, since libraries differ in the order of equal ones.
    best, last = scores.max(initial=0.0), scores.min(initial=0.0)
    is_unigram = kind == UNIGRAM
    in_order = sorted(settings.whitespace_pieces, key=lambda piece: ("\r" not in piece, len(piece)))
    of_blanks = {
        piece: best if is_unigram else last - 1 - rank for rank, piece in enumerate(in_order)
    }
    for piece, role in types.items():
        proto.pieces.add(piece=piece, score=of_blanks.get(piece, 0.0), type=role)


def _check_loads(serialized: bytes, vocab_size: int) -> None:
    """Check the loaded model's size and specials: SentencePiece accepts some broken models."""
    processor = spm.SentencePieceProcessor(model_proto=serialized)
    ids = (processor.bos_id(), processor.pad_id(), processor.eos_id(), processor.unk_id())
    if ids != (BOS_ID, PAD_ID, EOS_ID, UNK_ID) or processor.get_piece_size() != vocab_size:
        raise RuntimeError(
            f"the merged model came back with special ids {ids} and "
            f"{processor.get_piece_size()} pieces, expected {vocab_size} pieces"
        )
