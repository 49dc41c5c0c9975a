"""Multi-head attention: self- and cross-attention with masks, biases and a decoding cache."""

import functools
from typing import NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp

from xlm.models.flash_attention import dropout_words, flash_attention
from xlm.models.layers import dense, norm
from xlm.models.layout import HEADS, SEQUENCES, num_batch_shards, on_each_shard
from xlm.models.positions import DistanceBias, RowGate, rotate
from xlm.models.segment_attention import segment_attention
from xlm.models.segments import SegmentMask, causal_mask, in_reach, segment_mask, window_mask
from xlm.models.settings import Kernel
from xlm.models.softmax_attention import attend, attention_weights

# Most queries per block of `_blockwise` attention.
_BLOCK = 128
# Longest sequence for which plain attention within segments holds the weights of all pairs.
LONGEST_AT_ONCE = 1024


class KeysValues(NamedTuple):
    """Keys and values of a sequence, each [B, K, H, D / H]."""

    keys: jax.Array
    values: jax.Array


class Cache(NamedTuple):
    """Keys and values [B, H, C, D / H] of the `length` tokens decoded so far, of fixed capacity C.

    The caller keeps `length` within C. Caches of several layers have a leading axis. Heads come
    before tokens: on a CPU, a product with one query reads this order several times faster.
    """

    keys: jax.Array
    values: jax.Array
    length: jax.Array

    @property
    def capacity(self) -> int:
        """C, the number of tokens that fit."""
        return self.keys.shape[-2]

    def keys_values(self) -> KeysValues:
        """Return all keys and values, including unused entries."""
        return KeysValues(self.keys.swapaxes(1, 2), self.values.swapaxes(1, 2))

    def appended(self, new: KeysValues) -> "Cache":
        """Return a copy with T more tokens, [B, T, H, D / H]."""
        put = functools.partial(jax.lax.dynamic_update_slice_in_dim, axis=2)
        return Cache(
            keys=put(self.keys, new.keys.swapaxes(1, 2), self.length),
            values=put(self.values, new.values.swapaxes(1, 2), self.length),
            length=self.length + new.keys.shape[1],
        )

    def grown(self, capacity: int) -> "Cache":
        """Return a copy with room for `capacity` tokens, C or more."""
        room = [(0, 0)] * (self.keys.ndim - 2) + [(0, capacity - self.capacity), (0, 0)]
        return self._replace(keys=jnp.pad(self.keys, room), values=jnp.pad(self.values, room))


class Attention(nn.Module):
    """Attention with queries of one sequence, and keys and values of the same or another.

    Attributes:
      hidden_size, num_heads: D and H, which divides D.
      dropout_rate: on attention weights.
      kernel: "xla" and "blockwise" run on any backend. "xla" holds the weights of all pairs in
        training with dropout, "blockwise" those of a block of queries. "flash" runs
        `flash_attention` on a GPU. It takes any `SegmentMask` or mask of keys [B, 1, 1, K], with
        any bias by distances of indices. "splash" runs `segment_attention` on a TPU. It takes
        self-attention within segments without bias or dropout. "flash" and "splash" leave other
        attention to "xla", and with dropout to "blockwise".
      rotary_theta: of `positions.rotate`, 0 for none.
      is_gated: whether a `positions.RowGate` scales the bias.
      initializer, depth: see `layers.dense`.
      half_window: tokens on each side that a query sees; 0 for all.
      qk_norm, norm_epsilon: `layers.norm` over each head of queries and keys, "" for none.
    """

    hidden_size: int
    num_heads: int
    dropout_rate: float
    dtype: str
    kernel: Kernel
    rotary_theta: float = 0.0
    is_gated: bool = False
    initializer: str = "normal"
    depth: int = 0
    half_window: int = 0
    use_bias: bool = True
    qk_norm: str = ""
    norm_epsilon: float = 1e-5

    def setup(self):
        build = functools.partial(
            dense, self.hidden_size, dtype=self.dtype, kind=self.initializer, use_bias=self.use_bias
        )
        self.query, self.key, self.value = (build(axes=("embed", "heads")) for _ in range(3))
        self.output = build(axes=("heads", "embed"), depth=self.depth)
        if self.qk_norm:
            self.query_norm, self.key_norm = (
                norm(self.qk_norm, self.dtype, self.norm_epsilon, axis=None) for _ in range(2)
            )
        if self.is_gated:
            self.gate = RowGate()

    def empty_cache(self, batch_size: int, capacity: int) -> Cache:
        """Return an empty cache for `capacity` tokens of each of `batch_size` sequences."""
        head_size = self.hidden_size // self.num_heads
        shape = (batch_size, self.num_heads, capacity, head_size)
        return Cache(jnp.zeros(shape, self.dtype), jnp.zeros(shape, self.dtype), jnp.int32(0))

    def keys_values(self, x: jax.Array, positions: jax.Array | None = None) -> KeysValues:
        """Project [B, K, D] to keys, rotated by any positions [B, K] int32, and values."""
        keys = self._by_head(self.key(x))
        keys = self.key_norm(keys) if self.qk_norm else keys
        return KeysValues(self._rotated(keys, positions), self._by_head(self.value(x)))

    def _rotated(self, x: jax.Array, positions: jax.Array | None) -> jax.Array:
        if positions is None or not self.rotary_theta:
            return x
        return rotate(x, positions, self.rotary_theta)

    @nn.compact  # for the name of the dropout, which is part of its random key
    def __call__(
        self, x: jax.Array, *, context: jax.Array | KeysValues | None = None,
        mask: jax.Array | SegmentMask | None = None,
        bias: jax.Array | DistanceBias | None = None, positions: jax.Array | None = None,
        cache: Cache | None = None, deterministic: bool,
    ) -> tuple[jax.Array, Cache | None]:  # fmt: skip
        """Apply attention of `x` [B, Q, D] to itself, to `context`, or to `cache` and itself.

        Returns [B, Q, D], and any cache extended by the tokens of `x`. A context excludes a cache.

        Args:
          context: the attended sequence [B, K, D], or its `keys_values`; None for self-attention.
          mask: bool that broadcasts to [B, H, Q, K], or its factors, which kernels read. With a
            cache only the former.
          bias: float that broadcasts to [B, H, Q, K], or its factors, to add to the scores. Any
            gate scales it.
          positions: [B, Q] int32 of `x`, to rotate by; None for cross-attention.
          cache: of the tokens before `x`. Attention over `x` is then causal, and K is C.
          deterministic: no dropout; otherwise the module needs a "dropout" random stream.
        """
        source = x if context is None else context
        query = self._by_head(self.query(x))
        query = self.query_norm(query) if self.qk_norm else query
        gate = self.gate(query) if self.is_gated and bias is not None else None
        query = self._rotated(query, positions)
        pair = source if isinstance(source, KeysValues) else self.keys_values(source, positions)
        if cache is not None:
            assert not isinstance(mask, SegmentMask)
            so_far = causal_mask(x.shape[1], cache.capacity, first=cache.length)
            mask = so_far if mask is None else mask & so_far
            if self.half_window:
                sizes = x.shape[1], cache.capacity
                mask &= window_mask(*sizes, self.half_window, first=cache.length)
            cache = cache.appended(pair)
            pair = cache.keys_values()
        # Initialisation skips kernels, to derive shapes without a device. So does decoding, where
        # one query has no [Q, K] array to avoid.
        kernel = "xla" if self.is_initializing() or cache is not None else self.kernel
        mixed = self._mixed(query, pair, mask, bias, gate, deterministic, kernel, cache is not None)
        return self.output(mixed.reshape(x.shape)), cache

    def _mixed(
        self, query: jax.Array, pair: KeysValues, mask: jax.Array | SegmentMask | None,
        bias: jax.Array | DistanceBias | None, gate: jax.Array | None, deterministic: bool,
        kernel: Kernel, is_cached: bool,
    ) -> jax.Array:  # fmt: skip
        """Return values averaged by attention weights, [B, Q, H, D / H]."""
        has_dropout = bool(self.dropout_rate) and not deterministic
        if kernel == "flash":
            factors = _factors(query, pair.keys, mask)
            is_by_index = isinstance(bias, DistanceBias) and bias.positions is None
            if factors is not None and (bias is None or is_by_index):
                by_distance = None if bias is None else bias.by_distance  # type: ignore[union-attr]
                return self._flash(query, pair, factors, by_distance, gate, has_dropout)
        if isinstance(mask, SegmentMask) and mask.is_own and bias is None:
            segments = mask.segments
            if kernel == "splash" and not has_dropout:
                return _splash(query, pair, segments, self.half_window)
            near = in_reach(query, *pair, segments, self.half_window) if self.half_window else None
            if near is not None:
                mixed = self._with_dropout(*near) if has_dropout else attend(*near)
                return mixed.reshape(len(query), -1, *query.shape[2:])[:, : query.shape[1]]
            if query.shape[1] > LONGEST_AT_ONCE:
                key = self.make_rng("dropout") if has_dropout else None
                rate, half = self.dropout_rate, self.half_window
                return _blockwise(query, *pair, None, None, None, key, rate, segments, half)
        if isinstance(mask, SegmentMask):
            mask = mask.matrix()
        if self.half_window and not is_cached:
            window = window_mask(query.shape[1], query.shape[1], self.half_window)
            mask = window if mask is None else mask & window
        if isinstance(bias, DistanceBias):
            bias = bias.matrix(num_batch_shards(len(query)))
        if bias is not None:
            _, num_queries, num_heads, _ = query.shape
            shape = (len(bias), num_heads, num_queries, pair.keys.shape[1])
            bias = jnp.broadcast_to(bias, shape)
        inputs = (query, *pair, mask, bias, gate)
        if has_dropout and kernel == "xla":
            return self._with_dropout(*inputs)
        if has_dropout or kernel == "blockwise":
            key = self.make_rng("dropout") if has_dropout else None
            return _blockwise(*inputs, key, self.dropout_rate)
        return attend(*inputs)

    def _flash(
        self, query: jax.Array, pair: KeysValues, mask: SegmentMask, by_distance: jax.Array | None,
        gate: jax.Array | None, has_dropout: bool,
    ) -> jax.Array:  # fmt: skip
        """Return attention [B, Q, H, D / H] by kernels on each device's shard."""
        batch_size, num_queries, num_heads, _ = query.shape
        words: tuple[jax.Array | None, jax.Array | None] = (None, None)
        if has_dropout:
            # Drawn for the whole batch, so that dropout does not depend on the devices.
            sizes = batch_size, num_heads, num_queries, pair.keys.shape[1]
            words = dropout_words(self.make_rng("dropout"), *sizes)
        by_head, of_words = (SEQUENCES, None, HEADS), (SEQUENCES, HEADS)
        axes = (*[by_head] * 3, *[(SEQUENCES,)] * 2, *[of_words] * 2, (HEADS,), by_head)
        attention = functools.partial(
            flash_attention, half_window=self.half_window, is_causal=mask.is_causal,
            dropout_rate=self.dropout_rate if has_dropout else 0.0,
        )  # fmt: skip
        of_keys = mask.segments if mask.of_keys is None else mask.of_keys
        inputs = (query, *pair, mask.segments, of_keys, *words, by_distance, gate)
        return on_each_shard(attention, inputs, axes, out_axes=by_head)

    def _with_dropout(
        self, query: jax.Array, keys: jax.Array, values: jax.Array, mask: jax.Array | None,
        bias: jax.Array | None = None, gate: jax.Array | None = None,
    ) -> jax.Array:  # fmt: skip
        weights = attention_weights(query, keys, mask, bias, gate)
        weights = nn.Dropout(self.dropout_rate)(weights, deterministic=False)
        return jnp.einsum("bhqk,bkhd->bqhd", weights, values)

    def _by_head(self, projected: jax.Array) -> jax.Array:
        """Reshape [B, L, D] to [B, L, H, D / H]."""
        return projected.reshape(*projected.shape[:2], self.num_heads, -1)


def _splash(query: jax.Array, pair: KeysValues, segments: jax.Array, half_window: int) -> jax.Array:
    """Return attention [B, Q, H, D / H] within segments by splash on each device's shard."""
    by_head = (SEQUENCES, None, HEADS)
    axes = (by_head, by_head, by_head, (SEQUENCES,))
    attention = functools.partial(segment_attention, half_window=half_window)
    return on_each_shard(attention, (query, *pair, segments), axes, out_axes=by_head)


def _factors(
    query: jax.Array, keys: jax.Array, mask: jax.Array | SegmentMask | None
) -> SegmentMask | None:
    """Return the factors of a mask, None if there are none."""
    if isinstance(mask, SegmentMask):
        return mask
    if mask is not None and mask.shape[1:3] != (1, 1):
        return None
    of_keys = jnp.int32(1) if mask is None else mask[:, 0, 0].astype(jnp.int32)
    of_queries = jnp.ones(query.shape[:2], jnp.int32)
    return SegmentMask(of_queries, jnp.broadcast_to(of_keys, keys.shape[:2]))


def _blockwise(
    query: jax.Array, keys: jax.Array, values: jax.Array, mask: jax.Array | None,
    bias: jax.Array | None, gate: jax.Array | None, key: jax.Array | None, dropout_rate: float,
    segments: jax.Array | None = None, half_window: int = 0,
) -> jax.Array:  # fmt: skip
    """Return attention [B, Q, H, D / H], holding the weights of a block of queries at a time.

    With a `key`, weights have dropout. Segments [B, L], with any window, replace a mask.
    """
    # The backward pass recomputes the weights of a block, with the same dropout key.
    num_queries = query.shape[1]
    size = max(n for n in range(1, min(num_queries, _BLOCK) + 1) if num_queries % n == 0)

    def blocks(x: jax.Array, axis: int) -> jax.Array:
        """Split [..., Q, ...] into [Q / size, ..., size, ...]."""
        shape = (*x.shape[:axis], -1, size, *x.shape[axis + 1 :])
        return jnp.moveaxis(x.reshape(shape), axis, 0)

    @functools.partial(jax.checkpoint, prevent_cse=False)
    def of_block(block) -> jax.Array:
        number, query, (mask, bias, gate), key = block
        if segments is not None:
            # The barrier makes the mask depend on the layer. Otherwise JAX hoists the masks of all
            # blocks, which are the same for all layers, out of the scan over layers.
            query, number = jax.lax.optimization_barrier((query, number))
            own = jax.lax.dynamic_slice_in_dim(segments, number * size, size, axis=1)
            mask = segment_mask(own, segments)
            if half_window:
                mask &= window_mask(size, segments.shape[1], half_window, number * size)
        if key is None:
            return attend(query, keys, values, mask, bias, gate)
        weights = attention_weights(query, keys, mask, bias, gate)
        is_kept = jax.random.bernoulli(key, 1 - dropout_rate, weights.shape)
        weights = jnp.where(is_kept, weights / (1 - dropout_rate), 0)
        return jnp.einsum("bhqk,bkhd->bqhd", weights, values)

    if mask is not None:
        mask = jnp.broadcast_to(mask, (*mask.shape[:2], num_queries, mask.shape[3]))
    rows = (
        None if mask is None else blocks(mask, 2),
        None if bias is None else blocks(bias, 2),
        None if gate is None else blocks(gate, 1),
    )
    number = num_queries // size
    keys_of_blocks = None if key is None else jax.random.split(key, number)
    by_block = (jnp.arange(number), blocks(query, 1), rows, keys_of_blocks)
    mixed = jnp.moveaxis(jax.lax.map(of_block, by_block), 0, 1)  # [B, Q / size, size, H, D / H]
    return mixed.reshape(*query.shape[:2], *mixed.shape[3:])
