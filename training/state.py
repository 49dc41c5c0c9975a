"""The state of a run: all that a checkpoint holds, in one donated pytree."""

import flax.struct
import jax


@flax.struct.dataclass
class TrainState:
    """What one step reads and the next one needs.

    Attributes:
      step: scalar int32, steps taken.
      params: the objective's parameters.
      opt_state: the optimizer's.
      key_data: uint32, the root random key; every step folds its number into it, so no key is
        ever advanced.
      neighbours: [V, K] int32 index of k-NN target sampling, or None. Without it a resume between
        two refreshes would not be exact.
      neighbours_step: scalar int32, step of the index's last refresh, or None.
    """

    step: jax.Array
    params: jax.Array
    opt_state: jax.Array
    key_data: jax.Array
    neighbours: jax.Array | None
    neighbours_step: jax.Array | None
