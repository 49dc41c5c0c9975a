"""Attention masks: bool, True where a query sees a key, that broadcast to [B, H, Q, K]."""

import jax
import jax.numpy as jnp


def segment_mask(segments: jax.Array, of_keys: jax.Array | None = None) -> jax.Array:
    """Return the mask [B, 1, Q, K] of tokens that see their own segment.

    `segments` are [B, Q] int32. `of_keys` [B, K] int32 are those of another sequence's keys, if
    any.
    """
    of_keys = segments if of_keys is None else of_keys
    return segments[:, None, :, None] == of_keys[:, None, None, :]


def causal_mask(num_queries: int, num_keys: int, first: jax.Array | int = 0) -> jax.Array:
    """Return the mask [1, 1, Q, K] of tokens that see themselves and all tokens before them."""
    queries = first + jnp.arange(num_queries)  # as indices of the keys
    return (queries[:, None] >= jnp.arange(num_keys)[None, :])[None, None]
