"""Self-attention within segments by JAX's splash kernel, for TPUs.

The kernel computes attention by blocks with a running softmax (FlashAttention, Dao et al. 2022) and
recomputes weights for the gradient. It never holds an array over all pairs of queries and keys. It
takes masks and segments, but no bias of the scores and no dropout. We ran it in Pallas' interpret
mode and compiled it for TPU v5p in whole steps (docs/scaling.md). Not run or timed on a TPU.
"""

import functools

import jax
import jax.numpy as jnp
from jax.experimental.pallas.ops.tpu.splash_attention import (
    BlockSizes,
    FullMask,
    LocalMask,
    SegmentIds,
    make_splash_mha,
)
from jax.experimental.pallas.ops.tpu.splash_attention.splash_attention_mask import MultiHeadMask

from xlm.models.segments import NO_SEGMENT

# Lanes of a vector register, which divide the tokens of a block.
_LANES = 128
_MAX_BLOCK = 512


def segment_attention(
    query: jax.Array, keys: jax.Array, values: jax.Array, segments: jax.Array, *,
    half_window: int = 0, interpret: bool = False,
) -> jax.Array:  # fmt: skip
    """Return self-attention [B, L, H, D] in the dtype of `values`; no gradient for `segments`.

    Query, keys and values are [B, L, H, D], all float32 or all bfloat16. A query sees the keys of
    its own segment, [B, L] int32 above the smallest int32, within any `half_window`. Scores are
    q . k / sqrt(D), with a softmax in float32. `interpret` runs the kernel without a TPU, slowly.
    On a mesh, call this inside `jax.shard_map` over sequences (with `check_vma=False`), since the
    compiler does not partition kernels. Raises ValueError if shapes differ.
    """
    shape = query.shape
    if keys.shape != shape or values.shape != shape or segments.shape != shape[:2]:
        raise ValueError(
            f"query, keys, values and segments are {shape}, {keys.shape}, {values.shape} and "
            f"{segments.shape}; the kernel takes [B, L, H, D] three times and [B, L]"
        )
    padding = -shape[1] % _LANES
    query = (query * shape[-1] ** -0.5).astype(query.dtype)
    by_head = (
        jnp.pad(x, ((0, 0), (0, padding), (0, 0), (0, 0))).swapaxes(1, 2)
        for x in (query, keys, values)
    )
    segments = jnp.pad(segments, ((0, 0), (0, padding)), constant_values=NO_SEGMENT)
    attend = _kernel(shape[1] + padding, shape[2], half_window, interpret)
    out = jax.vmap(attend)(*by_head, SegmentIds(segments, segments))
    return out.swapaxes(1, 2)[:, : shape[1]].astype(values.dtype)


def _kernel(length: int, num_heads: int, half_window: int, interpret: bool):
    """Build attention of one example, [H, L, D] three times and segments -> [H, L, D]."""
    block = next(n for n in range(_MAX_BLOCK, 0, -_LANES) if length % n == 0)
    make = functools.partial(make_splash_mha, head_shards=1, q_seq_shards=1, interpret=interpret)
    sizes = BlockSizes(
        block_q=block, block_kv=block, block_kv_compute=block,
        block_q_dkv=block, block_kv_dkv=block, block_kv_dkv_compute=block,
        block_q_dq=block, block_kv_dq=block,
    )  # fmt: skip
    window = (half_window, half_window)
    mask = LocalMask((length, length), window, 0) if half_window else FullMask((length, length))
    return make(MultiHeadMask([mask] * num_heads), block_sizes=sizes)
