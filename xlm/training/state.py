"""State of a run, which a checkpoint holds, and a table of its parameters."""

import dataclasses
import math
from typing import Any

import jax
from jax.tree_util import GetAttrKey

from xlm.objectives.objective import AuxState
from xlm.training.settings import PRNGS, as_tuple


@dataclasses.dataclass(frozen=True)
class TrainState:
    """State that a step reads and updates, after `step` (scalar int32) steps.

    `key_data`, uint32, is the root random key, which steps never change. `aux_state` is learned
    state besides parameters, such as a neighbour index, which an exact resume needs too.
    """

    step: jax.Array
    params: Any
    opt_state: Any
    key_data: jax.Array
    aux_state: AuxState

    @property
    def root_key(self) -> jax.Array:
        implementation = {words: name for name, words in PRNGS.items()}[self.key_data.size]
        return jax.random.wrap_key_data(self.key_data, impl=implementation)


# Checkpoints name arrays by these keys. The first ones called `aux_state` "extra", so all do.
_KEYS = [*map(GetAttrKey, ("step", "params", "opt_state", "key_data", "extra"))]
jax.tree_util.register_pytree_with_keys(
    TrainState,
    lambda state: (zip(_KEYS, vars(state).values(), strict=True), None),
    lambda _, children: TrainState(*children),
)
_HEADINGS = ("parameter", "shape", "type", "split over", "count")


def parameter_table(params: Any) -> str:
    """Format a line per array (name, shape, dtype, mesh axes, number of elements), and a total."""
    rows = [_HEADINGS]
    for path, array in jax.tree.leaves_with_path(params):
        name = jax.tree_util.keystr(path, simple=True, separator="/")
        spec = getattr(array.sharding, "spec", ())
        axes = ", ".join("+".join(as_tuple(entry)) or "-" for entry in spec)
        count = f"{math.prod(array.shape):,}"
        rows.append((name, f"{list(array.shape)}", str(array.dtype), f"({axes})", count))
    rows.append(("all", "", "", "", f"{num_parameters(params):,}"))
    *widths, last = (max(map(len, column)) for column in zip(*rows, strict=True))
    return "\n".join("  ".join([*map(str.ljust, row, widths), row[-1].rjust(last)]) for row in rows)


def num_parameters(params: Any) -> int:
    """Count the elements of all arrays."""
    return sum(math.prod(array.shape) for array in jax.tree.leaves(params))
