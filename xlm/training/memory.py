"""Estimates of a run's memory on each device, without the devices."""

import dataclasses
import math
from typing import Any

import jax
import numpy as np

from xlm.training.step import TrainFunctions


@dataclasses.dataclass(frozen=True)
class ActivationSizes:
    """Sizes that determine the memory of a step's activations.

    Attributes:
      tokens: number of tokens in one device's part of the batch.
      length: keys whose weights a query holds, on average over the layers; L if all do.
      hidden_size, mlp_size: D and F of the encoder.
      bytes_per_value: 2 for bfloat16, 4 for float32.
      remat: see `EncoderSettings.remat`.
      has_attention_weights: whether memory holds weights [B, H, L, L], as without fused attention.
      logits: elements of the output layer's logits on one device, 0 if memory never holds all.
      head_shards, mlp_shards: devices that share the heads, and the MLP, of a sequence.
      is_unrolled: whether layers are no loop. XLA then keeps no float32 values and dropout masks,
        but fuses them into their uses.
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
    head_shards: int
    mlp_shards: int
    is_unrolled: bool = False

    def bytes(self, num_passes: int = 1, *, is_crossed: bool = False) -> int:
        """Return the bytes on one device at the start of the backward pass.

        They are stored activations of all layers in each pass over them, of which one may have
        cross-attention, recomputed activations of one layer (with `remat`) and its gradients of the
        same size, weights in bfloat16 for the products, and float32 logits, whose gradient
        overwrites them.
        """
        stored = num_passes * self._layer(self.remat) + is_crossed * self._attention(self.remat)
        stored *= self.tokens * self.num_layers
        return stored + self.work_bytes() + self.weight_bytes() + 4 * self.logits

    def work_bytes(self) -> int:
        """Return the bytes of the layer in work, part of `bytes`, for one encoder at a time."""
        in_work = 1 if self.remat == "none" else 2
        return self.tokens * in_work * self._layer("none")

    def weight_bytes(self) -> int:
        """Return the bytes of all bfloat16 kernels, part of `bytes`; only without `remat`."""
        if self.bytes_per_value == 4 or self.remat != "none":
            return 0
        kernels = 4 * self.hidden_size**2 // self.head_shards
        kernels += 2 * self.hidden_size * self.mlp_size // self.mlp_shards
        return self.num_layers * self.bytes_per_value * kernels

    def _layer(self, remat: str) -> int:
        hidden = self.bytes_per_value * self.hidden_size
        mlp = self.bytes_per_value * self.mlp_size // self.mlp_shards
        if remat == "full":  # its input
            return hidden
        if remat == "dots":  # and two products
            return self._attention(remat) + 2 * hidden + mlp
        return self._attention(remat) + self._norm() + 4 * mlp  # four intermediates of the GELU

    def _attention(self, remat: str) -> int:
        hidden = self.bytes_per_value * self.hidden_size
        if remat == "full":
            return 0
        if remat == "dots":  # four products
            return hidden + 3 * hidden // self.head_shards
        # Of size H L: attention weights in float32 and in the activations' dtype, dropout mask.
        weights = self.num_heads * self.length * (4 + self.bytes_per_value + 1)
        weights *= self.has_attention_weights
        # Query, key, value and attention output.
        return self._norm() + (4 * hidden + weights) // self.head_shards

    def _norm(self) -> int:
        # Three float32 values and the output of a LayerNorm, and a dropout mask before it.
        float32 = 0 if self.is_unrolled else 3 * 4 + 1 - self.bytes_per_value
        return (2 * self.bytes_per_value + float32) * self.hidden_size


def state_bytes(functions: TrainFunctions) -> dict[str, int]:
    """Return the bytes on one device of each part of a stage's state, and of its gradients."""
    state = functions.abstract_state
    parts = {
        "parameters": state.params,
        "optimizer": state.opt_state,
        "auxiliary state": state.aux_state,
        # A device has all those of its examples before it shares their sum with `data`.
        "gradients": functions.stage.trained_part(functions.whole_params),
    }
    return {name: sum(map(_device_bytes, jax.tree.leaves(part))) for name, part in parts.items()}


def _device_bytes(array: Any) -> int:
    shape = array.sharding.shard_shape(array.shape)
    return math.prod(shape) * np.dtype(array.dtype).itemsize
