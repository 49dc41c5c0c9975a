"""Working rows: the rows of the embedding table that a step touches, as a small table.

A step reads the rows of V' and of its input tokens, a small part of a large vocabulary. It gathers
them once in place of the table: the model embeds its tokens from them and the output layer finds V'
in them. The gradient, its all-reduce and the optimizer's update have R rows instead of V. No
intermediate array is [V, E].
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from knn_sampling.candidates import marked


class WorkingRows(NamedTuple):
    """Table rows of a step, and the indices of its tokens and candidates into them.

    Attributes:
      ids: [R] int32 distinct table rows; unused slots hold V.
      tokens: [B, L] int32, row of each input token.
      candidates: [G, C] int32, row of each candidate, R for unused slots and dropped candidates;
        None if the candidates are rows 0 to C - 1 of a single group.
      num_needed: scalar int32, number of rows for all candidates and tokens.
    """

    ids: jax.Array
    tokens: jax.Array
    candidates: jax.Array | None
    num_needed: jax.Array


def working_rows(
    candidate_ids: jax.Array,
    tokens: jax.Array,
    vocab_size: int,
    capacity: int,
    *,
    required: jax.Array,
) -> WorkingRows:
    """Select the table rows of all candidates and input tokens, at most R of them.

    Without a capacity R = min(G C, V) + min(B L, V), which fits any batch. In practice groups share
    most of their candidates and tokens: a capacity measured on a run makes R several times smaller.
    If a batch needs more, this keeps all tokens and targets, then candidates of smaller ids.
    Candidate ids are [G, C] int32, V in unused slots, tokens [B, L] int32. `required` are the W
    targets, which keep their rows if they are candidates. Raises ValueError for a capacity below
    min(B L + W, V).
    """
    num_groups, num_candidates = candidate_ids.shape
    most_candidates = min(num_groups * num_candidates, vocab_size)
    most_tokens = min(tokens.size, vocab_size)
    is_candidate, is_token = marked(candidate_ids, vocab_size), marked(tokens, vocab_size)
    num_needed = num_distinct_rows(candidate_ids, tokens, vocab_size)
    if capacity:
        check_capacity(capacity, tokens.size, required.size, vocab_size)
    if 0 < capacity < most_candidates + most_tokens:
        is_required = is_token | (is_candidate & marked(required, vocab_size))
        is_optional = is_candidate & ~is_required
        fits = jnp.cumsum(is_optional) <= capacity - is_required.sum()
        ids = _numbered(is_required | (is_optional & fits), capacity)
        candidates_lead = False
    else:
        candidates_lead = num_groups == 1
        first = candidate_ids[0] if candidates_lead else _numbered(is_candidate, most_candidates)
        ids = jnp.concatenate([first, _numbered(is_token & ~is_candidate, most_tokens)])
    num_rows = ids.shape[0]
    row_of = jnp.full(vocab_size, num_rows, jnp.int32)
    row_of = row_of.at[ids].set(jnp.arange(num_rows, dtype=jnp.int32), mode="drop")
    candidate_rows = None
    if not candidates_lead:
        candidate_rows = row_of.at[candidate_ids].get(mode="fill", fill_value=num_rows)
    return WorkingRows(ids, row_of[tokens], candidate_rows, num_needed)


def num_distinct_rows(candidate_ids: jax.Array, tokens: jax.Array, vocab_size: int) -> jax.Array:
    """Count the distinct rows of candidates and input tokens, scalar int32."""
    is_touched = marked(candidate_ids, vocab_size) | marked(tokens, vocab_size)
    return is_touched.sum(dtype=jnp.int32)


def check_capacity(capacity: int, num_tokens: int, num_targets: int, vocab_size: int) -> None:
    """Raise ValueError unless all tokens and targets of a batch fit into R rows."""
    if capacity < min(num_tokens + num_targets, vocab_size):
        raise ValueError(
            f"output_layer.row_capacity is {capacity}, must be at least "
            f"{min(num_tokens + num_targets, vocab_size)}: the {num_tokens} input tokens and "
            f"{num_targets} targets of a batch can have so many distinct rows of the vocabulary of "
            f"{vocab_size}; 0 sets no limit"
        )


def _numbered(chosen: jax.Array, size: int) -> jax.Array:
    """Return ids [size] int32 of the chosen rows; the rest holds V."""
    return jnp.nonzero(chosen, size=size, fill_value=chosen.shape[0])[0].astype(jnp.int32)
