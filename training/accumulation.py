"""Gradients of a batch that is too large to be worked on at once, part by part."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp

from objectives.batch import Batch
from objectives.loss_and_metrics import LossAndMetrics
from objectives.objective import Extra, Objective, gathered_rows


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
    extra: Extra,
    batch: Batch,
    key: jax.Array,
    step: jax.Array,
    accumulation: Accumulation,
) -> tuple[Any, LossAndMetrics, Extra]:
    """Gradients of the mean loss over those parts of a batch that are in use at a step.

    Each part is planned by itself, under a key of its own: a part has the masks, and of k-NN
    sampling the classes of the softmax, of a batch of its size. Sums are added over the parts and
    divided once, so parts weigh as much as they have targets.

    Args:
      objective: what is learned.
      params: all up to date.
      extra: the objective's extra state, which the parts learn one after the other.
      batch: arrays [B, ...], B a multiple of the parts. Part i has the examples i, i + A and so on,
        so that devices that hold a slice of the batch each hold a slice of every part.
      key: random key of the step.
      step: scalar int32.
      accumulation: A, and how many of the parts are in use.

    Returns:
      Gradients like `params`, the metrics, and the extra state.

    Raises:
      ValueError: the batch cannot be cut into so many parts.
    """
    num_parts, num_examples = accumulation.steps, batch.num_examples
    if num_examples % num_parts:
        raise ValueError(
            f"train.accumulation_steps is {num_parts}, must divide every batch; here is one of "
            f"{num_examples} examples"
        )
    parts = jax.tree.map(
        lambda x: jnp.moveaxis(x.reshape(-1, num_parts, *x.shape[1:]), 1, 0), batch
    )

    def of_part(number: jax.Array, extra: Extra) -> tuple[Any, LossAndMetrics, Extra]:
        part = jax.tree.map(lambda x: x[number], parts)
        part_key = jax.random.fold_in(key, number)
        plan, touched = objective.plan(extra, part, part_key, step)

        def total_loss(params):
            rows = gathered_rows(params, touched)
            metrics, observed = objective.loss(params, rows, plan, part_key)
            return metrics["loss"][0], (metrics, observed)

        grads, (metrics, observed) = jax.grad(total_loss, has_aux=True)(params)
        return grads, metrics, objective.learn(extra, observed)

    num_used = accumulation.parts_at(step)

    def add(number: jax.Array, totals: tuple[Any, LossAndMetrics, Extra]):
        def added():
            grads, metrics, extra = of_part(number, totals[2])
            return *jax.tree.map(jnp.add, totals[:2], (grads, metrics)), extra

        # A branch, not a loop of fewer turns: its length is known, and work can be counted.
        return jax.lax.cond(number < num_used, added, lambda: totals)

    shapes = jax.eval_shape(of_part, jnp.int32(0), extra)
    zeros = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shapes[:2])
    grads, metrics, extra = jax.lax.fori_loop(0, num_parts, add, (*zeros, extra))
    weight = jnp.maximum(metrics["loss"][1], 1)
    used = jnp.float32(num_used * (num_examples // num_parts))
    metrics["batch_rows"] = (used, jnp.float32(1))
    return jax.tree.map(lambda grad: grad / weight, grads), metrics, extra
