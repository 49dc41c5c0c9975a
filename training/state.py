"""The state of a run: all that a checkpoint holds, in one donated pytree."""

import dataclasses
from typing import Any

import jax


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class TrainState:
    """What one step reads and the next one needs.

    Attributes:
      step: scalar int32, steps taken.
      params: the objective's parameters.
      opt_state: the optimizer's.
      key_data: uint32, the root random key; every step folds its number into it, so no key is
        ever advanced.
      index: neighbour index of k-NN target sampling, or None. Without it a resume between two
        refreshes would not be exact.
      index_step: scalar int32, step of the index's last refresh, or None.
    """

    step: jax.Array
    params: Any
    opt_state: Any
    key_data: jax.Array
    index: Any
    index_step: jax.Array | None
