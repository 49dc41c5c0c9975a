"""Attention within segments by blocks that stay on the chip of a GPU, with dropout and a bias.

FlashAttention (Dao, arXiv 2307.08691): a program takes a block of queries and loops over blocks of
keys with a running softmax. It stores the output and the logarithm of the softmax's sum. The
backward pass recomputes the weights, so memory never holds an array over all pairs. Programs skip
blocks of keys outside the reach of their queries, by segments or by a window.

Dropout needs no array of pairs either. Each query and each key of a head has a random word, and a
hash of the sum of two words decides on a pair. It depends on neither blocks nor devices.

Why Pallas' Triton backend, which JAX 0.11 deprecates: our tests interpret it on a CPU, and it
supports GPUs before Hopper. Mosaic GPU's interpreter in jax 0.10 refuses transposed blocks, and its
products need a Hopper. tokamax refuses dropout on Mosaic GPU, and its gradient of a bias is
[B, H, Q, K]. We compiled this for H100 but did not run it on a GPU. `fault` checks it at the start
of training.
"""

import functools
from collections import namedtuple
from collections.abc import Callable
from math import gcd, log2
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import pallas as pl

from xlm.models.positions import by_index
from xlm.models.segments import SegmentMask, window_mask
from xlm.models.softmax_attention import attention_weights

# Queries, and keys, of a block.
_BLOCK = 64
# Examples over which a program sums the gradient of a bias, at most.
_EXAMPLES = 8
# Masked scores, to base 2, and a bound below all others.
_MASKED, _LEAST = -1e30, -1e20
# Segments of the padding added here: above all others, and different, so they see no key.
_QUERY_PADDING, _KEY_PADDING = 2**31 - 2, 2**31 - 1
_LOG2_E = log2(np.e)


_Options = namedtuple("_Options", "scale half_window is_causal dropout_rate interpret")
# Arrays of a call, padded to blocks, or a program's parts of them: [B, Q, H, D] (keys and values
# [B, K, H, D]), [B, Q] or [B, K], then [B, H, Q] (columns [B, H, K]), `_tiles` and `_reach`. The
# backward pass adds the output's gradient, logarithms of sums and means of the weights' gradient.
_Inputs = namedtuple(
    "_Inputs", "query keys values of_queries of_keys rows columns gate tiles reach grad sums mean",
    defaults=(None, None, None, None),
)  # fmt: skip
# Blocks of a program.
_Queries = namedtuple("_Queries", "states segments words gate grad sums mean")
_Keys = namedtuple("_Keys", "states values segments words")


def flash_attention(
    query: jax.Array, keys: jax.Array, values: jax.Array, of_queries: jax.Array,
    of_keys: jax.Array, rows: jax.Array | None = None, columns: jax.Array | None = None,
    by_distance: jax.Array | None = None, gate: jax.Array | None = None, *,
    half_window: int = 0, is_causal: bool = False, dropout_rate: float = 0.0,
    interpret: bool = False,
) -> jax.Array:  # fmt: skip
    """Return attention [B, Q, H, D] of queries to the keys of their segment.

    Products have the inputs' dtype, float32 or bfloat16, and float32 sums. A query that sees no key
    gets zeros. On a mesh, call this inside `jax.shard_map` over sequences and heads, since the
    compiler does not partition kernels.

    Args:
      query: [B, Q, H, D], D at most 128.
      keys, values: [B, K, H, D].
      of_queries, of_keys: segments [B, Q] and [B, K] int32, below 2^31 - 2.
      rows, columns: `dropout_words` for dropout on the weights at `dropout_rate`, or None.
      by_distance: [H, 2 N - 1] float32, N at least Q = K: bias of the scores by distance of
        indices, key minus query, from -(N - 1) to N - 1.
      gate: [B, Q, H] float32, scales the bias of each query.
      half_window: largest distance of indices at which a query sees keys, 0 for any.
      is_causal: whether a query sees no key at a later index than its own.
      interpret: runs the kernels without a GPU, slowly.
    """
    _, num_queries, _, head_size = query.shape
    width = max(pl.next_power_of_2(head_size), 16)

    def tokens(x: jax.Array | None, axis: int = 1, fill: int = 0, more: int = 0) -> Any:
        if x is None or not (x.shape[axis] % _BLOCK or more):
            return x
        padding = [(0, 0)] * (x.ndim - 1) + [(0, more)]
        padding[axis] = (0, -x.shape[axis] % _BLOCK)
        return jnp.pad(x, padding, constant_values=fill)

    query, keys, values = (tokens(x, more=width - head_size) for x in (query, keys, values))
    inputs = _Inputs(
        query, keys, values,
        tokens(of_queries, fill=_QUERY_PADDING), tokens(of_keys, fill=_KEY_PADDING),
        tokens(rows, 2), tokens(columns, 2),
        None if gate is None else tokens(gate.swapaxes(1, 2), 2),
        None if by_distance is None else _tiles(by_distance, query.shape[1] // _BLOCK),
    )  # fmt: skip
    options = _Options(head_size**-0.5, half_window, is_causal, dropout_rate, interpret)
    return _attend(options, inputs)[:, :num_queries, :, :head_size]


def dropout_words(
    key: jax.Array, batch_size: int, num_heads: int, num_queries: int, num_keys: int
) -> tuple[jax.Array, jax.Array]:
    """Draw a word for each query and each key of a head, [B, H, Q] and [B, H, K] uint32."""
    words = jax.random.bits(key, (batch_size, num_heads, num_queries + num_keys), jnp.uint32)
    return words[..., :num_queries], words[..., num_queries:]


def is_kept(rows: jax.Array, columns: jax.Array, dropout_rate: float) -> jax.Array:
    """Return whether to keep weights, [..., Q, K] bool, by words [..., Q] and [..., K] uint32."""
    # Sums are uniform, but the four sums of two queries and two keys are related. Products and
    # shifts mix their bits: each bit of a sum changes about half of the upper bits, which decide.
    # The constants are those of the hash "lowbias32".
    x = rows[..., :, None] + columns[..., None, :]
    for shift, factor in ((16, 0x7FEB352D), (15, 0x846CA68B)):
        x = (x ^ (x >> shift)) * jnp.uint32(factor)
    return x >= jnp.uint32(round(dropout_rate * 2**32))


def _tiles(by_distance: jax.Array, number: int) -> jax.Array:
    """Spread [H, 2 N - 1] to the bias of blocks n - 1 before to n - 1 behind their queries.

    They are side by side, [1, (2 n - 1) _BLOCK, H, _BLOCK]: a few of the n^2 pairs of blocks.
    """
    zero, length = by_distance.shape[1] // 2, number * _BLOCK
    more = max(length - 1 - zero, 0)  # distances of padding
    by_distance = jnp.pad(by_distance, ((0, 0), (more, more)))
    by_distance = by_distance[:, zero + more - length + 1 : zero + more + length]
    parts = jnp.pad(by_distance, ((0, 0), (0, 1))).reshape(len(by_distance), -1, _BLOCK)
    tiles = by_index(jnp.concatenate([parts[:, :-1], parts[:, 1:, :-1]], axis=-1))
    return jnp.moveaxis(tiles.reshape(len(tiles), -1, _BLOCK), 0, 1)[None]


def _near(options: _Options, inputs: _Inputs) -> np.ndarray:
    """Return whether blocks of queries may see blocks of keys by their indices, bool."""
    rows, columns = (np.arange(x.shape[1] // _BLOCK) for x in (inputs.query, inputs.keys))
    apart = columns[None] - rows[:, None]
    near = (np.abs(apart) - 1) * _BLOCK < (options.half_window or np.inf)
    return near & (apart <= 0) if options.is_causal else near


def _reach(of_rows: jax.Array, of_columns: jax.Array, near: np.ndarray) -> jax.Array:
    """Return the first block that each may see, then the ends of their reach, [B, 2 N] int32."""
    rows, columns = (x.reshape(len(x), -1, _BLOCK) for x in (of_rows, of_columns))
    meet = rows.min(2)[:, :, None] <= columns.max(2)[:, None, :]
    meet &= columns.min(2)[:, None, :] <= rows.max(2)[:, :, None]
    meet &= near[None]
    first, last = jnp.argmax(meet, axis=2), jnp.argmax(meet[:, :, ::-1], axis=2)
    end = jnp.where(meet.any(axis=2), meet.shape[2] - last, first)
    return jnp.concatenate([first, end], axis=1).astype(jnp.int32)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _attend(options: _Options, inputs: _Inputs) -> jax.Array:
    return _forward(options, inputs)[0]


def _forward(options: _Options, inputs: _Inputs) -> tuple[jax.Array, tuple]:
    query = inputs.query
    sums = jax.ShapeDtypeStruct((len(query), *query.shape[2:0:-1]), jnp.float32)  # [B, H, Q]
    reach = _reach(inputs.of_queries, inputs.of_keys, _near(options, inputs))
    results = _call(options, inputs._replace(reach=reach), _forward_kernel, (query, sums), 2)
    return results[0], (inputs, *results)


def _backward(options: _Options, kept: tuple, grad: jax.Array) -> tuple[_Inputs]:
    inputs, out, sums = kept
    query, keys, values, of_queries, of_keys, _, _, gate, tiles, *_ = inputs
    mean = jnp.einsum("bqhd,bqhd->bhq", grad, out, preferred_element_type=jnp.float32)
    near = _near(options, inputs)
    reach = _reach(of_keys, of_queries, near.T)
    inputs = inputs._replace(reach=reach, grad=grad, sums=sums, mean=mean)
    keys, values = _call(options, inputs, _key_kernel, (keys, values), 4)
    inputs = inputs._replace(reach=_reach(of_queries, of_keys, near))
    if tiles is not None:
        examples = gcd(len(query), _EXAMPLES)
        like = jax.ShapeDtypeStruct((len(query) // examples, *tiles.shape[1:]), jnp.float32)
        found = _call(options, inputs, _tile_kernel, like, 3, examples)
        tiles = found.sum(axis=0, keepdims=True)
    query, gate = _call(options, inputs, _query_kernel, (query, gate), 3)
    return (_Inputs(query, keys, values, None, None, None, None, gate, tiles),)


_attend.defvjp(_forward, _backward)


def _call(
    options: _Options, inputs: _Inputs, kernel: Callable, like: Any, products: int,
    examples: int = 1,
) -> Any:  # fmt: skip
    """Run a kernel with a program for each block of the results, head and group of `examples`.

    `like` has the results' shapes. `products` is the number of matrix products of a pair of
    blocks, for counts of operations.
    """
    # Imported late: without this backend only `fault` reports it, and other kernels work.
    from jax.experimental.pallas import triton

    batch_size, _, num_heads, width = inputs.query.shape

    def whole(x: Any) -> pl.BlockSpec:
        """All tokens of the examples, [B, L, H, D], [B, H, L] or [B, L], or all tiles."""
        if x.ndim == 4:
            shape = (1 if x is inputs.tiles else examples, x.shape[1], None, x.shape[3])
            return pl.BlockSpec(shape, lambda i, h, b: (0 if x is inputs.tiles else b, 0, h, 0))
        if x.ndim == 3:
            return pl.BlockSpec((examples, None, x.shape[2]), lambda i, h, b: (b, h, 0))
        return pl.BlockSpec((examples, x.shape[1]), lambda i, h, b: (b, 0))

    def own(x: Any) -> pl.BlockSpec:
        """A program's block of [B, L, H, D] or [B, H, L]."""
        if len(x.shape) == 4:
            return pl.BlockSpec((None, _BLOCK, None, x.shape[3]), lambda i, h, b: (b, i, h, 0))
        return pl.BlockSpec((None, None, _BLOCK), lambda i, h, b: (b, h, i))

    pairs = int(_near(options, inputs).sum()) * _BLOCK**2
    flops = 2 * products * batch_size * num_heads * pairs * width
    number = jax.tree.leaves(like)[0].shape[1] // _BLOCK
    return pl.pallas_call(
        functools.partial(kernel, options), grid=(number, num_heads, batch_size // examples),
        in_specs=(jax.tree.map(whole, inputs),), out_specs=jax.tree.map(own, like),
        out_shape=jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), like),
        compiler_params=triton.CompilerParams(num_warps=4 if width <= 64 else 8, num_stages=2),
        interpret=options.interpret, name=f"flash{kernel.__name__}",
        metadata={"flops": str(flops)},
    )(inputs)  # fmt: skip


def _block(ref: Any, number: Any, example: Any) -> Any:
    """Load a block of the tokens of an example, if any."""
    if ref is None:
        return None
    tokens = pl.ds(number * _BLOCK, _BLOCK)
    return ref[example, tokens, :] if len(ref.shape) == 3 else ref[example, tokens]


def _queries(x: _Inputs, i: Any, example: Any = 0) -> _Queries:
    parts = (x.query, x.of_queries, x.rows, x.gate, x.grad, x.sums, x.mean)
    return _Queries(*(_block(ref, i, example) for ref in parts))


def _keys(x: _Inputs, j: Any, example: Any = 0) -> _Keys:
    return _Keys(*(_block(ref, j, example) for ref in (x.keys, x.values, x.of_keys, x.columns)))


def _bias(refs: _Inputs, apart: Any) -> Any:
    """Load the bias of keys `apart` blocks behind their queries, if any."""
    tiles = refs.tiles
    return None if tiles is None else _block(tiles, apart + tiles.shape[1] // _BLOCK // 2, 0)


def _span(refs: _Inputs, number: Any, example: Any = 0) -> tuple[Any, Any]:
    """Load the reach of a block: its first block and its end."""
    return refs.reach[example, number], refs.reach[example, refs.reach.shape[1] // 2 + number]


def _dot(one: jax.Array, other: jax.Array, axes: tuple[int, int]) -> jax.Array:
    """Multiply two blocks over one axis of each."""
    numbers = (((axes[0],), (axes[1],)), ((), ()))
    return jax.lax.dot_general(one, other, numbers, preferred_element_type=jnp.float32)


def _scores(options: _Options, queries: _Queries, keys: _Keys, bias: Any, apart: Any) -> jax.Array:
    """Return scores of two blocks to base 2, [_BLOCK, _BLOCK] float32."""
    scores = _dot(queries.states, keys.states, (1, 1)) * (options.scale * _LOG2_E)
    if bias is not None:
        scores += _gated(bias, queries) * _LOG2_E
    seen = queries.segments[:, None] == keys.segments[None, :]
    rows, columns = (jax.lax.broadcasted_iota(jnp.int32, (_BLOCK,) * 2, x) for x in (0, 1))
    distance = apart * _BLOCK + columns - rows
    if options.half_window:
        seen &= jnp.abs(distance) <= options.half_window
    if options.is_causal:
        seen &= distance <= 0
    return jnp.where(seen, scores, _MASKED)


def _gated(x: jax.Array, queries: _Queries) -> jax.Array:
    return x if queries.gate is None else x * queries.gate[:, None]


def _dropped(options: _Options, x: jax.Array, queries: _Queries, keys: _Keys) -> jax.Array:
    """Set dropped weights to 0, without scaling the others."""
    if queries.words is None:
        return x
    return jnp.where(is_kept(queries.words, keys.words, options.dropout_rate), x, 0.0)


def _gradients(
    options: _Options, queries: _Queries, keys: _Keys, bias: Any, apart: Any
) -> tuple[jax.Array, jax.Array]:
    """Return unscaled weights after dropout, and the gradient of the scores."""
    weights = jnp.exp2(_scores(options, queries, keys, bias, apart) - queries.sums[:, None])
    of_weights = _dropped(options, _dot(queries.grad, keys.values, (1, 1)), queries, keys)
    of_scores = weights * (of_weights / (1 - options.dropout_rate) - queries.mean[:, None])
    return _dropped(options, weights, queries, keys), of_scores


def _forward_kernel(options, refs, out, sums):
    i = pl.program_id(0)
    queries = _queries(refs, i)

    def step(j, carry):
        mixed, most, total = carry
        keys = _keys(refs, j)
        scores = _scores(options, queries, keys, _bias(refs, j - i), j - i)
        new = jnp.maximum(most, scores.max(axis=1))
        factor, weights = jnp.exp2(most - new), jnp.exp2(scores - new[:, None])
        total = total * factor + weights.sum(axis=1)
        weights = _dropped(options, weights, queries, keys).astype(out.dtype)
        return mixed * factor[:, None] + _dot(weights, keys.values, (1, 0)), new, total

    zeros, none = jnp.zeros(out.shape, jnp.float32), jnp.zeros(sums.shape, jnp.float32)
    mixed, most, total = jax.lax.fori_loop(*_span(refs, i), step, (zeros, none + _LEAST, none))
    total = jnp.maximum(total, 1e-30)  # of a query that sees no key
    out[...] = (mixed / (total * (1 - options.dropout_rate))[:, None]).astype(out.dtype)
    sums[...] = most + jnp.log2(total)


def _query_kernel(options, refs, of_query, of_gate):
    i = pl.program_id(0)
    queries = _queries(refs, i)

    def step(j, carry):
        total, gate = carry
        keys, bias = _keys(refs, j), _bias(refs, j - i)
        _, found = _gradients(options, queries, keys, bias, j - i)
        gate = gate if of_gate is None else gate + (found * bias).sum(axis=1)
        return total + _dot(found.astype(keys.states.dtype), keys.states, (1, 0)), gate

    zeros, none = jnp.zeros(of_query.shape, jnp.float32), jnp.zeros((_BLOCK,), jnp.float32)
    total, gate = jax.lax.fori_loop(*_span(refs, i), step, (zeros, none))
    of_query[...] = (total * options.scale).astype(of_query.dtype)
    if of_gate is not None:
        of_gate[...] = gate


def _key_kernel(options, refs, of_keys, of_values):
    j = pl.program_id(0)
    keys = _keys(refs, j)

    def step(i, carry):
        one, two = carry
        queries = _queries(refs, i)
        weights, found = _gradients(options, queries, keys, _bias(refs, j - i), j - i)
        two += _dot(weights.astype(queries.grad.dtype), queries.grad, (0, 0))
        return one + _dot(found.astype(queries.states.dtype), queries.states, (0, 0)), two

    zeros = jnp.zeros(of_keys.shape, jnp.float32)
    one, two = jax.lax.fori_loop(*_span(refs, j), step, (zeros, zeros))
    of_keys[...] = (one * options.scale).astype(of_keys.dtype)
    of_values[...] = (two / (1 - options.dropout_rate)).astype(of_values.dtype)


def _tile_kernel(options, refs, of_tile):
    """Sum the gradient of the bias over all pairs of blocks of one distance."""
    examples, number = refs.reach.shape[0], refs.reach.shape[1] // 2
    apart = pl.program_id(0) - (number - 1)
    bias = _bias(refs, apart)

    def of_example(example, total):
        def of_pair(i):
            queries, keys = _queries(refs, i, example), _keys(refs, i + apart, example)
            return _gated(_gradients(options, queries, keys, bias, apart)[1], queries)

        def step(i, total):
            first, end = _span(refs, i, example)
            is_seen = (first <= i + apart) & (i + apart < end)
            return jax.lax.cond(is_seen, lambda: total + of_pair(i), lambda: total)

        return jax.lax.fori_loop(
            jnp.maximum(-apart, 0), number - jnp.maximum(apart, 0), step, total
        )

    zeros = jnp.zeros(of_tile.shape, jnp.float32)
    of_tile[...] = jax.lax.fori_loop(0, examples, of_example, zeros)


def fault(
    head_size: int, dtype: str, *, has_bias: bool, is_gated: bool, is_causal: bool = False,
    interpret: bool = False,
) -> str:  # fmt: skip
    """Return how the kernels differ from plain attention on this device, "" if they agree.

    Both compute values and gradients of random input, with segments, dropout, and a bias or else a
    window and other keys than queries.
    """
    rng = np.random.default_rng(0)
    length, rate, half = 3 * _BLOCK - 5, 0.25, 0 if has_bias else _BLOCK
    num_keys = length if has_bias else length + _BLOCK
    sizes = length, num_keys, num_keys, length, length
    segments = [np.sort(rng.integers(1, 4, (2, x), np.int32)) for x in sizes[:2]]
    words = dropout_words(jax.random.key(0), 2, 2, length, num_keys)
    shapes = ((2, x, 2, head_size) for x in sizes)
    *states, out, gate = (jnp.asarray(rng.normal(size=x), jnp.float32) for x in shapes)
    by_distance = gate.reshape(2, -1)[:, : 2 * length - 1] if has_bias else None
    inputs = (*states, by_distance, gate[..., 0] if is_gated else None)

    def flash(*inputs):
        return flash_attention(
            *(x.astype(dtype) for x in inputs[:3]), *segments, *words, *inputs[3:],
            half_window=half, is_causal=is_causal, dropout_rate=rate, interpret=interpret,
        )  # fmt: skip

    def plain(query, keys, values, by_distance, gate):
        mask = SegmentMask(*segments, is_causal).matrix()
        mask &= window_mask(length, num_keys, half or num_keys)
        bias = None if by_distance is None else by_index(by_distance)[None]
        weights = attention_weights(query, keys, mask, bias, gate)
        weights = jnp.where(mask & is_kept(*words, rate), weights / (1 - rate), 0)
        return jnp.einsum("bhqk,bkhd->bqhd", weights, values)

    def results(function):
        def loss(inputs):
            mixed = function(*inputs).astype(jnp.float32)
            return (mixed * out).sum(), mixed

        return jax.tree.leaves(jax.device_get(jax.jit(jax.grad(loss, has_aux=True))(inputs)))

    try:
        both = zip(results(flash), results(plain), strict=True)
        apart = [float(np.abs(one - other).max() / np.abs(other).max()) for one, other in both]
    except Exception as error:  # any error of the compiler or the device
        return f"{type(error).__name__}: {error}"
    if all(one < 0.05 for one in apart):  # NaN is not
        return ""
    return f"values and gradients differ by {apart} of the largest of each"
