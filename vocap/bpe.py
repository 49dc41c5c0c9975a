"""Byte-pair encoding (Sennrich et al. 2016) of the runs of a text, by SentencePiece's trainer.

The baseline of XLM-R's analysis (Section 5.1). Its earlier models ran BPE on the output of each
language's segmenter. Runs replace that here: a piece crosses no space and no change of script.
"""

import io
import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
import sentencepiece as spm

from vocap import model_proto
from vocap.pretokens import TRAINER, PretokenTable

_KINDS = model_proto.ModelProto.SentencePiece
# Counts of a mixture are fractions, those of the trainer integers.
_COUNT_STEPS = 1000
_AT_ONCE = 100_000


def train(
    table: PretokenTable,
    size: int,
    *,
    character_coverage: float,
    max_piece_length: int,
    may_be_fewer: bool = False,
    **options: Any,
) -> tuple[tuple[str, ...], np.ndarray] | None:
    """Train `size` pieces by merges, and their scores [V] float64: 0, -1, ..., the earliest first.

    Every character that must be covered is a piece. Return None if the text has more of them than
    `size`, or too few merges, unless there `may_be_fewer`. `options` are the trainer's own.
    """
    model = io.BytesIO()
    counts = np.maximum(np.rint(table.counts * _COUNT_STEPS), 1).astype(np.int64)
    lines = zip(table.text.strings(), counts.tolist(), strict=True)
    try:
        spm.SentencePieceTrainer.train(
            sentence_iterator=(f"{run}\t{count}" for run, count in lines),
            model_writer=model,
            model_type="bpe",
            input_format="tsv",
            vocab_size=size + 1,
            hard_vocab_limit=not may_be_fewer,
            character_coverage=character_coverage,
            required_chars="".join(sorted(table.required)),
            max_sentencepiece_length=max_piece_length,
            # Runs are normalised, and begin with a visible space after a space.
            normalization_rule_name="identity",
            add_dummy_prefix=False,
            remove_extra_whitespaces=False,
            **TRAINER,
            **options,
        )
    except RuntimeError as error:
        if any(sign in str(error) for sign in ("smaller than required_chars", "too high")):
            return None
        raise
    pieces = model_proto.ModelProto.FromString(model.getvalue()).pieces
    normal = [piece for piece in pieces if piece.type == _KINDS.NORMAL]
    if len(normal) < size and not may_be_fewer:
        return None
    return tuple(p.piece for p in normal), np.array([p.score for p in normal], np.float64)


def segmenter(pieces: Sequence[str], scores: np.ndarray) -> spm.SentencePieceProcessor:
    """Build the processor that segments runs; its ids are the indices of the [V] pieces."""
    proto = model_proto.ModelProto()
    for piece, score in zip(pieces, np.asarray(scores).tolist(), strict=True):
        proto.pieces.add(piece=piece, score=score, type=_KINDS.NORMAL)
    proto.pieces.add(piece="<unk>", type=_KINDS.UNKNOWN)
    proto.trainer_spec.model_type = model_proto.TrainerSpec.BPE
    return model_proto.plain_processor(proto)


def segmented_counts(processor: spm.SentencePieceProcessor, table: PretokenTable) -> np.ndarray:
    """Count a segmenter's pieces, and last the unknown characters, in a text: [V + 1] float64."""
    found = np.zeros(processor.get_piece_size())
    weights = iter(table.counts.tolist())
    strings = table.text.strings()
    while batch := list(itertools.islice(strings, _AT_ONCE)):
        for ids in processor.encode(batch):
            weight = next(weights)
            for i in ids:
                found[i] += weight
    # The processor takes consecutive unknown characters as one.
    found[-1] = _unknown_characters(processor, table)
    return found


def _unknown_characters(processor: spm.SentencePieceProcessor, table: PretokenTable) -> float:
    distinct, inverse = np.unique(table.text.characters, return_inverse=True)
    ids = (processor.piece_to_id(chr(code)) for code in distinct.tolist())
    is_unknown = np.array([processor.is_unknown(i) for i in ids], bool)[inverse]
    in_runs = np.add.reduceat(np.append(is_unknown, False), table.text.offsets[:-1])
    return float(in_runs @ table.counts)
