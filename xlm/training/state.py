"""State of a run: the content of a checkpoint, in one donated pytree."""

import dataclasses
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
