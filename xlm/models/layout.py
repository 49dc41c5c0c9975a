"""Sharding of activations on a mesh: by sequences, like the batch.

Rules shard parameters (`xlm.training.sharding`), also over `fsdp`. Without constraints the compiler
may shard activations like them, and hold all sequences on every device. Constraints at layer
boundaries make it gather a layer's parameters instead. The mesh is the one in context. Nothing is
constrained without a mesh, or if the mesh does not divide the batch, as in initialisation. Inside
`jax.shard_map`, the compiler shards a shard's batch over the axes left to it.
"""

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.lax import with_sharding_constraint
from jax.sharding import PartitionSpec as P

# Mesh axes that batches are sharded over, and those of attention heads.
SEQUENCES = ("data", "fsdp")
HEADS = "model"


def split_batch(x: jax.Array) -> jax.Array:
    """Constrain `x` [B, ...] to be sharded by sequences."""
    if not _splits(x.shape[0]):
        return x
    others = [P.UNCONSTRAINED] * (x.ndim - 1)
    return with_sharding_constraint(x, P(_auto_axes(), *others))


def embedded(table: jax.Array, tokens: jax.Array) -> jax.Array:
    """Look up the embeddings [B, L, E] of `tokens` [B, L], sharded by sequences."""
    if not _splits(tokens.shape[0]):
        return jnp.take(table, tokens, axis=0)
    # Devices exchange results, B L E elements, and not the large table. Each looks up its own
    # columns for the sequences of all devices with the same `data` index.
    data, fsdp = (axis if axis in _auto_axes() else None for axis in SEQUENCES)
    if fsdp and table.shape[1] % jax.sharding.get_abstract_mesh().shape[fsdp]:
        fsdp = None
    tokens = with_sharding_constraint(tokens, P(data))
    take = _take_of_few if tokens.size < len(table) else functools.partial(jnp.take, axis=0)
    rows = with_sharding_constraint(take(table, tokens), P(data, None, fsdp))
    return split_batch(rows)


@jax.custom_vjp
def _take_of_few(table: jax.Array, tokens: jax.Array) -> jax.Array:
    """Look up fewer rows than the table has; devices send only their gradients."""
    return jnp.take(table, tokens, axis=0)


def _backward(arguments: tuple[jax.Array, ...], gradient: jax.Array) -> tuple[jax.Array, None]:
    table, tokens = arguments
    # Otherwise each device would send a sum as large as the table.
    gradient = with_sharding_constraint(gradient, P(None, None, P.UNCONSTRAINED))
    tokens = with_sharding_constraint(tokens, P())
    return jnp.zeros_like(table).at[tokens].add(gradient), None


_take_of_few.defvjp(lambda *arguments: (_take_of_few(*arguments), arguments), _backward)


def on_each_shard(
    function: Callable[..., jax.Array], inputs: Sequence[Any], axes: Sequence, out_axes
) -> jax.Array:
    """Apply a function that the compiler cannot partition, such as a kernel, on each device.

    It must be independent across sequences and heads. Inputs are arrays or None. `axes` has
    `SEQUENCES`, `HEADS` or None for each axis of each input, up to the last sharded one.
    """
    if _num_shards() == 1 and _mesh_size(HEADS) == 1:
        return function(*inputs)
    query = inputs[0]
    sequences = _auto_axes() if _splits(len(query)) else None
    heads = HEADS if query.shape[2] % _mesh_size(HEADS) == 0 else None
    split_over = {SEQUENCES: sequences, HEADS: heads, None: None}

    def spec(names) -> P:
        return P(*(split_over[name] for name in names))

    mapped = jax.shard_map(
        function, in_specs=tuple(map(spec, axes)), out_specs=spec(out_axes),
        axis_names={*_auto_axes(), HEADS}, check_vma=False,
    )  # fmt: skip
    return mapped(*inputs)


def gathered(parameter: jax.Array) -> jax.Array:
    """Constrain a small parameter to be replicated on every device."""
    if _num_shards() == 1:
        return parameter
    return with_sharding_constraint(parameter, P())


def num_batch_shards(batch_size: int) -> int:
    """Return the number of consecutive parts into which the devices split a batch."""
    return _num_shards() if batch_size % _num_shards() == 0 else 1


def only_data_is_split() -> bool:
    """Return whether only the `data` axis of the mesh in context may have several devices."""
    shape = jax.sharding.get_abstract_mesh().shape
    return all(size == 1 for axis, size in shape.items() if axis != "data")


def _splits(batch_size: int) -> bool:
    return num_batch_shards(batch_size) > 1


def _num_shards() -> int:
    return math.prod(map(_mesh_size, SEQUENCES))


def _auto_axes() -> tuple[str, ...]:
    """Return the batch axes of the mesh in context that are left to the compiler."""
    auto_axes = jax.sharding.get_abstract_mesh().auto_axes
    return tuple(axis for axis in SEQUENCES if axis in auto_axes)


def _mesh_size(axis: str) -> int:
    """Return the devices along an axis of the mesh in context, 1 unless left to the compiler."""
    mesh = jax.sharding.get_abstract_mesh()
    return mesh.shape[axis] if axis in mesh.auto_axes else 1
