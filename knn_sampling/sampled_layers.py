"""Output layers with a loss over the candidates V' of each group of sequences."""

import dataclasses
import functools
from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp

from knn_sampling.blockwise import blockwise_softmax_loss
from knn_sampling.candidates import Candidates, marked, union_of_classes, union_of_neighbours
from knn_sampling.draws import OutputLayer
from knn_sampling.inclusion import (
    NeighbourIndex,
    inclusion,
    log_inclusion,
    log_inclusion_after_overflow,
    log_inclusion_with_draws,
    same_group_share,
    staleness,
)
from knn_sampling.losses import candidate_softmax_loss, with_z_loss
from knn_sampling.neighbours import nearest_neighbours
from knn_sampling.noise import draw_distinct, nce_loss, neg_loss, sample_classes
from knn_sampling.samples import (
    Sample,
    TokenStatistics,
    first_slots,
    group_inputs,
    in_groups,
    values_at,
)

# Bucket sizes are multiples of this, for the tiles of accelerators' matrix units.
_MULTIPLE = 128


def bucket_sizes(capacity: int, num_buckets: int) -> tuple[int, ...]:
    """Return ascending, evenly spaced bucket sizes up to the capacity."""
    sizes = {
        min(-(-capacity * i // (num_buckets * _MULTIPLE)) * _MULTIPLE, capacity)
        for i in range(1, num_buckets + 1)
    }
    return tuple(sorted(sizes))


def loss_in_bucket(
    loss: Callable[..., jax.Array], sizes: Sequence[int], needed: jax.Array, *args: jax.Array
) -> jax.Array:
    """Compute `loss(*args, size=size)` at the smallest size that holds `needed`, or the largest.

    The shape of the losses must not depend on the size, nor their values on slots from `needed` on.
    Only the chosen branch runs. The backward pass recomputes it, since JAX would otherwise store
    residuals for the branches of all sizes.
    """
    if len(sizes) == 1:
        return loss(*args, size=sizes[0])
    bucket = jnp.searchsorted(jnp.array(sizes[:-1], jnp.int32), needed)
    branches = [jax.checkpoint(functools.partial(loss, size=size)) for size in sizes]
    return jax.lax.switch(bucket, branches, *args)


@dataclasses.dataclass(frozen=True, kw_only=True)
class _CandidateSoftmax(OutputLayer):
    """Softmax over the V' (Eq. 4) of each group of `group_size` sequences, 0 for the whole batch.

    `log_q_correction` corrects the logits, and draws, by `inclusion.log_inclusion`. The softmax
    visits blocks of `block_size` classes up to the last candidate. Devices with sharded rows would
    have to gather blocks one by one, so they share the logits of all candidates at once. A step
    then takes the smallest sufficient of `num_buckets` evenly spaced sizes up to the capacity.
    """

    group_size: int
    log_q_correction: bool
    num_buckets: int = 4

    def loss(
        self,
        hidden: jax.Array,
        targets: jax.Array,
        weights: jax.Array,
        table: jax.Array,
        bias: jax.Array,
        sample: Sample,
    ) -> jax.Array:
        capacity = sample.candidates.ids.shape[1]
        largest = sample.candidates.union_size.max()
        if not self.sharding.splits_rows:
            in_blocks = functools.partial(
                with_z_loss(blockwise_softmax_loss, self.z_loss),
                num_valid=capacity,
                block_size=self.block_size,
                num_used=largest,
            )
            inputs = group_inputs(sample, hidden, weights, table, bias, self.sharding)
            return jax.vmap(in_blocks)(**inputs).reshape(weights.shape)

        def over_slots(hidden, table, bias, size):
            part = first_slots(sample, size)
            inputs = group_inputs(part, hidden, weights, table, bias, self.sharding)
            loss = with_z_loss(candidate_softmax_loss, self.z_loss)
            return jax.vmap(loss)(**inputs).reshape(weights.shape)

        sizes = bucket_sizes(capacity, self.num_buckets)
        return loss_in_bucket(over_slots, sizes, largest, hidden, table, bias)


@dataclasses.dataclass(frozen=True, kw_only=True)
class KNNSampling(_CandidateSoftmax):
    """k-NN target sampling: V' holds the targets and their `k` nearest neighbours (Section 3.1).

    There are C = `capacity` slots per group, and `refresh_every` = n steps between refreshes of the
    index (Algorithm 2).
    """

    k: int
    capacity: int
    refresh_every: int

    def init_index(self, vocab_size: int) -> NeighbourIndex:
        """Return a placeholder index; refresh it before use."""
        return NeighbourIndex(
            jnp.zeros((vocab_size, self.k), jnp.int32),
            jnp.zeros(vocab_size, jnp.float32) if self.log_q_correction else None,
        )

    def sample(
        self,
        key: jax.Array,
        targets: jax.Array,
        weights: jax.Array,
        statistics: TokenStatistics,
        index: NeighbourIndex | None,
    ) -> Sample:
        """Select targets and neighbours; ValueError without an index, or for a small capacity."""
        if index is None:
            raise ValueError("output_layer.kind 'knn' needs an index; pass that of refresh()")
        targets, weights = (in_groups(x, self.group_size) for x in (targets, weights))
        # A capacity for all classes becomes V, with a slot for any row.
        vocab_size = statistics.probabilities.shape[0]
        capacity = self.capacity if self.capacity < self.num_valid else vocab_size
        candidates = union_of_neighbours(index.neighbours, targets, weights, capacity)
        if not self.log_q_correction or index.inclusion is None:
            return _softmax_sample(candidates)
        log_q = log_inclusion_after_overflow(
            values_at(index.inclusion, candidates.ids),
            values_at(statistics.probabilities, candidates.ids),
            _num_live(weights),
            union_size=candidates.union_size[:, None],
            capacity=capacity,
            distinct_targets=_distinct_targets(candidates, weights),
        )
        return _softmax_sample(candidates, log_q)

    def refresh(
        self, neighbours: jax.Array, table: jax.Array, statistics: TokenStatistics
    ) -> tuple[jax.Array, dict[str, jax.Array]]:
        """Recompute neighbours [V, K] int32 from a table [V, E] (Algorithm 2); add a `report`."""
        fresh = nearest_neighbours(
            table, k=self.k, num_valid=self.num_valid, **self.sharding._asdict()
        )
        return fresh, {
            "staleness": staleness(neighbours, fresh, self.num_valid),
            "same_language": same_group_share(fresh, statistics.languages),
        }

    def inclusion(self, neighbours: jax.Array, statistics: TokenStatistics) -> jax.Array:
        """Return the inclusion probability [V] of each class per target, see `inclusion`."""
        return inclusion(neighbours, statistics.probabilities)


@dataclasses.dataclass(frozen=True, kw_only=True)
class TargetSampling(_CandidateSoftmax):
    """Softmax over the group's targets and sampled classes (Jean et al. 2015), of Table 2.

    The paper samples 50,000 "negative subword units per batch" for target sampling, NCE and NEG,
    and does not name the distribution. Here all three draw from the unigram distribution. V' is a
    set, so target sampling draws S = `num_negatives` distinct non-targets per group, 0 for only the
    targets.
    """

    num_negatives: int = 0

    def sample(
        self,
        key: jax.Array,
        targets: jax.Array,
        weights: jax.Array,
        statistics: TokenStatistics,
        index: NeighbourIndex | None,
    ) -> Sample:
        targets, weights = (in_groups(x, self.group_size) for x in (targets, weights))
        p = statistics.probabilities
        if self.num_negatives:
            used = jnp.where(weights > 0, targets, p.size)
            is_target = jax.vmap(marked, in_axes=(0, None))(used, p.size)
            further, time = draw_distinct(key, p, is_target, self.num_negatives)
        else:
            further = jnp.zeros((targets.shape[0], 0), jnp.int32)
        candidates = union_of_classes(targets, weights, further, p.size)
        if not self.log_q_correction:
            return _softmax_sample(candidates)
        p, num_targets = values_at(p, candidates.ids), _num_live(weights)
        if not self.num_negatives:
            return _softmax_sample(candidates, log_inclusion(p, num_targets))
        return _softmax_sample(candidates, log_inclusion_with_draws(p, num_targets, time))


def _num_live(weights: jax.Array) -> jax.Array:
    """Count the targets of each group with positive weight, [G, 1] int32."""
    return (weights > 0).sum(axis=1, keepdims=True, dtype=jnp.int32)


def _distinct_targets(candidates: Candidates, weights: jax.Array) -> jax.Array:
    """Count the distinct targets of each group, [G, 1], by their slots."""
    capacity = candidates.ids.shape[1]
    slots = jnp.where(weights > 0, candidates.labels, capacity)
    return jax.vmap(marked, in_axes=(0, None))(slots, capacity).sum(axis=1, keepdims=True)


def _softmax_sample(candidates: Candidates, log_q: jax.Array | None = None) -> Sample:
    """Build the sample for a softmax, corrected by log Q [G, C] if given."""
    logit_bias = jnp.zeros(candidates.ids.shape, jnp.float32) if log_q is None else -log_q
    return Sample(candidates, logit_bias, None, candidates.ids, log_q)


@dataclasses.dataclass(frozen=True, kw_only=True)
class NegativeSampling(OutputLayer):
    """Logistic regressions against S = `num_negatives` classes that a group shares, of Table 2.

    Negatives come from the unigram distribution. `draw` needs no correction. At the optimum a logit
    is log p(c | h) - log(S p_c), and V' holds a rare class with probability about S p_c. Together
    they draw from p(c | h), unlike the softmax of these logits.
    """

    group_size: int
    num_negatives: int

    def loss(
        self,
        hidden: jax.Array,
        targets: jax.Array,
        weights: jax.Array,
        table: jax.Array,
        bias: jax.Array,
        sample: Sample,
    ) -> jax.Array:
        """Return weighted losses [B, M], not log-likelihoods, see `OutputLayer.loss`."""
        inputs = group_inputs(sample, hidden, weights, table, bias, self.sharding)
        return jax.vmap(self._losses)(**inputs).reshape(weights.shape)

    def sample(
        self,
        key: jax.Array,
        targets: jax.Array,
        weights: jax.Array,
        statistics: TokenStatistics,
        index: NeighbourIndex | None,
    ) -> Sample:
        targets, weights = (in_groups(x, self.group_size) for x in (targets, weights))
        num_groups, vocab_size = targets.shape[0], statistics.probabilities.shape[0]
        drawn = sample_classes(key, statistics.thresholds, num_groups * self.num_negatives)
        drawn = drawn.reshape(num_groups, self.num_negatives)
        candidates = union_of_classes(targets, weights, drawn, vocab_size)
        counts = jax.vmap(lambda one: jnp.bincount(one, length=vocab_size))(drawn)  # [G, V]
        counts = jax.vmap(values_at)(counts, candidates.ids).astype(jnp.float32)
        sample = Sample(candidates, jnp.zeros_like(counts), counts, candidates.ids)
        return self._corrected(sample, _num_live(weights), statistics.probabilities)

    def _losses(self, **inputs: jax.Array) -> jax.Array:
        """Return losses [Wg] of a group from its part of `group_inputs`."""
        return neg_loss(**inputs)

    def _corrected(self, sample: Sample, num_targets: jax.Array, p: jax.Array) -> Sample:
        """Return the sample with the layer's corrections; `num_targets` is [G, 1], p [V]."""
        return sample


class NCE(NegativeSampling):
    """Noise-contrastive estimation with shared negatives, of Table 2.

    It corrects logits and draws. V' holds each class at most once, however many negatives it has.
    So Q is the probability that any negative or target of the group is the class, not the noise in
    `Sample.logit_bias`.
    """

    def _losses(self, **inputs: jax.Array) -> jax.Array:
        return nce_loss(**inputs, num_negatives=self.num_negatives)

    def _corrected(self, sample: Sample, num_targets: jax.Array, p: jax.Array) -> Sample:
        noise = values_at(jnp.log(jnp.maximum(p, 1e-12)), sample.candidates.ids)
        log_q = log_inclusion(jnp.exp(noise), self.num_negatives + num_targets)
        return sample._replace(logit_bias=-noise, log_q=log_q)
