"""Sentence vectors by mean pooling."""

import jax
import jax.numpy as jnp


def mean_state(hidden: jax.Array, is_used: jax.Array) -> jax.Array:
    """Mean of the states of the used tokens.

    Args:
      hidden: [B, L, D] states.
      is_used: [B, L] bool.

    Returns:
      [B, D] float32; zeros for a sequence without used tokens.
    """
    total = jnp.where(is_used[:, :, None], hidden.astype(jnp.float32), 0).sum(axis=1)
    return total / jnp.maximum(is_used.sum(axis=1), 1)[:, None]
