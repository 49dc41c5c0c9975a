"""State of a run, the content of a checkpoint in one donated pytree; table of its parameters."""

import dataclasses
import math
from typing import Any

import jax

from xlm.objectives.objective import Extra
from xlm.training.settings import PRNGS


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class TrainState:
    """State that a step reads and updates, after `step` (scalar int32) steps.

    `key_data`, uint32, is the root random key. A step folds its number into it and never changes
    it. An exact resume needs `extra`, learned state besides parameters such as a neighbour index.
    """

    step: jax.Array
    params: Any
    opt_state: Any
    key_data: jax.Array
    extra: Extra

    @property
    def root_key(self) -> jax.Array:
        """Root random key."""
        implementation = {words: name for name, words in PRNGS.items()}[self.key_data.size]
        return jax.random.wrap_key_data(self.key_data, impl=implementation)


_HEADINGS = ("parameter", "shape", "type", "split over", "count")


def parameter_table(params: Any) -> str:
    """Format a line per array (name, shape, dtype, mesh axes, number of elements), and a total."""
    rows = [_HEADINGS]
    total = 0
    for path, array in jax.tree.leaves_with_path(params):
        count = math.prod(array.shape)
        total += count
        name = jax.tree_util.keystr(path, simple=True, separator="/")
        axes = ", ".join(_axes(entry) for entry in getattr(array.sharding, "spec", ()))
        rows.append((name, f"{list(array.shape)}", str(array.dtype), f"({axes})", f"{count:,}"))
    rows.append(("all", "", "", "", f"{total:,}"))
    widths = [max(len(row[column]) for row in rows) for column in range(len(_HEADINGS))]
    lines = []
    for row in rows:
        cells = [cell.ljust(width) for cell, width in zip(row[:-1], widths, strict=False)]
        lines.append("  ".join([*cells, row[-1].rjust(widths[-1])]))
    return "\n".join(lines)


def num_parameters(params: Any) -> int:
    """Count the elements of all arrays."""
    return sum(math.prod(array.shape) for array in jax.tree.leaves(params))


def _axes(entry: str | tuple[str, ...] | None) -> str:
    """Format one entry of a PartitionSpec."""
    if entry is None:
        return "-"
    return entry if isinstance(entry, str) else "+".join(entry)
