"""Moving averages of the loss of each language pair, a part of an objective's auxiliary state.

Observations are sums over examples, which add up over shards and microbatches.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np


class PairSums(NamedTuple):
    """Sums over each pair's examples, [N] float32.

    They are sums of loss times weight, weight, squared loss times weight, squared weight, and
    examples. Only the number of examples is never discounted.
    """

    loss: jax.Array
    weight: jax.Array
    square: jax.Array
    weight_square: jax.Array
    examples: jax.Array


def init_pair_losses(num_pairs: int) -> PairSums:
    """Initialise the state before any pair was seen."""
    return PairSums(*(jnp.zeros(num_pairs) for _ in PairSums._fields))


def pair_sums(losses: jax.Array, weights: jax.Array, pair: jax.Array, num_pairs: int) -> PairSums:
    """Sum losses [B], with weights [B], by `pair` [B] int32, without pairs outside [0, N)."""
    # A loss of weight zero may be anything, NaN included.
    losses = jnp.where(weights > 0, losses, 0.0)
    terms = (losses * weights, weights, losses**2 * weights, weights**2, weights > 0)
    return PairSums(
        *(jax.ops.segment_sum(x.astype(jnp.float32), pair, num_segments=num_pairs) for x in terms)
    )


def update_pair_losses(state: PairSums, observed: PairSums, rate: float) -> PairSums:
    """Add a batch to discounted sums: s <- (1 - rate) s + observed, for each pair in the batch.

    The mean of a pair is the ratio of its sums. Its k-th last batch weighs (1 - rate)^k times its
    examples, without a bias towards the start. `rate` is above 0 and at most 1.
    """
    kept = jnp.where(observed.weight > 0, 1.0 - rate, 1.0)
    discounts = PairSums(kept, kept, kept, kept**2, jnp.ones_like(kept))
    return jax.tree.map(lambda old, by, new: old * by + new, state, discounts, observed)


def mean_pair_losses(state: PairSums) -> jax.Array:
    """Return each pair's mean loss [N] float32: NaN if never seen, infinite if ever not finite."""
    # `best_response` refuses infinite losses.
    seen = state.weight > 0
    mean = state.loss / jnp.where(seen, state.weight, 1.0)
    return jnp.where(seen, jnp.where(jnp.isfinite(mean), mean, jnp.inf), jnp.nan)


def standard_errors(state: PairSums) -> np.ndarray:
    """Return the standard error of each pair's mean loss [N] float64, on the host; NaN if unseen.

    e_i^2 = s^2 / n_i, with n_i = (sum w)^2 / sum w^2 examples after discounting. The variance s^2
    within pairs is pooled. Errors are infinite if no pair has two examples.
    """
    loss, weight, square, weight_square, _ = (np.asarray(one, np.float64) for one in state)
    seen = (weight > 0) & np.isfinite(square)
    weight, weight_square = np.where(seen, weight, 1.0), np.where(seen, weight_square, 1.0)
    number = np.where(seen, weight**2 / weight_square, 0.0)
    with np.errstate(invalid="ignore"):
        variance = np.where(seen, np.maximum(square / weight - (loss / weight) ** 2, 0.0), 0.0)
    freedom = (number - seen).sum()
    pooled = (number * variance).sum() / freedom if freedom > 0.5 else np.inf
    return np.where(seen, np.sqrt(pooled / np.maximum(number, 1e-9)), np.nan)
