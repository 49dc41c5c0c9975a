"""The devices that hold the embedding table, as far as the output layer depends on them."""

from typing import NamedTuple

import jax
from jax.sharding import AbstractMesh, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P


class TableSharding(NamedTuple):
    """How the table [V, E] lies on a mesh.

    Attributes:
      mesh: devices that the table and the batch are split over; None for a single one.
      vocab_axes: mesh axes that the rows of the table are split over.
      embed_axes: mesh axes that its columns are split over.
    """

    mesh: Mesh | AbstractMesh | None = None
    vocab_axes: tuple[str, ...] = ()
    embed_axes: tuple[str, ...] = ()

    @property
    def splits_rows(self) -> bool:
        """Whether several devices hold different rows."""
        return self.mesh is not None and any(self.mesh.shape[axis] > 1 for axis in self.vocab_axes)

    def split(self, rows: jax.Array) -> jax.Array:
        """Rows [G, C, E] of candidates, split over the devices that the table's rows are."""
        # Inside `jax.shard_map` no array can be laid out over the axes that it maps.
        mapped = jax.sharding.get_abstract_mesh().manual_axes
        axes = tuple(axis for axis in self.vocab_axes if axis not in mapped)
        if self.mesh is None or not axes or not self.splits_rows:
            return rows
        by_row = NamedSharding(self.mesh, P(P.UNCONSTRAINED, axes, None))
        return jax.lax.with_sharding_constraint(rows, by_row)


ONE_DEVICE = TableSharding()
