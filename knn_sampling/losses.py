"""Softmax cross-entropy over the whole vocabulary, or over a candidate set.

Both take hidden states [W, D], weights [W], embeddings and a bias, and return per-position losses
[W] in float32 nats, already multiplied by the weights. Matrix products take the dtype of the hidden
states and accumulate in float32.
"""

import jax
import jax.numpy as jnp

# Logit of an absent class. Finite, so that no gradient becomes NaN.
ABSENT = -1e30


def full_softmax_loss(
    hidden: jax.Array,
    targets: jax.Array,
    weights: jax.Array,
    table: jax.Array,
    bias: jax.Array,
    *,
    num_valid: int,
) -> jax.Array:
    """Cross-entropy log sum_j exp(h . v_j + b_j) - (h . v_w + b_w), over the whole vocabulary.

    Args:
      hidden: [W, D] hidden states.
      targets: [W] int32 target ids below `num_valid`.
      weights: [W] weights of the positions.
      table: [V, D] output embeddings.
      bias: [V] output bias.
      num_valid: number of classes; table rows from here on are padding and get no probability.

    Returns:
      [W] float32 weighted losses, nats.
    """
    bias = jnp.where(jnp.arange(table.shape[0]) < num_valid, bias.astype(jnp.float32), ABSENT)
    return candidate_softmax_loss(hidden, targets, weights, table, bias)


def candidate_softmax_loss(
    hidden: jax.Array, targets: jax.Array, weights: jax.Array, table: jax.Array, bias: jax.Array
) -> jax.Array:
    """Cross-entropy log sum_{j in V'} exp(h . v_j + b_j) - (h . v_w + b_w) (Eq. 4).

    With V' the whole vocabulary, value and gradient are those of the full softmax. A smaller V'
    underestimates the partition function, and so the loss, unless the bias carries a correction
    (see `inclusion.log_inclusion`).

    Args:
      hidden: [W, D] hidden states.
      targets: [W] int32 slot of each target in V'.
      weights: [W] weights of the positions; where zero, hidden state and target are arbitrary.
      table: [C, D] output embeddings of V'.
      bias: [C] their bias; `ABSENT` for unused slots.

    Returns:
      [W] float32 weighted losses, nats.
    """
    counts = weights > 0
    # A hidden state of weight zero may be NaN, and zero times NaN would put NaN into the gradient.
    hidden = jnp.where(counts[:, None], hidden, 0)
    table = table.astype(hidden.dtype)
    logits = jnp.dot(hidden, table.T, preferred_element_type=jnp.float32)  # [W, C]
    logits += bias.astype(jnp.float32)[None, :]
    target_logits = jnp.take_along_axis(logits, targets[:, None], axis=1)[:, 0]
    losses = jax.nn.logsumexp(logits, axis=1) - target_logits
    # Not a product: where the weight is zero the loss is arbitrary and may not be finite.
    return jnp.where(counts, losses * weights, 0.0)
