"""Segments of packed sequences: positions, attention masks [B, H, Q, K], means over them."""

import dataclasses

import jax
import jax.numpy as jnp

# Least queries of a block of local attention.
_LEAST_BLOCK = 64
# Segment of padding added to blocks, distinct from those of tokens.
NO_SEGMENT = -(2**31)


def packed_segments(
    tokens: jax.Array, *, bos: int, pad: int, across_documents: bool
) -> tuple[jax.Array, jax.Array]:
    """Return segments and positions [B, L] int32 of packed sequences [B, L] int32.

    A sequence is segments `<s> ... </s>`, then padding. Segments count 1, 2, ... along a sequence,
    0 for padding. Positions count from the start of the segment. `across_documents` makes a whole
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

    Segments and positions, [B, L] int32, are those of `packed_segments`. Returns both for the split
    sequences, and halves [B, L] int32: 1 or 2, 0 for padding.
    """
    index = jnp.arange(segments.shape[1], dtype=jnp.int32)[None]
    middle = segments.shape[1] // 2
    is_second = jnp.broadcast_to(index >= middle, segments.shape)
    is_text = segments > 0
    start = index - positions
    start = jnp.where(is_second, jnp.maximum(start, middle), start)
    halves = (1 + is_second) * is_text
    # Each segment has two numbers, and uses one of them if it does not cross the middle.
    numbers = (2 * segments - 1 + is_second) * is_text
    return numbers.astype(jnp.int32), index - start, halves.astype(jnp.int32)


def segment_mask(segments: jax.Array, of_keys: jax.Array | None = None) -> jax.Array:
    """Return the mask [B, 1, Q, K] of tokens that see their own segment.

    `segments` are [B, Q] int32. `of_keys` [B, K] int32 are those of another sequence, if any.
    """
    of_keys = segments if of_keys is None else of_keys
    return segments[:, None, :, None] == of_keys[:, None, None, :]


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class SegmentMask:
    """Mask of attention within segments, as the factors of an array [B, 1, Q, K].

    Attributes:
      segments, of_keys: see `segment_mask`.
      is_causal: whether tokens see only themselves and earlier ones.
    """

    segments: jax.Array
    of_keys: jax.Array | None = None
    is_causal: bool = dataclasses.field(default=False, metadata={"static": True})

    @property
    def is_own(self) -> bool:
        """Whether tokens see all of their own segment."""
        return self.of_keys is None and not self.is_causal

    def matrix(self) -> jax.Array:
        """Return the mask [B, 1, Q, K]."""
        mask = segment_mask(self.segments, self.of_keys)
        return mask & causal_mask(*mask.shape[2:]) if self.is_causal else mask


def other_segment_mask(segments: jax.Array) -> SegmentMask:
    """Return the mask of tokens that see the other segment of their pair.

    The pairs of `segments` [B, L] int32 are 1 and 2, 3 and 4, and so on; 0 is padding.
    """
    others = jnp.where(segments > 0, ((segments - 1) ^ 1) + 1, NO_SEGMENT)
    return SegmentMask(others, segments)


def causal_mask(num_queries: int, num_keys: int, first: jax.Array | int = 0) -> jax.Array:
    """Return the mask [1, 1, Q, K] of tokens that see themselves and all tokens before them."""
    queries = first + jnp.arange(num_queries)  # as indices of the keys
    return (queries[:, None] >= jnp.arange(num_keys)[None, :])[None, None]


def window_mask(
    num_queries: int, num_keys: int, half: int, first: jax.Array | int = 0
) -> jax.Array:
    """Return the mask [1, 1, Q, K] of tokens that see tokens at a distance of at most `half`."""
    queries = first + jnp.arange(num_queries)  # as indices of the keys
    return (jnp.abs(queries[:, None] - jnp.arange(num_keys)[None, :]) <= half)[None, None]


def in_reach(
    query: jax.Array, keys: jax.Array, values: jax.Array, segments: jax.Array, half: int
) -> tuple[jax.Array, jax.Array, jax.Array, jax.Array] | None:
    """Regroup self-attention by blocks of C queries with the keys in their reach.

    None if a block reaches as many keys as the sequence has: regrouping would gain nothing.

    Args:
      query, keys, values: [B, L, H, D].
      segments: [B, L] int32; tokens see their segment only.
      half: distance up to which a token sees others.

    Returns:
      Queries [B N, C, H, D], keys and values [B N, C + 2 half, H, D] and the mask
      [B N, 1, C, C + 2 half] of N blocks, the last of which is padded.
    """
    num_sequences, length = segments.shape
    parts = -(-_LEAST_BLOCK // half)  # of a block, each of `half` tokens
    size = parts * half
    if size + 2 * half >= length:
        return None
    padding = -length % size
    number = (length + padding) // size

    def own(x: jax.Array, fill: int = 0) -> jax.Array:
        """Split [B, L, ...] into blocks [B, N, C, ...]."""
        x = _padded(x, 0, padding, fill)
        return x.reshape(num_sequences, number, size, *x.shape[2:])

    def near(x: jax.Array, fill: int = 0) -> jax.Array:
        """Return the tokens in reach of each block, [B, N, C + 2 half, ...]."""
        x = _padded(x, half, half + padding, fill)
        x = x.reshape(num_sequences, -1, half, *x.shape[2:])
        # The gradient of slices is a sum of slices, that of a gather a scatter.
        shifted = [x[:, i : i + parts * number : parts] for i in range(parts + 2)]
        return jnp.concatenate(shifted, axis=2)

    of_queries, of_keys = own(segments, NO_SEGMENT), near(segments, NO_SEGMENT)
    mask = of_queries[:, :, :, None] == of_keys[:, :, None, :]
    mask &= window_mask(size, size + 2 * half, half, first=half)
    blocks = (own(query), near(keys), near(values), mask[:, :, None])
    return tuple(x.reshape(-1, *x.shape[2:]) for x in blocks)  # type: ignore[return-value]


def _padded(x: jax.Array, before: int, behind: int, fill: int) -> jax.Array:
    padding = ((0, 0), (before, behind), *[(0, 0)] * (x.ndim - 2))
    return jnp.pad(x, padding, constant_values=fill)


def segment_means(
    hidden: jax.Array, is_used: jax.Array, segments: jax.Array, most: int
) -> jax.Array:
    """Average states [B, L, D] where `is_used` [B, L] by `segments` [B, L], numbers 1 to `most`.

    Returns [B, most, D] float32, zeros for segments without used tokens.
    """
    own = jax.nn.one_hot(segments - 1, most) * is_used[:, :, None]  # [B, L, S]
    exact = jax.lax.Precision.HIGHEST
    total = jnp.einsum("bls,bld->bsd", own, hidden.astype(jnp.float32), precision=exact)
    return total / jnp.maximum(own.sum(axis=1), 1)[:, :, None]


def mean_state(hidden: jax.Array, is_used: jax.Array) -> jax.Array:
    """Average states [B, L, D] where `is_used` [B, L] to [B, D] float32; zeros if none is used."""
    total = jnp.where(is_used[:, :, None], hidden.astype(jnp.float32), 0).sum(axis=1)
    return total / jnp.maximum(is_used.sum(axis=1), 1)[:, None]
