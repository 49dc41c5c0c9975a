"""Attention masks, to be combined by `&`.

A mask is bool, True where a query sees a key, and broadcasts to [B, H, Q, K].
"""

import jax
import jax.numpy as jnp


def segment_mask(segments: jax.Array, of_keys: jax.Array | None = None) -> jax.Array:
    """Mask of tokens that see their own segment.

    Args:
      segments: [B, Q] int32.
      of_keys: [B, K] int32 segments of the keys of another sequence; `segments` if None.

    Returns:
      [B, 1, Q, K] bool.
    """
    of_keys = segments if of_keys is None else of_keys
    return segments[:, None, :, None] == of_keys[:, None, None, :]


def causal_mask(num_queries: int, num_keys: int, first: jax.Array | int = 0) -> jax.Array:
    """Mask of tokens that see themselves and all tokens before them.

    Args:
      first: index of the first query among the keys, scalar.

    Returns:
      [1, 1, Q, K] bool.
    """
    queries = first + jnp.arange(num_queries)
    return (queries[:, None] >= jnp.arange(num_keys)[None, :])[None, None]
