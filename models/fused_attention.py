"""Fused self-attention with a gated relative position bias, for GPUs.

No array over all pairs of queries and keys is materialised. The forward pass iterates over blocks
of keys with a running softmax and keeps log Z_i, the log normalizer of each query (FlashAttention,
Dao et al. 2022); the backward pass recomputes the weights of a block,

    s_ij = q_i . k_j / sqrt(D) + g_i b_(j - i),    p_ij = exp(s_ij - log Z_i),
    ds_ij = p_ij (do_i . v_j - do_i . o_i),

in three kernels. Their programs accumulate in registers and write disjoint outputs:

    queries    a program for a block of queries: dq_i = sum_j ds_ij k_j / sqrt(D),
               dg_i = sum_j ds_ij b_(j - i)
    keys       a program for a block of keys: dk_j = sum_i ds_ij q_i / sqrt(D),
               dv_j = sum_i p_ij do_i
    distances  a program for the pairs of blocks equally far apart, of a group of G examples: the
               sum of g_i ds_ij over these pairs, whose diagonals are summed outside

For each pair of blocks the forward pass has 2 matrix products, the backward pass 3 + 4 + 2. The
sums of the last kernel, B / G * H * 2 L * block float32, are the largest array besides operands and
gradients. The table of distances is small enough that blocks of bias are read from the cache.

The kernels have been run in Pallas' interpret mode, lowered through Triton and compiled to machine
code for sm_80, sm_89 and sm_90. They have not been run or timed on a GPU.
"""

import functools
import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton as plgpu

# Finite, since a query may see no key of the first blocks, and -inf - -inf is NaN.
_MASKED = -1e30
# Segment of padding, distinct from those of tokens.
_NO_SEGMENT = -(2**31)
# Smallest dimension of a matrix product in a GPU kernel.
_MIN_BLOCK = 16
# Most examples over which one program of the distances kernel sums its pairs of blocks.
_MAX_GROUP = 8


class _Settings(NamedTuple):
    """Static settings: tokens per block, scale of q . k, whether to interpret the kernels."""

    block: int
    scale: float
    interpret: bool


class _Operands(NamedTuple):
    """Operands of attention; in kernels references to them, for one head and a group of G examples.

    Attributes:
      query, keys, values: [B, L, H, D]; in kernels [G, L, D].
      segments: [B, L]; in kernels [G, L].
      gate: [B, H, L], None without a table; in kernels [G, L].
      table: [H, 2 L], the bias of distance d at d + L; in kernels [2 L].
    """

    query: Any
    keys: Any
    values: Any
    segments: Any
    gate: Any
    table: Any


class _Saved(NamedTuple):
    """Residuals for the backward pass, besides the operands.

    Attributes:
      d_out: [B, L, H, D], the gradient of the output; in kernels [G, L, D].
      log_normalizer: [B, H, L] float32; in kernels [G, L].
      d_out_out: [B, H, L] float32, do_i . o_i; in kernels [G, L].
    """

    d_out: Any
    log_normalizer: Any
    d_out_out: Any


def gated_attention(
    query: jax.Array,
    keys: jax.Array,
    values: jax.Array,
    gate: jax.Array | None,
    by_distance: jax.Array | None,
    segments: jax.Array,
    *,
    block_size: int = 64,
    interpret: bool = False,
) -> jax.Array:
    """Self-attention, differentiable with respect to all arguments but `segments`.

    Scores are q . k / sqrt(D) + gate * bias of the distance, and their softmax is in float32. On a
    mesh, call it inside `jax.shard_map` over sequences (with `check_vma=False`), since the compiler
    does not partition kernels. Products follow `jax_default_matmul_precision`.

    Args:
      query, keys, values: [B, L, H, D], all float32 or all bfloat16.
      gate: [B, L, H] float32, factor of the bias for each query; None for 1.
      by_distance: [H, 2 N - 1] float32, N >= L: the bias of key j for query i at j - i + N - 1;
        None for no bias, and then the gate has no effect.
      segments: [B, L] int32, above the smallest int32: a query sees the keys of its own segment.
      block_size: tokens per block, a power of two from 16 on; fewer for a shorter L. L is padded to
        a multiple of it, and D to a power of two. Shared memory bounds it: 64 fit for D = 64 and,
        on sm_90, for D = 128.
      interpret: run the kernels without a GPU, slowly.

    Returns:
      [B, L, H, D] in the dtype of `values`.

    Raises:
      ValueError: shapes do not agree, or the dtype, number of distances or block size is invalid.
    """
    _check(query, keys, values, gate, by_distance, segments, block_size)
    length, head_size = query.shape[1], query.shape[3]
    block = min(block_size, max(_MIN_BLOCK, pl.next_power_of_2(length)))
    padding = -length % block
    wide = max(_MIN_BLOCK, pl.next_power_of_2(head_size)) - head_size
    query, keys, values = (
        jnp.pad(x, ((0, 0), (0, padding), (0, 0), (0, wide))) for x in (query, keys, values)
    )
    segments = jnp.pad(segments, ((0, 0), (0, padding)), constant_values=_NO_SEGMENT)
    table = None
    if by_distance is None:
        gate = None
    else:
        padded, distances = length + padding, (by_distance.shape[1] + 1) // 2
        # Negative padding crops the distances that do not occur.
        around = (padded + 1 - distances, padded - distances, 0)
        table = jax.lax.pad(by_distance, jnp.zeros((), by_distance.dtype), ((0, 0, 0), around))
        gate = jnp.ones(query.shape[:3], jnp.float32) if gate is None else gate
        gate = jnp.pad(gate, ((0, 0), (0, padded - gate.shape[1]), (0, 0))).swapaxes(1, 2)
    operands = _Operands(query, keys, values, segments, gate, table)
    out = _attend(operands, _Settings(block, 1 / math.sqrt(head_size), interpret))
    return out[:, :length, :, :head_size]


def _check(query, keys, values, gate, by_distance, segments, block_size: int) -> None:
    """Raise ValueError for operands that the kernels would misread."""
    shape, dtype = query.shape, query.dtype
    for name, x in (("keys", keys), ("values", values)):
        if x.shape != shape or x.dtype != dtype:
            raise ValueError(f"{name} are {x.dtype} {x.shape}, the query is {dtype} {shape}")
    if dtype not in (jnp.float32, jnp.bfloat16):
        raise ValueError(f"the query is {dtype}; fused attention takes float32 or bfloat16")
    if segments.shape != shape[:2]:
        raise ValueError(f"segments are {segments.shape}, tokens of the query {shape[:2]}")
    if gate is not None and gate.shape != shape[:3]:
        raise ValueError(f"the gate is {gate.shape}, rows of scores are {shape[:3]}")
    if by_distance is not None:
        heads, width = by_distance.shape
        if heads != shape[2] or width % 2 == 0 or (width + 1) // 2 < shape[1]:
            raise ValueError(
                f"by_distance is {by_distance.shape}; {shape[2]} heads and {shape[1]} tokens need "
                f"({shape[2]}, an odd number from {2 * shape[1] - 1})"
            )
    if block_size < _MIN_BLOCK or block_size & (block_size - 1):
        raise ValueError(f"block_size is {block_size}, not a power of two from {_MIN_BLOCK}")


@functools.partial(jax.custom_vjp, nondiff_argnums=(1,))
def _attend(operands: _Operands, settings: _Settings) -> jax.Array:
    """Attention [B, L, H, D] for L a multiple of the block size."""
    return _forward(operands, settings)[0]


def _forward(operands: _Operands, settings: _Settings):
    """Return the output, and the residuals for the backward pass."""
    batch_size, length, num_heads, _ = operands.query.shape
    block = settings.block
    out, log_normalizer = _call(
        _forward_kernel,
        (operands,),
        (operands.values, jax.ShapeDtypeStruct((batch_size, num_heads, length), jnp.float32)),
        (_token_block(operands, block), _row_block(block)),
        (length // block, num_heads, batch_size),
        settings,
    )
    return out, (operands, out, log_normalizer)


def _backward(settings: _Settings, residuals, d_out: jax.Array) -> tuple[_Operands]:
    """Gradients of the operands."""
    operands, out, log_normalizer = residuals
    d_out_out = jnp.einsum("blhd,blhd->bhl", d_out, out, preferred_element_type=jnp.float32)
    inputs = (operands, _Saved(d_out, log_normalizer, d_out_out))
    batch_size, length, num_heads, _ = operands.query.shape
    block = settings.block
    grid = (length // block, num_heads, batch_size)
    tokens, rows = _token_block(operands, block), _row_block(block)
    has_bias = operands.table is not None
    d_query, d_gate = _call(
        _queries_kernel,
        inputs,
        (operands.query, operands.gate),
        (tokens, rows if has_bias else None),
        grid,
        settings,
    )
    d_keys, d_values = _call(
        _keys_kernel, inputs, (operands.keys, operands.values), (tokens, tokens), grid, settings
    )
    d_table = _d_table(inputs, settings) if has_bias else None
    return (_Operands(d_query, d_keys, d_values, None, d_gate, d_table),)


_attend.defvjp(_forward, _backward)


def _d_table(inputs: tuple[_Operands, _Saved], settings: _Settings) -> jax.Array:
    """Gradient of the table, [H, 2 L]."""
    batch_size, length, num_heads, _ = inputs[0].query.shape
    block = settings.block
    num_blocks = length // block
    group = math.gcd(batch_size, _MAX_GROUP)
    grid = (num_blocks, num_heads, batch_size // group)
    shape = (batch_size // group, num_heads, 2, num_blocks, block, block)
    spec = pl.BlockSpec(
        (None, None, 2, None, block, block), lambda apart, h, s: (s, h, 0, apart, 0, 0)
    )
    sums = jax.ShapeDtypeStruct(shape, jnp.float32)
    (sums,) = _call(_distances_kernel, inputs, (sums,), (spec,), grid, settings, group)
    return _sums_of_diagonals(sums.sum(0).reshape(num_heads, 2 * num_blocks, block, block))


def _sums_of_diagonals(pairs: jax.Array) -> jax.Array:
    """Reduce sums over pairs of blocks to sums over distances.

    Args:
      pairs: [H, 2 n, block, block], at m the sums over pairs with the block of keys m - n blocks
        after that of queries; unused at 0.

    Returns:
      [H, 2 n block], with the sum of distance d at d + n block.
    """
    heads, num, block, _ = pairs.shape
    # Reading rows of 2 block elements as rows of 2 block - 1 shifts row block - 1 - i of the
    # flipped block that far to the right, so that columns become distances.
    skewed = jnp.pad(pairs[:, :, ::-1], ((0, 0), (0, 0), (0, 0), (0, block)))
    skewed = skewed.reshape(heads, num, -1)[:, :, : block * (2 * block - 1)]
    sums = skewed.reshape(heads, num, block, 2 * block - 1).sum(2)
    sums = jnp.pad(sums, ((0, 0), (0, 0), (1, 0)))
    before, after = sums[:, :, :block], sums[:, :, block:]
    before = jnp.pad(before[:, 1:], ((0, 0), (0, 1), (0, 0)))
    return (before + after).reshape(heads, num * block)


def _call(kernel, inputs, outputs, out_specs, grid, settings: _Settings, group: int = 1):
    """Run a kernel on a grid of (blocks, heads, groups of examples) with outputs as declared."""
    # Blocks of 64 tokens in float32 would spill the registers of 4 warps.
    num_warps = 4 if inputs[0].query.dtype == jnp.bfloat16 else 8
    return pl.pallas_call(
        functools.partial(kernel, settings=settings),
        grid=grid,
        in_specs=tuple(_specs(x, inputs[0].query.shape, group) for x in inputs),
        out_specs=out_specs,
        out_shape=jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), outputs),
        compiler_params=plgpu.CompilerParams(num_warps=num_warps, num_stages=2),
        interpret=settings.interpret,
        name=kernel.__name__.strip("_"),
    )(*inputs)


def _specs(arrays: _Operands | _Saved, shape: tuple[int, ...], group: int):
    """Block specs of a program's inputs: all tokens of one head and `group` examples."""
    length, head_size = shape[1], shape[3]
    tokens = pl.BlockSpec((group, length, None, head_size), lambda _, h, s: (s, 0, h, 0))
    rows = pl.BlockSpec((group, None, length), lambda _, h, s: (s, h, 0))
    if isinstance(arrays, _Saved):
        return _Saved(tokens, rows, rows)
    segments = pl.BlockSpec((group, length), lambda _, h, s: (s, 0))
    table = pl.BlockSpec((None, 2 * length), lambda _, h, s: (h, 0))
    has_bias = arrays.table is not None
    bias = (rows, table) if has_bias else (None, None)
    return _Operands(tokens, tokens, tokens, segments, *bias)


def _token_block(operands: _Operands, block: int) -> pl.BlockSpec:
    """Output block spec of an array [B, L, H, D]."""
    head_size = operands.query.shape[3]
    return pl.BlockSpec((None, block, None, head_size), lambda i, h, b: (b, i, h, 0))


def _row_block(block: int) -> pl.BlockSpec:
    """Output block spec of an array [B, H, L]."""
    return pl.BlockSpec((None, None, block), lambda i, h, b: (b, h, i))


def _forward_kernel(operands: _Operands, out_ref, log_normalizer_ref, *, settings: _Settings):
    """Compute the output of a block of queries."""
    i, block = pl.program_id(0), settings.block

    def add_keys(j, carry):
        top, total, mixed = carry
        scores = _scores(operands, 0, i, j, _bias(operands, j - i, block), settings)
        new_top = jnp.maximum(top, scores.max(axis=1))
        shrink = jnp.exp(top - new_top)
        weights = jnp.exp(scores - new_top[:, None])
        values = _rows(operands.values, 0, j, block)
        added = plgpu.dot(weights.astype(values.dtype), values)
        return new_top, total * shrink + weights.sum(axis=1), mixed * shrink[:, None] + added

    start = (
        jnp.full((block,), _MASKED, jnp.float32),
        jnp.zeros((block,), jnp.float32),
        jnp.zeros((block, operands.values.shape[2]), jnp.float32),
    )
    top, total, mixed = jax.lax.fori_loop(0, _num_blocks(operands, block), add_keys, start)
    out_ref[...] = (mixed / total[:, None]).astype(out_ref.dtype)
    log_normalizer_ref[...] = top + jnp.log(total)


def _queries_kernel(
    operands: _Operands, saved: _Saved, d_query_ref, d_gate_ref, *, settings: _Settings
):
    """Compute the gradients of a block of queries and of their gates."""
    i, block = pl.program_id(0), settings.block

    def add_keys(j, carry):
        d_query, d_gate = carry
        bias = _bias(operands, j - i, block)
        _, d_scores = _weights_and_d_scores(operands, saved, 0, i, j, bias, settings)
        keys = _rows(operands.keys, 0, j, block)
        d_query += plgpu.dot(d_scores.astype(keys.dtype), keys)
        if bias is not None:
            d_gate += (d_scores * bias).sum(axis=1)
        return d_query, d_gate

    start = (jnp.zeros(d_query_ref.shape, jnp.float32), jnp.zeros((block,), jnp.float32))
    d_query, d_gate = jax.lax.fori_loop(0, _num_blocks(operands, block), add_keys, start)
    d_query_ref[...] = (d_query * settings.scale).astype(d_query_ref.dtype)
    if d_gate_ref is not None:
        d_gate_ref[...] = d_gate


def _keys_kernel(
    operands: _Operands, saved: _Saved, d_keys_ref, d_values_ref, *, settings: _Settings
):
    """Compute the gradients of a block of keys and their values."""
    j, block = pl.program_id(0), settings.block

    def add_queries(i, carry):
        d_keys, d_values = carry
        bias = _bias(operands, j - i, block)
        weights, d_scores = _weights_and_d_scores(operands, saved, 0, i, j, bias, settings)
        query, d_out = _rows(operands.query, 0, i, block), _rows(saved.d_out, 0, i, block)
        d_keys += plgpu.dot(d_scores.astype(query.dtype), query, trans_a=True)
        d_values += plgpu.dot(weights.astype(d_out.dtype), d_out, trans_a=True)
        return d_keys, d_values

    zeros = jnp.zeros(d_keys_ref.shape, jnp.float32)
    start = (zeros, zeros)
    d_keys, d_values = jax.lax.fori_loop(0, _num_blocks(operands, block), add_queries, start)
    d_keys_ref[...] = (d_keys * settings.scale).astype(d_keys_ref.dtype)
    d_values_ref[...] = d_values.astype(d_values_ref.dtype)


def _distances_kernel(operands: _Operands, saved: _Saved, sums_ref, *, settings: _Settings):
    """Sum gated gradients of scores, [2, block, block], over pairs of blocks at equal distance.

    Program w sums the n - w pairs with keys w blocks after the queries, at index 1, and the w pairs
    with keys n - w blocks before them, at index 0, so that all programs do equal work.
    """
    later, block = pl.program_id(0), settings.block
    num_blocks = _num_blocks(operands, block)

    def pairs(first, last, apart):
        bias = _bias(operands, apart, block)

        def add_example(example, total):
            def add_pair(i, total):
                _, d_scores = _weights_and_d_scores(
                    operands, saved, example, i, i + apart, bias, settings
                )
                return total + d_scores * _rows(operands.gate, example, i, block)[:, None]

            return jax.lax.fori_loop(first, last, add_pair, total)

        zeros = jnp.zeros((block, block), jnp.float32)
        return jax.lax.fori_loop(0, operands.query.shape[0], add_example, zeros)

    sums_ref[0] = pairs(num_blocks - later, num_blocks, later - num_blocks)
    sums_ref[1] = pairs(0, num_blocks - later, later)


def _num_blocks(operands: _Operands, block: int) -> int:
    return operands.query.shape[1] // block


def _rows(ref, example, index, block: int):
    """Read block `index` of the tokens of an example."""
    return ref[example, pl.ds(index * block, block)]


def _bias(operands: _Operands, apart, block: int):
    """Ungated bias [block, block] for keys `apart` blocks after the queries, or None."""
    if operands.table is None:
        return None
    tokens = jnp.arange(block, dtype=jnp.int32)
    center = operands.table.shape[0] // 2
    return operands.table[tokens[None, :] - tokens[:, None] + (apart * block + center)]


def _scores(operands: _Operands, example, i, j, bias, settings: _Settings):
    """Scores [block, block] float32 of queries of block i and keys of block j."""
    block = settings.block
    query, keys = _rows(operands.query, example, i, block), _rows(operands.keys, example, j, block)
    scores = plgpu.dot(query, keys, trans_b=True) * settings.scale
    if bias is not None:
        scores += _rows(operands.gate, example, i, block)[:, None] * bias
    of_query = _rows(operands.segments, example, i, block)
    of_keys = _rows(operands.segments, example, j, block)
    return jnp.where(of_query[:, None] == of_keys[None, :], scores, _MASKED)


def _weights_and_d_scores(operands: _Operands, saved: _Saved, example, i, j, bias, settings):
    """Attention weights and gradients of the scores, [block, block] float32."""
    block = settings.block
    scores = _scores(operands, example, i, j, bias, settings)
    weights = jnp.exp(scores - _rows(saved.log_normalizer, example, i, block)[:, None])
    d_out, values = _rows(saved.d_out, example, i, block), _rows(operands.values, example, j, block)
    d_weights = plgpu.dot(d_out, values, trans_b=True)
    return weights, weights * (d_weights - _rows(saved.d_out_out, example, i, block)[:, None])
