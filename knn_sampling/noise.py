"""Draws from the unigram distribution, and the losses that tell targets from them (paper Table 2).

NCE and negative sampling turn the softmax into logistic regressions, target against classes drawn
from the unigram distribution. The draw is shared: all positions of a batch see the same negatives,
so that one matrix product scores them.
"""

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

_RANGE = 2**32  # values of a random 32-bit integer


def cumulative_thresholds(probabilities: ArrayLike) -> jax.Array:
    """Ends of the classes' shares of the 32-bit integers: t_j = round(2^32 sum_{i <= j} p_i).

    Class j owns the integers from t_{j-1} up to t_j, and so gets its probability to within 2^-32;
    a float32 running sum would lose every class below 2^-24. Classes below 2^-33 may get nothing.
    Computed on the host in float64, once. The last threshold does not fit into 32 bits and is cut
    by one, see `classes_at`.

    Args:
      probabilities: [V] how often each class is drawn, at least 0; scaled to sum to one.

    Returns:
      [V] uint32 ascending.

    Raises:
      ValueError: a probability is negative or not finite, or all are zero.
    """
    p = np.asarray(probabilities, np.float64)
    total = p.sum()
    if not (np.isfinite(total) and total > 0 and (p >= 0).all()):
        raise ValueError(
            f"probabilities sum to {total} and the least is {p.min()}: all must be finite and at "
            "least 0, and one above 0; count the training rows again"
        )
    ends = np.rint(np.cumsum(p) / total * _RANGE)
    return jnp.asarray(np.minimum(ends, _RANGE - 1).astype(np.uint32))


def classes_at(thresholds: jax.Array, integers: jax.Array) -> jax.Array:
    """The class that owns each integer: the number of thresholds that are not above it.

    Args:
      thresholds: [V] uint32, from `cumulative_thresholds`.
      integers: [S] uint32.

    Returns:
      [S] int32 ids.
    """
    # The cut threshold leaves the largest integer without a class; it goes with the one below it.
    integers = jnp.minimum(integers, jnp.uint32(_RANGE - 2))
    return jnp.searchsorted(thresholds, integers, side="right").astype(jnp.int32)


def sample_classes(key: jax.Array, thresholds: jax.Array, num_samples: int) -> jax.Array:
    """Independent classes from the distribution of the thresholds, by inverting its running sum.

    Args:
      key: random key.
      thresholds: [V] uint32, from `cumulative_thresholds`.
      num_samples: S.

    Returns:
      [S] int32 ids, repeats included.
    """
    return classes_at(thresholds, jax.random.bits(key, (num_samples,), jnp.uint32))


# Later than any class with a chance worth the name arrives; finite, so that 0 t is no NaN.
_NEVER = 1e30


def draw_distinct(
    key: jax.Array, probabilities: jax.Array, is_out: jax.Array, num_samples: int
) -> tuple[jax.Array, jax.Array]:
    """S different classes, as drawing one by one and leaving out repeats would find them.

    Class j arrives at a time from the exponential distribution of rate p_j, and the first S stay.

    Args:
      key: random key.
      probabilities: [V] float, p; classes of probability zero are not drawn.
      is_out: [G, V] bool, classes that a group is not to draw.
      num_samples: S, at least 1; all classes are drawn where there are not so many.

    Returns:
      [G, min(S, V)] int32 ids, V where there are no more; [G, 1] float32, the time before which the
      drawn classes arrived: that of the next one.
    """
    vocab_size = probabilities.size
    p = probabilities[None, :]
    can_come = ~is_out & (p > 0)
    waiting = jax.random.exponential(key, is_out.shape) / jnp.where(can_come, p, 1.0)
    arrivals = jnp.where(can_come, jnp.minimum(waiting, _NEVER), 2 * _NEVER)
    first = min(num_samples, vocab_size)
    times, ids = jax.lax.top_k(-arrivals, min(first + 1, vocab_size))
    drawn = jnp.where(times[:, :first] >= -_NEVER, ids[:, :first], vocab_size)
    next_time = -times[:, first:] if first < vocab_size else jnp.full_like(times[:, :1], _NEVER)
    return drawn.astype(jnp.int32), next_time


def nce_loss(
    hidden: jax.Array,
    targets: jax.Array,
    weights: jax.Array,
    table: jax.Array,
    bias: jax.Array,
    counts: jax.Array,
    *,
    num_negatives: int,
) -> jax.Array:
    """Noise-contrastive loss -log sigma(x_w) - sum_c n_c log sigma(-x_c).

    The logit is x_c = h . v_c + b_c - log(S p_c), with S shared draws from p. Negatives that happen
    to be the target stay: the estimate is consistent because the noise is p, and without the target
    it would not be. Its optimum is h . v_c + b_c = log p(c | h), normalised without a partition
    function.

    Args:
      hidden, targets, weights, table, counts: as for `neg_loss`.
      bias: [C] output bias less the log noise, b_c - log p_c.
      num_negatives: S, the draws.

    Returns:
      [W] float32 weighted losses, nats.

    Source: Gutmann and Hyvarinen 2010; Mnih and Teh 2012.
    """
    shifted = bias.astype(jnp.float32) - jnp.log(jnp.float32(num_negatives))
    return neg_loss(hidden, targets, weights, table, shifted, counts)


def neg_loss(
    hidden: jax.Array,
    targets: jax.Array,
    weights: jax.Array,
    table: jax.Array,
    bias: jax.Array,
    counts: jax.Array,
) -> jax.Array:
    """Negative-sampling loss -log sigma(s_w) - sum_c n_c log sigma(-s_c), s_c = h . v_c + b_c.

    This is NCE that leaves the noise out of the logits. Its optimum is therefore not
    log p(c | h) but log p(c | h) - log(S p_c), pointwise mutual information less log S.

    Args:
      hidden: [W, D] hidden states, float32 or bfloat16.
      targets: [W] int32 slot of each target among the C classes.
      weights: [W] weights of the positions; where zero, hidden state and target may be anything.
      table: [C, D] embeddings of the distinct classes of targets and negatives.
      bias: [C] their output bias.
      counts: [C] float32 n_c, how often each was drawn; 0 for classes that are targets only and for
        unused slots.

    Returns:
      [W] float32 weighted losses, nats.

    Source: Mikolov et al. 2013, Eq. 4; Levy and Goldberg 2014 for the optimum.
    """
    used = weights > 0
    # A hidden state that does not count may be anything, also NaN, which a gradient of zero keeps.
    hidden = jnp.where(used[:, None], hidden, 0)
    logits = jnp.dot(hidden, table.astype(hidden.dtype).T, preferred_element_type=jnp.float32)
    logits += bias.astype(jnp.float32)[None, :]  # [W, C]
    is_target = targets[:, None] == jnp.arange(table.shape[0])[None, :]
    target_logits = jnp.where(is_target, logits, 0.0).sum(axis=1)
    # A product with zero is not enough: a class that was not drawn may have an infinite logit.
    noise_logits = jnp.where(counts[None, :] > 0, logits, 0.0)
    noise_losses = jax.nn.softplus(noise_logits) * counts.astype(jnp.float32)[None, :]
    losses = jax.nn.softplus(-target_logits) + noise_losses.sum(axis=1)
    return jnp.where(used, losses * weights, 0.0)
