"""Sharding of the embedding table, for the output layer."""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
from jax.sharding import AbstractMesh, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

# Mesh axes that shard batches.
_BATCH = ("data", "fsdp")


class TableSharding(NamedTuple):
    """Sharding of the rows and columns of the table [V, E]; one device without a mesh."""

    mesh: Mesh | AbstractMesh | None = None
    vocab_axes: tuple[str, ...] = ()
    embed_axes: tuple[str, ...] = ()

    @property
    def row_axes(self) -> tuple[str, ...]:
        """The `vocab_axes`, without those of a `jax.shard_map`, on whose devices rows are whole."""
        mapped = jax.sharding.get_abstract_mesh().manual_axes
        return tuple(axis for axis in self.vocab_axes if axis not in mapped)

    @property
    def splits_rows(self) -> bool:
        """Whether several devices hold different rows."""
        return self.num_row_shards > 1

    @property
    def num_row_shards(self) -> int:
        """Number of parts of the rows."""
        if self.mesh is None:
            return 1
        return math.prod(self.mesh.shape[axis] for axis in self.row_axes)

    def shard_map(self, function: Callable, *, in_specs: Any, out_specs: Any) -> Callable:
        """Map a function over the devices that split the rows, also inside another map.

        Specs are over `row_axes` only. Results must be the same on all these devices.
        """
        outer = jax.sharding.get_abstract_mesh()
        return jax.shard_map(
            function,
            mesh=outer if outer.manual_axes else self.mesh,
            in_specs=in_specs,
            out_specs=out_specs,
            axis_names=set(self.row_axes),
            check_vma=False,
        )

    def split(self, rows: jax.Array) -> jax.Array:
        """Constrain candidate rows [G, C, E] to the sharding of the table's rows."""
        # Not over axes that shard the positions: with these XLA's partitioner computes wrong
        # gradients of the hidden states (jax 0.10).
        axes = tuple(axis for axis in self.row_axes if axis not in _BATCH)
        if self.mesh is None or not axes or not self.splits_rows:
            return rows
        by_row = NamedSharding(self.mesh, P(P.UNCONSTRAINED, axes, None))
        return jax.lax.with_sharding_constraint(rows, by_row)


ONE_DEVICE = TableSharding()
