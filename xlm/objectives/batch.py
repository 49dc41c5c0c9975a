"""Batch of one step: its arrays, and the kind of its examples."""

import dataclasses
from typing import Any

import jax


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Batch:
    """Batch of a step: arrays [B, ...], or their shapes, by name, and the kind of its examples.

    The kind, such as "packed" for packed documents, determines the names of the arrays. It is
    static: each kind has its own compiled program.
    """

    arrays: dict[str, Any]
    kind: str = dataclasses.field(metadata={"static": True})

    def __getitem__(self, name: str) -> jax.Array:
        return self.arrays[name]

    @property
    def num_examples(self) -> int:
        """Number of examples, B."""
        return len(next(iter(self.arrays.values())))
