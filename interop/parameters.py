"""Parameters of `models.encoder.Encoder` by name.

A name is the dotted path of a parameter, such as layers.mlp.wide.kernel. Kernels are [in, out];
parameters whose name begins with "layers" have a leading axis of layers.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

_Shapes = dict[str, tuple[int, ...]]

# Parameters whose first axis is the vocabulary, which may be padded.
_BY_PIECE = ("embeddings.table", "head.bias")


def shapes(sizes: Mapping[str, Any], *, has_head: bool = True) -> _Shapes:
    """Return names and shapes of all parameters.

    Args:
      sizes: named as in `EncoderSettings`.
      has_head: whether there is a masked-LM head; discriminators have none.
    """
    width, embedding_size, position = (
        sizes[key] for key in ("hidden_size", "embedding_size", "position")
    )
    found: _Shapes = {"embeddings.table": (sizes["vocab_size"], embedding_size)}
    if sizes.get("embedding_norm", True):
        found |= _norm("embeddings.norm", width)
    if has_head:
        found |= _dense("head.dense", width, embedding_size)
        found |= _norm("head.norm", embedding_size)
        found["head.bias"] = (sizes["vocab_size"],)
    if embedding_size != width:
        found |= _dense("embeddings.project", embedding_size, width)
    if position == "learned":
        found["embeddings.positions"] = (sizes["max_length"], width)
    if sizes["norm_position"] == "pre":
        found |= _norm("final_norm", width)
    if sizes["num_layers"]:
        layer = _layer(width, sizes["mlp_size"], sizes["num_heads"], position == "gated")
        if sizes.get("cross_attention"):
            layer |= _attention("cross_attention", width) | _norm("cross_attention_norm", width)
        found |= {f"layers.{name}": (sizes["num_layers"], *layer[name]) for name in layer}
        if position in ("relative", "gated"):
            found["distances.bias"] = (sizes["distance_buckets"], sizes["num_heads"])
    return found


def _layer(width: int, mlp_size: int, num_heads: int, is_gated: bool) -> _Shapes:
    found = _attention("attention", width)
    if is_gated:
        found |= {
            "attention.gate.update": (num_heads, width // num_heads),
            "attention.gate.reset": (num_heads, width // num_heads),
            "attention.gate.scale": (num_heads,),
        }
    return {
        **found,
        **_norm("attention_norm", width),
        **_dense("mlp.wide", width, mlp_size),
        **_dense("mlp.output", mlp_size, width),
        **_norm("mlp_norm", width),
    }


def _attention(name: str, width: int) -> _Shapes:
    found: _Shapes = {}
    for projection in ("query", "key", "value", "output"):
        found |= _dense(f"{name}.{projection}", width, width)
    return found


def _dense(name: str, num_inputs: int, num_outputs: int) -> _Shapes:
    return {f"{name}.kernel": (num_inputs, num_outputs), f"{name}.bias": (num_outputs,)}


def _norm(name: str, width: int) -> _Shapes:
    return {f"{name}.scale": (width,), f"{name}.bias": (width,)}


def flat(params: Mapping[str, Any], sizes: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """Flatten parameters to float32 arrays by name.

    Args:
      params: nested dicts of arrays; "head" may be absent.
      sizes: named as in `EncoderSettings`; rows of the table and of the output bias beyond
        `vocab_size` are padding and left out.

    Raises:
      ValueError: the shape of a parameter does not match the sizes.
    """
    found = {}
    for name, shape in shapes(sizes, has_head="head" in params).items():
        value: Any = params
        for key in name.split("."):
            value = value[key]
        array = np.asarray(value, np.float32)
        array = array[: sizes["vocab_size"]] if name in _BY_PIECE else array
        if array.shape != shape:
            raise ValueError(
                f"parameter {name} has shape {array.shape}, must be {shape}; are the sizes those "
                "of another model?"
            )
        found[name] = array
    return found


def nested(arrays: Mapping[str, np.ndarray]) -> dict[str, Any]:
    """Convert arrays by name to nested dicts."""
    params: dict[str, Any] = {}
    for name, array in arrays.items():
        *path, last = name.split(".")
        place = params
        for key in path:
            place = place.setdefault(key, {})
        place[last] = array
    return params
