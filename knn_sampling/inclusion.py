"""Neighbour index as a proposal distribution: probability Q_j that V' (Eq. 5) holds token j."""

from typing import NamedTuple

import jax
import jax.numpy as jnp

# Lower bound on the probability of a token. A token that is never a target nor a neighbour is
# never a candidate either, so any finite logarithm will do.
_LEAST = 1e-12


class NeighbourIndex(NamedTuple):
    """State of k-NN target sampling between two refreshes.

    Attributes:
      neighbours: [V, K] int32, see `neighbours.nearest_neighbours`.
      inclusion: [V] float32, see `inclusion`; None without a correction.
    """

    neighbours: jax.Array
    inclusion: jax.Array | None


def inclusion(neighbours: jax.Array, target_probabilities: jax.Array) -> jax.Array:
    """Inclusion probability q_j that one target brings token j into V'.

    A target w contributes w and I_k(w): q_j = sum of p(w) over the w with j = w or j in I_k(w).

    Args:
      neighbours: [V, K] int32.
      target_probabilities: [V] float, p(w), frequency of each token as a target; sums to one.

    Returns:
      [V] float32.
    """
    p = target_probabilities.astype(jnp.float32)
    lists_itself = (neighbours == jnp.arange(p.size)[:, None]).any(axis=1)
    return jnp.where(lists_itself, 0.0, p).at[neighbours].add(p[:, None])


def log_inclusion(q: jax.Array, num_targets: int | jax.Array) -> jax.Array:
    """Log inclusion probability log Q_j = log(1 - (1 - q_j)^W) of token j in V'.

    W targets are drawn independently. Subtracted from the logits, it corrects the softmax over V'
    for the non-uniform inclusion of tokens: above all, V' holds rare tokens only when they are
    targets (the correction of sampled softmax, Jean et al. 2015, with this proposal).

    Args:
      q: float array, see `inclusion`; the target probabilities if V' holds targets alone.
      num_targets: W, number of targets behind V'; broadcasts, as [G, 1] for q [G, C].

    Returns:
      float32 of the shape of `q`, finite and at most 0.
    """
    return jnp.log(_drawn(q, num_targets))


def log_inclusion_with_draws(
    p: jax.Array, num_targets: int | jax.Array, time: jax.Array
) -> jax.Array:
    """Log inclusion probability if V' holds W targets and the classes of `noise.draw_distinct`.

    Token j is missing if it is neither a target nor drawn by `time`:
    Q_j = 1 - (1 - p_j)^W exp(-p_j t). Conditioned on the arrival times of all others, this is exact
    for a drawn token, so a sum over V' weighted by 1 / Q is unbiased over batches. For targets,
    which are excluded from the draw, t is one arrival too late: an error of the order of 1 / S.

    Args:
      p: [G, C] float, probability of each token as a target and as a draw.
      num_targets: W of each group, [G, 1] or a number.
      time: [G, 1] float, t, see `noise.draw_distinct`.

    Returns:
      [G, C] float32, finite and at most 0.
    """
    p = jnp.clip(p.astype(jnp.float32), _LEAST, 1.0)
    missing = jnp.maximum(num_targets, 1) * jnp.log1p(-p) - p * time
    return jnp.log(-jnp.expm1(missing))


def log_inclusion_after_overflow(
    q: jax.Array,
    p: jax.Array,
    num_targets: int | jax.Array,
    *,
    union_size: jax.Array,
    capacity: int,
    distinct_targets: jax.Array,
) -> jax.Array:
    """`log_inclusion` where V' may have been cut to its capacity: log(P_t + (P_u - P_t) share).

    All targets are kept, and a share of (C - T) / (|V'| - T) of the others in the union: Q_j is the
    probability P_t = 1 - (1 - p_j)^W of being a target, plus that share of the probability of being
    in the union, P_u = 1 - (1 - q_j)^W, without being a target. This assumes that all others are
    equally likely to be kept, although nearer neighbours are kept first.

    Args:
      q: [G, C] float, see `inclusion`.
      p: [G, C] float, probability of each token as a target.
      num_targets: W of each group, [G, 1] or a number.
      union_size: [G, 1] int, |V'| before the cut.
      capacity: C, at least `distinct_targets`.
      distinct_targets: [G, 1] int, T, number of distinct tokens among the targets.

    Returns:
      [G, C] float32; where nothing was cut, bit for bit `log_inclusion(q, num_targets)`.
    """
    others = jnp.maximum(union_size - distinct_targets, 1).astype(jnp.float32)
    share = jnp.where(union_size > capacity, (capacity - distinct_targets) / others, 1.0)
    return jnp.log(share * _drawn(q, num_targets) + (1 - share) * _drawn(p, num_targets))


def _drawn(probabilities: jax.Array, times: int | jax.Array) -> jax.Array:
    """1 - (1 - p)^W, positive and precise for small p; W is at least 1."""
    p = jnp.clip(probabilities.astype(jnp.float32), _LEAST, 1.0)
    return -jnp.expm1(jnp.maximum(times, 1) * jnp.log1p(-p))
