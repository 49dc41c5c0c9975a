"""What a run would hold in the memory of each device, before there are any."""

import dataclasses
import math
from typing import Any

import jax
import numpy as np

from training.state import TrainState


@dataclasses.dataclass(frozen=True)
class ActivationSizes:
    """What the activations of a step follow from; sizes of one device.

    Attributes:
      tokens: of its part of the batch.
      length: L, of a row.
      hidden_size, num_layers, num_heads: of the encoder.
      bytes_per_value: 2 for bfloat16, 4 for float32.
      remat: as `models.encoder.EncoderSettings.remat`.
      has_attention_weights: whether weights [B, H, L, L] are kept, as without fused attention.
      logits: elements of the output layer's logits, 0 where they are never held at once.
    """

    tokens: int
    length: int
    hidden_size: int
    num_layers: int
    num_heads: int
    bytes_per_value: int
    remat: str
    has_attention_weights: bool
    logits: int

    def bytes(self) -> int:
        """Bytes kept for the backward pass, plus the logits and their gradient in float32.

        A layer keeps some 17 values of D for each token, and 2.5 of H L for the attention weights
        (Korthikanti et al. 2022, Eq. 1, in values instead of bytes); "dots" keeps the products, 8,
        and "full" the layer's input, each besides one layer that is being computed again.
        """
        per_token = 17 * self.hidden_size
        if self.has_attention_weights:
            per_token += 5 * self.num_heads * self.length // 2
        kept = {"none": per_token, "dots": 8 * self.hidden_size, "full": self.hidden_size}
        again = 0 if self.remat == "none" else per_token
        layers = self.tokens * (self.num_layers * kept[self.remat] + again)
        return layers * self.bytes_per_value + 2 * 4 * self.logits


def state_bytes(state: TrainState) -> dict[str, int]:
    """Bytes that each part of the state takes on one device, and a gradient as large as is used.

    Args:
      state: shapes, types and shardings, `Program.abstract_state`.
    """
    parts = {
        "parameters": state.params,
        "optimizer": state.opt_state,
        "extra state": state.extra,
        "gradients": state.params,
    }
    return {name: sum(map(_device_bytes, jax.tree.leaves(part))) for name, part in parts.items()}


def _device_bytes(array: Any) -> int:
    shape = array.sharding.shard_shape(array.shape)
    return math.prod(shape) * np.dtype(array.dtype).itemsize
