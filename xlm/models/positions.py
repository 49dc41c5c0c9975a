"""Position encodings, for the three places where an encoder can take order into account.

- `LearnedPositions` add to the embeddings of the first layer (BERT, XLM-R).
- `rotate` rotates queries and keys by their positions (rotary embeddings, RoFormer).
- `DistanceTable` is a bias of the scores by signed distance of query and key, in T5's buckets. All
  layers share it. `RowGate` scales it per query in each layer (the gated relative position bias of
  XLM-E, arXiv 2106.16138, which XY-LENT uses).
"""

from typing import NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from flax.linen.spmd import with_logical_partitioning

from xlm.models.layers import INIT_STDDEV
from xlm.models.layout import gathered, split_batch


class LearnedPositions(nn.Module):
    """Learned position embeddings [max_length, D], to add to token embeddings (BERT)."""

    max_length: int
    hidden_size: int
    dtype: str

    @nn.compact
    def __call__(self, positions: jax.Array) -> jax.Array:
        """Map positions [B, L] int32 to [B, L, D]."""
        init = nn.initializers.normal(INIT_STDDEV)
        table = self.param(
            "positions",
            with_logical_partitioning(init, ("position", "embed")),
            (self.max_length, self.hidden_size),
        )
        return jnp.take(gathered(table), positions, axis=0).astype(self.dtype)


def rotate(x: jax.Array, positions: jax.Array, theta: float) -> jax.Array:
    """Rotate queries or keys [B, L, H, D], D even, by their positions [B, L] int32 (RoFormer).

    Elements i and i + D / 2 of a head are a point in a plane, which turns by the angle position *
    theta^(-2 i / D). Products of queries and keys then depend on distances. Wavelengths are at most
    2 pi theta^(1 - 2 / D).
    """
    half = x.shape[-1] // 2
    frequencies = theta ** (-np.arange(half) / half)
    angles = positions[:, :, None] * jnp.asarray(frequencies, jnp.float32)[None, None]
    angles = angles[:, :, None]  # [B, L, 1, D / 2]
    cos, sin = jnp.cos(angles), jnp.sin(angles)
    one, two = jnp.split(x.astype(jnp.float32), 2, axis=-1)
    turned = jnp.concatenate([one * cos - two * sin, two * cos + one * sin], axis=-1)
    return turned.astype(x.dtype)


def distance_buckets(num_buckets: int, max_distance: int, length: int) -> np.ndarray:
    """Return [2 N - 1] int, the bucket of each distance, key minus query, -(N - 1) to N - 1 (T5).

    Half of the `num_buckets`, a multiple of 4, are for keys after the query. Within a half, the
    first half of the buckets hold one distance each, and the others grow logarithmically. From
    `max_distance` on, all distances share the last bucket of their side.
    """
    half, exact = num_buckets // 2, num_buckets // 4
    distances = np.arange(1 - length, length)
    size = np.maximum(np.abs(distances), 1)
    steps = np.log(size / exact) / np.log(max_distance / exact) * (half - exact)
    # Keeps rounding from pushing the logarithm of an exact power below its whole number.
    far = np.minimum(exact + np.floor(steps + 1e-9).astype(int), half - 1)
    return np.where(np.abs(distances) < exact, np.abs(distances), far) + half * (distances > 0)


def slopes(num_heads: int) -> np.ndarray:
    """Return the slope [H] by which each head prefers near tokens: geometric from 1, above 2^-8."""
    return 2.0 ** (-np.arange(num_heads) * min(1, 8 / num_heads))


class DistanceBias(NamedTuple):
    """Bias of attention scores by distance, as the factors of an array [B, H, L, L].

    Attributes:
      by_distance: [H, 2 N - 1] float32, of the distances key minus query from -(N - 1) to N - 1.
      segments: [B, L] int32; tokens see their segment only.
      positions: [B, L] int32 below N, from which distances follow. None takes them from indices,
        for positions that are contiguous within a segment.
    """

    by_distance: jax.Array
    segments: jax.Array
    positions: jax.Array | None = None

    def matrix(self, num_groups: int = 1) -> jax.Array:
        """Return the bias [S, H, L, L], or [B, H, L, L] if it depends on the example.

        S is `num_groups`, one copy for each part of a batch. With it devices reduce gradients of
        [H, 2 L - 1] instead of [H, L, L].
        """
        zero = self.by_distance.shape[1] // 2
        if self.positions is not None:
            distances = self.positions[:, None, :] - self.positions[:, :, None]  # [B, L, L]
            return jnp.moveaxis(jnp.take(self.by_distance, distances + zero, axis=1), 0, 1)
        length = self.segments.shape[1]
        by_distance = self.by_distance[:, zero - length + 1 : zero + length]
        copies = jnp.broadcast_to(by_distance, (num_groups, *by_distance.shape))
        return by_index(split_batch(copies))


def by_index(by_distance: jax.Array) -> jax.Array:
    """Expand distances -(L - 1) to L - 1, [..., 2 L - 1], to a row for each query, [..., L, L]."""
    # Repeat a list of 2 L distances and reshape it to rows one shorter: each row shifts by one.
    # This needs no gather, and the gradient is a sum of rows, not a scatter.
    *others, num_distances = by_distance.shape
    length = num_distances // 2 + 1
    before, after = by_distance[..., : length - 1], by_distance[..., length - 1 :]
    unused = jnp.zeros_like(by_distance[..., :1])
    cycle = jnp.concatenate([after, unused, before], axis=-1)  # distances modulo 2 L
    repeated = jnp.broadcast_to(cycle[..., None, :], (*others, length, 2 * length))
    flat = repeated.reshape(*others, -1)[..., : length * num_distances]
    return flat.reshape(*others, length, num_distances)[..., :length]


class DistanceTable(nn.Module):
    """Learned bias of each bucket of distances (`distance_buckets`) and each head.

    The initial bias of a bucket is -slope * `slopes` of the head * its mean distance, so training
    starts with a preference for near tokens. `max_length` is N.
    """

    num_heads: int
    num_buckets: int
    max_distance: int
    slope: float
    max_length: int

    @nn.compact
    def __call__(self) -> jax.Array:
        """Return the bias of each distance, [H, 2 N - 1] float32."""
        table = self.param(
            "bias",
            with_logical_partitioning(lambda key, shape: self._first(), (None, None)),
            (self.num_buckets, self.num_heads),
        )
        buckets = distance_buckets(self.num_buckets, self.max_distance, self.max_length)
        return jnp.take(gathered(table), buckets, axis=0).T

    def _first(self) -> jax.Array:
        """Return the initial bias, [num_buckets, H] float32."""
        reach = self.max_distance + 1
        buckets = distance_buckets(self.num_buckets, self.max_distance, reach)
        distances = np.abs(np.arange(1 - reach, reach))
        sums = np.bincount(buckets, distances, self.num_buckets)
        counts = np.bincount(buckets, minlength=self.num_buckets)
        means = sums / np.maximum(counts, 1)
        return jnp.asarray(-self.slope * np.outer(means, slopes(self.num_heads)), jnp.float32)


class RowGate(nn.Module):
    """Factor of the bias for each query and head, of XLM-E's gated relative position bias.

    With vectors u, v and a number w of each head, a query q has the factor 1 + g_u + (1 - g_u) w
    g_v, where g_u = sigmoid(q . u) and g_v = sigmoid(q . v).
    """

    @nn.compact
    def __call__(self, query: jax.Array) -> jax.Array:
        """Map queries [B, L, H, D] to factors [B, L, H] float32."""

        def vector(name: str) -> jax.Array:
            init = nn.initializers.normal(INIT_STDDEV)
            boxed = with_logical_partitioning(init, (None, None))
            return gathered(self.param(name, boxed, query.shape[2:]))

        def gate(name: str) -> jax.Array:
            products = jnp.einsum(
                "blhd,hd->blh", query, vector(name).astype(query.dtype),
                preferred_element_type=jnp.float32,
            )  # fmt: skip
            return jax.nn.sigmoid(products)

        ones = with_logical_partitioning(nn.initializers.ones, (None,))
        scale = gathered(self.param("scale", ones, query.shape[2:3]))
        update, reset = gate("update"), gate("reset")
        return 1 + update + (1 - update) * scale[None, None] * reset
