"""Search by sentence vectors: Tatoeba, BUCC 2018, a user's own pairs, and files of vectors."""

import functools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

from input_pipeline.tasks.embeddings import EmbeddingExample
from input_pipeline.tasks.examples import SentencePairs, Sentences
from input_pipeline.tasks.features import Feature
from xlm.evaluation.metrics import retrieval
from xlm.evaluation.retrieval import mean_states
from xlm.evaluation.tasks import Line, Predictor
from xlm.models.encoder import Encoder
from xlm.training import sharding
from xlm.training.settings import MeshSettings

_QUERIES = 1024  # at once
_AXIS = "data"


class SentenceEncoder:
    """Encoder of sentences to vectors, `mean_states` of a layer; see `Predictor` for `batches`."""

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
    vectors. Returns scores, and the retrieved sentence of each English one.
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

    Without a threshold, as on development data, it takes the best for the `gold` pairs of ids.
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


def pair_scores(
    examples: Sequence[EmbeddingExample], vectors: Sequence[np.ndarray]
) -> dict[str, float]:
    """Score the search of passages by queries ("forward") and back, of vectors [S, D] by example.

    Equal texts are one text, with the partners of all its examples. The candidates include wrong
    passages. See `retrieval.ranking_scores`; "mrr" is the mean of both ways.
    """
    texts: list[dict[str, tuple[np.ndarray, set[str]]]] = [{}, {}]  # vector and partners, by text
    for one, (query, *passages) in zip(examples, vectors, strict=True):
        texts[0].setdefault(one.texts[0], (query, set()))[1].add(one.texts[1])
        for text, vector in zip(one.texts[1:], passages, strict=True):
            texts[1].setdefault(text, (vector, set()))
        texts[1][one.texts[1]][1].add(one.texts[0])
    found: dict[str, float] = {}
    for way, place in (("forward", 0), ("backward", 1)):
        own, others = texts[place], texts[1 - place]
        rows = {text: row for row, text in enumerate(others)}
        gold = [{rows[text] for text in partners} for _, partners in own.values() if partners]
        queries = np.stack([vector for vector, partners in own.values() if partners])
        candidates = np.stack([vector for vector, _ in others.values()])
        scores = retrieval.ranking_scores(queries, candidates, gold)
        found |= {f"{way}_{name}": value for name, value in scores.items()}
    return {"mrr": (found["forward_mrr"] + found["backward_mrr"]) / 2, **found}


def cosine(one: np.ndarray, two: np.ndarray) -> float:
    """Return the cosine of two vectors [D]; 0 if one is zero."""
    return float(one @ two / max(np.linalg.norm(one) * np.linalg.norm(two), 1e-12))


def top_k(
    queries: np.ndarray, vectors: np.ndarray, k: int, block: int = 1 << 16
) -> tuple[np.ndarray, np.ndarray]:
    """Find the exact `k` nearest of vectors [M, D], float or int8, to queries [N, D].

    Returns cosines [N, k] float32 and rows [N, k] int32, best first. Ties go to the first row. It
    reads a `block` of vectors, such as a memory map, at a time, and this process's devices divide
    it among them.
    """
    mesh = sharding.make_mesh(MeshSettings(), jax.local_devices())
    found = []
    for start in range(0, len(queries), _QUERIES):
        some = _unit(jnp.asarray(queries[start : start + _QUERIES]))
        shape = len(some), min(k, len(vectors))
        best = jnp.full(shape, -jnp.inf), jnp.zeros(shape, jnp.int32)
        for first in range(0, len(vectors), block):
            part = vectors[first : first + block]
            whole = np.pad(part, ((0, -len(part) % mesh.size), (0, 0)))
            placed = sharding.split(whole, mesh)
            best = _merged(mesh, *best, some, placed, first, first + len(part))
        found.append(jax.device_get(best))
    cosines, rows = (np.concatenate(one) for one in zip(*found, strict=True))
    return cosines, rows


def _unit(vectors: jax.Array) -> jax.Array:
    vectors = vectors.astype(jnp.float32)
    return vectors / jnp.maximum(jnp.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)


@functools.partial(jax.jit, static_argnums=0)
def _merged(
    mesh: Mesh, best: jax.Array, rows: jax.Array, queries: jax.Array, block: jax.Array,
    first: jax.Array, end: jax.Array,
) -> tuple[jax.Array, jax.Array]:  # fmt: skip
    """Merge the best cosines and rows [N, k] with those of a block, of rows `first` to `end`."""

    def on_device(best, rows, queries, part, first, end) -> tuple[jax.Array, jax.Array]:
        start = first + jax.lax.axis_index(_AXIS) * len(part)
        numbers = start + jnp.arange(len(part), dtype=jnp.int32)
        scores = jnp.matmul(queries, _unit(part).T, precision=jax.lax.Precision.HIGHEST)
        scores = jnp.where(numbers < end, scores, -jnp.inf)
        nearest, places = jax.lax.top_k(scores, min(best.shape[1], len(part)))
        others = (
            jax.lax.all_gather(x, _AXIS, axis=1, tiled=True) for x in (nearest, numbers[places])
        )
        scores, rows = (
            jnp.concatenate(one, axis=1) for one in zip((best, rows), others, strict=True)
        )
        best, places = jax.lax.top_k(scores, best.shape[1])
        return best, jnp.take_along_axis(rows, places, axis=1)

    specs = (P(), P(), P(), P(_AXIS), P(), P())
    return jax.shard_map(on_device, mesh=mesh, in_specs=specs, out_specs=P(), check_vma=False)(
        best, rows, queries, block, first, end
    )
