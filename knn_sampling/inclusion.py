"""Statistics of a neighbour index: probability Q_j of token j in V' (Eq. 5), staleness, groups."""

from typing import NamedTuple

import jax
import jax.numpy as jnp

# Lower bound on the probability of a token. A token that is neither target nor neighbour is no
# candidate either, so any finite logarithm suffices.
_LEAST = 1e-12


class NeighbourIndex(NamedTuple):
    """Index between refreshes: neighbours [V, K] int32, `inclusion` [V] float32 if corrected."""

    neighbours: jax.Array
    inclusion: jax.Array | None


def inclusion(neighbours: jax.Array, target_probabilities: jax.Array) -> jax.Array:
    """Return q_j [V] float32, the probability that one target brings token j into V'.

    A target w contributes w and I_k(w): q_j = sum of p(w) over the w with j = w or j in I_k(w).
    `target_probabilities` p [V] sum to one.
    """
    p = target_probabilities.astype(jnp.float32)
    lists_itself = (neighbours == jnp.arange(p.size)[:, None]).any(axis=1)
    return jnp.where(lists_itself, 0.0, p).at[neighbours].add(p[:, None])


def log_inclusion(q: jax.Array, num_targets: int | jax.Array) -> jax.Array:
    """Return log Q_j = log(1 - (1 - q_j)^W), of token j in V', float32, finite and at most 0.

    W targets are independent. Subtract log Q from the logits to correct the softmax over V' for the
    non-uniform inclusion of tokens: above all, V' holds rare tokens only if they are targets (Jean
    et al. 2015, with this proposal). `q` comes from `inclusion`, or is the target probabilities if
    V' holds only targets. W broadcasts, as [G, 1] for q [G, C].
    """
    return jnp.log(_drawn(q, num_targets))


def log_inclusion_with_draws(
    p: jax.Array, num_targets: int | jax.Array, time: jax.Array
) -> jax.Array:
    """Return log Q [G, C] if V' holds W targets and the classes of `noise.draw_distinct`.

    Token j is missing if it is no target and has not arrived by time t [G, 1]: Q_j = 1 - (1 -
    p_j)^W exp(-p_j t), with its probability p [G, C] as a target and as a draw. Given the arrival
    times of all others, this is exact for a drawn token, so a sum over V' weighted by 1 / Q is
    unbiased over batches. The draw excludes targets, for which t is one arrival too late: an error
    of the order of 1 / S. The result is float32, finite and at most 0. W may be [G, 1].
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
    """Return `log_inclusion` for a V' that may be cut to its capacity, [G, C] float32.

    It is log(P_t + (P_u - P_t) share). P_t = 1 - (1 - p_j)^W is the probability of being a target,
    P_u = 1 - (1 - q_j)^W that of being in the union. V' keeps all T targets, and a share of (C - T)
    / (|V'| - T) of the others. This treats all others as equally likely, although V' keeps nearer
    neighbours first. Without a cut, the result is bit for bit `log_inclusion(q, W)`.

    Args:
      q: [G, C] float, see `inclusion`.
      p: [G, C] float, probability of each token as a target.
      num_targets: W of each group, [G, 1] or a number.
      union_size: [G, 1] int, |V'| before the cut.
      capacity: C, at least `distinct_targets`.
      distinct_targets: [G, 1] int, T.
    """
    others = jnp.maximum(union_size - distinct_targets, 1).astype(jnp.float32)
    share = jnp.where(union_size > capacity, (capacity - distinct_targets) / others, 1.0)
    return jnp.log(share * _drawn(q, num_targets) + (1 - share) * _drawn(p, num_targets))


def _drawn(probabilities: jax.Array, times: int | jax.Array) -> jax.Array:
    """Return 1 - (1 - p)^W, positive and precise for small p; W is at least 1."""
    p = jnp.clip(probabilities.astype(jnp.float32), _LEAST, 1.0)
    return -jnp.expm1(jnp.maximum(times, 1) * jnp.log1p(-p))


# Sampled tokens. Comparing K x K ids for all would be costly at large vocabularies. So many give
# the share to within a third of a per cent of their list entries.
_TOKENS = 4096


def staleness(old: jax.Array, fresh: jax.Array, num_valid: int) -> jax.Array:
    """Return the share of entries in fresh lists [V, K] that old ones lack: float32 in 0..1."""
    tokens = _spread(len(fresh))
    found = (fresh[tokens][:, :, None] == old[tokens][:, None, :]).any(axis=2)  # [N, K]
    return 1 - _mean(found, jnp.broadcast_to((tokens < num_valid)[:, None], found.shape))


def same_group_share(neighbours: jax.Array, groups: jax.Array) -> jax.Array:
    """Return the share of neighbours [V, K], without the token itself, in its group: float32."""
    # `groups` [V] int32 are languages, negative for none.
    tokens = _spread(len(neighbours))
    listed = neighbours[tokens]  # [N, K]
    own, theirs = groups[tokens][:, None], groups[listed]
    counts = (listed != tokens[:, None]) & (own >= 0) & (theirs >= 0)
    return _mean(own == theirs, counts)


def _spread(num_tokens: int) -> jax.Array:
    """Return about `_TOKENS` evenly spaced ids."""
    return jnp.arange(0, num_tokens, max(1, num_tokens // _TOKENS))


def _mean(values: jax.Array, counts: jax.Array) -> jax.Array:
    return jnp.sum(values & counts) / jnp.maximum(jnp.sum(counts), 1).astype(jnp.float32)
