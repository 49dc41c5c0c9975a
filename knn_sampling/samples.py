"""The classes that a step's loss is taken over, by groups of sequences, and their inputs gathered.

A batch of B sequences with M masked positions each is cut into G groups of Wg = B M / G positions.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from knn_sampling.candidates import Candidates
from knn_sampling.losses import ABSENT
from knn_sampling.table_sharding import TableSharding


class TokenStatistics(NamedTuple):
    """Statistics of the training text, known before training.

    Attributes:
      probabilities: [V] float32, how often each token is a target; 0 for padding rows.
      thresholds: [V] uint32, see `noise.cumulative_thresholds`.
      languages: [V] int32, the language that uses each token most; -1 where none does.
    """

    probabilities: jax.Array
    thresholds: jax.Array
    languages: jax.Array


class Sample(NamedTuple):
    """The classes of a step's loss, by group.

    Attributes:
      candidates: V' of each group.
      logit_bias: [G, C] float32, added to the classes' output bias: a correction, or minus the log
        noise.
      counts: [G, C] float32, how often each class was drawn as a negative; None for softmaxes.
      candidate_rows: [G, C] int32, row of each candidate in the table that the loss is given, R or
        more for slots that are to stay unused; None if the candidates are the table's first C rows
        and G is 1.
    """

    candidates: Candidates
    logit_bias: jax.Array
    counts: jax.Array | None
    candidate_rows: jax.Array | None


def num_groups(batch_size: int, group_size: int) -> int:
    """G, groups of a batch of sequences.

    Raises:
      ValueError: they do not divide it.
    """
    if not group_size:
        return 1
    if batch_size % group_size:
        raise ValueError(
            f"output_layer.group_size is {group_size}, must divide the batch of {batch_size} "
            "sequences; 0 makes the batch one group"
        )
    return batch_size // group_size


def in_groups(array: jax.Array, group_size: int) -> jax.Array:
    """[G, Wg] values [B, M] of the masked positions."""
    return array.reshape(num_groups(array.shape[0], group_size), -1)


def values_at(values: jax.Array, ids: jax.Array) -> jax.Array:
    """[G, C] values [V] of ids [G, C], 0 for unused slots."""
    return values.at[ids].get(mode="fill", fill_value=0)


def example_axes(sample: Sample, num_shards: int) -> Sample | None:
    """The axis of the sequences in each array of a sample, None for those that are read whole.

    Equal shards of the batch hold whole groups, or parts of the only one.

    Returns:
      None if groups go across shards.
    """
    groups = sample.candidates.ids.shape[0]
    if groups != 1 and groups % num_shards:
        return None
    by_group: Any = None if groups == 1 else 0
    labels: Any = 1 if groups == 1 else 0
    # The largest union chooses the amount of work, which is to be the same on all devices.
    union_size: Any = None
    return Sample(Candidates(by_group, labels, union_size), by_group, by_group, by_group)


def first_slots(sample: Sample, size: int) -> Sample:
    """The sample with the first `size` slots of each group only."""
    candidates, rows = sample.candidates, sample.candidate_rows
    return Sample(
        candidates._replace(ids=candidates.ids[:, :size]),
        sample.logit_bias[:, :size],
        None if sample.counts is None else sample.counts[:, :size],
        None if rows is None else rows[:, :size],
    )


def group_inputs(
    sample: Sample,
    hidden: jax.Array,
    weights: jax.Array,
    table: jax.Array,
    bias: jax.Array,
    sharding: TableSharding,
) -> dict[str, Any]:
    """Arguments of a loss over candidates by name, with a leading axis of groups.

    Slots that are unused, or whose row the table lacks, become absent classes by their bias,
    `losses.ABSENT`.

    Args:
      sample: from the layer's `sample`.
      hidden: [B, M, E]; weights: [B, M].
      table: [R, E] rows that `sample.candidate_rows` points into.
      bias: [V] output bias.
      sharding: how the table lies on the devices.

    Returns:
      hidden [G, Wg, E], targets and weights [G, Wg], table [G, C, E], bias [G, C] float32, and for
      samples of noise counts [G, C].
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
