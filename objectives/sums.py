"""Sums: metrics as numerators and denominators, divided once, after all merging.

A mean of means weighs a short batch like a long one; sums do not. `Sums` maps a metric's name to
(sum, weight), two float32 scalars.
"""

from collections.abc import Mapping

import jax

Sums = dict[str, tuple[jax.Array, jax.Array]]


def means(sums: Mapping[str, tuple]) -> dict[str, float]:
    """Each metric's sum over its weight; a weight of zero gives NaN."""
    return {
        name: float(total) / float(weight) if weight else float("nan")
        for name, (total, weight) in sums.items()
    }
