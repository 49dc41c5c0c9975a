"""Basic layers with logical axis names: dense, LayerNorm, GELU."""

from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from flax.linen.spmd import with_logical_partitioning

INIT_STDDEV = 0.02

# Kernel initializers of dense layers, by model.initializer: that of XLM-R, and one by the number of
# inputs, with a standard deviation of one over its root.
_INITIALIZERS = {
    "normal": nn.initializers.normal(INIT_STDDEV),
    "fan_in": nn.initializers.variance_scaling(1.0, "fan_in", "normal"),
}


class Dense(nn.Module):
    """`nn.Dense`, but for the gradient of the bias, which is summed in float32 at any `dtype`.

    In bfloat16 a sum over a batch's tokens would be off by percents. Parameters are float32.
    """

    features: int
    dtype: str
    kernel_init: Callable[..., Any]
    bias_init: Callable[..., Any]

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        """Map [..., input] to [..., features] of `dtype`."""
        kernel = self.param("kernel", self.kernel_init, (x.shape[-1], self.features), jnp.float32)
        bias = self.param("bias", self.bias_init, (self.features,), jnp.float32)
        y = jnp.dot(x.astype(self.dtype), kernel.astype(self.dtype))
        # Cast after the broadcast, whose transpose is the sum of the gradient.
        return y + jnp.broadcast_to(bias, y.shape).astype(y.dtype)


def dense(
    features: int, axes: tuple[str, str], dtype: str, initializer: str = "normal",
    name: str | None = None,
) -> Dense:  # fmt: skip
    """Build a dense layer; `axes` are the logical axis names of its kernel, [input, output]."""
    kernel_init = with_logical_partitioning(_INITIALIZERS[initializer], axes)
    bias_init = with_logical_partitioning(nn.initializers.zeros, axes[1:])
    return Dense(features, dtype=dtype, kernel_init=kernel_init, bias_init=bias_init, name=name)


def layer_norm(dtype: str, epsilon: float, name: str | None = None) -> nn.LayerNorm:
    """Build a LayerNorm that adds `epsilon` to the variance."""
    return nn.LayerNorm(
        epsilon=epsilon,
        dtype=dtype,
        scale_init=with_logical_partitioning(nn.initializers.ones, ("embed",)),
        bias_init=with_logical_partitioning(nn.initializers.zeros, ("embed",)),
        name=name,
    )


def gelu(x: jax.Array) -> jax.Array:
    """Apply the exact GELU; the tanh approximation would differ from the released models."""
    return nn.gelu(x, approximate=False)
