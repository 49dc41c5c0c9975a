"""The candidate set V': the union of the neighbours of a batch's targets (Eq. 6)."""

from typing import NamedTuple

import jax
import jax.numpy as jnp


class Candidates(NamedTuple):
    """V' in static shapes.

    Attributes:
      ids: [C] int32 ascending ids of V'; unused slots at the end hold V, which is no id.
      labels: [W] int32 slot of each target in `ids`; arbitrary where the weight is zero.
      union_size: scalar int32 |V'| before it was cut to C.
    """

    ids: jax.Array
    labels: jax.Array
    union_size: jax.Array

    def overflow(self) -> jax.Array:
        """Scalar int32: candidates that did not fit."""
        return jnp.maximum(self.union_size - self.ids.shape[0], 0)


def union_of_neighbours(
    neighbours: jax.Array, targets: jax.Array, weights: jax.Array, capacity: int
) -> Candidates:
    """V' = union over targets w of {w} and I_k(w) (Eq. 6).

    Each target is in V', also where its own list misses it. If V' exceeds the capacity, targets
    stay, then the nearest neighbours of all targets, then the second nearest, and so on; within
    the first rank that does not fit whole, smaller ids stay.

    Args:
      neighbours: [V, K] int32 index, see `nearest_neighbours`.
      targets: [W] int32 target ids.
      weights: [W] float; targets of weight zero are no targets.
      capacity: C, slots; at least min(W, V), so that all targets fit.

    Raises:
      ValueError: the capacity is below min(W, V) or above V.
    """
    vocab_size, k = neighbours.shape
    if not min(targets.shape[0], vocab_size) <= capacity <= vocab_size:
        raise ValueError(
            f"capacity is {capacity}, must be at least the {targets.shape[0]} masked positions of "
            f"a batch, all of which can be distinct targets, and at most the vocabulary of "
            f"{vocab_size}; change output_layer.capacity or the batch"
        )
    # rank[v]: 0 for targets, r if v is at best an r-th neighbour of some target, k + 1 if none.
    used = jnp.where(weights > 0, targets, vocab_size)  # vocab_size is out of range: dropped
    lists = jnp.where(weights[:, None] > 0, neighbours[targets], vocab_size)  # [W, K]
    rank = jnp.full(vocab_size, k + 1, jnp.int32)
    rank = rank.at[lists].min(jnp.arange(1, k + 1, dtype=jnp.int32), mode="drop")
    rank = rank.at[used].set(0, mode="drop")

    up_to_rank = jnp.cumsum(jnp.bincount(rank, length=k + 2)[: k + 1])  # [K + 1]
    # Ranks that fit whole; targets do, by the check above.
    num_whole = jnp.sum(up_to_rank <= capacity)
    room = capacity - up_to_rank[num_whole - 1]
    cut = rank == num_whole
    in_union = rank <= k
    keep = (rank < num_whole) | (cut & (jnp.cumsum(cut) <= room) & in_union)

    ids = jnp.nonzero(keep, size=capacity, fill_value=vocab_size)[0].astype(jnp.int32)
    slots = jnp.cumsum(keep, dtype=jnp.int32) - 1
    return Candidates(ids, slots[targets], up_to_rank[-1].astype(jnp.int32))
