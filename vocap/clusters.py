"""Clusters of languages with similar vocabularies, as in XLM-V.

Liang et al., EMNLP 2023, arXiv 2301.10472: k-means on lexical fingerprints. Each cluster then gets
one vocabulary, as large as the sum of its languages' separate allocations.
"""

from collections.abc import Mapping, Sequence

import numpy as np
import scipy.sparse

_ABSENT_PENALTY = 10.0  # nats above the rarest piece, as SentencePiece prices the unknown
_NUM_RESTARTS = 100


def cluster_languages(
    pieces: Mapping[str, Sequence[str]], log_probs: Mapping[str, np.ndarray], num_clusters: int
) -> dict[str, int]:
    """Group languages by k-means on the negative log probabilities of their pieces.

    A language's fingerprint has one entry for each piece of any language: -log p in its own unigram
    vocabulary, or, if it lacks the piece, ten nats more than the largest -log p of any language. So
    languages are near if they share pieces, frequent ones above all. The restart with the least sum
    of squared distances to the means wins.

    Return the cluster of each language, in code point order. No cluster is empty; clusters are
    numbered from 0 in the order of their first languages. k is between 1 and the number of
    languages.
    """
    languages = sorted(pieces)
    points = _points(languages, pieces, log_probs)
    distances = ((points[:, None] - points) ** 2).sum(axis=-1)
    rng = np.random.default_rng(0)
    best, best_inertia = np.zeros(len(languages), np.int64), np.inf
    for _ in range(_NUM_RESTARTS):
        labels, inertia = _refine(points, _first_labels(distances, num_clusters, rng))
        # Restarts with the same clusters differ by rounding only; the first stays.
        if inertia < best_inertia * (1 - 1e-9):
            best, best_inertia = labels, inertia
    names = {label: name for name, label in enumerate(dict.fromkeys(best.tolist()))}
    return {lang: names[label] for lang, label in zip(languages, best.tolist(), strict=True)}


def _points(
    languages: Sequence[str],
    pieces: Mapping[str, Sequence[str]],
    log_probs: Mapping[str, np.ndarray],
) -> np.ndarray:
    """Return [L, L] points with the same pairwise distances as the L fingerprints.

    k-means depends on distances only. Subtracting the cost of an absent piece from every entry
    preserves them and makes the fingerprints F [L, pieces] sparse; F F^T = X X^T for a square X.
    """
    numbers: dict[str, int] = {}
    columns, rows, values = [], [], []
    for row, lang in enumerate(languages):
        columns.append([numbers.setdefault(piece, len(numbers)) for piece in pieces[lang]])
        rows.append(np.full(len(pieces[lang]), row))
        values.append(-np.asarray(log_probs[lang], np.float64))
    absent = max(v.max() for v in values) + _ABSENT_PENALTY
    fingerprints = scipy.sparse.csr_array(
        (np.concatenate(values) - absent, (np.concatenate(rows), np.concatenate(columns))),
        shape=(len(languages), len(numbers)),
    )
    gram = (fingerprints @ fingerprints.T).toarray()
    eigenvalues, eigenvectors = np.linalg.eigh(gram)
    return eigenvectors * np.sqrt(np.maximum(eigenvalues, 0))


def _first_labels(distances: np.ndarray, k: int, rng: np.random.Generator) -> np.ndarray:
    """Return [L], the nearest of k points by k-means++, given squared distances [L, L]."""
    chosen = [int(rng.integers(len(distances)))]
    while len(chosen) < k:
        # Weights stay positive even if all other points are copies of chosen ones.
        nearest = distances[:, chosen].min(axis=1) + np.finfo(np.float64).tiny
        nearest[chosen] = 0
        chosen.append(int(rng.choice(len(nearest), p=nearest / nearest.sum())))
    labels = distances[:, chosen].argmin(axis=1)
    labels[chosen] = range(k)
    return labels


def _refine(points: np.ndarray, labels: np.ndarray) -> tuple[np.ndarray, float]:
    """Move single points between clusters while that lowers the inertia (Hartigan).

    Unlike Lloyd's iterations this leaves no cluster empty, and reaches fewer poor local optima.
    Return the labels [L] and their inertia.
    """
    labels, k = labels.copy(), int(labels.max()) + 1
    # Without it, rounding might move a point back and forth between equally good clusters.
    tolerance = 1e-9 * float((points**2).sum())
    moved = True
    while moved:
        moved = False
        for i, point in enumerate(points):
            counts = np.bincount(labels, minlength=k)
            old = labels[i]
            if counts[old] == 1:
                continue
            distances = ((_means(points, labels, counts) - point) ** 2).sum(axis=1)
            costs = distances * counts / (counts + 1)  # increase of the inertia by joining
            costs[old] = distances[old] * counts[old] / (counts[old] - 1)  # decrease by leaving
            new = int(costs.argmin())
            if costs[new] < costs[old] - tolerance:
                labels[i], moved = new, True
    means = _means(points, labels, np.bincount(labels, minlength=k))
    return labels, float(((points - means[labels]) ** 2).sum())


def _means(points: np.ndarray, labels: np.ndarray, counts: np.ndarray) -> np.ndarray:
    one_hot = labels == np.arange(len(counts))[:, None]
    return one_hot @ points / counts[:, None]
