"""Sentence vectors by mean pooling."""

import jax
import jax.numpy as jnp


def mean_state(hidden: jax.Array, is_used: jax.Array) -> jax.Array:
    """Average states [B, L, D] where `is_used` [B, L] to [B, D] float32; zeros if none is used."""
    total = jnp.where(is_used[:, :, None], hidden.astype(jnp.float32), 0).sum(axis=1)
    return total / jnp.maximum(is_used.sum(axis=1), 1)[:, None]
