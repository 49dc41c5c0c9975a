"""Label smoothing, as an addition to the loss of any output layer."""

import jax
import jax.numpy as jnp


def smoothing_penalty(
    hidden: jax.Array, labels: jax.Array, table: jax.Array, bias: jax.Array, smoothing: float,
    num_classes: int,
) -> jax.Array:  # fmt: skip
    """Return the addition [...] float32 of label smoothing to a negative log-likelihood.

    The cross-entropy with a mixture of the label y and the uniform distribution over V classes is

      -(1 - e) log p(y) - e / V sum_c log p(c) = -log p(y) + e (z(y) - mean_c z(c))

    with logits z (Szegedy et al., "Rethinking the Inception architecture", 2016, section 7). The
    mean of the logits is the logit of the mean class, so the cost does not grow with the
    vocabulary.

    Args:
      hidden: [..., E] input of the output layer.
      labels: [...] int32; results for negative ones are meaningless.
      table, bias: output embeddings [R, E] and bias [R], R >= V; rows from V on are padding.
      smoothing: e, from 0, no smoothing, to 1.
    """
    hidden, labels = hidden.astype(jnp.float32), jnp.maximum(labels, 0)
    table, bias = table[:num_classes].astype(jnp.float32), bias[:num_classes]
    differences = table[labels] - table.mean(axis=0).reshape(*[1] * labels.ndim, -1)
    return smoothing * ((hidden * differences).sum(axis=-1) + bias[labels] - bias.mean())
