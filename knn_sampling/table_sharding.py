"""Sharding of the embedding table, as far as the output layer depends on it."""

from typing import NamedTuple

import jax
from jax.sharding import AbstractMesh, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P


class TableSharding(NamedTuple):
    """Sharding of the table [V, E] over a mesh.

    Attributes:
      mesh: devices that the table and the batch are sharded over; None for a single one.
      vocab_axes: mesh axes that the rows of the table are sharded over.
      embed_axes: mesh axes that its columns are sharded over.
    """

    mesh: Mesh | AbstractMesh | None = None
    vocab_axes: tuple[str, ...] = ()
    embed_axes: tuple[str, ...] = ()

    @property
    def splits_rows(self) -> bool:
        """Whether several devices hold different rows."""
        return self.mesh is not None and any(self.mesh.shape[axis] > 1 for axis in self.vocab_axes)

    def split(self, rows: jax.Array) -> jax.Array:
        """Constrain candidate rows [G, C, E] to the sharding of the table's rows."""
        # Inside `jax.shard_map` no array can be sharded over the manual axes.
        mapped = jax.sharding.get_abstract_mesh().manual_axes
        axes = tuple(axis for axis in self.vocab_axes if axis not in mapped)
        if self.mesh is None or not axes or not self.splits_rows:
            return rows
        by_row = NamedSharding(self.mesh, P(P.UNCONSTRAINED, axes, None))
        return jax.lax.with_sharding_constraint(rows, by_row)


ONE_DEVICE = TableSharding()
