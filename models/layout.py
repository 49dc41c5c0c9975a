"""Where activations live on a mesh of devices: split by sequences, as the batch is.

Parameters are split over the mesh by rules (`training.sharding`), over `fsdp` too. Left to itself
the compiler may split activations like the parameters, and hold those of all sequences on every
device. Constraints at the boundaries of layers have it gather the parameters of a layer instead.

The mesh is the one in context (`jax.set_mesh`, `jax.sharding.use_abstract_mesh`). Nothing is
constrained without one, where it does not split batches, and where it does not divide the batch at
hand, such as the one sequence that parameters are initialised with. Inside `jax.shard_map` the
batch at hand is a shard's, and is split over those axes that are left to the compiler.
"""

import math
from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
from jax.lax import with_sharding_constraint
from jax.sharding import PartitionSpec as P

# The axes of the mesh that a batch is split over, and those that attention heads are.
SEQUENCES = ("data", "fsdp")
HEADS = "model"


def split_batch(x: jax.Array) -> jax.Array:
    """`x` [B, ...] with its sequences split over the devices."""
    if not _splits(x.shape[0]):
        return x
    others = [P.UNCONSTRAINED] * (x.ndim - 1)
    return with_sharding_constraint(x, P(_auto_axes(), *others))


def embedded(table: jax.Array, tokens: jax.Array) -> jax.Array:
    """Table rows [B, L, E] of `tokens` [B, L], split by sequences.

    The table is large. A device looks up its columns of the sequences of all devices that it shares
    `data` with, and these exchange what they found: B L E elements travel, none of the table.
    """
    if not _splits(tokens.shape[0]):
        return jnp.take(table, tokens, axis=0)
    data, fsdp = (axis if axis in _auto_axes() else None for axis in SEQUENCES)
    if fsdp and table.shape[1] % jax.sharding.get_abstract_mesh().shape[fsdp]:
        fsdp = None
    tokens = with_sharding_constraint(tokens, P(data))
    rows = jnp.take(table, tokens, axis=0)
    rows = with_sharding_constraint(rows, P(data, None, fsdp))
    return split_batch(rows)


def on_each_shard(
    function: Callable[..., jax.Array], inputs: Sequence[jax.Array | None], axes: Sequence, out_axes
) -> jax.Array:
    """A function that the compiler cannot split, such as a kernel, of each device's part of arrays.

    Args:
      function: of arrays, by sequences and by heads independent of each other.
      inputs: its arguments.
      axes: `SEQUENCES`, `HEADS` or None for each axis of each argument, as far as one is split.
      out_axes: of its result.
    """
    query = inputs[0]
    assert query is not None
    if _num_shards() == 1 and _mesh_size(HEADS) == 1:
        return function(*inputs)
    sequences = _auto_axes() if _splits(len(query)) else None
    heads = HEADS if query.shape[2] % _mesh_size(HEADS) == 0 else None
    split_over = {SEQUENCES: sequences, HEADS: heads, None: None}

    def spec(names) -> P:
        return P(*(split_over[name] for name in names))

    return jax.shard_map(
        function,
        in_specs=tuple(
            None if x is None else spec(names) for x, names in zip(inputs, axes, strict=True)
        ),
        out_specs=spec(out_axes),
        axis_names={*_auto_axes(), HEADS},
        check_vma=False,
    )(*inputs)


def gathered(parameter: jax.Array) -> jax.Array:
    """A small parameter, whole on every device."""
    if _num_shards() == 1:
        return parameter
    return with_sharding_constraint(parameter, P())


def num_batch_shards(batch_size: int) -> int:
    """Parts that a batch lies on the devices in, one after the other."""
    return _num_shards() if batch_size % _num_shards() == 0 else 1


def only_data_is_split() -> bool:
    """Whether the mesh in context has several devices along no axis but `data`."""
    shape = jax.sharding.get_abstract_mesh().shape
    return all(size == 1 for axis, size in shape.items() if axis != "data")


def _splits(batch_size: int) -> bool:
    return num_batch_shards(batch_size) > 1


def _num_shards() -> int:
    """Parts that the compiler splits the batch at hand into."""
    return math.prod(map(_mesh_size, SEQUENCES))


def _auto_axes() -> tuple[str, ...]:
    """Those of the batch's axes over which the compiler lays arrays, on the mesh in context."""
    auto_axes = jax.sharding.get_abstract_mesh().auto_axes
    return tuple(axis for axis in SEQUENCES if axis in auto_axes)


def _mesh_size(axis: str) -> int:
    """Devices along an axis of the mesh in context, 1 where the compiler lays nothing on it."""
    mesh = jax.sharding.get_abstract_mesh()
    return mesh.shape[axis] if axis in mesh.auto_axes else 1
