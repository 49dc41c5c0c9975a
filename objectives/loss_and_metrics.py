"""Losses and metrics as numerators and denominators, divided once, after all merging.

A mean of means weighs a short batch like a long one; sums do not. `LossAndMetrics` maps a metric's
name to (sum, weight), two float32 scalars; "loss" is what training minimises.
"""

from collections.abc import Mapping

import jax

LossAndMetrics = dict[str, tuple[jax.Array, jax.Array]]


def means(totals: Mapping[str, tuple]) -> dict[str, float]:
    """Each metric's sum over its weight; a weight of zero gives NaN."""
    return {
        name: float(total) / float(weight) if weight else float("nan")
        for name, (total, weight) in totals.items()
    }
