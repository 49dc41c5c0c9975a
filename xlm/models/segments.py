"""Segments of packed sequences: positions, attention masks [B, H, Q, K], means over them."""

import jax
import jax.numpy as jnp


def packed_segments(
    tokens: jax.Array, *, bos: int, pad: int, across_documents: bool
) -> tuple[jax.Array, jax.Array]:
    """Return segments and positions [B, L] int32 of packed sequences [B, L] int32.

    A sequence is segments `<s> ... </s>`, then padding. Segments are 1, 2, ... along a sequence, 0
    for padding. Positions count from the beginning of the segment. `across_documents` makes a whole
    sequence one segment, so attention crosses documents.
    """
    index = jnp.broadcast_to(jnp.arange(tokens.shape[1], dtype=jnp.int32), tokens.shape)
    is_text = tokens != pad
    if across_documents:
        return is_text.astype(jnp.int32), index
    is_start = tokens == bos
    segments = jnp.cumsum(is_start, axis=1, dtype=jnp.int32) * is_text
    start = jax.lax.cummax(jnp.where(is_start, index, 0), axis=1)
    return segments, index - start


def split_in_halves(
    segments: jax.Array, positions: jax.Array
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Split sequences in the middle, and the segment that crosses it into two.

    Segments (0 for padding) and positions, counted from the beginning of the segment, are [B, L]
    int32. Returns both for the split sequences, and halves [B, L] int32, 1 or 2, and 0 for padding.
    """
    index = jnp.arange(segments.shape[1], dtype=jnp.int32)[None]
    middle = segments.shape[1] // 2
    is_second = jnp.broadcast_to(index >= middle, segments.shape)
    is_text = segments > 0
    start = index - positions
    start = jnp.where(is_second, jnp.maximum(start, middle), start)
    halves = (1 + is_second) * is_text
    # Two numbers for each segment; a segment that does not cross the middle uses one of them.
    numbers = (2 * segments - 1 + is_second) * is_text
    return numbers.astype(jnp.int32), index - start, halves.astype(jnp.int32)


def segment_mask(segments: jax.Array, of_keys: jax.Array | None = None) -> jax.Array:
    """Return the mask [B, 1, Q, K] of tokens that see their own segment.

    `segments` are [B, Q] int32. `of_keys` [B, K] int32 are those of another sequence's keys, if
    any.
    """
    of_keys = segments if of_keys is None else of_keys
    return segments[:, None, :, None] == of_keys[:, None, None, :]


def other_segment_mask(segments: jax.Array) -> jax.Array:
    """Return the mask [B, 1, L, L] of tokens that see all other segments [B, L], not padding, 0."""
    return ((segments[:, :, None] != segments[:, None, :]) & (segments > 0)[:, None, :])[:, None]


def causal_mask(num_queries: int, num_keys: int, first: jax.Array | int = 0) -> jax.Array:
    """Return the mask [1, 1, Q, K] of tokens that see themselves and all tokens before them."""
    queries = first + jnp.arange(num_queries)  # as indices of the keys
    return (queries[:, None] >= jnp.arange(num_keys)[None, :])[None, None]


def mean_state(hidden: jax.Array, is_used: jax.Array) -> jax.Array:
    """Average states [B, L, D] where `is_used` [B, L] to [B, D] float32; zeros if none is used."""
    total = jnp.where(is_used[:, :, None], hidden.astype(jnp.float32), 0).sum(axis=1)
    return total / jnp.maximum(is_used.sum(axis=1), 1)[:, None]
