"""Low-rank updates of an encoder's kernels (Hu et al., "LoRA", 2021, arXiv 2106.09685)."""

from collections.abc import Mapping
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from flax.traverse_util import flatten_dict, unflatten_dict

from xlm.objectives.settings import LoraSettings


def init_factors(settings: LoraSettings, encoder: Any, key: jax.Array) -> dict[str, Any]:
    """Initialise the factors of all targets, at the paths of their kernels [N, inputs, outputs].

    `a` [N, inputs, rank] is normal with variance 1 / inputs. `b` [N, rank, outputs] is zero, so
    training starts from the encoder itself. Raises ValueError if a target is no kernel.
    """
    kernels = {
        path[1:-1]: value
        for path, value in flatten_dict(nn.unbox(encoder)).items()
        if path[0] == "layers" and path[-1] == "kernel"
    }
    found: dict[tuple[str, ...], jax.Array] = {}
    for number, target in enumerate(settings.lora_targets):
        path = tuple(target.split("/"))
        if path not in kernels:
            raise ValueError(
                f"optimizer.lora_targets names {target!r}, must be one of the encoder's kernels: "
                f"{', '.join(map('/'.join, sorted(kernels)))}"
            )
        layers, inputs, outputs = kernels[path].shape
        shape = (layers, inputs, settings.lora_rank)
        normal = jax.random.normal(jax.random.fold_in(key, number), shape)
        found["layers", *path, "a"] = normal / inputs**0.5
        found["layers", *path, "b"] = jnp.zeros((layers, settings.lora_rank, outputs))
    return unflatten_dict(found)


def merged(settings: LoraSettings, encoder: Any, factors: Mapping[str, Any]) -> dict[str, Any]:
    """Add lora_alpha / lora_rank a b to the kernels of an encoder's parameters."""
    found, scale = flatten_dict(encoder), settings.lora_alpha / settings.lora_rank
    flat = flatten_dict(factors)
    for path, a in flat.items():
        if path[-1] == "a":
            # Factors are small: a product in a short type would lose them.
            product = jnp.matmul(a, flat[*path[:-1], "b"], precision=jax.lax.Precision.HIGHEST)
            kernel = (*path[:-1], "kernel")
            found[kernel] = found[kernel] + scale * product
    return unflatten_dict(found)
