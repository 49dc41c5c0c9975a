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
