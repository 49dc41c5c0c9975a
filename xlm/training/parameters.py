"""Table of the parameters, logged at the start of a run."""

import math
from typing import Any

import jax

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
