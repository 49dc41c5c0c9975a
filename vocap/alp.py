"""Average log probability (ALP): fit of a vocabulary to a language (paper Section 2.1, Eq. 1)."""

import numpy as np

UNKNOWN_PENALTY = 10.0  # nats below the rarest piece, SentencePiece's price of the unknown


def average_log_probability(
    piece_counts: np.ndarray, log_probs: np.ndarray, num_sentences: int
) -> float:
    """Compute ALP(D, V) = 1/|D| sum_j sum_k log p_uni(s_k^j) in nats per sentence (Eq. 1).

    The double sum runs over the pieces k of the best segmentation of every sentence j. Grouped by
    piece, it is the dot product of counts [V] and natural-log probabilities [V]. The ALP is at most
    zero; larger is better.
    """
    # Unused pieces may have log probability -inf, and 0 * -inf is NaN.
    used = piece_counts > 0
    return float(piece_counts[used] @ log_probs[used]) / num_sentences


def smoothed_log_probs(counts: np.ndarray) -> np.ndarray:
    """Return the log unigram probabilities [V + 1] of pieces and, last, of unknown text.

    Witten-Bell smoothing, method C, on `counts` [V]: of N tokens of T distinct pieces, a piece with
    count c has c / (N + T), and unused pieces share T / (N + T) evenly. If V is far above N, a
    constant count for each unused piece would take most of the probability. It would punish long
    segmentations by a nat a token at 500K pieces and a megabyte of text. Unknown text has its price
    in a segmentation, counted from the rarest used piece.
    """
    counts = np.asarray(counts, np.float64)
    unseen = counts == 0
    total, distinct = counts.sum(), len(counts) - unseen.sum()
    if not distinct:
        log_probs = np.full(len(counts), -np.log(len(counts)))
    elif unseen.any():
        shares = np.where(unseen, distinct / unseen.sum(), counts)
        log_probs = np.log(shares / (total + distinct))
    else:
        log_probs = np.log(counts / total)
    rarest = log_probs[~unseen] if distinct else log_probs
    return np.append(log_probs, rarest.min() - UNKNOWN_PENALTY)
