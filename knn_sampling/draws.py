"""Base of the output layers, and draws from a softmax without materialising its logits.

Replaced-token detection (ELECTRA, Clark et al. 2020) replaces masked tokens by draws from a
generator's output distribution. A draw visits each block of the table once. A tile of `TILE`
classes has the log mass m = log sum_j exp(l_j / T). The tile with the greatest m + g, g standard
Gumbel noise, wins with probability proportional to exp(m): the maximum of the perturbed logits of a
tile has that distribution (Maddison et al. 2014, arXiv:1411.0030). The draw keeps only the logits
of the winning tile, and finds the class in them by the same rule. Random numbers for all logits
would take longer than the logits, so there is one per tile.
"""

import dataclasses
import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P

from knn_sampling.blockwise import vocabulary_block_size
from knn_sampling.inclusion import NeighbourIndex
from knn_sampling.losses import ABSENT
from knn_sampling.samples import Sample, TokenStatistics, group_inputs
from knn_sampling.table_sharding import ONE_DEVICE, TableSharding

# Classes that share a random number. Blocks are whole tiles, so draws do not depend on block sizes.
TILE = 128


class Draws(NamedTuple):
    """Drawn classes, their rows in the table of the draw, and the likeliest classes (for accuracy).

    All are [B, M] int32, 0 at positions of weight zero. `best` is the first of equal classes.
    """

    ids: jax.Array
    rows: jax.Array
    best: jax.Array


@dataclasses.dataclass(frozen=True)
class OutputLayer:
    """Loss of masked positions over the vocabulary, or over a sample V' of it; base of the kinds.

    Table rows from `num_valid` on are padding. Draws, and softmaxes in blocks, visit `block_size`
    classes at a time. `z_loss` is the weight of `losses.with_z_loss`.
    """

    num_valid: int
    sharding: TableSharding = ONE_DEVICE
    block_size: int = dataclasses.field(default_factory=vocabulary_block_size)
    z_loss: float = 0.0

    def sample(
        self,
        key: jax.Array,
        targets: jax.Array,
        weights: jax.Array,
        statistics: TokenStatistics,
        index: NeighbourIndex | None,
    ) -> Sample | None:
        """Select the classes in the loss of a batch; None, as here, for all.

        `targets` are [B, M] int32 ids, `weights` [B, M] float, 0 for unused positions. Only "knn"
        reads `index`. Raises ValueError if groups do not divide the batch.
        """
        return None

    def loss(
        self,
        hidden: jax.Array,
        targets: jax.Array,
        weights: jax.Array,
        table: jax.Array,
        bias: jax.Array,
        sample: Any,
    ) -> jax.Array:
        """Return weighted losses [B, M] of the positions, float32 nats.

        Args:
          hidden: [B, M, E] hidden states.
          targets, weights: [B, M] of `sample`.
          table: [R, E] table rows, at least those of the sample. It is the whole table if `sample`
            is None, or if its `candidate_rows` are its ids, as `sample` returns them.
          bias: [V] output bias.
          sample: from `sample`, with the `candidate_rows` of this table.
        """
        raise NotImplementedError

    def draw(
        self,
        key: jax.Array,
        hidden: jax.Array,
        weights: jax.Array,
        table: jax.Array,
        bias: jax.Array,
        sample: Sample | None,
        temperature: float,
    ) -> Draws:
        """Draw a class at each position, from V' with weights exp((h . v_j + b_j) / T) / Q_j.

        Q is that of `Sample.log_q`, 1 if that is None. The target y of a position is always in V'
        and counts without 1 / Q_y. The sum over V' is then an unbiased estimate of the sum over all
        classes, if the other classes are independent of y. Unused slots, and those without a row in
        the table, have no probability. Without a sample all classes are candidates. No gradient
        flows. The temperature T is static; 0 takes the likeliest class. Other arguments are those
        of `loss`, errors those of `draw_slots`.
        """
        search = functools.partial(
            draw_slots, key, temperature=temperature, block_size=self.block_size,
            sharding=self.sharding,
        )  # fmt: skip
        if sample is None:
            is_class = jnp.arange(bias.shape[0]) < self.num_valid
            bias = jnp.where(is_class, bias.astype(jnp.float32), ABSENT)[None]
            inputs = hidden.reshape(1, -1, hidden.shape[-1]), weights.reshape(1, -1), table[None]
            ids, best = (x.reshape(weights.shape) for x in search(*inputs, bias))
            return Draws(ids, ids, best)
        if self.sharding.splits_rows:
            sample = _in_whole_tiles(sample, table.shape[0], bias.shape[0], self.sharding)
        plain = sample._replace(logit_bias=jnp.zeros_like(sample.logit_bias), counts=None)
        of_groups = group_inputs(plain, hidden, weights, table, bias, self.sharding)
        labels = of_groups.pop("targets")
        slots, best = search(
            **of_groups,
            correction=None if sample.log_q is None else (-sample.log_q, labels),
            num_used=sample.candidates.union_size.max(),
        )

        def at(values: jax.Array, slots: jax.Array) -> jax.Array:
            found = jnp.take_along_axis(values, slots, axis=1).reshape(weights.shape)
            return jnp.where(weights > 0, found, 0)

        ids, rows = sample.candidates.ids, sample.candidate_rows
        row = slots.reshape(weights.shape) if rows is None else at(rows, slots)
        return Draws(at(ids, slots), row, at(ids, best))


def _in_whole_tiles(
    sample: Sample, num_rows: int, vocab_size: int, sharding: TableSharding
) -> Sample:
    """Append unused slots, so all devices that share the table have equally many whole tiles."""
    ids, rows = sample.candidates.ids, sample.candidate_rows
    if rows is None:
        rows = jnp.arange(ids.shape[1], dtype=jnp.int32)[None, :]
    more = ((0, 0), (0, -ids.shape[1] % (TILE * sharding.num_row_shards)))
    candidates = sample.candidates._replace(ids=jnp.pad(ids, more, constant_values=vocab_size))
    rows = jnp.pad(rows, more, constant_values=num_rows)
    log_q = None if sample.log_q is None else jnp.pad(sample.log_q, more)
    return Sample(candidates, jnp.pad(sample.logit_bias, more), None, rows, log_q)


def draw_slots(
    key: jax.Array,
    hidden: jax.Array,
    weights: jax.Array,
    table: jax.Array,
    bias: jax.Array,
    *,
    temperature: float,
    block_size: int,
    sharding: TableSharding = ONE_DEVICE,
    correction: tuple[jax.Array, jax.Array] | None = None,
    num_used: jax.Array | None = None,
) -> tuple[jax.Array, jax.Array]:
    """Draw classes of G groups with a table each: drawn and likeliest ones [G, Wg] int32.

    No gradient flows. Memory is a few times Wg * block_size floats for each group. The noise of a
    tile is a function of the key, the group, the position and the tile's first class. With keys of
    "threefry2x32", draws do not depend on block sizes, nor on the sharding if each device holds
    whole tiles of rows. Otherwise they are equal in distribution. Raises ValueError for a negative
    temperature or block size, or devices with unequal shares of C.

    Args:
      hidden: [G, Wg, E], float32 or bfloat16; products accumulate in float32.
      weights: [G, Wg]; positions of weight zero may have any hidden state, and get 0.
      table: [G, C, E], which blocks cast to the dtype of `hidden`.
      bias: [G, C] float32; `losses.ABSENT` for absent classes, which no draw finds.
      temperature: T, at least 0; 0 takes the likeliest class.
      block_size: most classes per block, rounded up to whole tiles; 0 puts all into one block.
      sharding: of C; each device visits its own classes, and then devices compare winners.
      correction: [G, C] float32, at least 0, added to the log masses l_j / T; and [G, Wg] int32,
        the class of each position without correction.
      num_used: scalar int32; the loop skips blocks of absent classes from here on. None for C.
    """
    if not temperature >= 0:
        raise ValueError(
            f"temperature is {temperature}, must be at least 0; 1 draws from the softmax, 0 takes "
            "the likeliest class"
        )
    if block_size < 0:
        raise ValueError(f"block_size is {block_size}, must be at least 0 (one block)")
    num_groups, num_classes = bias.shape
    if num_used is None:
        num_used = jnp.int32(num_classes)
    arguments = jax.random.split(key, num_groups), hidden, table, bias, correction
    # Ids have no gradient, but JAX would still differentiate the loops forward.
    arguments = jax.lax.stop_gradient(arguments)

    def search(first: jax.Array, num_used: jax.Array, arguments) -> tuple[_Winner, _Winner]:
        """Return drawn and likeliest classes of all groups among those with ids from `first` on."""
        of_group = functools.partial(
            _search_group, first, num_used, temperature=temperature, block_size=block_size
        )
        return jax.vmap(of_group)(*arguments)

    if sharding.splits_rows:
        leaders = _on_mesh(search, sharding, num_used, arguments)
    else:
        leaders = search(jnp.int32(0), num_used, arguments)
    drawn, best = (jnp.where(weights > 0, leader.ids, 0) for leader in leaders)
    return drawn, best


class _Winner(NamedTuple):
    """Class `ids` with the highest `score` so far at each position, [G, Wg]."""

    score: jax.Array
    ids: jax.Array

    def over(self, axes: tuple[str, ...]) -> "_Winner":
        """Return the winner of all devices along mesh axes, by score and then smaller id."""
        score = jax.lax.pmax(self.score, axes)
        last = jnp.iinfo(jnp.int32).max
        return _Winner(score, jax.lax.pmin(jnp.where(self.score == score, self.ids, last), axes))


def _on_mesh(search, sharding: TableSharding, num_used, arguments) -> tuple[_Winner, _Winner]:
    """Search the classes of each device, and compare the winners."""
    axes, num_classes = sharding.row_axes, arguments[3].shape[1]
    if num_classes % sharding.num_row_shards:
        raise ValueError(
            f"the table has {num_classes} rows, must be a multiple of the "
            f"{sharding.num_row_shards} devices that share it; change mesh.vocab_multiple"
        )
    num_local = num_classes // sharding.num_row_shards

    def on_device(num_used, arguments) -> tuple[_Winner, _Winner]:
        first = jax.lax.axis_index(axes) * num_local
        *rest, correction = arguments
        if correction is not None:
            correction = correction[0], correction[1] - first
        drawn, best = search(first, num_used - first, (*rest, correction))
        return drawn.over(axes), best.over(axes)

    by_class = P(None, axes)
    specs = P(), P(), by_class, by_class, None if arguments[4] is None else (by_class, P())
    mapped = sharding.shard_map(on_device, in_specs=(P(), specs), out_specs=P())
    return mapped(num_used, arguments)


class _Leader(NamedTuple):
    """Tile with the highest score so far at each of W positions.

    Its first class has the id `first` [W] int32, its classes the log masses `values` [TILE, W].
    """

    score: jax.Array
    first: jax.Array
    values: jax.Array

    def against(self, scores: jax.Array, first: jax.Array, values: jax.Array) -> "_Leader":
        """Compete with further tiles: scores [N, W], first classes [N], values [N, TILE, W]."""
        tile, score = jnp.argmax(scores, axis=0), scores.max(axis=0)
        wins = score > self.score
        of_tile = jnp.take_along_axis(values, tile[None, None, :], axis=0, mode="clip")[0]
        return _Leader(
            jnp.where(wins, score, self.score),
            jnp.where(wins, first[tile], self.first),
            jnp.where(wins[None, :], of_tile, self.values),
        )

    def winner(self, noise: jax.Array | float) -> _Winner:
        """Return the class of the tile with the highest value plus noise [TILE, W]."""
        place = jnp.argmax(self.values + noise, axis=0).astype(jnp.int32)
        return _Winner(self.score, self.first + place)


def _search_group(
    first, num_used, key, hidden, table, bias, correction, *, temperature: float, block_size: int
) -> tuple[_Winner, _Winner]:
    """Return drawn and likeliest classes [W] among rows [C, E] with the ids from `first` on."""
    num_positions, num_classes = hidden.shape[0], bias.shape[0]
    num_blocks, size = _blocks(num_classes, block_size)
    tile_key, class_key = jax.random.split(key)
    scale = 1 / temperature if temperature else 1.0
    bias = jnp.where(bias > ABSENT, bias * scale, ABSENT)

    def visit(start, size: int, leaders):
        """Return the leaders after the `size` classes from local id `start` on."""
        rows = jax.lax.dynamic_slice_in_dim(table, start, size).astype(hidden.dtype)
        logits = jnp.dot(rows, hidden.T, preferred_element_type=jnp.float32) * scale
        logits += jax.lax.dynamic_slice_in_dim(bias, start, size)[:, None]  # [size, W]
        logits = _tiles(logits)
        ids = first + start + TILE * jnp.arange(len(logits), dtype=jnp.int32)
        highest = logits.max(axis=1)  # [N, W]
        drawn, best = leaders
        if temperature:
            log_masses = logits
            if correction is not None:
                shifts = jax.lax.dynamic_slice_in_dim(correction[0], start, size)
                local_ids = start + jnp.arange(size, dtype=jnp.int32)
                is_own = local_ids[:, None] == correction[1][None, :]
                log_masses = logits + _tiles(jnp.where(is_own, 0.0, shifts[:, None]))
            # Corrections are small for float32's exp, so the greatest uncorrected logit suffices.
            masses = jnp.exp(log_masses - highest[:, None, :]).sum(axis=1)
            noise = jax.vmap(lambda i: _gumbel(jax.random.fold_in(tile_key, i), num_positions))(ids)
            drawn = drawn.against(highest + jnp.log(masses) + noise, ids, log_masses)
        return drawn, best.against(highest, ids, logits)

    none = _Leader(
        jnp.full(num_positions, -jnp.inf),
        jnp.full(num_positions, first, jnp.int32),
        jnp.full((TILE, num_positions), ABSENT),
    )
    leaders = none, none
    if num_blocks:
        visited = jnp.clip((num_used + size - 1) // size, 0, num_blocks)
        leaders = jax.lax.fori_loop(0, visited, lambda i, x: visit(i * size, size, x), leaders)
    if num_classes > num_blocks * size:
        leaders = visit(num_blocks * size, num_classes - num_blocks * size, leaders)
    drawn, best = leaders
    likeliest = best.winner(0.0)
    if not temperature:
        return likeliest, likeliest
    return drawn.winner(_gumbel(class_key, TILE, num_positions)), likeliest


def _blocks(num_classes: int, block_size: int) -> tuple[int, int]:
    """Return number and size of equal blocks of whole tiles; the rest is a shorter last one."""
    # Blocks are whole tiles, unlike those of the losses, which may overlap.
    num_blocks = -(-num_classes // (block_size or num_classes))
    size = -(-num_classes // (num_blocks * TILE)) * TILE
    return num_classes // size, size


def _tiles(logits: jax.Array) -> jax.Array:
    """Reshape logits [size, W] to tiles [N, TILE, W], with absent classes at the end."""
    more = -len(logits) % TILE
    if more:
        logits = jnp.pad(logits, ((0, more), (0, 0)), constant_values=ABSENT)
    return logits.reshape(-1, TILE, logits.shape[1])


def _gumbel(key: jax.Array, *shape: int) -> jax.Array:
    """Draw standard Gumbel noise with 32 bits of resolution in the upper tail, that of maxima."""
    # `jax.random.gumbel` has 23 bits there by default. Its values end at 16, near the maxima of
    # tables of millions.
    bits = jax.random.bits(key, shape, jnp.uint32).astype(jnp.float32)
    uniform = jnp.minimum((bits + 0.5) * 2.0**-32, 1 - 2.0**-24)
    return -jnp.log(-jnp.log1p(-uniform))
