"""Capacity buckets: the cost of a step follows its candidates, in static shapes."""

import functools
from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp

# Slots of a bucket come in multiples of this, which the matrix units of accelerators like.
_MULTIPLE = 128


def bucket_sizes(capacity: int, num_buckets: int) -> tuple[int, ...]:
    """Ascending sizes, evenly spaced, the last one the capacity."""
    sizes = {
        min(-(-capacity * i // (num_buckets * _MULTIPLE)) * _MULTIPLE, capacity)
        for i in range(1, num_buckets + 1)
    }
    return tuple(sorted(sizes))


def loss_in_bucket(
    loss: Callable[..., jax.Array],
    sizes: Sequence[int],
    needed: jax.Array,
    *args: jax.Array,
) -> jax.Array:
    """`loss(*args, size=size)` at the smallest of `sizes` that holds `needed`, or the largest.

    Only the chosen size is computed. Its gradient is found by computing the branch again in the
    backward pass: kept values of branches of different shapes would have to be kept for all.

    Args:
      loss: (*args, size=) -> losses of a shape that does not depend on the size; slots from
        `needed` on must not matter to it.
      sizes: ascending static sizes.
      needed: scalar int32.
      *args: what `loss` is differentiated by.
    """
    if len(sizes) == 1:
        return loss(*args, size=sizes[0])
    bucket = jnp.searchsorted(jnp.array(sizes[:-1], jnp.int32), needed)
    branches = [jax.checkpoint(functools.partial(loss, size=size)) for size in sizes]
    return jax.lax.switch(bucket, branches, *args)
