"""The neighbour index: the k nearest words of every word, by inner product (Eq. 5)."""

import dataclasses
import functools
import inspect
import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P

SCORES = ("float32", "bfloat16")
# Words of a group in the two-stage selection. The first stage ranks V / 32 maxima, the second 32 k
# scores, which balances the two near V = 50K to 100K for k = 50.
_GROUP = 32
# What NaN counts as. Above the -inf of padding, so that k words always rank before any padding.
_LOWEST = float(jnp.finfo(jnp.float32).min)
# On a GPU the unstable top-k, from jax 0.11 on, selects by radix; the stable one sorts whole rows.
_UNSTABLE = (
    {"is_stable": False} if "is_stable" in inspect.signature(jax.lax.top_k).parameters else {}
)


class NeighbourIndex(NamedTuple):
    """What k-NN target sampling needs to know between two refreshes.

    Attributes:
      neighbours: [V, K] int32, see `nearest_neighbours`.
      inclusion: [V] float32, see `inclusion`; None where no correction is wanted.
    """

    neighbours: jax.Array
    inclusion: jax.Array | None


@functools.partial(
    jax.jit,
    static_argnames=("k", "num_valid", "block_size", "scores", "mesh", "vocab_axes"),
)
def nearest_neighbours(
    table: jax.Array,
    *,
    k: int,
    num_valid: int,
    query_ids: jax.Array | None = None,
    block_size: int = 256,
    scores: str = "float32",
    mesh: jax.sharding.Mesh | None = None,
    vocab_axes: tuple[str, ...] = (),
) -> jax.Array:
    """I_k(w_i) = top-k over j of e_i . e_j, for all or some words w_i (Eq. 5, Algorithm 2).

    Exact, computed for `block_size` words at a time so that [V, V] is never held. Products are in
    float32 at the highest matmul precision. Ties are broken towards the smaller id. NaN and -inf
    count as the smallest score, where a plain top-k would rank NaN first. On a GPU with jax 0.11 or
    later the selection is an unstable one: then it is the platform's choice which of several words
    with exactly equal scores takes the last place; all else is the same.

    With `mesh`, every device holds its rows of the table only and does an equal share of the
    scoring; the result is that of a single device.

    Args:
      table: [V, D] output embeddings.
      k: neighbours per word.
      num_valid: words; rows from here on pad the table and are nobody's neighbours.
      query_ids: [Q] int32 words to answer for, in any order; all V rows if None.
      block_size: words scored at a time by a device, which takes block_size * V floats.
      scores: "float32", or "bfloat16": products of bfloat16 select 2 k words, whose float32
        products then select and order k. Not exact: a neighbour may be missed.
      mesh: where the table lies; None for a single device.
      vocab_axes: axes of `mesh` that the rows of the table are split over; over the others they
        are replicated.

    Returns:
      [Q, K] int32 ids by falling score. A word is usually, not always, its own neighbour. Rows of
      padding hold meaningless valid ids.

    Raises:
      ValueError: `k` is not in 1..num_valid, `block_size` is below 1, `scores` is unknown,
        `vocab_axes` are no axes of the mesh, or the table does not split evenly over them.
    """
    vocab_size = table.shape[0]
    _check(vocab_size, k, num_valid, block_size, scores)
    query_ids = jnp.arange(vocab_size) if query_ids is None else query_ids
    num_queries = query_ids.shape[0]
    devices = 1 if mesh is None else mesh.size
    shards = _num_shards(vocab_size, mesh, vocab_axes)
    search = _Search(k, num_valid, scores, tuple(vocab_axes), shards)
    # A block of a device; word 0 stands in for the queries that are missing in the last ones.
    block = min(block_size, max(-(-num_queries // devices), 1))
    num_blocks = -(-num_queries // (devices * block)) * devices
    query_ids = jnp.pad(query_ids.astype(jnp.int32), (0, num_blocks * block - num_queries))
    blocks = query_ids.reshape(num_blocks, block)
    if mesh is None:
        return search(table, blocks)[:num_queries]
    every_axis = P(mesh.axis_names)
    search_all = jax.shard_map(
        search, mesh=mesh, in_specs=(P(vocab_axes or None), every_axis), out_specs=every_axis
    )
    return search_all(table, blocks)[:num_queries]


def inclusion(neighbours: jax.Array, target_probabilities: jax.Array) -> jax.Array:
    """q_j, the chance that one target brings word j into the candidate set V'.

    A target w brings in w and I_k(w): q_j = sum of p(w) over the w with j = w or j in I_k(w).

    Args:
      neighbours: [V, K] int32.
      target_probabilities: [V] float, p(w), how often each word is a target; sums to one.

    Returns:
      [V] float32.
    """
    vocab_size = neighbours.shape[0]
    p = target_probabilities.astype(jnp.float32)
    lists_itself = (neighbours == jnp.arange(vocab_size)[:, None]).any(axis=1)
    return jnp.where(lists_itself, 0.0, p).at[neighbours].add(p[:, None])


def log_inclusion(q: jax.Array, num_targets: int | jax.Array) -> jax.Array:
    """log Q_j = log(1 - (1 - q_j)^W), the log probability that word j is in V'.

    W targets are drawn independently. Subtracted from the logits, it corrects the softmax over V'
    for what V' holds more often than a sample of all words would: above all, rare words only when
    they are targets (the correction of sampled softmax, Jean et al. 2015, with this proposal).

    Args:
      q: float array of any shape, see `inclusion`.
      num_targets: W, targets that V' was made of.

    Returns:
      float32 of the shape of `q`, finite and at most 0.
    """
    # A word that is never a target and nobody's neighbour is never a candidate either; any finite
    # value will do.
    q = jnp.clip(q.astype(jnp.float32), 1e-12, 1.0)
    return jnp.log(-jnp.expm1(num_targets * jnp.log1p(-q)))


def _check(vocab_size: int, k: int, num_valid: int, block_size: int, scores: str) -> None:
    if not 1 <= k <= num_valid <= vocab_size:
        raise ValueError(
            f"k is {k}, num_valid {num_valid}: must be 1 <= k <= num_valid <= {vocab_size}"
        )
    if block_size < 1:
        raise ValueError(f"block_size is {block_size}, must be at least 1")
    if scores not in SCORES:
        raise ValueError(f"scores is {scores!r}, must be one of {SCORES}")


def _num_shards(
    vocab_size: int, mesh: jax.sharding.Mesh | None, vocab_axes: tuple[str, ...]
) -> int:
    """Parts that the rows of the table are split into."""
    axes = {} if mesh is None else dict(mesh.shape)
    if not set(vocab_axes) <= set(axes):
        raise ValueError(f"vocab_axes are {vocab_axes}, must be axes of the mesh, {tuple(axes)}")
    shards = math.prod(axes[axis] for axis in vocab_axes)
    if vocab_size % shards:
        raise ValueError(
            f"the table has {vocab_size} rows, must be a multiple of the {shards} devices it is "
            "split over; change mesh.vocab_multiple"
        )
    return shards


@dataclasses.dataclass(frozen=True)
class _Search:
    """What one device does; see `nearest_neighbours`.

    Attributes:
      k, num_valid, scores, vocab_axes: as there.
      shards: devices along `vocab_axes`, a team. They answer their queries together.
    """

    k: int
    num_valid: int
    scores: str
    vocab_axes: tuple[str, ...]
    shards: int

    @property
    def selected(self) -> int:
        """Words that the first products select: some to spare where they are not exact."""
        return self.k if self.scores == "float32" else 2 * self.k

    def __call__(self, rows: jax.Array, blocks: jax.Array) -> jax.Array:
        """Neighbours [N * block, K] of the words `blocks` [N, block].

        Args:
          rows: [V / shards, D] the rows of the table that this device holds.
          blocks: ids of any words, others on every device.
        """
        num_rows = rows.shape[0]
        start = jax.lax.axis_index(self.vocab_axes) * num_rows if self.vocab_axes else 0
        num_words = jnp.clip(self.num_valid - start, 0, num_rows)
        selected = min(self.selected, num_rows)
        size = _GROUP if selected * _GROUP < num_rows else 1
        grouped = _group(rows, num_words, size).astype(self.scores)

        def answer(ids: jax.Array) -> jax.Array:
            queries = self._queries(rows, ids, start)  # [team's, D]
            products = _products("qd,nd->qn", queries, grouped)
            products = products.reshape(queries.shape[0], size, -1)
            first, found = _select(products, selected, num_words)
            if self.scores == "float32":
                return self._merge(first, found + start)[1]
            exact = _rescore(queries, rows, found, num_words)
            _, found, exact = self._merge(first, found + start, exact)
            return _ordered(exact, found)[1][:, : self.k]

        return jax.lax.map(answer, blocks).reshape(-1, self.k)

    def _queries(self, rows: jax.Array, ids: jax.Array, start: jax.Array | int) -> jax.Array:
        """Rows [shards * block, D] of the words that the team's devices ask for, in turn."""
        if not self.vocab_axes:
            return rows.at[ids].get(mode="clip")
        ids = jax.lax.all_gather(ids, self.vocab_axes, tiled=True) - start
        is_here = (ids >= 0) & (ids < rows.shape[0])
        found = jnp.where(is_here[:, None], rows.at[ids].get(mode="clip"), 0)
        return jax.lax.psum(found, self.vocab_axes)  # one device has the row, all others zero

    def _merge(self, *lists: jax.Array) -> tuple[jax.Array, ...]:
        """The `selected` best of the team's lists, scores, ids and more, for this device's queries.

        On each device the lists are [shards * block, n], of the words that it holds.
        """
        if not self.vocab_axes:
            return lists

        def exchange(x: jax.Array) -> jax.Array:
            x = x.reshape(self.shards, -1, x.shape[1])  # [whose query, block, n]
            x = jax.lax.all_to_all(x, self.vocab_axes, 0, 0)  # [whose word, block, n]
            return x.swapaxes(0, 1).reshape(x.shape[1], -1)

        merged = _ordered(*(exchange(x) for x in lists))
        return tuple(x[:, : self.selected] for x in merged)


def _group(rows: jax.Array, num_words: jax.Array, size: int) -> jax.Array:
    """The rows [N, D] in the order [size, N / size]: word i is member i % size of group i // size.

    Members come first so that the maxima of groups are maxima of whole vectors, about ten times
    faster on a CPU than along the last axis. Rows that are no words become NaN.
    """
    is_word = jnp.arange(rows.shape[0]) < num_words
    rows = jnp.where(is_word[:, None], rows, jnp.nan)
    missing = -rows.shape[0] % size
    rows = jnp.pad(rows, ((0, missing), (0, 0)), constant_values=jnp.nan)
    grouped = rows.reshape(-1, size, rows.shape[1]).swapaxes(0, 1)
    return grouped.reshape(rows.shape)


def _products(dimensions: str, queries: jax.Array, rows: jax.Array) -> jax.Array:
    """Inner products in the type of the rows, summed in float32."""
    return jnp.einsum(
        dimensions,
        queries.astype(rows.dtype),
        rows,
        precision=jax.lax.Precision.HIGHEST,
        preferred_element_type=jnp.float32,
    )


def _select(scores: jax.Array, k: int, num_words: jax.Array) -> tuple[jax.Array, jax.Array]:
    """The k best of [Q, size, groups] scores: scores and local ids [Q, k], by (-score, id).

    The k groups with the best maxima, by (-maximum, group), hold the k best words. For a word of
    any other group, each of the k has a word that is better: its maximum is greater or, if they are
    equal, its group and so its ids are smaller. Kept in the order of ids, ties stay in it too.
    """
    num_queries, size, num_groups = scores.shape
    if size == 1:
        return _top_k(_ranked(scores[:, 0], jnp.arange(num_groups)[None, :] < num_words), k)
    # Not max(): a comparison that NaN always fails skips it, at no cost.
    maxima = jnp.full((num_queries, num_groups), _LOWEST)
    for member in range(size):
        maxima = jnp.where(scores[:, member] > maxima, scores[:, member], maxima)
    has_words = jnp.arange(num_groups)[None, :] * size < num_words
    groups = jnp.sort(_top_k(_ranked(maxima, has_words), k)[1])
    inside = jnp.take_along_axis(scores, groups[:, None, :], axis=2).swapaxes(1, 2)
    ids = groups[:, :, None] * size + jnp.arange(size)[None, None, :]  # [Q, k, size], ascending
    best, places = _top_k(_ranked(inside, ids < num_words).reshape(num_queries, -1), k)
    return best, jnp.take_along_axis(ids.reshape(num_queries, -1), places, axis=1)


def _rescore(
    queries: jax.Array, rows: jax.Array, ids: jax.Array, num_words: jax.Array
) -> jax.Array:
    """Float32 scores of the words `ids` [Q, n] for each query."""
    chosen = rows.at[ids].get(mode="clip").astype(jnp.float32)  # [Q, n, D]
    return _ranked(_products("qd,qnd->qn", queries, chosen), ids < num_words)


def _ranked(scores: jax.Array, is_word: jax.Array) -> jax.Array:
    """Scores that rank as they should: padding, then NaN and -inf, then the rest."""
    scores = jnp.where(scores > _LOWEST, scores, _LOWEST)
    scores = jnp.where(scores == 0, 0.0, scores)  # a top-k ranks 0 before -0, which are a tie
    return jnp.where(is_word, scores, -jnp.inf)


def _top_k(scores: jax.Array, k: int) -> tuple[jax.Array, jax.Array]:
    """The k best of each row and their places, by (-score, place)."""
    if _UNSTABLE and jax.default_backend() == "gpu":
        best, places = _ordered(*jax.lax.top_k(scores, k, **_UNSTABLE))
    else:
        best, places = jax.lax.top_k(scores, k)
    return best, places


def _ordered(scores: jax.Array, ids: jax.Array, *more: jax.Array) -> tuple[jax.Array, ...]:
    """All rows sorted by (-score, id); `more` is carried along."""
    negative, *rest = jax.lax.sort((-scores, ids, *more), num_keys=2)
    return (-negative, *rest)
