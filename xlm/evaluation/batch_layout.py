"""Batches of an evaluation: choice of sequences, and sharding over devices."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh

from input_pipeline.array_files import ShardedRows
from input_pipeline.packed_dataset import PackedDataset
from xlm.training import sharding


def spread_rows(rows: np.ndarray | ShardedRows, max_sequences: int) -> np.ndarray:
    """Return at most `max_sequences` of the sequences [N, L], evenly spaced; 0 for all.

    The first ones would be a biased sample, from the first text sources.
    """
    if not max_sequences or len(rows) <= max_sequences:
        return np.asarray(rows)
    return rows[np.arange(max_sequences) * len(rows) // max_sequences]


def pivot_of(languages: Sequence[str], wanted: str) -> str:
    """Return the language of a parallel set to compare the others with."""
    return wanted if wanted in languages else languages[0]


def heldout_rows(dataset: PackedDataset, max_sequences: int) -> dict[str, np.ndarray]:
    """Return held-out sequences [N, L] int32 of languages that have any; see `spread_rows`."""
    # Copied one by one: files of all languages would stay open.
    return {
        language: np.asarray(spread_rows(rows, max_sequences), np.int32)
        for language in dataset.languages
        if len(rows := dataset.rows(language, "heldout"))
    }


class BatchLayout:
    """Layout of evaluation batches on the devices of `mesh`, of all hosts; one device without it.

    Inputs are sharded, results replicated. `size` is rounded up to a multiple of the devices.
    """

    def __init__(self, mesh: Mesh | None, size: int):
        self._mesh = mesh
        self.size = size if mesh is None else size + -size % sharding.num_batch_shards(mesh)

    def jit(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Compile `function` with replicated results, so that every host can read them."""
        if self._mesh is None:
            return jax.jit(function)
        traced = sharding.traced_on(self._mesh, function)
        return jax.jit(traced, out_shardings=sharding.replicated(self._mesh))

    def rows(
        self, function: Callable[..., Any], params: Any, *arrays: np.ndarray, fill: int
    ) -> np.ndarray:
        """Apply a compiled function of parameters and batches to all rows of arrays [N, L]."""
        found = [function(params, *batch) for batch in self.batches(*arrays, fill=fill)]
        return np.concatenate(jax.device_get(found))[: len(arrays[0])]

    def batches(self, *arrays: np.ndarray, fill: int) -> Iterator[tuple[Any, ...]]:
        """Cut arrays [N, L] into batches, placed as they are taken; `fill` completes the last."""
        count = len(arrays[0])
        more = ((0, -count % self.size), (0, 0))
        padded = [np.pad(array, more, constant_values=fill) for array in arrays]
        for start in range(0, count, self.size):
            yield self.placed(*(array[start : start + self.size] for array in padded))

    def placed(self, *arrays: np.ndarray) -> tuple[Any, ...]:
        """Shard arrays [size, ...], of which every host has a copy, over the devices."""
        if self._mesh is None:
            return arrays
        return tuple(sharding.split(array, self._mesh) for array in arrays)
