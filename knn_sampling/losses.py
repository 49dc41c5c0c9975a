"""Softmax cross-entropy over the whole vocabulary, or over a candidate set.

Both take hidden states [W, D], weights [W], embeddings and a bias, and return per-position losses
[W] in float32 nats, already multiplied by the weights. Products are in the type of the hidden
states and accumulate in float32.
"""

import jax
import jax.numpy as jnp

# Logit of a class that is not there. Finite, so that no gradient becomes NaN.
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
    """-log p(w) = log sum_j exp(h . e_j + b_j) - (h . e_w + b_w), over the vocabulary (Eq. 4).

    Args:
      hidden: [W, D] hidden states.
      targets: [W] int32 target ids below `num_valid`.
      weights: [W] weights of the positions.
      table: [V, D] output embeddings.
      bias: [V] output bias.
      num_valid: words; rows of the table from here on are padding and get no probability.

    Returns:
      [W] float32 weighted losses, nats.
    """
    is_word = jnp.arange(table.shape[0]) < num_valid
    return _cross_entropy(hidden, targets, weights, table, bias, is_word)


def candidate_softmax_loss(
    hidden: jax.Array,
    weights: jax.Array,
    rows: jax.Array,
    bias: jax.Array,
    labels: jax.Array,
    is_word: jax.Array,
) -> jax.Array:
    """The cross-entropy of `full_softmax_loss`, its sum taken over V' only (Section 3.1).

    With V' the whole vocabulary, value and gradient are those of the full softmax. With less, the
    partition function, and so the loss, is understated, unless the bias carries a correction (see
    `neighbours.log_inclusion`).

    Args:
      hidden: [W, D] hidden states.
      weights: [W] weights of the positions.
      rows: [C, D] output embeddings of V'.
      bias: [C] their bias.
      labels: [W] int32 slot of each target in V'.
      is_word: [C] bool, False for unused slots.

    Returns:
      [W] float32 weighted losses, nats.
    """
    return _cross_entropy(hidden, labels, weights, rows, bias, is_word)


def _cross_entropy(
    hidden: jax.Array,
    labels: jax.Array,
    weights: jax.Array,
    rows: jax.Array,
    bias: jax.Array,
    is_word: jax.Array,
) -> jax.Array:
    """Weighted cross-entropy [W] over the `rows` [C, D] that are words, in float32."""
    counts = weights > 0
    # A hidden state that does not count may be anything, also NaN, which a gradient of zero keeps.
    hidden = jnp.where(counts[:, None], hidden, 0)
    rows = rows.astype(hidden.dtype)
    logits = jnp.dot(hidden, rows.T, preferred_element_type=jnp.float32)  # [W, C]
    # Unused slots by way of the bias, C numbers instead of W C.
    logits += jnp.where(is_word, bias.astype(jnp.float32), ABSENT)[None, :]
    target_logits = jnp.take_along_axis(logits, labels[:, None], axis=1)[:, 0]
    losses = jax.nn.logsumexp(logits, axis=1) - target_logits
    # Not a product: where the weight is zero the label is arbitrary and the loss may be anything.
    return jnp.where(counts, losses * weights, 0.0)
