"""Gradients of a batch that is too large to be worked on at once, part by part."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp

from objectives.objective import Objective
from objectives.sums import Sums
from training.optimizer import rows_of


@dataclasses.dataclass(frozen=True)
class Accumulation:
    """Into how many parts a batch is cut.

    Attributes:
      steps: A, parts of a batch.
      warmup_steps: steps in which the number of parts in use grows from 1 to A; 0 for all of them
        from the first step on. The rows of the others are passed over.
    """

    steps: int
    warmup_steps: int

    def parts_at(self, step: jax.Array) -> jax.Array:
        """Parts in use at a step, int32: each number from 1 to A for as many steps."""
        if not self.warmup_steps:
            return jnp.int32(self.steps)
        return jnp.minimum(1 + step * self.steps // self.warmup_steps, self.steps)


WHOLE_BATCHES = Accumulation(steps=1, warmup_steps=0)


def accumulate(
    objective: Objective,
    params: Any,
    index: Any,
    batch: dict[str, jax.Array],
    key: jax.Array,
    *,
    exact: bool,
    num_parts: int,
    num_used: jax.Array | int,
) -> tuple[Any, Sums]:
    """Gradients of the mean loss over the first `num_used` of `num_parts` parts of a batch.

    Each part is prepared by itself, under a key of its own: a part has the masks, and of k-NN
    sampling the words of the softmax, of a batch of its size. Sums are added over the parts and
    divided once, so parts weigh as much as they have targets.

    Args:
      objective: what is learned.
      params: all up to date.
      index: neighbour index or None.
      batch: arrays [B, ...], B a multiple of `num_parts`. Part i has the rows i, i + num_parts and
        so on, so that devices that hold a slice of the batch each hold a slice of every part.
      key: random key of the step.
      exact: see `Objective.prepare`.
      num_parts: A.
      num_used: scalar int32 or int, 1 to A.

    Returns:
      Gradients like `params`, and the sums.

    Raises:
      ValueError: the batch cannot be cut into so many parts.
    """
    num_rows = len(jax.tree.leaves(batch)[0])
    if num_rows % num_parts:
        raise ValueError(
            f"train.accumulation_steps is {num_parts}, must divide every batch; here is one of "
            f"{num_rows} rows"
        )
    parts = {
        name: jnp.moveaxis(array.reshape(-1, num_parts, *array.shape[1:]), 1, 0)
        for name, array in batch.items()
    }

    def of_part(number: jax.Array) -> tuple[Any, Sums]:
        part = {name: array[number] for name, array in parts.items()}
        part_key = jax.random.fold_in(key, number)
        prepared, ids = objective.prepare(index, part, part_key, exact=exact)

        def total_loss(params):
            sums = objective.sums(rows_of(params, objective.table, ids), prepared)
            return sums["loss"][0], sums

        return jax.grad(total_loss, has_aux=True)(params)

    def add(number: jax.Array, totals: tuple[Any, Sums]) -> tuple[Any, Sums]:
        # A branch, not a loop of fewer turns: its length is known, and work can be counted.
        return jax.lax.cond(
            number < num_used,
            lambda: jax.tree.map(jnp.add, totals, of_part(number)),
            lambda: totals,
        )

    shapes = jax.eval_shape(of_part, jnp.int32(0))
    zeros = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shapes)
    grads, sums = jax.lax.fori_loop(0, num_parts, add, zeros)
    weight = jnp.maximum(sums["loss"][1], 1)
    return jax.tree.map(lambda grad: grad / weight, grads), sums
