"""Which loss the output layer trains with: one config key apart, one way for all.

A step asks twice. `sample` finds the words that the step's softmax is taken over, from the targets
and the neighbour index alone; so the caller can gather their rows before anything is
differentiated. `loss` then compares hidden states with these rows.
"""

import dataclasses
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import AbstractMesh, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from knn_sampling.blockwise import blockwise_softmax_loss
from knn_sampling.buckets import bucket_sizes, loss_in_bucket
from knn_sampling.candidates import Candidates, union_of_neighbours, union_of_words
from knn_sampling.losses import ABSENT, candidate_softmax_loss, full_softmax_loss
from knn_sampling.neighbours import (
    SCORES,
    NeighbourIndex,
    inclusion,
    log_inclusion,
    nearest_neighbours,
)
from knn_sampling.noise import nce_loss, neg_loss, sample_words
from knn_sampling.report import same_group_share, staleness

KINDS = ("full", "blockwise", "knn", "target_sampling", "nce", "neg")
SAMPLED = KINDS[2:]


class WordStatistics(NamedTuple):
    """What is known of the words before training.

    Attributes:
      probabilities: [V] float32, how often each word is a target; 0 for padding rows.
      thresholds: [V] uint32, see `noise.cumulative_thresholds`.
      languages: [V] int32, the language that uses each word most; -1 where none does.
    """

    probabilities: jax.Array
    thresholds: jax.Array
    languages: jax.Array


class Sample(NamedTuple):
    """The words of a step's softmax, by group.

    Attributes:
      candidates: V' of each group.
      bias: [G, C] float32, added to the words' output bias: a correction, or log noise.
      counts: [G, C] float32, how often each word was drawn as a negative; None for softmaxes.
    """

    candidates: Candidates
    bias: jax.Array
    counts: jax.Array | None


class OutputLoss(NamedTuple):
    """Loss of one batch's masked positions, with what the sampling did.

    Attributes:
      losses: [W] float32 weighted losses, nats. For nce and neg no negative log-likelihoods.
      candidates: scalar float32, classes in the softmax; mean |V'| of the groups before the cut, or
        the vocabulary.
      overflow: scalar float32, mean number of candidates of a group left out because V' was full.
    """

    losses: jax.Array
    candidates: jax.Array
    overflow: jax.Array


@dataclasses.dataclass(frozen=True)
class OutputLayer:
    """The output layer's strategy; the `output_layer` section of a config plus the vocabulary.

    Attributes:
      kind: "full" for the softmax over the vocabulary; "blockwise" for the same in blocks, without
        holding its logits; "knn" for k-NN target sampling; "target_sampling" for the softmax over
        the group's targets (Jean et al. 2015); "nce" for noise-contrastive estimation; "neg" for
        negative sampling.
      num_valid: words of the vocabulary, without padding rows.
      k: neighbours per target, K.
      capacity: C, slots of a group's candidate set.
      capacity_buckets: sizes, evenly spaced up to the capacity, of which a step takes the smallest
        that its candidates fit into; each is compiled.
      num_negatives: S, words drawn from the unigram distribution for a group (nce, neg).
      group_size: sequences that share a V'; 0 for the whole batch.
      refresh: "all" to make the index anew every `refresh_every` steps, "rolling" to make a
        `refresh_every`-th of it anew before every step.
      refresh_every: n of Algorithm 2, steps.
      index_block: words scored at a time in a refresh; bounds its memory.
      index_scores: "float32"; "bfloat16" to choose neighbours in bfloat16 and order them in
        float32; or "bfloat16_exact" to prove that list and repair it where that fails.
      vocab_block: words of a block of the exact softmax in blocks.
      candidate_block: words of a block of the softmax over V'; blocks past the last candidate cost
        nothing. 0 for all its logits at once, in buckets; so it is where the table is split over
        devices, which share them.
      log_q_correction: correct the softmax over V' by `neighbours.log_inclusion`. The paper does
        not; without it the loss leaves rare words too probable.
      exact_fraction: share of the steps, at the end of the run, that train with the softmax over
        the whole vocabulary; 0 in the paper.
      frequency_bias: start the output bias at the log frequency of each piece instead of zero, so
        that words not yet sampled are as probable as they are frequent.
      mesh: devices that the table and the batch are split over; None for a single one.
      vocab_axes: mesh axes that the rows of the table are split over.
    """

    kind: str
    num_valid: int
    k: int
    capacity: int
    capacity_buckets: int
    num_negatives: int
    group_size: int
    refresh: str
    refresh_every: int
    index_block: int
    index_scores: str
    vocab_block: int
    candidate_block: int
    log_q_correction: bool
    exact_fraction: float
    frequency_bias: bool
    mesh: Mesh | AbstractMesh | None = None
    vocab_axes: tuple[str, ...] = ()

    def __post_init__(self):
        _require(self.kind in KINDS, "kind", self.kind, f"one of {KINDS}")
        _require(self.refresh in ("all", "rolling"), "refresh", self.refresh, "all or rolling")
        scores = self.index_scores
        _require(scores in SCORES, "index_scores", scores, f"one of {SCORES}")
        for key in ("refresh_every", "index_block", "vocab_block", "capacity_buckets"):
            _require(getattr(self, key) >= 1, key, getattr(self, key), "at least 1")
        _require(self.group_size >= 0, "group_size", self.group_size, "0 or more sequences")
        _require(self.candidate_block >= 0, "candidate_block", self.candidate_block, "0 or more")
        fraction = self.exact_fraction
        _require(0 <= fraction <= 1, "exact_fraction", fraction, "between 0 and 1")
        if self.uses_neighbours:
            limit = f"between 1 and the vocabulary's {self.num_valid} pieces"
            _require(1 <= self.k <= self.num_valid, "k", self.k, limit)
        if self.draws_negatives:
            _require(self.num_negatives >= 1, "num_negatives", self.num_negatives, "at least 1")

    @property
    def is_sampled(self) -> bool:
        return self.kind in SAMPLED

    @property
    def uses_neighbours(self) -> bool:
        return self.kind == "knn"

    @property
    def draws_negatives(self) -> bool:
        return self.kind in ("nce", "neg")

    @property
    def splits_table(self) -> bool:
        """Whether several devices hold parts of the table."""
        return self.mesh is not None and any(self.mesh.shape[axis] > 1 for axis in self.vocab_axes)

    @property
    def takes_blocks(self) -> bool:
        """Whether the softmax over V' goes block by block."""
        is_softmax = self.kind in ("knn", "target_sampling")
        return is_softmax and self.candidate_block > 0 and not self.splits_table

    def num_groups(self, batch_size: int) -> int:
        """G, groups of a batch.

        Raises:
          ValueError: they do not divide it.
        """
        if not self.group_size:
            return 1
        if batch_size % self.group_size:
            raise ValueError(
                f"output_layer.group_size is {self.group_size}, must divide the batch of "
                f"{batch_size} sequences; 0 makes the batch one group"
            )
        return batch_size // self.group_size

    def empty_index(self, vocab_size: int) -> NeighbourIndex | None:
        """An index of the right shapes, to be refreshed before use; None if none is used."""
        if not self.uses_neighbours:
            return None
        neighbours = jnp.zeros((vocab_size, self.k), jnp.int32)
        return NeighbourIndex(
            neighbours, jnp.zeros(vocab_size, jnp.float32) if self.log_q_correction else None
        )

    def sample(
        self,
        key: jax.Array,
        targets: jax.Array,
        weights: jax.Array,
        index: NeighbourIndex | None,
        words: WordStatistics,
    ) -> Sample:
        """The words that the loss of a batch is taken over, for the sampled kinds.

        Args:
          key: random key, of the negatives.
          targets: [G, Wg] int32; weights: [G, Wg], 0 for positions that do not count.
          index: for the kind that uses one.
          words: statistics of the words.

        Raises:
          ValueError: the index is missing, or the capacity is too small for the batch.
        """
        vocab_size = words.probabilities.shape[0]
        num_groups, num_targets = targets.shape
        if self.uses_neighbours:
            if index is None:
                raise ValueError("output_layer.kind 'knn' needs the neighbour index; see refresh()")
            capacity = min(self.capacity, vocab_size)
            candidates = union_of_neighbours(index.neighbours, targets, weights, capacity)
            q = index.inclusion
        else:
            size = self.num_negatives if self.draws_negatives else 0
            extra = sample_words(key, words.thresholds, num_groups * size).reshape(num_groups, size)
            candidates = union_of_words(targets, weights, extra, vocab_size)
            q = words.probabilities
        if self.draws_negatives:
            counts = jax.vmap(lambda one: jnp.bincount(one, length=vocab_size))(extra)
            counts = _at(counts, candidates.ids).astype(jnp.float32)
            log_noise = jnp.log(jnp.maximum(words.probabilities, 1e-12))
            return Sample(candidates, _shared_at(log_noise, candidates.ids), counts)
        if self.log_q_correction and q is not None:
            log_q = log_inclusion(_shared_at(q, candidates.ids), num_targets)
            return Sample(candidates, -log_q, None)
        return Sample(candidates, jnp.zeros(candidates.ids.shape, jnp.float32), None)

    def exact_loss(
        self,
        hidden: jax.Array,
        targets: jax.Array,
        weights: jax.Array,
        table: jax.Array,
        bias: jax.Array,
    ) -> OutputLoss:
        """The softmax over the whole vocabulary; hidden [W, E], table [V, E], bias [V]."""
        args = (hidden, targets, weights, table, bias)
        # Blocks of a table that is split over devices would be gathered one by one; its logits are
        # split as it is.
        if self.kind == "full" or self.splits_table:
            losses = full_softmax_loss(*args, num_valid=self.num_valid)
        else:
            losses = blockwise_softmax_loss(
                *args, num_valid=self.num_valid, block_size=self.vocab_block
            )
        return OutputLoss(losses, jnp.float32(self.num_valid), jnp.float32(0))

    def sampled_loss(
        self,
        hidden: jax.Array,
        weights: jax.Array,
        table: jax.Array,
        bias: jax.Array,
        sample: Sample,
        places: jax.Array | None,
    ) -> OutputLoss:
        """The loss over the words of `sample`.

        Args:
          hidden: [G, Wg, E]; weights: [G, Wg].
          table: [R, E] rows that hold at least those of the sample.
          bias: [V] output bias.
          sample: from `sample`, for the same targets.
          places: [G, C] row of each candidate in `table`, R or more for unused slots; None if they
            are its first C rows (and G is 1).
        """
        ids = sample.candidates.ids
        word_bias = _shared_at(bias.astype(jnp.float32), ids)
        is_word = ids < bias.shape[0]

        def loss(hidden, table, word_bias, size):
            """Over the first `size` slots."""
            if places is None:
                rows = table[None, :size]
            else:
                rows = table.at[places[:, :size]].get(mode="fill", fill_value=0)
            rows = self._split(rows)  # [G, C, E]
            return jax.vmap(self._group_loss, in_axes=(0,) * 8 + (None,))(
                hidden,
                weights,
                rows,
                word_bias[:, :size],
                sample.bias[:, :size],
                sample.candidates.labels,
                is_word[:, :size],
                None if sample.counts is None else sample.counts[:, :size],
                largest,
            )

        largest = sample.candidates.union_size.max()
        num_buckets = 1 if self.takes_blocks else self.capacity_buckets
        sizes = bucket_sizes(ids.shape[1], num_buckets)
        losses = loss_in_bucket(loss, sizes, largest, hidden, table, word_bias)
        return OutputLoss(
            losses.reshape(-1),
            sample.candidates.union_size.mean(dtype=jnp.float32),
            sample.candidates.overflow().mean(dtype=jnp.float32),
        )

    def _split(self, rows: jax.Array) -> jax.Array:
        """Candidates [G, C, E], split over the devices that the table's rows are split over."""
        if self.mesh is None or not self.splits_table:
            return rows
        split = NamedSharding(self.mesh, P(P.UNCONSTRAINED, self.vocab_axes, None))
        return jax.lax.with_sharding_constraint(rows, split)

    def _group_loss(
        self, hidden, weights, rows, bias, sample_bias, labels, is_word, counts, num_used
    ):
        """[Wg] losses of one group over its [C, E] rows, of which the first `num_used` are used."""
        if self.kind == "nce":
            noise = (sample_bias, self.num_negatives)
            return nce_loss(hidden, weights, rows, bias, labels, counts, *noise)
        if self.kind == "neg":
            return neg_loss(hidden, weights, rows, bias, labels, counts)
        bias = bias + sample_bias
        if not self.takes_blocks:
            return candidate_softmax_loss(hidden, weights, rows, bias, labels, is_word)
        return blockwise_softmax_loss(
            hidden,
            labels,
            weights,
            rows,
            jnp.where(is_word, bias, ABSENT),
            num_valid=rows.shape[0],
            block_size=self.candidate_block,
            num_used=num_used,
        )

    def refreshed(
        self, index: NeighbourIndex, table: jax.Array, words: WordStatistics, part: jax.Array | None
    ) -> tuple[NeighbourIndex, dict[str, jax.Array]]:
        """The index with all of it, or part `part` of `refresh_every`, made anew.

        Args:
          index: the index up to now.
          table: [V, E] output embeddings.
          words: statistics of the words.
          part: scalar int32 number of the part; None for all.

        Returns:
          The index; `staleness` and `same_language`, scalars, see `report`.
        """
        vocab_size = table.shape[0]
        if part is None:
            ids = None
            which = jnp.arange(vocab_size, dtype=jnp.int32)
        else:
            size = -(-vocab_size // self.refresh_every)
            # The last part begins earlier rather than end after the table.
            start = jnp.minimum(part * size, vocab_size - size)
            ids = which = start + jnp.arange(size, dtype=jnp.int32)
        fresh = nearest_neighbours(
            table,
            k=self.k,
            num_valid=self.num_valid,
            query_ids=ids,
            block_size=self.index_block,
            scores=self.index_scores,
            mesh=self.mesh,
            vocab_axes=self.vocab_axes,
        )
        old = index.neighbours[which] if part is not None else index.neighbours
        neighbours = fresh if part is None else index.neighbours.at[which].set(fresh)
        report = {
            "staleness": staleness(old, fresh, which, self.num_valid),
            "same_language": same_group_share(fresh, which, words.languages),
        }
        q = index.inclusion
        if q is None:  # without the correction
            return NeighbourIndex(neighbours, None), report

        def exchanged(q: jax.Array) -> jax.Array:
            shares = [inclusion(lists, words.probabilities, which) for lists in (fresh, old)]
            return jnp.maximum(q + shares[0] - shares[1], 0)

        def anew(_: jax.Array) -> jax.Array:
            return inclusion(neighbours, words.probabilities)

        # A part changes few entries, but rounding adds up: once in a round q is made anew.
        q = anew(q) if part is None else jax.lax.cond(part == 0, anew, exchanged, q)
        return NeighbourIndex(neighbours, q), report


def _require(holds: bool, key: str, value, limit: str) -> None:
    if not holds:
        raise ValueError(f"output_layer.{key} is {value!r}, must be {limit}")


def _shared_at(values: jax.Array, ids: jax.Array) -> jax.Array:
    """[G, C] values [V] of ids [G, C], 0 for unused slots."""
    return values.at[ids].get(mode="fill", fill_value=0)


def _at(values: jax.Array, ids: jax.Array) -> jax.Array:
    """[G, C] values [G, V] of ids [G, C], 0 for unused slots."""
    return jax.vmap(_shared_at)(values, ids)
