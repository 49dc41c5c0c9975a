"""Candidate set V': the classes in the softmax of a group of sequences (Eq. 5).

Each group of sequences has its V', so the loss does not depend on the number of devices. Every
function treats the G groups, of Wg targets each, independently.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp


class Candidates(NamedTuple):
    """Candidate sets of G groups in static shapes.

    Attributes:
      ids: [G, C] int32 ascending ids of V'; unused slots at the end hold V, an invalid id.
      labels: [G, Wg] int32 slot of each target in `ids`, arbitrary for a weight of zero.
      union_size: [G] int32 |V'| before the cut to C.
    """

    ids: jax.Array
    labels: jax.Array
    union_size: jax.Array

    def overflow(self) -> jax.Array:
        """Return the number of candidates dropped for lack of capacity, [G] int32."""
        return jnp.maximum(self.union_size - self.ids.shape[1], 0)


def union_of_neighbours(
    neighbours: jax.Array, targets: jax.Array, weights: jax.Array, capacity: int
) -> Candidates:
    """Return V' = union over targets w of {w} and I_k(w) (Eq. 5), for each group.

    Each target is in V' even if its own list misses it. If V' exceeds the capacity C, it keeps
    targets first, then the nearest neighbours of all targets, then the second nearest, and so on.
    The first rank that does not fit completely keeps smaller ids. The index is [V, K] int32,
    targets and `weights` are [G, Wg]. Targets of weight zero do not count. Raises ValueError if C
    is below min(Wg, V), so that targets may not fit, or above V.
    """
    vocab_size = neighbours.shape[0]
    used = jnp.where(weights > 0, targets, vocab_size)  # vocab_size is out of range: dropped
    lists = jnp.where(weights[..., None] > 0, neighbours[targets], vocab_size)  # [G, Wg, K]
    found = jnp.concatenate([lists, used[..., None]], axis=2)
    in_union = jax.vmap(marked, in_axes=(0, None))(found, vocab_size)
    union_size = in_union.sum(axis=1, dtype=jnp.int32)
    _check_capacity(capacity, targets.shape[1], vocab_size)
    # Ranking costs more than finding, and a good capacity rarely needs it.
    kept = jax.lax.cond(
        (union_size > capacity).any(),
        lambda: jax.vmap(_nearest, in_axes=(0, 0, None, None))(lists, used, vocab_size, capacity),
        lambda: in_union,
    )
    return _in_slots(kept, targets, union_size, capacity)


def union_of_classes(
    targets: jax.Array, weights: jax.Array, extra: jax.Array, vocab_size: int
) -> Candidates:
    """Return V' = the targets [G, Wg] of positive weight and the classes `extra` [G, S].

    Both are int32, S may be 0. The capacity is min(Wg + S, V), so V' never overflows.
    """
    used = jnp.where(weights > 0, targets, vocab_size)
    found = jnp.concatenate([used, extra], axis=1)
    kept = jax.vmap(marked, in_axes=(0, None))(found, vocab_size)
    capacity = min(targets.shape[1] + extra.shape[1], vocab_size)
    return _in_slots(kept, targets, kept.sum(axis=1, dtype=jnp.int32), capacity)


def marked(ids: jax.Array, vocab_size: int) -> jax.Array:
    """Return [V] bool: whether each id below V occurs in `ids` of any shape."""
    return jnp.zeros(vocab_size, bool).at[ids.reshape(-1)].set(True, mode="drop")


def _check_capacity(capacity: int, num_targets: int, vocab_size: int) -> None:
    smallest = min(num_targets, vocab_size)
    if not smallest <= capacity <= vocab_size:
        raise ValueError(
            f"capacity is {capacity}, must be at least {smallest}, the distinct targets that the "
            f"{num_targets} masked positions of a group of sequences can have, and at most the "
            f"vocabulary of {vocab_size}; change output_layer.capacity, output_layer.group_size or "
            "the batch"
        )


def _nearest(lists: jax.Array, used: jax.Array, vocab_size: int, capacity: int) -> jax.Array:
    """Return [V] bool: the candidates that one group keeps; lists [Wg, K], used [Wg]."""
    k = lists.shape[1]
    # rank[v]: 0 for targets, r for the r-th neighbour of a target at best, k + 1 for others.
    rank = jnp.full(vocab_size, k + 1, jnp.int32)
    rank = rank.at[lists].min(jnp.arange(1, k + 1, dtype=jnp.int32), mode="drop")
    rank = rank.at[used].set(0, mode="drop")
    up_to_rank = jnp.cumsum(jnp.bincount(rank, length=k + 2)[: k + 1])  # [K + 1]
    # Ranks that fit completely, at least that of the targets.
    num_whole = jnp.sum(up_to_rank <= capacity)
    room = capacity - up_to_rank[num_whole - 1]
    cut = rank == num_whole
    return (rank < num_whole) | (cut & (jnp.cumsum(cut) <= room) & (rank <= k))


def _in_slots(
    kept: jax.Array, targets: jax.Array, union_size: jax.Array, capacity: int
) -> Candidates:
    """Compact the mask of kept ids [G, V] into at most `capacity` slots."""
    vocab_size = kept.shape[1]
    slots = jnp.cumsum(kept, axis=1, dtype=jnp.int32) - 1
    all_ids = jnp.arange(vocab_size, dtype=jnp.int32)

    def fill(kept: jax.Array, slots: jax.Array) -> jax.Array:
        unused = jnp.full(capacity, vocab_size, jnp.int32)
        return unused.at[jnp.where(kept, slots, capacity)].set(all_ids, mode="drop")

    labels = jnp.take_along_axis(slots, targets, axis=1)
    return Candidates(jax.vmap(fill)(kept, slots), labels, union_size)
