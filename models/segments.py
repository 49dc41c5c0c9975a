"""Segments and positions of packed sequences, derived from the tokens."""

import jax
import jax.numpy as jnp


def packed_segments(
    tokens: jax.Array, *, bos: int, pad: int, across_documents: bool
) -> tuple[jax.Array, jax.Array]:
    """Segment number and position of every token of packed sequences.

    Args:
      tokens: [B, L] int32 sequences of segments `<s> ... </s>`, then padding.
      bos, pad: ids of `<s>` and padding.
      across_documents: treat a whole sequence as one segment, so that attention crosses documents.

    Returns:
      segments [B, L] int32, 1, 2, ... along a sequence and 0 for padding; positions [B, L] int32,
      counted from the beginning of the segment.
    """
    index = jnp.broadcast_to(jnp.arange(tokens.shape[1], dtype=jnp.int32), tokens.shape)
    is_text = tokens != pad
    if across_documents:
        return is_text.astype(jnp.int32), index
    is_start = tokens == bos
    segments = jnp.cumsum(is_start, axis=1, dtype=jnp.int32) * is_text
    start = jax.lax.cummax(jnp.where(is_start, index, 0), axis=1)
    return segments, index - start
