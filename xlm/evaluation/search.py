"""Retrieval of translations by an encoder without fine-tuning: Tatoeba and BUCC 2018."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from input_pipeline.tasks.examples import SentencePairs, Sentences
from input_pipeline.tasks.features import Feature
from xlm.evaluation.metrics import retrieval
from xlm.evaluation.retrieval import mean_states
from xlm.evaluation.tasks import Line, Predictor
from xlm.models.encoder import Encoder


class SentenceEncoder:
    """Encoder of sentences to vectors: `mean_states` of a layer; `batches` as of `Predictor`."""

    def __init__(
        self, encoder: Encoder, params: Any, *, layer: int, specials: Sequence[int], **batches: Any
    ):
        def vectors(params, batch):
            arrays = (batch[name] for name in ("tokens", "segments", "positions"))
            return mean_states(encoder, params, *arrays, num_layers=layer, specials=specials)

        self._params, self._predict = params, Predictor(vectors, title="encode", **batches)

    def __call__(self, features: Sequence[Feature]) -> np.ndarray:
        """Return [N, D] float32 vectors of features, in their order."""
        return np.stack(self._predict(self._params, features))


def retrieved(
    pairs: SentencePairs, sources: np.ndarray, targets: np.ndarray
) -> tuple[dict[str, float], list[Line]]:
    """Score the retrieval of each English sentence's translation (XTREME's Tatoeba).

    `pairs` are aligned sentences of a language and English, `sources` and `targets` [N, D] their
    vectors. Returns scores, and the sentence retrieved for each English one.
    """
    accuracy = retrieval.nearest_accuracy(targets, sources)
    return {"accuracy": accuracy}, nearest(pairs.target, pairs.source, targets, sources)


def nearest(
    queries: Sentences, others: Sentences, query_vectors: np.ndarray, other_vectors: np.ndarray
) -> list[Line]:
    """Find the nearest of M other sentences for each of N queries, by vectors [M, D] and [N, D]."""
    cosines, found = retrieval.nearest_neighbours(query_vectors, other_vectors, 1)
    return [
        {"id": query, "prediction": others.ids[row], "score": float(cosine)}
        for query, row, cosine in zip(queries.ids, found[:, 0], cosines[:, 0], strict=True)
    ]


def candidates(
    pairs: SentencePairs, sources: np.ndarray, targets: np.ndarray, margin: str
) -> list[Line]:
    """Mine candidate pairs of translations, best first; see `retrieval.mine`."""
    (rows, alone), (columns, alone_too) = (
        retrieval.distinct(side.texts) for side in (pairs.source, pairs.target)
    )
    found = retrieval.mine(sources[rows], targets[columns], margin=margin)
    return [
        {
            "source": pairs.source.ids[rows[one]],
            "target": pairs.target.ids[columns[two]],
            "score": float(score),
        }
        for one, two, score in zip(found.sources, found.targets, found.scores, strict=True)
        if alone[one] and alone_too[two]
    ]


def mined(
    found: Sequence[Line], gold: Sequence[tuple[str, str]], threshold: float | None
) -> tuple[dict[str, float], list[Line], float]:
    """Select the `candidates` above a threshold, as BUCC does; return scores, pairs, threshold.

    Without one, the best threshold for the `gold` pairs of ids is taken, as on development data.
    Raises ValueError if there are no gold pairs.
    """
    known = set(gold)
    if threshold is None:
        scores = np.array([line["score"] for line in found])
        right = np.array([(line["source"], line["target"]) in known for line in found], bool)
        threshold, _ = retrieval.best_threshold(scores, right, len(known))
    kept = [line for line in found if line["score"] >= threshold]
    predicted = [(line["source"], line["target"]) for line in kept]
    return retrieval.mining_scores(known, predicted), kept, threshold
