"""Moving averages of the loss of each language pair, learned from batches.

A named part of an objective's extra state. Observations are sums over examples, so that they add up
over shards and parts of a batch.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp


class PairSums(NamedTuple):
    """Sums over the examples of each pair.

    Attributes:
      loss: [N] float32, sum of the losses times the weights.
      weight: [N] float32, sum of the weights; 0 for a pair without examples.
    """

    loss: jax.Array
    weight: jax.Array


def init_pair_losses(num_pairs: int) -> PairSums:
    """Initialise the state: no pair has been seen."""
    return PairSums(jnp.zeros(num_pairs), jnp.zeros(num_pairs))


def pair_sums(losses: jax.Array, weights: jax.Array, pair: jax.Array, num_pairs: int) -> PairSums:
    """Sum the losses of a batch by pair.

    Args:
      losses: [B] float, loss of each example.
      weights: [B] float, weight of each example in the mean of its pair.
      pair: [B] int32, index of the pair of each example; examples with an index outside [0, N)
        belong to no pair.
    """
    # A loss that does not count may be anything, NaN included.
    weighted = jnp.where(weights > 0, losses * weights, 0.0)
    loss, weight = (
        jax.ops.segment_sum(x.astype(jnp.float32), pair, num_segments=num_pairs)
        for x in (weighted, weights)
    )
    return PairSums(loss, weight)


def update_pair_losses(state: PairSums, observed: PairSums, rate: float) -> PairSums:
    """Add a batch to discounted sums: s <- (1 - rate) s + observed, for each pair in the batch.

    The mean of a pair is the ratio of its sums, so that its k-th last batch weighs
    (1 - rate)^k times its examples, without a bias towards the start. A pair that is not in the
    batch is left as it is.

    Args:
      state: from `init_pair_losses` or this function.
      observed: [N] each, see `pair_sums`.
      rate: share of the past that is forgotten, above 0 and at most 1.
    """
    kept = jnp.where(observed.weight > 0, 1.0 - rate, 1.0)
    return PairSums(*(old * kept + new for old, new in zip(state, observed, strict=True)))


def mean_pair_losses(state: PairSums) -> jax.Array:
    """Moving average [N] float32 of each pair's loss.

    NaN for a pair that was never seen; infinite, which `best_response` refuses, for one with a loss
    that was not finite.
    """
    seen = state.weight > 0
    mean = state.loss / jnp.where(seen, state.weight, 1.0)
    return jnp.where(seen, jnp.where(jnp.isfinite(mean), mean, jnp.inf), jnp.nan)
