"""Merging of models: the mean of parameters, and TIES."""

import functools
import operator
from collections.abc import Iterable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np


def mean_params(trees: Iterable[Any]) -> Any:
    """Return the mean of trees of float arrays of equal structure, shapes and shardings.

    Papers on translation decode with such averages (Vaswani et al. 2017, section 6.1; VECO, section
    5.1). This reads at least one tree, one after the other, and holds two in memory.
    """
    remaining = iter(trees)
    total = jax.tree.map(jnp.copy, next(remaining))  # since `_add` donates the sum
    count = 1
    for tree in remaining:
        total = _add(total, tree)
        count += 1
    return _divided(total, count)


@functools.partial(jax.jit, donate_argnums=0)
def _add(total: Any, tree: Any) -> Any:
    return jax.tree.map(operator.add, total, tree)


@functools.partial(jax.jit, donate_argnums=0)
def _divided(total: Any, count: int) -> Any:
    return jax.tree.map(lambda x: x / count, total)


def ties(base: Any, trees: Iterable[Any], density: float) -> Any:
    """Merge branches of a model by TIES (Yadav et al. 2023, arXiv 2306.01708, Algorithm 1).

    Each branch keeps the `density` share of its differences from `base` with the largest magnitude
    over all parameters. The sum over branches gives each parameter a sign. TIES adds the mean of
    the differences of that sign to `base`. Returns float32 numpy arrays. Memory holds the base, one
    branch and two sums.
    """
    leaves, structure = jax.tree.flatten(jax.tree.map(lambda x: np.asarray(x, np.float32), base))
    # Sums and counts of positive and of negative differences.
    sums = [np.zeros((2, *leaf.shape), np.float32) for leaf in leaves]
    counts = [np.zeros((2, *leaf.shape), np.uint8) for leaf in leaves]
    for tree in trees:
        found = [
            np.asarray(x, np.float32) - b
            for x, b in zip(jax.tree.leaves(tree), leaves, strict=True)
        ]
        sizes = np.concatenate([np.abs(one).ravel() for one in found])
        place = max(len(sizes) - round(density * len(sizes)), 0)
        least = np.partition(sizes, place)[place] if place < len(sizes) else np.inf
        for one, total, count in zip(found, sums, counts, strict=True):
            kept = np.where(np.abs(one) >= least, one, 0)
            for side, part in enumerate((np.maximum(kept, 0), np.minimum(kept, 0))):
                total[side] += part
                count[side] += part != 0
    merged = []
    for leaf, (up, down), (ups, downs) in zip(leaves, sums, counts, strict=True):
        is_up = up + down > 0
        total, count = np.where(is_up, up, down), np.where(is_up, ups, downs)
        merged.append(leaf + total / np.maximum(count, 1))
    return jax.tree.unflatten(structure, merged)
