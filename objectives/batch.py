"""The arrays of one step, and the kind of the examples in them."""

import dataclasses
from typing import Any

import jax


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Batch:
    """What a step works on.

    The kind is static: a step on another kind of batch is another compiled program.

    Attributes:
      arrays: [B, ...] jax arrays, or their shapes, by name.
      kind: of the examples, such as "packed" for sequences packed with documents; names the arrays
        that there are.
    """

    arrays: dict[str, Any]
    kind: str = dataclasses.field(metadata={"static": True})

    def __getitem__(self, name: str) -> jax.Array:
        return self.arrays[name]

    @property
    def num_examples(self) -> int:
        """B."""
        return len(next(iter(self.arrays.values())))
