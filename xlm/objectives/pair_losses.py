"""Moving averages of the loss of each language pair, a part of an objective's extra state.

Observations are sums over examples, so they add up over shards and parts of a batch.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp


class PairSums(NamedTuple):
    """Sums over each pair's examples, [N] float32: of loss times weight, and of weight."""

    loss: jax.Array
    weight: jax.Array


def init_pair_losses(num_pairs: int) -> PairSums:
    """Initialise the state: no pair has been seen."""
    return PairSums(jnp.zeros(num_pairs), jnp.zeros(num_pairs))


def pair_sums(losses: jax.Array, weights: jax.Array, pair: jax.Array, num_pairs: int) -> PairSums:
    """Sum losses [B], with weights [B], by `pair` [B] int32; pairs outside [0, N) are left out."""
    # A loss of weight zero may be anything, NaN included.
    weighted = jnp.where(weights > 0, losses * weights, 0.0)
    loss, weight = (
        jax.ops.segment_sum(x.astype(jnp.float32), pair, num_segments=num_pairs)
        for x in (weighted, weights)
    )
    return PairSums(loss, weight)


def update_pair_losses(state: PairSums, observed: PairSums, rate: float) -> PairSums:
    """Add a batch to discounted sums: s <- (1 - rate) s + observed, for each pair in the batch.

    The mean of a pair is the ratio of its sums, so its k-th last batch weighs (1 - rate)^k times
    its examples, without a bias towards the start. `rate` is above 0 and at most 1.
    """
    kept = jnp.where(observed.weight > 0, 1.0 - rate, 1.0)
    return PairSums(*(old * kept + new for old, new in zip(state, observed, strict=True)))


def mean_pair_losses(state: PairSums) -> jax.Array:
    """Return each pair's mean loss [N] float32: NaN if never seen, infinite if ever not finite."""
    # `best_response` refuses infinite losses.
    seen = state.weight > 0
    mean = state.loss / jnp.where(seen, state.weight, 1.0)
    return jnp.where(seen, jnp.where(jnp.isfinite(mean), mean, jnp.inf), jnp.nan)
