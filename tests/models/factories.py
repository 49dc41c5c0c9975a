"""Small encoders for tests: settings in which no two sizes are the same, and random parameters."""

import functools

import flax.linen as nn
import jax
import numpy as np

from xlm.models.encoder import Encoder, EncoderSettings, init_params


def encoder_settings(**changes) -> EncoderSettings:
    settings = {
        "vocab_size": 40, "embedding_size": 8, "hidden_size": 16, "num_layers": 2, "num_heads": 2,
        "mlp_size": 24, "max_length": 12, "norm_position": "post", "dropout_rate": 0.0,
        "attention_dropout_rate": 0.0, "dtype": "float32",
    }  # fmt: skip
    return EncoderSettings(**(settings | changes))


def random(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def random_segments(batch: int, length: int, seed: int = 0) -> np.ndarray:
    """Three segments and padding of each sequence, not at the borders of blocks."""
    ends = np.sort(np.random.default_rng(seed).integers(1, length, (batch, 3)), axis=1)
    found = 1 + (np.arange(length)[None, :, None] >= ends[:, None, :]).sum(axis=2)
    return (found % 4).astype(np.int32)


def values_and_gradients(function, *arrays):
    """Gradients of a weighted sum of a function of arrays in each of them, and its value."""

    def loss(*arrays):
        out = function(*arrays)
        weights = np.random.default_rng(1).normal(size=out.shape).astype(np.float32)
        return (out * weights).sum(), out

    return jax.jit(jax.grad(loss, tuple(range(len(arrays))), has_aux=True))(*arrays)


@functools.cache
def boxed_shapes(settings: EncoderSettings):
    """Shapes and types of an encoder's parameters, boxed with their axis names."""
    return jax.eval_shape(functools.partial(init_params, Encoder(settings)), jax.random.key(0))


@functools.cache
def random_params(settings: EncoderSettings):
    """Parameters away from their initial values, among which are too many zeros and ones."""
    return random_like(nn.unbox(boxed_shapes(settings)))


def random_like(shapes):
    """Random arrays, around 1 where they scale something, around 0 elsewhere."""
    rng = np.random.default_rng(0)

    def random_value(path, shape: jax.ShapeDtypeStruct) -> np.ndarray:
        centre = float(path[-1].key == "scale")
        return (centre + 0.3 * rng.normal(size=shape.shape)).astype(shape.dtype)

    return jax.tree.map_with_path(random_value, shapes)
