"""The state of a run: all that a checkpoint holds, in one donated pytree."""

import dataclasses
from typing import Any

import jax

from objectives.objective import Extra

# Implementations of random keys, by the number of words in a key.
PRNGS = {"threefry2x32": 2, "rbg": 4}


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
      extra: what the objective has learned besides parameters, such as a neighbour index. Without
        it a resume would not be exact.
    """

    step: jax.Array
    params: Any
    opt_state: Any
    key_data: jax.Array
    extra: Extra

    @property
    def root_key(self) -> jax.Array:
        """The root random key."""
        implementation = {words: name for name, words in PRNGS.items()}[self.key_data.size]
        return jax.random.wrap_key_data(self.key_data, impl=implementation)
