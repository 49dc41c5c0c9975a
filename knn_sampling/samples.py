"""Sampled classes of a loss by groups of sequences, and inputs of the losses.

A batch of B sequences with M masked positions each has G groups of Wg = B M / G positions.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from knn_sampling.candidates import Candidates
from knn_sampling.losses import ABSENT
from knn_sampling.settings import num_groups
from knn_sampling.table_sharding import TableSharding


class TokenStatistics(NamedTuple):
    """Token statistics of the training text, known before training.

    Attributes:
      probabilities: [V] float32, probability of each token as a target; 0 for padding rows.
      thresholds: [V] uint32, see `noise.cumulative_thresholds`.
      languages: [V] int32, the language in which each token is most frequent; -1 for unused tokens.
    """

    probabilities: jax.Array
    thresholds: jax.Array
    languages: jax.Array


class Sample(NamedTuple):
    """Sampled classes of a step's loss, V' of each group.

    Attributes:
      logit_bias: [G, C] float32, added to the output bias: a correction, or the negative log noise.
      counts: [G, C] float32, draws of each class as a negative; None for softmaxes.
      candidate_rows: [G, C] int32, row of each candidate in the loss's table, R or more for unused
        slots; None if the candidates are the table's first C rows and G is 1.
      log_q: [G, C] float32, log probability that V' holds each class, to correct draws; None for no
        correction. It is that of whole groups, although shards of a batch may hold parts.
    """

    candidates: Candidates
    logit_bias: jax.Array
    counts: jax.Array | None
    candidate_rows: jax.Array | None
    log_q: jax.Array | None = None


def in_groups(array: jax.Array, group_size: int) -> jax.Array:
    """Reshape values [B, M] of the masked positions to [G, Wg]."""
    return array.reshape(num_groups(array.shape[0], group_size), -1)


def values_at(values: jax.Array, ids: jax.Array) -> jax.Array:
    """Gather values [V] at ids [G, C], 0 for unused slots."""
    return values.at[ids].get(mode="fill", fill_value=0)


def example_axes(sample: Sample, num_shards: int) -> Sample | None:
    """Return the axis of the sequences in each array of a sample, None for arrays read whole.

    Equal shards of the batch hold whole groups, or parts of a single one. If groups cross shards,
    the result is None.
    """
    groups = sample.candidates.ids.shape[0]
    if groups != 1 and groups % num_shards:
        return None
    by_group: Any = None if groups == 1 else 0
    labels: Any = 1 if groups == 1 else 0
    # The largest union determines the work, which must be the same on all devices.
    union_size: Any = None
    return Sample(Candidates(by_group, labels, union_size), *[by_group] * 4)


def first_slots(sample: Sample, size: int) -> Sample:
    """Truncate a sample to the first `size` slots of each group."""
    ids, *others = jax.tree.map(lambda one: one[:, :size], (sample.candidates.ids, *sample[1:]))
    return Sample(sample.candidates._replace(ids=ids), *others)


def group_inputs(
    sample: Sample,
    hidden: jax.Array,
    weights: jax.Array,
    table: jax.Array,
    bias: jax.Array,
    sharding: TableSharding,
) -> dict[str, Any]:
    """Gather the arguments of a loss over candidates by name, with a leading axis of groups.

    Returns hidden [G, Wg, E], targets and weights [G, Wg], table [G, C, E], bias [G, C] float32
    and, with negatives, counts [G, C]. Unused slots, and those without a row in the table, get the
    bias `losses.ABSENT`. `hidden` is [B, M, E], `weights` [B, M], `bias` [V]. `table` [R, E] has
    the rows that `sample.candidate_rows` indexes.
    """
    ids, labels = sample.candidates.ids, sample.candidates.labels
    is_class = ids < bias.shape[0]
    if sample.candidate_rows is None:
        rows = table[None, : ids.shape[1]]
    else:
        is_class &= sample.candidate_rows < table.shape[0]
        rows = table.at[sample.candidate_rows].get(mode="fill", fill_value=0)
    class_bias = values_at(bias.astype(jnp.float32), ids) + sample.logit_bias
    inputs = {
        "hidden": hidden.reshape(*labels.shape, -1),
        "targets": labels,
        "weights": weights.reshape(labels.shape),
        "table": sharding.split(rows),
        "bias": jnp.where(is_class, class_bias, ABSENT),
    }
    if sample.counts is not None:
        inputs["counts"] = sample.counts
    return inputs
