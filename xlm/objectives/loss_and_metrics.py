"""Losses and metrics as numerators and denominators, divided once after all reductions.

A mean of means would give short and long batches equal weight. `LossAndMetrics` maps a metric's
name to (sum, weight), two float32 scalars; "loss" is the quantity that training minimises.
"""

from collections.abc import Mapping

import jax
import jax.numpy as jnp

LossAndMetrics = dict[str, tuple[jax.Array, jax.Array]]


def divisor(weight: jax.Array) -> jax.Array:
    """Return the weight to divide a sum by, 1 for 0: the mean of a batch without examples is 0."""
    return jnp.where(weight > 0, weight, 1)


def means(totals: Mapping[str, tuple]) -> dict[str, float]:
    """Divide each metric's sum by its weight; a weight of zero gives NaN."""
    return {
        name: float(total) / float(weight) if weight else float("nan")
        for name, (total, weight) in totals.items()
    }
