"""Small layers that all modules are made of: dense, LayerNorm, GELU, with their axis names."""

import flax.linen as nn
import jax
from flax.linen.spmd import with_logical_partitioning

INIT_STDDEV = 0.02
_LAYER_NORM_EPSILON = 1e-5


def dense(features: int, axes: tuple[str, str], dtype: str, name: str | None = None) -> nn.Dense:
    """A dense layer; `axes` are the logical axis names of its kernel, [input, output]."""
    kernel_init = with_logical_partitioning(nn.initializers.normal(INIT_STDDEV), axes)
    bias_init = with_logical_partitioning(nn.initializers.zeros, axes[1:])
    return nn.Dense(features, dtype=dtype, kernel_init=kernel_init, bias_init=bias_init, name=name)


def layer_norm(dtype: str, name: str | None = None) -> nn.LayerNorm:
    """LayerNorm with XLM-R's epsilon."""
    return nn.LayerNorm(
        epsilon=_LAYER_NORM_EPSILON,
        dtype=dtype,
        scale_init=with_logical_partitioning(nn.initializers.ones, ("embed",)),
        bias_init=with_logical_partitioning(nn.initializers.zeros, ("embed",)),
        name=name,
    )


def gelu(x: jax.Array) -> jax.Array:
    """The exact GELU; the tanh approximation would part from the released models."""
    return nn.gelu(x, approximate=False)
