"""Basic layers with logical axis names: dense, norms, GELU."""

import math
from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from flax.linen.spmd import with_logical_partitioning

INIT_STDDEV = 0.02


def initializer(kind: str, depth: int = 0) -> Callable[..., Any]:
    """Return the initializer of kernels and embeddings by `model.initializer`.

    "normal" is XLM-R's. "fan_in" has a standard deviation of one over the root of the inputs.
    "megatron" is ModernBERT's, cut at two standard deviations. For outputs added to the residual
    sum, give the number of layers as `depth`: "megatron" then divides by the root of 2 depth.
    """
    if kind == "fan_in":
        return nn.initializers.variance_scaling(1.0, "fan_in", "normal")
    if kind == "normal":
        return nn.initializers.normal(INIT_STDDEV)
    return nn.initializers.truncated_normal(INIT_STDDEV / math.sqrt(2 * depth or 1))


class Dense(nn.Module):
    """`nn.Dense` with float32 parameters that sums the bias's gradient in float32 at any `dtype`.

    In bfloat16 a sum over a batch's tokens would be off by percents.
    """

    features: int
    dtype: str
    kernel_init: Callable[..., Any]
    bias_init: Callable[..., Any]
    use_bias: bool = True

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        """Map [..., input] to [..., features] of `dtype`."""
        kernel = self.param("kernel", self.kernel_init, (x.shape[-1], self.features), jnp.float32)
        y = jnp.dot(x.astype(self.dtype), kernel.astype(self.dtype))
        if not self.use_bias:
            return y
        bias = self.param("bias", self.bias_init, (self.features,), jnp.float32)
        # Cast after the broadcast: its transpose sums the gradient.
        return y + jnp.broadcast_to(bias, y.shape).astype(y.dtype)


def dense(
    features: int, axes: tuple[str, str], dtype: str, kind: str = "normal",
    name: str | None = None, *, use_bias: bool = True, depth: int = 0,
) -> Dense:  # fmt: skip
    """Build a dense layer; `axes` are the logical axis names of its kernel, [input, output]."""
    kernel_init = with_logical_partitioning(initializer(kind, depth), axes)
    bias_init = with_logical_partitioning(nn.initializers.zeros, axes[1:])
    return Dense(features, dtype, kernel_init, bias_init, use_bias, name=name)


def norm(
    kind: str, dtype: str, epsilon: float, name: str | None = None, axis: str | None = "embed"
) -> nn.LayerNorm | nn.RMSNorm:
    """Build a norm of `model.norm` that adds `epsilon` to the variance, or the mean square."""
    options = {
        "epsilon": epsilon,
        "dtype": dtype,
        "scale_init": with_logical_partitioning(nn.initializers.ones, (axis,)),
        "name": name,
    }
    if kind == "rms":
        return nn.RMSNorm(**options)
    bias_init = with_logical_partitioning(nn.initializers.zeros, (axis,))
    return nn.LayerNorm(**options, use_bias=kind == "layer", bias_init=bias_init)


def gelu(x: jax.Array) -> jax.Array:
    """Apply the exact GELU; the tanh approximation would differ from the released models."""
    return nn.gelu(x, approximate=False)
