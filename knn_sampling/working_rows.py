"""The rows of the embedding table that a step touches, as a small table of their own.

A step reads the rows of V' and of its input tokens, a small part of a large vocabulary. Gathered
once, they stand in for the table: the model looks its tokens up in them, the output layer finds V'
at their beginning, the gradient has R rows instead of V, and so have the optimizer's update and
the sum of gradients over devices. No array of [V, E] is made on the way.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from knn_sampling.candidates import marked


class WorkingRows(NamedTuple):
    """Which rows, and where the step's words stand among them.

    Attributes:
      ids: [R] int32 distinct rows of the table; unused slots hold V.
      tokens: [B, L] int32, row of each input token.
      candidates: [G, C] int32, row of each candidate, R for unused slots; None if there is one
        group, whose candidates are rows 0 to C - 1.
    """

    ids: jax.Array
    tokens: jax.Array
    candidates: jax.Array | None


def working_rows(candidate_ids: jax.Array, tokens: jax.Array, vocab_size: int) -> WorkingRows:
    """The rows of all candidates, then those of the tokens that are no candidates.

    Args:
      candidate_ids: [G, C] int32, unused slots V.
      tokens: [B, L] int32.
      vocab_size: V.

    Returns:
      R = min(G C, V) + min(B L, V) rows, so that any batch fits; [B, L] and [G, C] places in them.
    """
    num_groups, capacity = candidate_ids.shape
    is_candidate = marked(candidate_ids, vocab_size)
    if num_groups == 1:
        union = candidate_ids[0]
    else:
        union = _numbered(is_candidate, min(num_groups * capacity, vocab_size))
    rest = _numbered(marked(tokens, vocab_size) & ~is_candidate, min(tokens.size, vocab_size))
    ids = jnp.concatenate([union, rest])
    num_rows = ids.shape[0]
    places = jnp.full(vocab_size, num_rows, jnp.int32)
    places = places.at[ids].set(jnp.arange(num_rows, dtype=jnp.int32), mode="drop")
    if num_groups == 1:
        return WorkingRows(ids, places[tokens], None)
    candidates = places.at[candidate_ids].get(mode="fill", fill_value=num_rows)
    return WorkingRows(ids, places[tokens], candidates)


def _numbered(chosen: jax.Array, size: int) -> jax.Array:
    """[size] int32 ids of the chosen words; the rest holds V."""
    return jnp.nonzero(chosen, size=size, fill_value=chosen.shape[0])[0].astype(jnp.int32)
