"""Softmax cross-entropy over the whole vocabulary, or over a candidate set.

Losses are per position, [W] float32 nats, times `weights` [W]. Positions of weight zero may have
any hidden state [W, D] and target [W] int32. Matrix products take the dtype of the hidden states
and accumulate in float32.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp

# Logit of an absent class. Finite, so that no gradient becomes NaN.
ABSENT = -1e30


def with_z_loss(loss: Callable[..., jax.Array], weight: float) -> Callable[..., jax.Array]:
    """Add `weight` (log Z)^2 to a softmax's `loss`, Z its partition function (PaLM, Section 5).

    log Z is the loss plus the target's logit, so this needs no second softmax.
    """
    if not weight:
        return loss

    def total(hidden, targets, weights, table, bias, **options) -> jax.Array:
        losses, counts = loss(hidden, targets, weights, table, bias, **options), weights > 0
        hidden = jnp.where(counts[:, None], hidden, 0)
        rows, targets = table.astype(hidden.dtype), jnp.where(counts, targets, 0)
        logits = jnp.einsum("wd,wd->w", hidden, rows[targets], preferred_element_type=jnp.float32)
        log_z = losses / jnp.where(counts, weights, 1) + logits + bias[targets]
        return losses + jnp.where(counts, weight * weights * log_z**2, 0)

    return total


def full_softmax_loss(
    hidden: jax.Array,
    targets: jax.Array,
    weights: jax.Array,
    table: jax.Array,
    bias: jax.Array,
    *,
    num_valid: int,
) -> jax.Array:
    """Return log sum_j exp(h . v_j + b_j) - (h . v_w + b_w) over `num_valid` rows [V, D], b [V]."""
    bias = jnp.where(jnp.arange(table.shape[0]) < num_valid, bias.astype(jnp.float32), ABSENT)
    return candidate_softmax_loss(hidden, targets, weights, table, bias)


def candidate_softmax_loss(
    hidden: jax.Array, targets: jax.Array, weights: jax.Array, table: jax.Array, bias: jax.Array
) -> jax.Array:
    """Return log sum_{j in V'} exp(h . v_j + b_j) - (h . v_w + b_w) (Eq. 4).

    Targets are slots in V'. `table` [C, D] and `bias` [C] are those of V', with the bias `ABSENT`
    for unused slots. A V' smaller than the vocabulary underestimates the partition function, and so
    the loss, unless the bias includes a correction (see `inclusion.log_inclusion`).
    """
    counts = weights > 0
    # A hidden state of weight zero may be NaN, and zero times NaN would put NaN into the gradient.
    hidden = jnp.where(counts[:, None], hidden, 0)
    table = table.astype(hidden.dtype)
    logits = jnp.dot(hidden, table.T, preferred_element_type=jnp.float32)  # [W, C]
    logits += bias.astype(jnp.float32)[None, :]
    target_logits = _of_targets(logits, targets)
    losses = jax.nn.logsumexp(logits, axis=1) - target_logits
    # Not a product: a loss of weight zero may not be finite.
    return jnp.where(counts, losses * weights, 0.0)


@jax.custom_vjp
def _of_targets(logits: jax.Array, targets: jax.Array) -> jax.Array:
    """Return [W] of the logits [W, C], with a gradient by comparison.

    The gradient of a gather is a scatter into zeros [W, C], which no compiler fuses.
    """
    return jnp.take_along_axis(logits, targets[:, None], axis=1)[:, 0]


def _backward(arguments: tuple[jax.Array, ...], gradient: jax.Array) -> tuple[jax.Array, None]:
    logits, targets = arguments  # only the shape of logits, so the compiler keeps none
    is_target = jnp.arange(logits.shape[1])[None, :] == targets[:, None]
    return jnp.where(is_target, gradient[:, None], 0), None


_of_targets.defvjp(lambda *arguments: (_of_targets(*arguments), arguments), _backward)
