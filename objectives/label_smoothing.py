"""Cross-entropy with label smoothing, of logits and of what an output layer gives."""

from collections.abc import Mapping

import jax
import jax.numpy as jnp

from objectives.loss_and_metrics import LossAndMetrics


def label_smoothed_loss(
    logits: jax.Array, labels: jax.Array, smoothing: float, num_classes: int
) -> jax.Array:
    """Cross-entropy with a mixture of the label and the uniform distribution over V classes.

      -(1 - e) log p(y) - e / V sum_c log p(c) = -log p(y) + e (z(y) - mean_c z(c))

    Szegedy et al., "Rethinking the Inception architecture", 2016, section 7, for logits z.

    Args:
      logits: [..., R], R >= V; those from V on are of no class.
      labels: [...] int32; of one that is negative, the value means nothing.
      smoothing: e, from 0, no smoothing, to 1.
      num_classes: V.

    Returns:
      [...] float32.
    """
    logits = logits[..., :num_classes].astype(jnp.float32)
    labels = jnp.maximum(labels, 0)[..., None]
    of_labels = jnp.take_along_axis(logits, labels, axis=-1)[..., 0]
    losses = jax.nn.logsumexp(logits, axis=-1) - of_labels
    return losses + smoothing * (of_labels - logits.mean(axis=-1))


def smoothing_penalty(
    hidden: jax.Array,
    labels: jax.Array,
    table: jax.Array,
    bias: jax.Array,
    smoothing: float,
    num_classes: int,
) -> jax.Array:
    """What label smoothing adds to any layer's negative log-likelihood, without logits.

    The mean of the logits is the logit of the mean of the classes, so that the cost of a position
    does not grow with the vocabulary.

    Args:
      hidden: [..., E] input of the output layer.
      labels, smoothing, num_classes: as `label_smoothed_loss`.
      table: [R, E] output embeddings.
      bias: [R] output bias.

    Returns:
      [...] float32, e (z(y) - mean_c z(c)).
    """
    hidden, labels = hidden.astype(jnp.float32), jnp.maximum(labels, 0)
    table, bias = table[:num_classes].astype(jnp.float32), bias[:num_classes]
    differences = table[labels] - table.mean(axis=0).reshape(*[1] * labels.ndim, -1)
    return smoothing * ((hidden * differences).sum(axis=-1) + bias[labels] - bias.mean())
