"""Capacity buckets: static shapes, with a step cost proportional to its number of candidates."""

import functools
from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp

# Bucket sizes are multiples of this, for the tiles of accelerators' matrix units.
_MULTIPLE = 128


def bucket_sizes(capacity: int, num_buckets: int) -> tuple[int, ...]:
    """Return ascending, evenly spaced bucket sizes up to the capacity."""
    sizes = {
        min(-(-capacity * i // (num_buckets * _MULTIPLE)) * _MULTIPLE, capacity)
        for i in range(1, num_buckets + 1)
    }
    return tuple(sorted(sizes))


def loss_in_bucket(
    loss: Callable[..., jax.Array], sizes: Sequence[int], needed: jax.Array, *args: jax.Array
) -> jax.Array:
    """Compute `loss(*args, size=size)` at the smallest size that holds `needed`, or the largest.

    The shape of the losses must not depend on the size, nor their values on slots from `needed` on.
    Only the chosen branch runs. The backward pass recomputes it (rematerialisation), since
    residuals would otherwise be stored for the branches of all sizes.
    """
    if len(sizes) == 1:
        return loss(*args, size=sizes[0])
    bucket = jnp.searchsorted(jnp.array(sizes[:-1], jnp.int32), needed)
    branches = [jax.checkpoint(functools.partial(loss, size=size)) for size in sizes]
    return jax.lax.switch(bucket, branches, *args)
