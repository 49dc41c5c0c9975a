"""The neighbour index: the k nearest words of every word, by inner product (Eq. 5)."""

import dataclasses
import functools
import inspect
import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import AbstractMesh, Mesh
from jax.sharding import PartitionSpec as P

SCORES = ("float32", "bfloat16", "bfloat16_exact")
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
    mesh: Mesh | AbstractMesh | None = None,
    vocab_axes: tuple[str, ...] = (),
) -> jax.Array:
    """I_k(w_i) = top-k over j of e_i . e_j, for all or some words w_i (Eq. 5, Algorithm 2).

    Exact but for `scores="bfloat16"`, computed for `block_size` words at a time so that [V, V] is
    never held. Products are in
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
      scores: "float32"; or "bfloat16": products of bfloat16 select 2 k words, whose float32
        products then select and order k, so that a neighbour may be missed; or "bfloat16_exact":
        the same, and where rounding could have hidden a neighbour, which a bound decides for each
        query, the answer is made anew in float32.
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
    all_axes = () if mesh is None else tuple(mesh.axis_names)
    search = _Search(k, num_valid, scores, tuple(vocab_axes), shards, all_axes)
    # A block of a device; word 0 stands in for the queries that are missing in the last ones.
    block = min(block_size, max(-(-num_queries // devices), 1))
    num_blocks = -(-num_queries // (devices * block)) * devices
    query_ids = jnp.pad(query_ids.astype(jnp.int32), (0, num_blocks * block - num_queries))
    blocks = query_ids.reshape(num_blocks, block)
    if mesh is None:
        return search(table, blocks)[:num_queries]
    every_axis = P(all_axes)
    search_all = jax.shard_map(
        search, mesh=mesh, in_specs=(P(vocab_axes or None), every_axis), out_specs=every_axis
    )
    return search_all(table, blocks)[:num_queries]


def inclusion(
    neighbours: jax.Array, target_probabilities: jax.Array, ids: jax.Array | None = None
) -> jax.Array:
    """q_j, the chance that one target brings word j into the candidate set V'.

    A target w brings in w and I_k(w): q_j = sum of p(w) over the w with j = w or j in I_k(w).

    Args:
      neighbours: [N, K] int32 lists of the words `ids`.
      target_probabilities: [V] float, p(w), how often each word is a target; sums to one.
      ids: [N] int32 distinct words, whose share of q is wanted; None for all words in order.

    Returns:
      [V] float32.
    """
    p = target_probabilities.astype(jnp.float32)
    ids = jnp.arange(p.size) if ids is None else ids
    lists_itself = (neighbours == ids[:, None]).any(axis=1)
    own = jnp.zeros_like(p).at[ids].set(jnp.where(lists_itself, 0.0, p[ids]))
    return own.at[neighbours].add(p[ids][:, None])


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
    vocab_size: int, mesh: Mesh | AbstractMesh | None, vocab_axes: tuple[str, ...]
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
      all_axes: all axes of the mesh.
    """

    k: int
    num_valid: int
    scores: str
    vocab_axes: tuple[str, ...]
    shards: int
    all_axes: tuple[str, ...]

    def __call__(self, rows: jax.Array, blocks: jax.Array) -> jax.Array:
        """Neighbours [N * block, K] of the words `blocks` [N, block].

        Args:
          rows: [V / shards, D] the rows of the table that this device holds.
          blocks: ids of any words, others on every device.
        """
        num_rows = rows.shape[0]
        start = jax.lax.axis_index(self.vocab_axes) * num_rows if self.vocab_axes else 0
        words = _Words(rows, start, jnp.clip(self.num_valid - start, 0, num_rows))
        if self.scores == "float32":
            grouped = _group(words, self.k, jnp.float32)
            answers = jax.lax.map(lambda ids: self._in_float32(words, grouped, ids), blocks)
            return answers.reshape(-1, self.k)

        short = _group(words, 2 * self.k, jnp.bfloat16)
        rounding = self._rounding(words) if self.scores == "bfloat16_exact" else None
        answers, is_proven = jax.lax.map(
            lambda ids: self._in_bfloat16(words, short, rounding, ids), blocks
        )
        answers = answers.reshape(-1, self.k)
        if rounding is None:
            return answers
        return self._repaired(words, blocks, answers, is_proven.reshape(-1))

    def _in_float32(self, words: "_Words", grouped: jax.Array, ids: jax.Array) -> jax.Array:
        """Neighbours [block, K] of the words `ids`, by float32 products."""
        queries = self._queries(words.rows, ids, words.start)  # [team's, D]
        best, found = _select(_scores(queries, grouped), self.k, words.number)
        return self._merge(self.k, best, found + words.start)[1]

    def _in_bfloat16(
        self, words: "_Words", grouped: jax.Array, rounding: "_Rounding | None", ids: jax.Array
    ) -> tuple[jax.Array, jax.Array]:
        """Neighbours [block, K] by bfloat16, settled in float32, and which are proven exact."""
        queries = self._queries(words.rows, ids, words.start)
        selected = 2 * self.k
        first, found = _select(_scores(queries, grouped), selected, words.number)
        exact = _rescore(queries, words.rows, found, words.number)
        first, found, exact = self._merge(selected, first, found + words.start, exact)
        exact, found = _ordered(exact, found)
        if rounding is None:
            return found[:, : self.k], jnp.zeros(len(ids), bool)
        # Without the barrier XLA's CPU compiler takes the slice for a reason to sort all scores,
        # which doubles the time of the whole search (jax 0.10).
        first = jax.lax.optimization_barrier(first)
        # Words that were not selected, here or on another device, score at most this in bfloat16.
        highest_left = first[:, -1] if first.shape[1] == selected else -jnp.inf
        own = self._own(queries)
        is_proven = exact[:, self.k - 1] > highest_left + rounding.bound(own)
        return found[:, : self.k], is_proven

    def _rounding(self, words: "_Words") -> "_Rounding":
        """What rounding all words of the vocabulary can do."""
        is_word = (jnp.arange(words.rows.shape[0]) < words.number)[:, None]
        rows = jnp.where(is_word, words.rows.astype(jnp.float32), 0)
        lengths = jnp.stack([_lengths(rows).max(), _lengths(rows - _rounded(rows)).max()])
        if self.vocab_axes:
            lengths = jax.lax.pmax(lengths, self.vocab_axes)
        return _Rounding(lengths[0], lengths[1])

    def _repaired(
        self, words: "_Words", blocks: jax.Array, answers: jax.Array, is_proven: jax.Array
    ) -> jax.Array:
        """The answers [N, K], those that are not proven made anew, a block of them at a time."""
        block = blocks.shape[1]
        unproven_first = jnp.argsort(is_proven).reshape(blocks.shape)
        num_blocks = -(-(~is_proven).sum() // block)
        if self.all_axes:
            num_blocks = jax.lax.pmax(num_blocks, self.all_axes)  # a team works together

        def repaired() -> jax.Array:
            grouped = _group(words, self.k, jnp.float32)

            def repair(i: jax.Array, answers: jax.Array) -> jax.Array:
                places = unproven_first[i]
                ids = blocks.reshape(-1)[places]
                return answers.at[places].set(self._in_float32(words, grouped, ids))

            return jax.lax.fori_loop(0, num_blocks, repair, answers)

        # Nearly always there is nothing to repair, and nothing to lay out for it.
        return jax.lax.cond(num_blocks > 0, repaired, lambda: answers)

    def _queries(self, rows: jax.Array, ids: jax.Array, start: jax.Array | int) -> jax.Array:
        """Rows [shards * block, D] of the words that the team's devices ask for, in turn."""
        if not self.vocab_axes:
            return rows.at[ids].get(mode="clip")
        ids = jax.lax.all_gather(ids, self.vocab_axes, tiled=True) - start
        is_here = (ids >= 0) & (ids < rows.shape[0])
        found = jnp.where(is_here[:, None], rows.at[ids].get(mode="clip"), 0)
        return jax.lax.psum(found, self.vocab_axes)  # one device has the row, all others zero

    def _own(self, queries: jax.Array) -> jax.Array:
        """The rows [block, D] of `_queries` that this device asked for."""
        if not self.vocab_axes:
            return queries
        own = jax.lax.axis_index(self.vocab_axes)
        return queries.reshape(self.shards, -1, queries.shape[1])[own]

    def _merge(self, number: int, *lists: jax.Array) -> tuple[jax.Array, ...]:
        """The best `number` of the team's lists, scores, ids and more, for this device's queries.

        On each device the lists are [shards * block, n], of the words that it holds.
        """
        if not self.vocab_axes:
            return lists

        def exchange(x: jax.Array) -> jax.Array:
            x = x.reshape(self.shards, -1, x.shape[1])  # [whose query, block, n]
            x = jax.lax.all_to_all(x, self.vocab_axes, 0, 0)  # [whose word, block, n]
            return x.swapaxes(0, 1).reshape(x.shape[1], -1)

        merged = _ordered(*(exchange(x) for x in lists))
        return tuple(x[:, :number] for x in merged)


class _Words(NamedTuple):
    """The part of the vocabulary that a device holds.

    Attributes:
      rows: [N, D] rows of the table.
      start: id of the first.
      number: int32 [], words among them, the first ones; the rest is padding.
    """

    rows: jax.Array
    start: jax.Array | int
    number: jax.Array


class _Rounding(NamedTuple):
    """How far products of words rounded to bfloat16 can be from products of the words.

    Attributes:
      length: float32 [], the length of the longest word.
      error: float32 [], the length of the greatest difference between a word and itself rounded.
    """

    length: jax.Array
    error: jax.Array

    def bound(self, queries: jax.Array) -> jax.Array:
        """[Q] float32, the most by which q . e exceeds its product in bfloat16, for any word e.

        q . e - q' . e' = (q - q') . e + q' . (e - e'), by Cauchy and Schwarz at most the lengths
        multiplied; q' is q rounded. Sums of D terms in float32 are off by D 2^-24 of the lengths,
        at most, here three times: both products and the scores that the answer is ordered by.
        """
        queries = queries.astype(jnp.float32)
        rounded = _rounded(queries)
        sums = 3 * queries.shape[1] * 2.0**-24 * _lengths(queries) * self.length
        terms = _lengths(queries - rounded) * self.length + _lengths(rounded) * self.error
        return 1.01 * (terms + sums)  # the bound is computed in float32, too


def _lengths(rows: jax.Array) -> jax.Array:
    # A product with ones, since a CPU is slow at sums along the last axis.
    return jnp.sqrt(_products("nd,d->n", rows * rows, jnp.ones(rows.shape[1])))


def _rounded(rows: jax.Array) -> jax.Array:
    # Not astype(bfloat16).astype(float32), which a compiler may leave out.
    return jax.lax.reduce_precision(rows, exponent_bits=8, mantissa_bits=7)


def _group(words: _Words, k: int, dtype: jnp.dtype) -> jax.Array:
    """The rows in groups [size, N / size, D] to select k of: word i is member i % size of group
    i // size.

    Members come first so that the maxima of groups are maxima of whole vectors, about ten times
    faster on a CPU than along the last axis. Rows that are no words become NaN.
    """
    rows = words.rows
    size = _GROUP if k * _GROUP < rows.shape[0] else 1
    is_word = jnp.arange(rows.shape[0]) < words.number
    rows = jnp.where(is_word[:, None], rows, jnp.nan)
    missing = -rows.shape[0] % size
    rows = jnp.pad(rows, ((0, missing), (0, 0)), constant_values=jnp.nan)
    return rows.reshape(-1, size, rows.shape[1]).swapaxes(0, 1).astype(dtype)


def _scores(queries: jax.Array, grouped: jax.Array) -> jax.Array:
    """Scores [Q, size, groups] of the words of `_group`, in their type, summed in float32."""
    size, num_groups, width = grouped.shape
    scores = _products("qd,nd->qn", queries, grouped.reshape(-1, width))
    return scores.reshape(-1, size, num_groups)


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
    """The k best of [Q, size, groups] scores, or all: scores and local ids [Q, k], by (-score, id).

    The k groups with the best maxima, by (-maximum, group), hold the k best words. For a word of
    any other group, each of the k has a word that is better: its maximum is greater or, if they are
    equal, its group and so its ids are smaller. Kept in the order of ids, ties stay in it too.
    """
    num_queries, size, num_groups = scores.shape
    if size == 1:
        is_word = jnp.arange(num_groups)[None, :] < num_words
        return _top_k(_ranked(scores[:, 0], is_word), min(k, num_groups))
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
