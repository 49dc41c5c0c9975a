"""Unigram language-model vocabularies of one language at growing sizes, by SentencePiece."""

import dataclasses
import io
from collections.abc import Sequence

import numpy as np
import sentencepiece as spm
from sentencepiece import sentencepiece_model_pb2 as model_pb2

from vocap.alp import average_log_probability
from vocap.words import WordTable

_NORMAL = model_pb2.ModelProto.SentencePiece.NORMAL
# Longer lines would be skipped by the trainer without a word; ours are counted in the ALP.
_MAX_SENTENCE_BYTES = 1 << 20


@dataclasses.dataclass(frozen=True)
class UnigramVocabulary:
    """A unigram language model over pieces.

    Attributes:
      pieces: [S] distinct pieces, highest probability first; specials and unknown excluded.
      log_probs: [S] float64 natural-log probabilities, as the trainer left them.
      alp: average log probability (Eq. 1) on the text it was trained on, in nats a sentence.
    """

    pieces: tuple[str, ...]
    log_probs: np.ndarray
    alp: float

    @property
    def size(self) -> int:
        return len(self.pieces)


def train_vocabularies(
    sentences: Sequence[str],
    table: WordTable,
    sizes: Sequence[int],
    *,
    character_coverage: float = 0.9995,
    max_piece_length: int = 16,
    alp_probabilities: str = "corpus",
) -> list[UnigramVocabulary]:
    """Trains one unigram vocabulary per feasible size and measures its ALP.

    Sizes below a language's required characters, or above what its text can fill, do not exist;
    they are left out, so each language starts at its smallest feasible size.

    Args:
      sentences: training text, one sentence an item.
      table: `count_words(sentences)`.
      sizes: wanted numbers of pieces, ascending; the unknown piece comes on top.
      character_coverage: share of the characters that must be pieces of their own.
      max_piece_length: longest piece, in characters.
      alp_probabilities: p_uni of Eq. 1: "corpus" for the pieces' shares in the best segmentation of
        the text, as the authors' scripts have it, or "model" for the trainer's scores.

    Returns:
      The feasible vocabularies in ascending size; empty if no size is feasible.
    """
    vocabularies: list[UnigramVocabulary] = []
    if not table.words:
        return vocabularies  # the trainer's own complaint about no text names nothing
    for size in sizes:
        try:
            model = _train(sentences, size + 1, character_coverage, max_piece_length)
        except RuntimeError as error:
            message = str(error)
            if "smaller than required_chars" in message:
                continue
            if "too high" in message:
                break  # and so is every larger size
            raise
        vocabularies.append(_vocabulary(model, table, alp_probabilities))
    return vocabularies


def _train(
    sentences: Sequence[str], vocab_size: int, character_coverage: float, max_piece_length: int
) -> bytes:
    """One SentencePiece unigram training; returns the serialised ModelProto."""
    model = io.BytesIO()
    spm.SentencePieceTrainer.train(
        sentence_iterator=iter(sentences),
        model_writer=model,
        model_type="unigram",
        vocab_size=vocab_size,
        character_coverage=character_coverage,
        max_sentencepiece_length=max_piece_length,
        max_sentence_length=_MAX_SENTENCE_BYTES,
        unk_id=0,
        bos_id=-1,
        eos_id=-1,
        num_threads=1,  # float sums by thread would make the scores depend on the machine
        minloglevel=2,
    )
    return model.getvalue()


def _vocabulary(model: bytes, table: WordTable, alp_probabilities: str) -> UnigramVocabulary:
    """Reads pieces and scores from a trained model and measures its ALP on `table`."""
    proto = model_pb2.ModelProto.FromString(model)
    scores = np.array([p.score for p in proto.pieces], np.float64)
    normal = np.array([p.type == _NORMAL for p in proto.pieces])
    # SentencePiece's own price of the unknown, ten nats below the rarest piece; a run of unknown
    # characters is encoded as one unknown and paid once.
    scores[~normal] = scores[normal].min() - 10.0

    processor = spm.SentencePieceProcessor(model_proto=model)
    segmentations = processor.encode([w[1:] for w in table.words], out_type=int)
    lengths = np.array([len(s) for s in segmentations])
    ids = np.fromiter((i for s in segmentations for i in s), np.int64, lengths.sum())
    piece_counts = np.bincount(ids, np.repeat(table.counts, lengths), minlength=len(scores))

    # Pieces that do not occur have no share; their log probability is never read.
    shares = np.maximum(piece_counts, 1) / piece_counts.sum()
    log_probs = scores if alp_probabilities == "model" else np.log(shares)
    ids_by_score = np.flatnonzero(normal)[np.argsort(-scores[normal], kind="stable")]
    return UnigramVocabulary(
        pieces=tuple(proto.pieces[i].piece for i in ids_by_score),
        log_probs=scores[ids_by_score],
        alp=average_log_probability(piece_counts, log_probs, table.num_sentences),
    )
