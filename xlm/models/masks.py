"""Attention masks: bool, True where a query sees a key, broadcast to [B, H, Q, K].

Combine them by `&`.
"""

import jax
import jax.numpy as jnp


def segment_mask(segments: jax.Array, of_keys: jax.Array | None = None) -> jax.Array:
    """Return the mask [B, 1, Q, K] of tokens that see their own segment, `segments` [B, Q] int32.

    `of_keys` [B, K] int32 are segments of another sequence's keys.
    """
    of_keys = segments if of_keys is None else of_keys
    return segments[:, None, :, None] == of_keys[:, None, None, :]


def causal_mask(num_queries: int, num_keys: int, first: jax.Array | int = 0) -> jax.Array:
    """Return the mask [1, 1, Q, K] of tokens that see themselves and all tokens before them.

    `first` is the index of the first query among the keys, scalar.
    """
    queries = first + jnp.arange(num_queries)
    return (queries[:, None] >= jnp.arange(num_keys)[None, :])[None, None]
