"""The rows of an evaluation, and how it uses several devices: batches split, results whole."""

from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh

from training import sharding


def spread_rows(rows: np.ndarray, max_sequences: int) -> np.ndarray:
    """At most `max_sequences` of the rows [N, L], evenly spaced; 0 for all.

    The first ones would be of the sources that come first, and their loss that of no others.
    """
    if not max_sequences or len(rows) <= max_sequences:
        return rows
    return rows[np.arange(max_sequences) * len(rows) // max_sequences]


class BatchLayout:
    """Where the batches of an evaluation lie."""

    def __init__(self, mesh: Mesh | None, size: int):
        """Batches of `size` rows or a few more, so that they split over the devices of `mesh`."""
        self._mesh = mesh
        self.size = size if mesh is None else size + -size % sharding.num_batch_shards(mesh)

    def jit(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """`function` compiled, its results on every device, so that every host can read them."""
        if self._mesh is None:
            return jax.jit(function)
        traced = sharding.traced_on(self._mesh, function)
        return jax.jit(traced, out_shardings=sharding.replicated(self._mesh))

    def placed(self, *arrays: np.ndarray) -> tuple[Any, ...]:
        """Arrays [size, ...] that every host holds, on the devices."""
        if self._mesh is None:
            return arrays
        return tuple(sharding.split(array, self._mesh) for array in arrays)
