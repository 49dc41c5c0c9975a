"""Gradient accumulation over the microbatches of a batch too large for a single pass."""

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P

from xlm.objectives.objective import (
    AuxState,
    Batch,
    LossAndMetrics,
    Objective,
    Touched,
    divisor,
    gathered_rows,
    get_table,
)
from xlm.training.stages import has_path, merged

_DATA = "data"  # mesh axis with one reduction of gradients per step


@dataclasses.dataclass(frozen=True)
class Accumulation:
    """Split of batches into A = `steps` microbatches.

    Over `warmup_steps`, the number of microbatches in use grows from 1 to A (0: all from the first
    step on). The step skips the sequences of unused microbatches.
    """

    steps: int
    warmup_steps: int

    def microbatches_at(self, step: jax.Array) -> jax.Array:
        """Return the microbatches of a step, int32: each number 1 to A for equally many steps."""
        if not self.warmup_steps:
            return jnp.int32(self.steps)
        step = jnp.minimum(step, self.warmup_steps)  # keeps the product below 2^31 in a long run
        return jnp.minimum(1 + step * self.steps // self.warmup_steps, self.steps)


WHOLE_BATCHES = Accumulation(steps=1, warmup_steps=0)


def accumulate(
    objective: Objective, trained: Any, aux_state: AuxState, batch: Batch, key: jax.Array,
    step: jax.Array, accumulation: Accumulation, fixed: Mapping[str, Any] | None = None,
) -> tuple[Any, LossAndMetrics, AuxState]:  # fmt: skip
    """Compute gradients of the mean loss over the microbatches that a step uses.

    Each microbatch has its own key for the plan, so it has the masks (and with k-NN sampling the
    classes of the softmax) of a batch of its size. One division follows the sums over all
    microbatches, so a microbatch weighs as much as its number of targets.

    If the `data` axis of the mesh has S > 1 devices, JAX differentiates an objective with
    `example_axes` on each shard. A device accumulates gradients of its own examples, and one
    reduction over `data` follows the last microbatch. `fsdp` and `model` still reduce each
    microbatch. Each shard has its own dropout key, so dropout masks differ from those of a single
    device. In three cases all devices reduce every microbatch: the objective has no `example_axes`,
    both `fsdp` and `model` split the mesh, or the microbatches touch so few table rows that this
    sends fewer numbers.

    Args:
      trained: parameters to differentiate by, all up to date.
      aux_state: the objective's auxiliary state, which each microbatch updates in turn.
      batch: arrays [B, ...], B a multiple of A (else ValueError). Microbatch i has the examples
        i, i + A and so on, so each device holds a slice of every microbatch.
      fixed: other parameters, if any.

    Returns:
      Gradients like `trained`, the metrics, and the auxiliary state.
    """
    fixed = fixed or {}
    num_microbatches, num_examples = accumulation.steps, batch.num_examples
    if num_examples % num_microbatches:
        raise ValueError(
            f"train.accumulation_steps is {num_microbatches}, must divide every batch, and one has "
            f"{num_examples} examples; change it or the batch size"
        )
    microbatches = jax.tree.map(
        lambda x: jnp.moveaxis(x.reshape(-1, num_microbatches, *x.shape[1:]), 1, 0), batch
    )

    # With `jit` JAX traces both functions once, for the shapes and in the loop. The shapes need a
    # number of the loop's weak type, 0.
    @functools.partial(jax.jit, inline=True)
    def planned(number: jax.Array, aux_state: AuxState) -> tuple[Any, Touched, jax.Array]:
        microbatch = jax.tree.map(lambda x: x[number], microbatches)
        microbatch_key = jax.random.fold_in(key, number)
        return *objective.plan(aux_state, microbatch, microbatch_key, step), microbatch_key

    def total_loss(trained: Any, fixed: Any, plan: Any, touched: Touched, key: jax.Array):
        params = merged(fixed, trained)
        metrics, observed = objective.loss(params, gathered_rows(params, touched), plan, key)
        return metrics["loss"][0], (metrics, observed)

    gradients = jax.grad(total_loss, has_aux=True)
    axes = None
    if _can_map_shards(num_examples // num_microbatches):
        plan, touched, _ = jax.eval_shape(planned, 0, aux_state)
        if _saves(trained, touched, num_microbatches):
            axes = objective.example_axes(plan, _num_shards())
    is_sharded = axes is not None
    if is_sharded:
        gradients = _by_shard(gradients, axes)

    @functools.partial(jax.jit, inline=True)
    def of_microbatch(number: jax.Array, aux_state: AuxState):
        plan, touched, microbatch_key = planned(number, aux_state)
        grads, (metrics, observed) = gradients(trained, fixed, plan, touched, microbatch_key)
        if is_sharded:
            observed = _added(observed)
        return grads, metrics, objective.learn(aux_state, observed)

    num_used = accumulation.microbatches_at(step)

    def add(number: jax.Array, totals: tuple[Any, LossAndMetrics, AuxState]):
        def added():
            grads, metrics, aux_state = of_microbatch(number, totals[2])
            return *jax.tree.map(jnp.add, totals[:2], (grads, metrics)), aux_state

        # A branch instead of a shorter loop keeps the trip count static, so FLOPs can be counted.
        return jax.lax.cond(number < num_used, added, lambda: totals)

    shapes = jax.eval_shape(of_microbatch, 0, aux_state)
    zeros = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shapes[:2])
    grads, metrics, aux_state = jax.lax.fori_loop(0, num_microbatches, add, (*zeros, aux_state))
    if is_sharded:
        grads, metrics = _added((grads, metrics))
    weight = divisor(metrics["loss"][1])
    used = jnp.float32(num_used * (num_examples // num_microbatches))
    metrics["batch_rows"] = (used, jnp.float32(1))
    return jax.tree.map(lambda grad: grad / weight, grads), metrics, aux_state


def _num_shards() -> int:
    """Return S, devices along the `data` axis of the mesh in context; 1 without a mesh."""
    return jax.sharding.get_abstract_mesh().shape.get(_DATA, 1)


def _can_map_shards(num_examples: int) -> bool:
    """Return whether the mesh in context can map over shards of so many examples."""
    mesh = jax.sharding.get_abstract_mesh()
    others = [axis for axis in mesh.axis_names if axis != _DATA and mesh.shape[axis] > 1]
    # With two automatic axes XLA's partitioner aborts at the gather of the targets' logits.
    return _num_shards() > 1 and num_examples % _num_shards() == 0 and len(others) < 2


def _saves(trained: Any, touched: Touched, num_microbatches: int) -> bool:
    """Return whether one reduction of all gradients sends less than one per microbatch by rows."""
    once = each_microbatch = sum(x.size for x in jax.tree.leaves(trained))
    for path, ids in touched.items():
        if not has_path(trained, path):
            continue
        num_rows, width = get_table(trained, path).shape
        each_microbatch -= (num_rows - ids.size) * width
    return once < num_microbatches * each_microbatch


def _by_shard(gradients: Callable, axes: Any) -> Callable:
    """Map `gradients` over S shards, along `example_axes`, to [S, ...] sharded over `data`.

    Both take (trained, fixed, plan, touched, key) and return (gradients, (metrics, observed)).
    """
    mesh = jax.sharding.get_abstract_mesh()
    by_example = jax.tree.map(
        lambda axis: P() if axis is None else P(*[None] * axis, _DATA),
        axes,
        is_leaf=lambda axis: axis is None,
    )

    def of_shard(trained, fixed, plan, touched, key, shard):
        found = gradients(trained, fixed, plan, touched, jax.random.fold_in(key, shard[0]))
        return jax.tree.map(lambda x: jnp.expand_dims(x, 0), found)

    mapped: Callable = jax.shard_map(
        of_shard,
        in_specs=(P(), P(), by_example, P(), P(), P(_DATA)),
        out_specs=P(_DATA),
        # Axes of a single device are manual too, so the compiler has nothing to decide.
        axis_names={axis for axis in mesh.axis_names if axis == _DATA or mesh.shape[axis] == 1},
        # `check_vma` would reduce gradients of shared arrays over the shards here.
        check_vma=False,
    )

    return lambda *args: mapped(*args, jnp.arange(_num_shards()))


def _added(sharded: Any) -> Any:
    """Sum arrays [S, ...] over the shards."""
    return jax.tree.map(lambda x: x.sum(axis=0), sharded)
