"""Batch of one step: its arrays, and the kind of its examples."""

import dataclasses
from typing import Any

import jax


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Batch:
    """Batch of a step.

    The kind is static: each kind of batch has its own compiled program.

    Attributes:
      arrays: [B, ...] jax arrays, or their shapes, by name.
      kind: of the examples, such as "packed" for sequences packed with documents; determines the
        names of the arrays.
    """

    arrays: dict[str, Any]
    kind: str = dataclasses.field(metadata={"static": True})

    def __getitem__(self, name: str) -> jax.Array:
        return self.arrays[name]

    @property
    def num_examples(self) -> int:
        """Number of examples, B."""
        return len(next(iter(self.arrays.values())))
