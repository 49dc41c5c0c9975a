"""Parameters of `xlm.models.encoder.Encoder` by name.

A name is the dotted path of a parameter, such as layers.mlp.wide.kernel. Kernels are [in, out].
Parameters whose name begins with "layers" have a leading axis of layers.
"""

from collections.abc import Iterator, Mapping
from typing import Annotated, Any

import msgspec
import numpy as np

from xlm.common.declarations import Artefact, one_of

_Shapes = dict[str, tuple[int, ...]]

# Parameters whose first axis is the vocabulary, which may be padded.
_BY_PIECE = ("embeddings.table", "head.bias")

# Limits that are checked before memory is taken, well beyond any real model.
Size = Annotated[int, msgspec.Meta(ge=1, le=2**24)]
Layers = Annotated[int, msgspec.Meta(ge=0, le=1000)]
Rate = Annotated[float, msgspec.Meta(ge=0, le=1)]
Positive = Annotated[float, msgspec.Meta(gt=0)]
Slope = Annotated[float, msgspec.Meta(ge=0)]
Position = Annotated[str, one_of("learned", "rotary", "relative", "gated")]
Initializer = Annotated[str, one_of("normal", "fan_in")]


class Architecture(Artefact, frozen=True, kw_only=True):
    """Architecture of an encoder, named as in `EncoderSettings`; later settings have defaults."""

    vocab_size: Size
    embedding_size: Size
    hidden_size: Size
    num_layers: Layers
    num_heads: Size
    mlp_size: Size
    max_length: Size
    norm_position: Annotated[str, one_of("post", "pre")]
    dropout_rate: Rate
    attention_dropout_rate: Rate
    position: Position = "learned"
    rotary_theta: Positive = 10_000.0
    distance_buckets: Size = 32
    max_distance: Size = 128
    distance_slope: Slope = 0.0
    initializer: Initializer = "normal"
    cross_attention: bool = False
    embedding_norm: bool = True
    norm_epsilon: Positive = 1e-5


def shapes(sizes: Mapping[str, Any], *, has_head: bool = True) -> _Shapes:
    """Return names and shapes of all parameters; discriminators have no masked-LM head."""
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
    """Flatten nested parameters to float32 arrays by name; "head" may be absent.

    Rows of the table and the output bias beyond `vocab_size` are padding and left out. Raises
    ValueError if a shape does not match the sizes.
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


def flattened(
    params: Mapping[str, Any], separator: str = ".", prefix: str = ""
) -> Iterator[tuple[str, Any]]:
    """Yield the arrays of nested dicts with their names; see `nested`."""
    for name, value in params.items():
        if isinstance(value, Mapping):
            yield from flattened(value, separator, f"{prefix}{name}{separator}")
        else:
            yield prefix + name, value


def nested(arrays: Mapping[str, np.ndarray], separator: str = ".") -> dict[str, Any]:
    """Convert arrays by name to nested dicts; ValueError if a name is below another one."""
    params: dict[str, Any] = {}
    for name, array in arrays.items():
        *path, last = name.split(separator)
        place = params
        for key in path:
            place = place.setdefault(key, {})
            if not isinstance(place, dict):
                break
        if not isinstance(place, dict) or last in place:
            raise ValueError(f"parameter {name} is in the place of another; copy the file again")
        place[last] = array
    return params
