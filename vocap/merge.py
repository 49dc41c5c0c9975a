"""From an allocation to one SentencePiece model: EM with the piece set fixed, then the proto."""

import collections
import io
from collections.abc import Mapping, Sequence

import numpy as np
import scipy.special
import sentencepiece as spm
from sentencepiece import sentencepiece_model_pb2 as model_pb2

from vocap import lattice
from vocap.words import WordTable

# The ids of XLM-R, except that <mask> stands with the other specials and not at the end.
SPECIALS = ("<s>", "<pad>", "</s>", "<unk>", "<mask>")
BOS_ID, PAD_ID, EOS_ID, UNK_ID, MASK_ID = range(len(SPECIALS))

# SentencePiece's trainer drops a piece when EM expects it less often than this. The pieces here
# were chosen by their languages and stay, at the score of a piece expected just so often.
_MIN_EXPECTED_COUNT = 0.5
_UNKNOWN_PENALTY = 10.0  # nats below the rarest piece, as SentencePiece prices unknowns


def mixture_weights(
    tables: Mapping[str, WordTable], probabilities: Mapping[str, float]
) -> tuple[list[str], np.ndarray]:
    """Words of all languages with counts as if language i made up the share q_i of the text.

    Shares are of bytes. The total stays that of the corpora together, so that the rare stay rare.

    Returns:
      The distinct words [N] and their weights [N] float64.
    """
    sizes = {language: table.num_bytes for language, table in tables.items()}
    total = sum(sizes.values())
    weights: dict[str, float] = {}
    for language in sorted(tables):
        table = tables[language]
        scale = probabilities[language] * total / sizes[language]
        for word, count in zip(table.words, table.counts.tolist(), strict=True):
            weights[word] = weights.get(word, 0.0) + scale * count
    return list(weights), np.fromiter(weights.values(), np.float64, len(weights))


def fit_scores(
    pieces: Sequence[str],
    initial_log_probs: np.ndarray,
    words: Sequence[str],
    weights: np.ndarray,
    num_iterations: int,
) -> np.ndarray:
    """Unigram log probabilities of a fixed set of pieces, by variational EM on weighted words.

    The M-step is SentencePiece's, log p = digamma(count) - digamma(sum of counts), which trusts
    rare pieces less than their share (a sparse Dirichlet prior).

    Args:
      pieces: [V] distinct pieces.
      initial_log_probs: [V] where EM starts.
      words, weights: the corpus, see `mixture_weights`.
      num_iterations: EM iterations; 4 or 5 converge.

    Returns:
      [V] float64 natural-log probabilities.
    """
    trie, text = lattice.build_trie(pieces), lattice.pack_words(words)
    log_probs = np.asarray(initial_log_probs, np.float64)
    for _ in range(num_iterations):
        unknown = log_probs.min() - _UNKNOWN_PENALTY
        counts, _ = lattice.expected_counts(trie, log_probs, text, weights, unknown)
        counts = np.maximum(counts, _MIN_EXPECTED_COUNT)
        log_probs = scipy.special.digamma(counts) - scipy.special.digamma(counts.sum())
    return log_probs


def write_model(pieces: Sequence[str], log_probs: np.ndarray) -> bytes:
    """Serialises a SentencePiece model: the specials, then pieces by falling score.

    Args:
      pieces: [V] distinct pieces without specials.
      log_probs: [V] their scores.

    Returns:
      The serialised ModelProto; ids 0-4 are `SPECIALS`, piece ids follow.

    Raises:
      ValueError: a piece is empty, repeated, or equal to a special token.
    """
    occurrences = collections.Counter([*pieces, *SPECIALS, ""])
    wrong = [piece for piece, count in occurrences.items() if count > 1]
    if wrong:
        raise ValueError(
            f"pieces must be distinct, not empty, and none of {' '.join(SPECIALS)}; got {wrong[:5]}"
        )
    proto = model_pb2.ModelProto()
    piece_type = model_pb2.ModelProto.SentencePiece
    for token in SPECIALS:
        kind = piece_type.UNKNOWN if token == SPECIALS[UNK_ID] else piece_type.CONTROL
        proto.pieces.add(piece=token, score=0.0, type=kind)
    for i in sorted(range(len(pieces)), key=lambda i: (-log_probs[i], pieces[i])):
        proto.pieces.add(piece=pieces[i], score=float(log_probs[i]), type=piece_type.NORMAL)

    spec = proto.trainer_spec
    spec.model_type = model_pb2.TrainerSpec.UNIGRAM
    spec.vocab_size = len(proto.pieces)
    spec.bos_id, spec.pad_id, spec.eos_id, spec.unk_id = BOS_ID, PAD_ID, EOS_ID, UNK_ID
    spec.bos_piece, spec.pad_piece, spec.eos_piece, spec.unk_piece = SPECIALS[:4]
    # A control symbol, not user-defined: the literal text "<mask>" must not become a mask.
    spec.control_symbols.append(SPECIALS[MASK_ID])
    proto.normalizer_spec.CopyFrom(_trained_normalizer_spec())

    serialized = proto.SerializeToString()
    _check_loads(serialized, len(proto.pieces))
    return serialized


def _trained_normalizer_spec() -> model_pb2.NormalizerSpec:
    """The normaliser spec of a model trained on anything, with its compiled character map.

    A spec without the map loads silently and does not normalise, and the map cannot be asked
    for on its own; the smallest training there is yields it.
    """
    model = io.BytesIO()
    spm.SentencePieceTrainer.train(
        sentence_iterator=iter(["a b"]),
        model_writer=model,
        model_type="char",
        vocab_size=6,
        hard_vocab_limit=False,
        minloglevel=2,
    )
    return model_pb2.ModelProto.FromString(model.getvalue()).normalizer_spec


def _check_loads(serialized: bytes, vocab_size: int) -> None:
    """SentencePiece loads some broken models without complaint; ask it what it understood."""
    processor = spm.SentencePieceProcessor(model_proto=serialized)
    ids = (processor.bos_id(), processor.pad_id(), processor.eos_id(), processor.unk_id())
    if ids != (BOS_ID, PAD_ID, EOS_ID, UNK_ID) or processor.get_piece_size() != vocab_size:
        raise RuntimeError(
            f"the merged model came back with special ids {ids} and "
            f"{processor.get_piece_size()} pieces, expected {vocab_size} pieces"
        )
