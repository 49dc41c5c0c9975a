"""The neighbour index as a proposal: the probability Q_j that V' (Eq. 5) holds token j."""

from typing import NamedTuple

import jax
import jax.numpy as jnp

# Least probability of a token. One that is never a target and nobody's neighbour is never a
# candidate either; any finite logarithm will do.
_LEAST = 1e-12


class NeighbourIndex(NamedTuple):
    """State of k-NN target sampling between two refreshes.

    Attributes:
      neighbours: [V, K] int32, see `neighbours.nearest_neighbours`.
      inclusion: [V] float32, see `inclusion`; None where no correction is wanted.
    """

    neighbours: jax.Array
    inclusion: jax.Array | None


def inclusion(neighbours: jax.Array, target_probabilities: jax.Array) -> jax.Array:
    """q_j, the probability that one target brings token j into V'.

    A target w brings in w and I_k(w): q_j = sum of p(w) over the w with j = w or j in I_k(w).

    Args:
      neighbours: [V, K] int32.
      target_probabilities: [V] float, p(w), how often each token is a target; sums to one.

    Returns:
      [V] float32.
    """
    p = target_probabilities.astype(jnp.float32)
    lists_itself = (neighbours == jnp.arange(p.size)[:, None]).any(axis=1)
    return jnp.where(lists_itself, 0.0, p).at[neighbours].add(p[:, None])


def log_inclusion(q: jax.Array, num_targets: int | jax.Array) -> jax.Array:
    """log Q_j = log(1 - (1 - q_j)^W), the log probability that V' holds token j.

    W targets are drawn independently. Subtracted from the logits, it corrects the softmax over V'
    for what V' holds more often than a uniform sample would: above all, rare tokens only when they
    are targets (the correction of sampled softmax, Jean et al. 2015, with this proposal).

    Args:
      q: float array, see `inclusion`; of targets alone, their probabilities.
      num_targets: W, targets that V' was made of; broadcasts, as [G, 1] for q [G, C].

    Returns:
      float32 of the shape of `q`, finite and at most 0.
    """
    return jnp.log(_drawn(q, num_targets))


def log_inclusion_with_draws(
    p: jax.Array, num_targets: int | jax.Array, time: jax.Array
) -> jax.Array:
    """log Q_j where V' holds W targets and the further classes of `noise.draw_distinct`.

    Token j is missing if it is neither a target nor drawn by `time`:
    Q_j = 1 - (1 - p_j)^W exp(-p_j t). A token that was drawn had exactly that chance, given when
    all others arrived; so a sum over V' of anything over Q is right in the mean over batches. Of
    targets, which are out of the race, t is one arrival too late: an error of the order of 1 / S.

    Args:
      p: [G, C] float, how often each token is a target, and drawn.
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

    All targets stay, and of the others in the union a share of (C - T) / (|V'| - T): Q_j is the
    probability P_t = 1 - (1 - p_j)^W of a target, and that share of the probability of being in the
    union, P_u = 1 - (1 - q_j)^W, without being a target. Takes the others for equally likely to
    stay, although the nearest neighbours stay first.

    Args:
      q: [G, C] float, see `inclusion`.
      p: [G, C] float, how often each token is a target.
      num_targets: W of each group, [G, 1] or a number.
      union_size: [G, 1] int, |V'| before the cut.
      capacity: C, at least `distinct_targets`.
      distinct_targets: [G, 1] int, T, different tokens among the targets.

    Returns:
      [G, C] float32; where nothing was cut `log_inclusion(q, num_targets)`, to the bit.
    """
    others = jnp.maximum(union_size - distinct_targets, 1).astype(jnp.float32)
    share = jnp.where(union_size > capacity, (capacity - distinct_targets) / others, 1.0)
    return jnp.log(share * _drawn(q, num_targets) + (1 - share) * _drawn(p, num_targets))


def _drawn(probabilities: jax.Array, times: int | jax.Array) -> jax.Array:
    """1 - (1 - p)^W, positive and precise for small p; a group without targets counts as one."""
    p = jnp.clip(probabilities.astype(jnp.float32), _LEAST, 1.0)
    return -jnp.expm1(jnp.maximum(times, 1) * jnp.log1p(-p))
