"""Mean of the parameters of several checkpoints."""

import functools
import operator
from collections.abc import Iterable
from typing import Any

import jax
import jax.numpy as jnp


def mean_params(trees: Iterable[Any]) -> Any:
    """Return the mean of trees of float arrays of equal structure, shapes and shardings.

    Papers on translation decode with such averages (Vaswani et al. 2017, section 6.1; VECO, section
    5.1). Trees, at least one, are read one after the other: two are in memory at once.
    """
    remaining = iter(trees)
    total = _copied(next(remaining))  # the sum is donated at each step
    count = 1
    for tree in remaining:
        total = _add(total, tree)
        count += 1
    return _divided(total, count)


@jax.jit
def _copied(tree: Any) -> Any:
    return jax.tree.map(jnp.copy, tree)


@functools.partial(jax.jit, donate_argnums=0)
def _add(total: Any, tree: Any) -> Any:
    return jax.tree.map(operator.add, total, tree)


@functools.partial(jax.jit, donate_argnums=0)
def _divided(total: Any, count: int) -> Any:
    return jax.tree.map(lambda x: x / count, total)
