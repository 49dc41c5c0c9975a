"""Sampling from the unigram distribution, and the losses NCE and NEG against it (paper Table 2).

NCE and negative sampling replace the softmax by logistic regressions of the target against draws
from the unigram distribution. All positions of a group share the negatives, so one matrix product
scores them.
"""

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

_RANGE = 2**32  # values of a random 32-bit integer


def cumulative_thresholds(probabilities: ArrayLike) -> jax.Array:
    """Return [V] uint32 ascending, the distribution function t_j = round(2^32 sum_{i <= j} p_i).

    Class j owns the integers from t_{j-1} up to t_j, and so gets its probability to within 2^-32.
    Classes below 2^-33 may get nothing. A float32 running sum would lose every class below 2^-24,
    so the host computes this once in float64. The last threshold is one too small, to fit into 32
    bits, see `classes_at`. `probabilities` [V] need not sum to one. Raises ValueError if one is
    negative or not finite, or all are zero.
    """
    p = np.asarray(probabilities, np.float64)
    total = p.sum()
    if not (np.isfinite(total) and total > 0 and (p >= 0).all()):
        raise ValueError(
            f"probabilities sum to {total} and the least is {p.min()}: all must be finite and at "
            "least 0, and one above 0; recount the training rows"
        )
    ends = np.rint(np.cumsum(p) / total * _RANGE)
    return jnp.asarray(np.minimum(ends, _RANGE - 1).astype(np.uint32))


def classes_at(thresholds: jax.Array, integers: jax.Array) -> jax.Array:
    """Return [S] int32, the class that owns each of `integers` [S] uint32."""
    # A class is the number of thresholds at or below its integers. The last threshold leaves the
    # largest integer without a class, hence the minimum.
    integers = jnp.minimum(integers, jnp.uint32(_RANGE - 2))
    return jnp.searchsorted(thresholds, integers, side="right").astype(jnp.int32)


def sample_classes(key: jax.Array, thresholds: jax.Array, num_samples: int) -> jax.Array:
    """Sample [S] int32 classes independently, with repeats, by inversion of `thresholds` [V]."""
    return classes_at(thresholds, jax.random.bits(key, (num_samples,), jnp.uint32))


# Later than the arrival of any class of non-negligible probability. Finite: 0 t must not be NaN.
_NEVER = 1e30


def draw_distinct(
    key: jax.Array, probabilities: jax.Array, is_out: jax.Array, num_samples: int
) -> tuple[jax.Array, jax.Array]:
    """Sample S distinct classes for each of G groups without replacement.

    Class j arrives at a time from the exponential distribution of rate p_j, p [V] float. The sample
    is the first S >= 1 arrivals, which is equivalent to draws one by one without repeats. Classes
    of probability zero, and those in `is_out` [G, V] bool, never arrive. Returns [G, min(S, V)]
    int32 ids, V for empty slots, and [G, 1] float32, the arrival time of the next class.
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
    """Return the noise-contrastive loss -log sigma(x_w) - sum_c n_c log sigma(-x_c).

    The logit is x_c = h . v_c + b_c - log(S p_c), with S shared draws from p. `bias` [C] is b_c -
    log p_c. Negatives may equal the target: the estimate is consistent because the noise
    distribution is exactly p. Its optimum is h . v_c + b_c = log p(c | h), self-normalised (Gutmann
    and Hyvarinen 2010; Mnih and Teh 2012). Other arguments are those of `neg_loss`.
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
    """Return the loss -log sigma(s_w) - sum_c n_c log sigma(-s_c), s_c = h . v_c + b_c.

    This is negative sampling (Mikolov et al. 2013, Eq. 4): NCE without the noise correction of the
    logits. Its optimum is therefore log p(c | h) - log(S p_c), pointwise mutual information minus
    log S (Levy and Goldberg 2014). The result is [W] float32 weighted losses, nats.

    Args:
      hidden: [W, D] hidden states, float32 or bfloat16.
      targets: [W] int32 slot of each target among the C classes.
      weights: [W]; positions of weight zero may have any hidden state and target.
      table, bias: embeddings [C, D] of the distinct targets and negatives, and their bias [C].
      counts: [C] float32 n_c, draws of each class; 0 for targets without draws and unused slots.
    """
    used = weights > 0
    # A hidden state of weight zero may be NaN, and zero times NaN would put NaN into the gradient.
    hidden = jnp.where(used[:, None], hidden, 0)
    logits = jnp.dot(hidden, table.astype(hidden.dtype).T, preferred_element_type=jnp.float32)
    logits += bias.astype(jnp.float32)[None, :]  # [W, C]
    is_target = targets[:, None] == jnp.arange(table.shape[0])[None, :]
    target_logits = jnp.where(is_target, logits, 0.0).sum(axis=1)
    # Not a product with zero: a class without draws may have an infinite logit.
    noise_logits = jnp.where(counts[None, :] > 0, logits, 0.0)
    noise_losses = jax.nn.softplus(noise_logits) * counts.astype(jnp.float32)[None, :]
    losses = jax.nn.softplus(-target_logits) + noise_losses.sum(axis=1)
    return jnp.where(used, losses * weights, 0.0)
