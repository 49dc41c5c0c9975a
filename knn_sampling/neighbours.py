"""Neighbour index: the k nearest tokens of every token, by inner product (Eq. 6).

An error bound of inner products in bfloat16 proves that `bfloat16_exact` is exact.
"""

import functools
import inspect
import math
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import AbstractMesh, Mesh
from jax.sharding import PartitionSpec as P

SCORES = ("float32", "bfloat16_exact")
LARGE_TABLE = 32_768  # tables with so many rows default to bfloat16_exact
# Most scores of a block of queries, and most numbers of rows to recompute some of them.
_NUMBERS_AT_A_TIME = 2**28
# Tokens per group in the two-stage selection. The first stage ranks V / 32 maxima, the second 32 k
# scores. For k = 50 the two balance near V = 50K to 100K.
_GROUP = 32
# Replaces NaN. It exceeds the -inf of padding, so k tokens always rank before any padding.
_LOWEST = float(jnp.finfo(jnp.float32).min)
# On a GPU the unstable top-k, from jax 0.11 on, selects by radix; the stable one sorts whole rows.
_UNSTABLE = (
    {"is_stable": False} if "is_stable" in inspect.signature(jax.lax.top_k).parameters else {}
)
_products = functools.partial(
    jnp.einsum, precision=jax.lax.Precision.HIGHEST, preferred_element_type=jnp.float32
)


@functools.partial(
    jax.jit,
    static_argnames=("k", "num_valid", "mesh", "vocab_axes", "embed_axes", "block_size", "scores"),
)
def nearest_neighbours(
    table: jax.Array,
    *,
    k: int,
    num_valid: int,
    query_ids: jax.Array | None = None,
    mesh: Mesh | AbstractMesh | None = None,
    vocab_axes: tuple[str, ...] = (),
    embed_axes: tuple[str, ...] = (),
    block_size: int | None = None,
    scores: str | None = None,
) -> jax.Array:
    """Return I_k(w_i) = top-k over w_j in V of v_i . v_j, by descending score (Eq. 6).

    The result is [V, K] or [Q, K] int32 ids (line 3 of Algorithm 2). A token is usually, not
    always, its own neighbour. The lists of padding hold arbitrary valid ids. The search is exact,
    with products summed in float32 at the highest matmul precision. Ties go to the smaller id. NaN
    and -inf count as the smallest score, while a plain top-k would rank NaN first. On a GPU with
    jax 0.11 or later the platform chooses which of several equal scores takes the last slot. A mesh
    gives the result of a single device. Raises ValueError for arguments out of range, rows that the
    devices cannot share evenly, and query ids on a mesh.

    Args:
      table: [V, E] float output embeddings.
      k: K, neighbours per token, in 1..num_valid.
      num_valid: number of tokens; table rows from here on are padding and never neighbours.
      query_ids: [Q] int32 query tokens, without a mesh; None for all V rows.
      vocab_axes, embed_axes: mesh axes that shard the table's dimensions. The search shards its
        rows over all of them, S devices.
      block_size: queries per device at a time, for block_size * V scores and, with
        "bfloat16_exact", S * block_size * 2 k rows to recompute; None to derive it.
      scores: "float32", or "bfloat16_exact": products in bfloat16 select 2 k tokens, and float32
        orders them and recomputes lists that rounding may have changed. None to derive it.
    """
    vocab_size = len(table)
    scores = scores or ("float32" if vocab_size < LARGE_TABLE else "bfloat16_exact")
    if block_size is None:
        shards = math.prod(mesh.shape[axis] for axis in vocab_axes + embed_axes) if mesh else 1
        recomputed = 0 if scores == "float32" else shards * 2 * k * table.shape[1]
        block_size = _block_size(vocab_size, recomputed)
    _check(vocab_size, k, num_valid, block_size, scores)
    search = functools.partial(_search, k=k, block_size=block_size, scores=scores)
    if mesh is not None:
        if query_ids is not None:
            raise ValueError("query_ids are given, must be None on a mesh")
        return _on_mesh(search, table, num_valid, mesh, vocab_axes, embed_axes)
    ids = jnp.arange(vocab_size) if query_ids is None else query_ids
    return search(_Shard(table, 0, num_valid), ids)


def _block_size(vocab_size: int, recomputed: int) -> int:
    """Derive the queries per device at a time, which gather `recomputed` numbers each."""
    most = 256 if jax.default_backend() == "cpu" else 4096  # we timed 256 as the best on a CPU
    block = min(max(_NUMBERS_AT_A_TIME // vocab_size // 64 * 64, 64), most)
    return max(min(block, _NUMBERS_AT_A_TIME // max(recomputed, 1)), 1)


def _check(vocab_size: int, k: int, num_valid: int, block_size: int, scores: str) -> None:
    if not 1 <= k <= num_valid <= vocab_size:
        raise ValueError(
            f"output_layer.k is {k}, must be between 1 and the {num_valid} tokens of a table of "
            f"{vocab_size} rows"
        )
    if block_size < 1:
        raise ValueError(f"block_size is {block_size}, must be at least 1")
    if scores not in SCORES:
        raise ValueError(f"scores is {scores!r}, must be one of {SCORES}")


def _on_mesh(
    search: Callable[["_Shard", jax.Array], jax.Array],
    table: jax.Array,
    num_valid: int,
    mesh: Mesh | AbstractMesh,
    vocab_axes: tuple[str, ...],
    embed_axes: tuple[str, ...],
) -> jax.Array:
    """Find neighbours [V, K] by teams of devices with a table and a share of the queries each."""
    axes = vocab_axes + embed_axes
    others = tuple(axis for axis in mesh.axis_names if axis not in axes)
    shards, teams = (math.prod(mesh.shape[axis] for axis in some) for some in (axes, others))
    num_rows = len(table) // shards
    if len(table) % shards:
        raise ValueError(
            f"the table has {len(table)} rows, must be a multiple of the {shards} devices that "
            "share it; change mesh.vocab_multiple"
        )
    share = -(-num_rows // teams)

    def on_device(part: jax.Array) -> jax.Array:
        rows = jax.lax.all_to_all(part, embed_axes, 0, 1, tiled=True) if embed_axes else part
        start = jax.lax.axis_index(axes) * num_rows if axes else 0
        own = jax.lax.axis_index(others) * share if others else 0
        shard = _Shard(rows, start, jnp.clip(num_valid - start, 0, num_rows), axes, others)
        return search(shard, own + jnp.arange(share))

    spec = P(vocab_axes or None, embed_axes or None)
    found = jax.shard_map(on_device, mesh=mesh, in_specs=spec, out_specs=P(axes + others))(table)
    # The last team's share may exceed the number of rows.
    return found.reshape(shards, teams * share, -1)[:, :num_rows].reshape(len(table), -1)


class _Shard(NamedTuple):
    """Table shard [N, E] of a device, from id `start` on; a team of devices holds the whole table.

    The first `num_valid` rows are tokens, the rest is padding. `axes` are the mesh axes of the
    team, `others` all other axes.
    """

    rows: jax.Array
    start: jax.Array | int
    num_valid: jax.Array | int
    axes: tuple[str, ...] = ()
    others: tuple[str, ...] = ()

    def queries(self, local_ids: jax.Array) -> jax.Array:
        """Gather rows [S * block, E] at `local_ids` [block] of each of the team's S devices."""
        own = self.rows.at[local_ids].get(mode="clip")
        return jax.lax.all_gather(own, self.axes, tiled=True) if self.axes else own

    def merged(self, k: int, *lists: jax.Array) -> tuple[jax.Array, ...]:
        """Merge the team's lists [S * block, n] (scores, ids, ...) to the k best of own queries."""
        if not self.axes:
            return lists
        # All lists of each query side by side, [block, S * n].
        lists = tuple(jax.lax.all_to_all(x, self.axes, 0, 1, tiled=True) for x in lists)
        return tuple(x[:, :k] for x in _ordered(*lists))

    def grouped(self, k: int, dtype: jnp.dtype) -> jax.Array:
        """Group rows to [size, N / size, E] to select k from: row i is i % size of i // size."""
        # With members first, maxima of groups are maxima of whole vectors, on a CPU about ten times
        # faster than along the last axis. Padding rows become NaN.
        size = _GROUP if k * _GROUP < len(self.rows) else 1
        is_token = jnp.arange(len(self.rows)) < self.num_valid
        rows = jnp.where(is_token[:, None], self.rows, jnp.nan)
        rows = jnp.pad(rows, ((0, -len(rows) % size), (0, 0)), constant_values=jnp.nan)
        return rows.reshape(-1, size, rows.shape[1]).swapaxes(0, 1).astype(dtype)

    def select(self, queries: jax.Array, grouped: jax.Array, k: int) -> tuple[jax.Array, jax.Array]:
        """Return the k best of this shard, or all: scores, local ids [Q, k], by (-score, id)."""
        size, num_groups, width = grouped.shape
        scores = _products("qe,ne->qn", queries.astype(grouped.dtype), grouped.reshape(-1, width))
        scores = scores.reshape(-1, size, num_groups)
        maxima = jnp.full((len(scores), num_groups), _LOWEST)
        for member in range(size):  # not max(): NaN fails any comparison at no cost
            maxima = jnp.where(scores[:, member] > maxima, scores[:, member], maxima)
        # The k groups with the best maxima, by (-maximum, group), hold the k best tokens. Each has
        # a token better than all of any other group: its maximum is greater, or its ids are
        # smaller. Groups stay in order, and so do ties.
        groups = jnp.sort(self.top_k(maxima, size * jnp.arange(num_groups)[None, :], k)[1])
        inside = jnp.take_along_axis(scores, groups[:, None, :], axis=2).swapaxes(1, 2)
        local_ids = groups[:, :, None] * size + jnp.arange(size)[None, None, :]  # [Q, k, size]
        local_ids = local_ids.reshape(len(scores), -1)
        best, places = self.top_k(inside.reshape(local_ids.shape), local_ids, k)
        return best, jnp.take_along_axis(local_ids, places, axis=1)

    def top_k(self, scores: jax.Array, local_ids: jax.Array, k: int) -> tuple[jax.Array, ...]:
        """Return the k best of each row, or all, and their indices, by (-score, index)."""
        scores, k = self.ranked(scores, local_ids), min(k, scores.shape[1])
        if _UNSTABLE and jax.default_backend() == "gpu":
            return _ordered(*jax.lax.top_k(scores, k, **_UNSTABLE))
        return tuple(jax.lax.top_k(scores, k))

    def ranked(self, scores: jax.Array, local_ids: jax.Array) -> jax.Array:
        """Make scores sortable, ascending: padding, then NaN and -inf, then the rest."""
        scores = jnp.where(scores > _LOWEST, scores, _LOWEST)
        scores = jnp.where(scores == 0, 0.0, scores)  # top-k ranks 0 before -0; here they tie
        return jnp.where(local_ids < self.num_valid, scores, -jnp.inf)


def _search(shard: _Shard, local_ids: jax.Array, k: int, block_size: int, scores: str) -> jax.Array:
    """Return neighbours [Q, K] of the rows `local_ids` [Q] of this device."""
    block = min(block_size, local_ids.size)
    padded = jnp.pad(local_ids, (0, -local_ids.size % block))
    blocks = padded.reshape(-1, block)
    if scores == "float32":
        return jax.lax.map(_in_float32(shard, k), blocks).reshape(-1, k)[: local_ids.size]
    answers, is_proven = jax.lax.map(_in_bfloat16(shard, k), blocks)
    answers = answers.reshape(-1, k)
    unproven_first = jnp.argsort(is_proven.reshape(-1)).reshape(-1, block)
    num_unproven = (~is_proven).sum()
    if shard.axes + shard.others:  # all devices take part in each block
        num_unproven = jax.lax.pmax(num_unproven, shard.axes + shard.others)

    def repaired() -> jax.Array:
        answer = _in_float32(shard, k)

        def repair(i: jax.Array, answers: jax.Array) -> jax.Array:
            unproven = unproven_first[i]
            return answers.at[unproven].set(answer(padded[unproven]))

        return jax.lax.fori_loop(0, -(-num_unproven // block), repair, answers)

    # There is rarely anything to recompute, and so a float32 layout to build.
    return jax.lax.cond(num_unproven > 0, repaired, lambda: answers)[: local_ids.size]


def _in_float32(shard: _Shard, k: int) -> Callable[[jax.Array], jax.Array]:
    """Build the search for neighbours [block, K] of `local_ids` [block], by float32 products."""
    grouped = shard.grouped(k, jnp.float32)

    def answer(local_ids: jax.Array) -> jax.Array:
        best, found = shard.select(shard.queries(local_ids), grouped, k)
        return shard.merged(k, best, shard.start + found)[1]

    return answer


def _in_bfloat16(shard: _Shard, k: int) -> Callable[[jax.Array], tuple[jax.Array, jax.Array]]:
    """Build the search by bfloat16 products; it also returns [block] bool, proven exact."""
    grouped = shard.grouped(2 * k, jnp.bfloat16)
    lengths = greatest_lengths(shard.rows)  # padding can only loosen the bound

    def answer(local_ids: jax.Array) -> tuple[jax.Array, jax.Array]:
        queries = shard.queries(local_ids)
        first, found = shard.select(queries, grouped, 2 * k)
        # Without the barrier XLA's CPU compiler turns the slice below into a sort of all scores,
        # which doubles the time of the whole search (jax 0.10).
        highest = jax.lax.optimization_barrier(first) + rounding_bound(queries, lengths)[:, None]
        chosen = shard.rows.at[found].get(mode="clip").astype(jnp.float32)  # [Q, 2 k, E]
        exact = shard.ranked(_products("qe,qne->qn", queries, chosen), found)
        highest, ids, exact = shard.merged(2 * k, highest, shard.start + found, exact)
        exact, ids = _ordered(exact, ids)
        # No unselected token, on any device, exceeds the bound of the last selected one.
        return ids[:, :k], exact[:, k - 1] > highest[:, -1]

    return answer


def _ordered(scores: jax.Array, ids: jax.Array, *more: jax.Array) -> tuple[jax.Array, ...]:
    """Sort all rows, and `more` with them, by (-score, id)."""
    negative, *rest = jax.lax.sort((-scores, ids, *more), num_keys=2)
    return (-negative, *rest)


def rounding_bound(queries: jax.Array, lengths: jax.Array) -> jax.Array:
    """Bound q . v less its product in bfloat16, for queries [Q, E] and any row v: [Q] float32.

    q . v - q' . v' = (q - q') . v + q' . (v - v'), with ' for rounding, is at most the products of
    the norms (Cauchy-Schwarz), `lengths` [2] by `greatest_lengths`. Sums of E terms in float32 have
    a relative error of at most E 2^-24 of the norms. It counts four times: for both products, the
    scores that order the result, and the comparison. The bound is infinite if a number is not
    finite.
    """
    queries = queries.astype(jnp.float32)
    rounded = _rounded(queries)
    longest, worst = lengths
    terms = _lengths(queries - rounded) * longest + _lengths(rounded) * worst
    sums = 4 * queries.shape[1] * 2.0**-24 * _lengths(queries) * longest
    bound = 1.01 * (terms + sums)  # margin for float32's rounding of the bound itself
    return jnp.where(jnp.isnan(bound), jnp.inf, bound)


def greatest_lengths(rows: jax.Array) -> jax.Array:
    """Return the greatest norms [2] float32, of v and of v - v', over the rows v [N, E]."""
    rows = rows.astype(jnp.float32)
    return jnp.stack([_lengths(rows).max(), _lengths(rows - _rounded(rows)).max()])


def _lengths(rows: jax.Array) -> jax.Array:
    # A product with ones, since sums along the last axis are slow on a CPU.
    ones = jnp.ones(rows.shape[1])
    return jnp.sqrt(jnp.dot(rows * rows, ones, precision=jax.lax.Precision.HIGHEST))


def _rounded(rows: jax.Array) -> jax.Array:
    # A compiler may eliminate astype(bfloat16).astype(float32).
    return jax.lax.reduce_precision(rows, exponent_bits=8, mantissa_bits=7)
