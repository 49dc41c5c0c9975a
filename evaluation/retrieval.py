"""Retrieval between parallel sentences: does a sentence find its translation?"""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np

from input_pipeline.row_store import RowStore
from models.segments import packed_segments
from objectives.masked_lm import MaskedLM


@dataclasses.dataclass(frozen=True)
class RetrievalResult:
    """Retrieval between two languages of one parallel set.

    Attributes:
      forward: share of sentences of the language whose nearest neighbour, by cosine, among all
        sentences of the pivot is their translation.
      backward: the same from the pivot to the language.
      chance: what a random choice would reach, 1 / sentences.
      sentences: pairs.
    """

    forward: float
    backward: float
    chance: float
    sentences: int


def nearest_accuracy(queries: np.ndarray, targets: np.ndarray) -> float:
    """Share of rows i of `queries` whose nearest row of `targets` by cosine is row i.

    Args:
      queries, targets: [N, D] sentence vectors. Zero vectors find nothing.
    """
    scores = _unit(queries) @ _unit(targets).T
    hits = np.argmax(scores, axis=1) == np.arange(len(queries))
    return float(np.mean(hits & (np.linalg.norm(queries, axis=1) > 0)))


def _unit(vectors: np.ndarray) -> np.ndarray:
    norms = np.linalg.norm(vectors, axis=1, keepdims=True)
    return vectors / np.maximum(norms, 1e-12)


class Retrieval:
    """Evaluates retrieval on the parallel sets of a row store."""

    def __init__(
        self,
        objective: MaskedLM,
        store: RowStore,
        *,
        layer: int,
        pivot: str,
        batch_size: int,
        max_sentences: int,
    ):
        """Prepares the evaluation.

        Args:
          objective: the model and its special ids.
          store: parallel sets.
          layer: layer whose states are averaged over a sentence's text tokens; 0 is the embeddings.
          pivot: language to retrieve from and to; sets without it use their first language.
          batch_size: sentences encoded at once.
          max_sentences: pairs used of a set; 0 for all.
        """
        self._objective = objective
        self._store = store
        self._layer = layer
        self._pivot = pivot
        self._batch_size = batch_size
        self._max_sentences = max_sentences
        self._encode = jax.jit(self._sentence_vectors)

    def run(self, params) -> dict[str, dict[str, RetrievalResult]]:
        """Results by set and language; languages with under two pairs are left out."""
        results: dict[str, dict[str, RetrievalResult]] = {}
        for name, languages in self._store.parallel.items():
            pivot = self._pivot if self._pivot in languages else languages[0]
            pivot_rows = self._rows(name, pivot)
            pivot_vectors = self._vectors(params, pivot_rows)
            results[name] = {}
            for language in languages:
                if language == pivot:
                    continue
                rows = self._rows(name, language)
                both = (self._lengths(rows) > 0) & (self._lengths(pivot_rows) > 0)
                if both.sum() < 2:
                    continue
                vectors = self._vectors(params, rows)[both]
                results[name][language] = RetrievalResult(
                    forward=nearest_accuracy(vectors, pivot_vectors[both]),
                    backward=nearest_accuracy(pivot_vectors[both], vectors),
                    chance=1 / int(both.sum()),
                    sentences=int(both.sum()),
                )
        return results

    def _rows(self, name: str, language: str) -> np.ndarray:
        rows = self._store.parallel_rows(name, language)[: self._max_sentences or None]
        return np.asarray(rows, np.int32)

    def _lengths(self, rows: np.ndarray) -> np.ndarray:
        return (rows != self._objective.pad).sum(axis=1)

    def _vectors(self, params, rows: np.ndarray) -> np.ndarray:
        """[N, D] float32 sentence vectors of [N, L] tokens."""
        padding = -len(rows) % self._batch_size
        padded = np.pad(rows, ((0, padding), (0, 0)), constant_values=self._objective.pad)
        batches = [
            self._encode(params, padded[start : start + self._batch_size])
            for start in range(0, len(padded), self._batch_size)
        ]
        return np.concatenate(jax.device_get(batches))[: len(rows)]

    def _sentence_vectors(self, params, tokens: jax.Array) -> jax.Array:
        """Mean state of each sentence's text tokens, without padding and specials: [B, D]."""
        segments, positions = packed_segments(
            tokens, bos=self._objective.bos, pad=self._objective.pad, across_documents=False
        )
        hidden = self._objective.encoder.apply(
            {"params": params},
            tokens,
            segments,
            positions,
            deterministic=True,
            num_layers=self._layer,
            method="encode",
        )
        is_text = ~jnp.isin(tokens, jnp.array(self._objective.never_masked))
        total = jnp.where(is_text[:, :, None], hidden.astype(jnp.float32), 0).sum(axis=1)
        return total / jnp.maximum(is_text.sum(axis=1), 1)[:, None]
