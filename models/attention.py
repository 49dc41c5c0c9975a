"""Multi-head attention: to itself or another sequence, masked, biased, cached."""

import functools
from typing import Literal, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp

from models.layers import dense
from models.masks import causal_mask

# Queries whose weights are held at a time where attention is computed block by block.
_BLOCK = 128


class KeysValues(NamedTuple):
    """Keys and values of a sequence, each [B, K, H, D / H]."""

    keys: jax.Array
    values: jax.Array


class Cache(NamedTuple):
    """Keys and values of the tokens decoded so far, in arrays with room for all.

    Attributes:
      keys, values: [B, C, H, D / H]; what lies behind the first `length` is not read.
      length: scalar int32, tokens so far; the caller sees to it that C suffice.
    """

    keys: jax.Array
    values: jax.Array
    length: jax.Array

    def appended(self, new: KeysValues) -> "Cache":
        """With T more tokens, [B, T, H, D / H]."""
        put = functools.partial(jax.lax.dynamic_update_slice_in_dim, axis=1)
        return Cache(
            keys=put(self.keys, new.keys, self.length),
            values=put(self.values, new.values, self.length),
            length=self.length + new.keys.shape[1],
        )


class Attention(nn.Module):
    """Queries of one sequence, keys and values of the same or of another.

    Attributes:
      hidden_size: D.
      num_heads: H, divides D.
      dropout_rate: on attention weights.
      dtype: of activations, "float32" or "bfloat16".
      kernel: "xla", or "cudnn" for the fused kernel of a GPU, which takes bfloat16; with dropout
        attention is computed by blocks of queries instead.
    """

    hidden_size: int
    num_heads: int
    dropout_rate: float
    dtype: str
    kernel: Literal["xla", "cudnn"]

    def setup(self):
        self.query, self.key, self.value = (
            dense(self.hidden_size, ("embed", "heads"), self.dtype) for _ in range(3)
        )
        self.output = dense(self.hidden_size, ("heads", "embed"), self.dtype)

    def empty_cache(self, batch_size: int, capacity: int) -> Cache:
        """A cache for `capacity` tokens of each of `batch_size` sequences."""
        head_size = self.hidden_size // self.num_heads
        shape = (batch_size, capacity, self.num_heads, head_size)
        return Cache(jnp.zeros(shape, self.dtype), jnp.zeros(shape, self.dtype), jnp.int32(0))

    def keys_values(self, x: jax.Array) -> KeysValues:
        """Keys and values of a sequence [B, K, D], to be attended to more than once."""
        return KeysValues(self._by_head(self.key(x)), self._by_head(self.value(x)))

    @nn.compact  # for the name of the dropout, which is part of its random key
    def __call__(
        self,
        x: jax.Array,
        *,
        context: jax.Array | KeysValues | None = None,
        mask: jax.Array | None = None,
        bias: jax.Array | None = None,
        cache: Cache | None = None,
        deterministic: bool,
    ) -> tuple[jax.Array, Cache | None]:
        """Attention of `x` to itself, to `context`, or to what is in `cache` and itself.

        Args:
          x: [B, Q, D].
          context: the other sequence, [B, K, D] or its `keys_values`; None for `x`.
          mask: bool that broadcasts to [B, H, Q, K], see `models.masks`.
          bias: float that broadcasts to [B, H, Q, K], added to the scores.
          cache: of the tokens before `x`, which are seen by all of it, while a token of `x` does
            not see those after it. K is then the capacity C.
          deterministic: no dropout; otherwise the "dropout" stream of random keys is needed.

        Returns:
          [B, Q, D]; the cache with the tokens of `x`, None without one.

        Raises:
          ValueError: both a context and a cache.
        """
        if context is not None and cache is not None:
            raise ValueError("attention to another sequence takes its keys_values, not a cache")
        source = x if context is None else context
        query = self._by_head(self.query(x))
        pair = source if isinstance(source, KeysValues) else self.keys_values(source)
        if cache is not None:
            so_far = causal_mask(x.shape[1], cache.keys.shape[1], first=cache.length)
            mask = so_far if mask is None else mask & so_far
            cache = cache.appended(pair)
            pair = KeysValues(cache.keys, cache.values)
        if deterministic or not self.dropout_rate:
            # The shapes of parameters can be had where there is no GPU, and what is decoded a
            # token at a time has no [Q, K] to save.
            plain = self.is_initializing() or cache is not None
            mixed = _fused(query, *pair, mask, bias, "xla" if plain else self.kernel)
        elif self.kernel == "cudnn":
            key = self.make_rng("dropout")
            mixed = _blockwise(query, *pair, mask, bias, key, self.dropout_rate)
        else:
            weights = _attention_weights(query, pair.keys, mask, bias)
            weights = nn.Dropout(self.dropout_rate)(weights, deterministic=False)
            mixed = jnp.einsum("bhqk,bkhd->bqhd", weights, pair.values)
        return self.output(mixed.reshape(x.shape)), cache

    def _by_head(self, projected: jax.Array) -> jax.Array:
        """[B, L, D] -> [B, L, H, D / H]."""
        return projected.reshape(*projected.shape[:2], self.num_heads, -1)


def _fused(
    query: jax.Array,
    keys: jax.Array,
    values: jax.Array,
    mask: jax.Array | None,
    bias: jax.Array | None,
    kernel: Literal["xla", "cudnn"],
) -> jax.Array:
    """Attention [B, Q, H, D / H] without dropout."""
    if kernel == "cudnn":
        # The kernel takes no other type, and both with all their queries.
        bias = None if bias is None else _for_all_queries(bias, query).astype(query.dtype)
        mask = None if mask is None else _for_all_queries(mask, query)
    return jax.nn.dot_product_attention(
        query, keys, values, bias=bias, mask=mask, implementation=kernel
    )


def _attention_weights(
    query: jax.Array, keys: jax.Array, mask: jax.Array | None, bias: jax.Array | None
) -> jax.Array:
    """Attention weights [B, H, Q, K] of queries and keys [B, L, H, D / H], for dropout on them."""
    scores = jnp.einsum("bqhd,bkhd->bhqk", query, keys, preferred_element_type=jnp.float32)
    scores = scores / jnp.sqrt(query.shape[-1])
    if bias is not None:
        scores += bias
    if mask is not None:
        scores = jnp.where(mask, scores, -1e30)
    return jax.nn.softmax(scores).astype(query.dtype)


def _blockwise(
    query: jax.Array,
    keys: jax.Array,
    values: jax.Array,
    mask: jax.Array | None,
    bias: jax.Array | None,
    key: jax.Array,
    dropout_rate: float,
) -> jax.Array:
    """Attention [B, Q, H, D / H] with dropout, never holding the weights of more than a block.

    The weights of a block of queries are computed again, and dropped again by the same key, for
    the backward pass. It stands in for the dropout of cuDNN's kernel, which is drawn by the number
    of calls on the device: not by a key, and in the backward pass of a loop over layers, which
    begins at the last one, for another layer than in the forward pass.
    """
    num_queries = query.shape[1]
    size = max(n for n in range(1, min(num_queries, _BLOCK) + 1) if num_queries % n == 0)

    def blocks(x: jax.Array, axis: int) -> jax.Array:
        """[..., Q, ...] -> [Q / size, ..., size, ...]."""
        shape = (*x.shape[:axis], -1, size, *x.shape[axis + 1 :])
        return jnp.moveaxis(x.reshape(shape), axis, 0)

    @functools.partial(jax.checkpoint, prevent_cse=False)
    def attend(block) -> jax.Array:
        query, others, key = block
        weights = _attention_weights(query, keys, others["mask"], others["bias"])
        is_kept = jax.random.bernoulli(key, 1 - dropout_rate, weights.shape)
        weights = jnp.where(is_kept, weights / (1 - dropout_rate), 0)
        return jnp.einsum("bhqk,bkhd->bqhd", weights, values)

    others = jax.tree.map(
        lambda x: blocks(_for_all_queries(x, query), 2), {"mask": mask, "bias": bias}
    )
    by_block = (blocks(query, 1), others, jax.random.split(key, num_queries // size))
    mixed = jnp.moveaxis(jax.lax.map(attend, by_block), 0, 1)  # [B, Q / size, size, H, D / H]
    return mixed.reshape(*query.shape[:2], *mixed.shape[3:])


def _for_all_queries(x: jax.Array, query: jax.Array) -> jax.Array:
    """A mask or bias [., ., 1 or Q, K] as [., ., Q, K]."""
    return jnp.broadcast_to(x, (*x.shape[:2], query.shape[1], x.shape[3]))
