"""Scores of vocabularies for each language on held-out text."""

import dataclasses
import functools
from collections.abc import Callable, Collection, Sequence

import numpy as np

from vocap import bpe, byte_bpe, lattice, unigram
from vocap.alp import average_log_probability, smoothed_log_probs
from vocap.pretokens import PretokenTable, Texts
from vocap.settings import BPE, BYTE_BPE

# Counts of the pieces, and last of the unknown characters, in a text: [V + 1] float64.
Counts = Callable[[PretokenTable], np.ndarray]


@dataclasses.dataclass(frozen=True)
class Score:
    """Scores on held-out text of a language; `alp` is in nats a sentence."""

    alp: float
    tokens_per_sentence: float
    unknown_rate: float


def counter(pieces: Sequence[str], scores: np.ndarray, kind: str) -> Counts:
    """Return the function that counts pieces with `scores` [V] of `merge.write_model` in a text."""
    if kind == BPE:
        return functools.partial(bpe.segmented_counts, bpe.segmenter(pieces, scores))
    if kind == BYTE_BPE:
        return functools.partial(byte_bpe.segmented_counts, pieces, scores)
    return functools.partial(unigram.segmented_counts, lattice.build_trie(pieces), scores)


def score(
    counts_of: Counts, train: Texts, heldout: Texts, spelled: Collection[str] | None = None
) -> dict[str, Score]:
    """Score a joint vocabulary on each language that has held-out text.

    The ALP is that of Eq. 1 on held-out sentences. p_uni comes from the language's training text:
    the shares of the pieces in its segmentation. Shares in the held-out text itself would favour
    vocabularies that fit a small sample closely. Pieces unused in the training text share the
    smoothed remainder (`smoothed_log_probs`). An unknown character costs ten nats more than the
    rarest piece. By its share it would be cheap if a vocabulary lacks many characters. For
    `spelled` see `num_tokens`.
    """
    scores = {}
    for language, table in heldout.items():
        if not table.num_sentences:
            continue
        log_probs = smoothed_log_probs(counts_of(train[language])[:-1])
        counts = counts_of(table)
        scores[language] = Score(
            alp=average_log_probability(counts, log_probs, table.num_sentences),
            tokens_per_sentence=num_tokens(counts, table, spelled) / table.num_sentences,
            unknown_rate=float(counts[-1] / counts.sum()),
        )
    return scores


def num_tokens(counts: np.ndarray, table: PretokenTable, spelled: Collection[str] | None) -> float:
    """Sum the counts [V + 1] of a text, with the bytes of unknown characters, which come last.

    `spelled` are the pieces of a vocabulary with byte fallback; if None, unknown characters count
    once.
    """
    if spelled is None:
        return float(counts.sum())
    known = {piece for piece in spelled if len(piece) == 1}
    codes, inverse = np.unique(table.text.characters, return_inverse=True)
    characters = map(chr, codes.tolist())
    sizes = np.array([0 if one in known else len(one.encode()) for one in characters])
    in_runs = np.add.reduceat(sizes[inverse], table.text.offsets[:-1])
    return float(counts[:-1].sum() + in_runs @ table.counts)
