"""Finding translations by sentence vectors: nearest neighbours (Tatoeba), mining pairs (BUCC).

Neighbours are exact, by matrix products over blocks of the queries, so memory is a block times the
targets. At the sizes of BUCC this takes seconds, as long as an exact search by faiss.
"""

import collections
import dataclasses
from collections.abc import Callable, Collection, Sequence

import numpy as np

_BLOCK = 1024  # queries at once

# Margins of a cosine over the mean cosine of both sentences' neighbourhoods.
MARGINS: dict[str, Callable[[np.ndarray, np.ndarray], np.ndarray]] = {
    "ratio": lambda cosine, mean: np.divide(cosine, mean, out=cosine * 0, where=mean != 0),
    "distance": lambda cosine, mean: cosine - mean,
    "absolute": lambda cosine, mean: cosine,
}


def nearest_accuracy(queries: np.ndarray, targets: np.ndarray) -> float:
    """Return the share of queries [N, D] whose nearest target [N, D] by cosine has the same index.

    Queries are English in XTREME's Tatoeba score. Zero vectors find nothing.
    """
    _, found = nearest_neighbours(queries, targets, 1)
    hits = found[:, 0] == np.arange(len(queries))
    return float(np.mean(hits & (np.linalg.norm(queries, axis=1) > 0)))


def nearest_neighbours(
    queries: np.ndarray, targets: np.ndarray, k: int
) -> tuple[np.ndarray, np.ndarray]:
    """Return cosines [N, k] float32 and rows [N, k] of the `k` nearest targets, best first.

    `queries` are [N, D], `targets` [M, D], and k at most M. Zero vectors have cosine 0. Ties go to
    the first target.
    """
    targets_t = _unit(targets).T
    k = min(k, len(targets))
    cosines = np.empty((len(queries), k), np.float32)
    found = np.empty((len(queries), k), np.int64)
    for start in range(0, len(queries), _BLOCK):
        block = slice(start, start + _BLOCK)
        scores = _unit(queries[block]) @ targets_t
        rows = np.arange(len(scores))
        # For few neighbours, k passes for the maximum are several times faster than a partition.
        for rank in range(k):
            best = np.argmax(scores, axis=1)
            found[block, rank] = best
            cosines[block, rank] = scores[rows, best]
            scores[rows, best] = -np.inf
    return cosines, found


def _unit(vectors: np.ndarray) -> np.ndarray:
    vectors = np.asarray(vectors, np.float32)
    norms = np.linalg.norm(vectors, axis=1, keepdims=True)
    return vectors / np.maximum(norms, 1e-12)


@dataclasses.dataclass(frozen=True)
class Mined:
    """Pairs of sentences, best first: rows [P] of both sides, and margins [P] float32."""

    sources: np.ndarray
    targets: np.ndarray
    scores: np.ndarray


def mine(sources: np.ndarray, targets: np.ndarray, *, margin: str = "ratio", k: int = 4) -> Mined:
    """Mine pairs that may be translations, by margin (Artetxe and Schwenk 2019, Eq. 2).

        score(x, y) = margin(cos(x, y), (mean_z cos(x, z) + mean_z cos(y, z)) / 2)

    z are the k neighbours of x among the targets, and of y among the sources, given sentence
    vectors [N, D] and [M, D]. Each sentence of both sides chooses the best of its k neighbours.
    From these pairs, best first, each sentence enters only one. `margin` is a key of `MARGINS`;
    "absolute" is the bare cosine. Defaults are XTREME's for BUCC. Raises ValueError for a side
    without sentences.
    """
    if not len(sources) or not len(targets):
        raise ValueError(
            f"there is nothing to mine in {len(sources)} and {len(targets)} sentences; give some "
            "on both sides"
        )
    forward, its_targets = nearest_neighbours(sources, targets, k)
    backward, its_sources = nearest_neighbours(targets, sources, k)
    ahead, back = forward.mean(axis=1), backward.mean(axis=1)

    def chosen(cosines: np.ndarray, found: np.ndarray, own: np.ndarray, others: np.ndarray):
        scores = MARGINS[margin](cosines, (own[:, None] + others[found]) / 2)
        rows, best = np.arange(len(scores)), scores.argmax(axis=1)
        return rows, found[rows, best], scores[rows, best]

    rows, columns, scores = chosen(forward, its_targets, ahead, back)
    more_columns, more_rows, more_scores = chosen(backward, its_sources, back, ahead)
    rows, columns = np.append(rows, more_rows), np.append(columns, more_columns)
    scores = np.append(scores, more_scores)
    used: tuple[set[int], set[int]] = set(), set()
    kept = []
    for i in np.argsort(-scores, kind="stable").tolist():
        if rows[i] not in used[0] and columns[i] not in used[1]:
            used[0].add(rows[i])
            used[1].add(columns[i])
            kept.append(i)
    return Mined(rows[kept], columns[kept], scores[kept])


def distinct(texts: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
    """Return [U] first occurrences of the texts, and [U] whether each is the only one.

    As in BUCC's baseline, a repeated text takes part in the search once. It enters no pair, since
    any of its ids could be right.
    """
    stripped = [text.strip() for text in texts]
    counts = collections.Counter(stripped)
    first: dict[str, int] = {}
    for number, text in enumerate(stripped):
        first.setdefault(text, number)
    return np.array([*first.values()], np.int64), np.array([counts[text] == 1 for text in first])


def best_threshold(scores: np.ndarray, right: np.ndarray, gold: int) -> tuple[float, float]:
    """Return the score threshold with the best F1 of pairs, and that F1; 0 and 0 if none is right.

    The rule is that of BUCC's baseline, which takes pairs best first, and equal scores together.
    The threshold is half way between the last one taken and the next. The first best counts.
    `scores` [P] and `right` [P] may be in any order.
    """
    order = np.argsort(-scores, kind="stable")
    ranked, correct = scores[order], np.cumsum(right[order])
    if not len(order) or not correct[-1]:
        return 0.0, 0.0
    f1 = 2 * correct / (np.arange(1, len(order) + 1) + gold)
    f1[:-1][ranked[:-1] == ranked[1:]] = -1
    last = int(np.argmax(f1))
    following = ranked[min(last + 1, len(order) - 1)]
    middle = (ranked[last] + following) / 2
    # Between neighbouring numbers there is no middle.
    return float(middle if middle > following else ranked[last]), float(f1[last])


def mining_scores(
    gold: Collection[tuple[str, str]], predicted: Collection[tuple[str, str]]
) -> dict[str, float]:
    """Return "f1", "precision", "recall" of distinct id pairs (BUCC); ValueError without gold."""
    wanted, found = set(gold), set(predicted)
    if not wanted:
        raise ValueError("there are no gold pairs to score against; give some")
    right = len(wanted & found)
    return {
        "f1": 2 * right / (len(wanted) + len(found)),
        "precision": right / len(found) if found else 0.0,
        "recall": right / len(wanted),
    }


def ranking_scores(
    queries: np.ndarray, candidates: np.ndarray, gold: Sequence[Collection[int]]
) -> dict[str, float]:
    """Return "accuracy" at 1, and "mrr" and "ndcg" at 10, of N queries [N, D], ranked by cosine.

    `gold` has the rows of `candidates` [M, D] that belong to each query, at least one. Each has a
    gain of 1. Zero vectors find nothing.
    """
    _, found = nearest_neighbours(queries, candidates, 10)
    there = np.linalg.norm(queries, axis=1) > 0
    hits = np.array([np.isin(rows, [*one]) for rows, one in zip(found, gold, strict=True)])
    hits &= there[:, None]
    ranks = np.arange(1, hits.shape[1] + 1)
    best = np.cumsum(1 / np.log2(ranks + 1))  # gain of so many candidates at the top
    ideal = best[np.minimum([len(one) for one in gold], len(ranks)) - 1]
    return {
        "accuracy": float(hits[:, 0].mean()),
        "mrr": float((hits / ranks).max(axis=1).mean()),
        "ndcg": float(((hits / np.log2(ranks + 1)).sum(axis=1) / ideal).mean()),
    }
