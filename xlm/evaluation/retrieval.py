"""Retrieval of translations between parallel sentences, by the mean states of their tokens."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from input_pipeline.packed_dataset import PackedDataset
from xlm.evaluation.batch_layout import BatchLayout, pivot_of, spread_rows
from xlm.evaluation.metrics.retrieval import nearest_accuracy
from xlm.models.encoder import Encoder
from xlm.models.segments import mean_state, packed_segments
from xlm.objectives.masked_lm import MaskedLM
from xlm.objectives.replaced_token import ReplacedToken


@dataclasses.dataclass(frozen=True)
class RetrievalResult:
    """Shares of sentences whose translation is the nearest sentence of the other side.

    `forward` is from the language to the pivot, `backward` the reverse, `chance` 1 / sentences.
    """

    forward: float
    backward: float
    chance: float
    sentences: int


class Retrieval:
    """Evaluator of retrieval from and to `pivot` on the parallel sets of a packed dataset.

    A sentence's vector is the mean state of its text tokens at `layer` (0 is the embeddings). Sets
    without the pivot use their first language. The cost grows with the square of `max_sentences`
    per set.
    """

    def __init__(
        self, objective: MaskedLM | ReplacedToken, dataset: PackedDataset, *, layer: int,
        pivot: str, batch_size: int, max_sentences: int, mesh: Mesh | None = None,
    ):  # fmt: skip
        self._objective, self._dataset = objective, dataset
        self._layer, self._pivot, self._max_sentences = layer, pivot, max_sentences
        self._batches = BatchLayout(mesh, batch_size)
        self._encode = self._batches.jit(self._sentence_vectors)

    def run(self, params) -> dict[str, dict[str, RetrievalResult]]:
        """Return results by set and language, without languages with fewer than two pairs."""
        results: dict[str, dict[str, RetrievalResult]] = {}
        for name, languages in self._dataset.parallel.items():
            pivot = pivot_of(languages, self._pivot)
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
        rows = self._dataset.parallel_rows(name, language)
        return np.asarray(spread_rows(rows, self._max_sentences), np.int32)

    def _lengths(self, rows: np.ndarray) -> np.ndarray:
        return (rows != self._objective.pad).sum(axis=1)

    def _vectors(self, params, rows: np.ndarray) -> np.ndarray:
        return self._batches.rows(self._encode, params, rows, fill=self._objective.pad)

    def _sentence_vectors(self, params, tokens: jax.Array) -> jax.Array:
        """Return the mean state of each sentence's text tokens, without specials: [B, D]."""
        segments, positions = packed_segments(
            tokens, bos=self._objective.bos, pad=self._objective.pad, across_documents=False
        )
        return mean_states(
            self._objective.encoder, self._objective.encoder_params(params), tokens, segments,
            positions, num_layers=self._layer, specials=self._objective.special_ids,
        )  # fmt: skip


def mean_states(
    encoder: Encoder, params: Any, tokens: jax.Array, segments: jax.Array, positions: jax.Array, *,
    num_layers: int, specials: Sequence[int],
) -> jax.Array:  # fmt: skip
    """Compute the mean state of each sentence's text tokens, without padding and specials.

    Arguments are those of `Encoder.encode`. Returns [B, D] float32, zeros for a sentence without
    text.
    """
    hidden = encoder.apply(
        {"params": params}, tokens, segments, positions, deterministic=True, num_layers=num_layers,
        method="encode",
    )  # fmt: skip
    return mean_state(hidden, ~jnp.isin(tokens, jnp.array(specials)))
