"""What a run would hold in the memory of each device, before there are any."""

import dataclasses
import math
from typing import Any

import jax
import numpy as np

from training.state import TrainState


@dataclasses.dataclass(frozen=True)
class ActivationSizes:
    """What the activations of a step follow from.

    Attributes:
      tokens: of one device's part of the batch.
      length: L, of a sequence.
      hidden_size, mlp_size, num_layers, num_heads: D, F, layers and H of the encoder.
      bytes_per_value: 2 for bfloat16, 4 for float32.
      remat: as `models.encoder.EncoderSettings.remat`.
      has_attention_weights: whether weights [B, H, L, L] are held, as without fused attention.
      logits: elements of the output layer's logits on one device, 0 where they are never held at
        once.
      model_shards: devices that the heads and the MLP are split over.
    """

    tokens: int
    length: int
    hidden_size: int
    mlp_size: int
    num_layers: int
    num_heads: int
    bytes_per_value: int
    remat: str
    has_attention_weights: bool
    logits: int
    model_shards: int

    def bytes(self) -> int:
        """Bytes of one device at the beginning of the backward pass.

        They are what all layers keep for it; one layer's values computed again (with `remat`) and
        the gradients of as many; and the logits and their gradient in float32.
        """
        in_work = 1 if self.remat == "none" else 2
        of_layers = self.num_layers * self._layer(self.remat) + in_work * self._layer("none")
        return self.tokens * of_layers + 2 * 4 * self.logits

    def _layer(self, remat: str) -> int:
        """Bytes that a layer keeps for each token.

        With "full" its input; with "dots" that and six products. With "none", of D each: three
        values of either LayerNorm, in float32, and its output, query, key, value and mixed values,
        and two dropout masks; of F each, four on the way through the GELU; of H L each, the weights
        in float32 and as they are used, and their dropout mask.
        """
        hidden = self.bytes_per_value * self.hidden_size
        mlp = self.bytes_per_value * self.mlp_size
        if remat == "full":
            return hidden
        if remat == "dots":
            return 3 * hidden + (3 * hidden + mlp) // self.model_shards
        weights = self.num_heads * self.length * (4 + self.bytes_per_value + 1)
        if not self.has_attention_weights:
            weights = 0
        whole = 2 * hidden + (6 * 4 + 2) * self.hidden_size
        return whole + (4 * hidden + 4 * mlp + weights) // self.model_shards


def state_bytes(state: TrainState) -> dict[str, int]:
    """Bytes that each part of the state takes on one device, and a gradient as large as is used.

    Args:
      state: shapes, types and shardings, `TrainFunctions.abstract_state`.
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
