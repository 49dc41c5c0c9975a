"""Parameters of `xlm.models.encoder.Encoder` by name.

A name is the dotted path of a parameter, such as layers.mlp.wide.kernel. Kernels are [in, out].
Parameters whose name begins with "layers" have a leading axis of layers.
"""

from collections.abc import Iterator, Mapping
from typing import Annotated, Any

import msgspec
import numpy as np

from xlm.common.declarations import Artefact, Count, one_of

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
Initializer = Annotated[str, one_of("normal", "fan_in", "megatron")]


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
    norm: Annotated[str, one_of("layer", "layer_no_bias", "rms")] = "layer"
    first_norm: bool = True
    mlp: Annotated[str, one_of("gelu", "geglu", "swiglu")] = "gelu"
    bias: bool = True
    qk_norm: bool = False
    local_window: Count = 0
    global_every: Size = 1
    local_rotary_theta: Positive = 10_000.0


# Sizes by our names, and those in the config.json of every class of `transformers` that is read.
SIZES = {
    "vocab_size": "vocab_size",
    "hidden_size": "hidden_size",
    "num_layers": "num_hidden_layers",
    "num_heads": "num_attention_heads",
    "mlp_size": "intermediate_size",
}


def shapes(sizes: Mapping[str, Any], *, has_head: bool = True) -> _Shapes:
    """Return names and shapes of all parameters; discriminators have no masked-LM head."""
    width, embedding_size, num_heads = (
        sizes[key] for key in ("hidden_size", "embedding_size", "num_heads")
    )
    found: _Shapes = {"embeddings.table": (sizes["vocab_size"], embedding_size)}
    # Inputs and outputs of dense layers, and sizes of LayerNorms.
    dense: dict[str, tuple[int, int]] = {}
    norms = {"embeddings.norm": width} if sizes.get("embedding_norm", True) else {}
    if has_head:
        dense["head.dense"] = width, embedding_size
        norms["head.norm"] = embedding_size
        found["head.bias"] = (sizes["vocab_size"],)
    if embedding_size != width:
        dense["embeddings.project"] = embedding_size, width
    if sizes["position"] == "learned":
        found["embeddings.positions"] = (sizes["max_length"], width)
    if sizes["norm_position"] == "pre":
        norms["final_norm"] = width
    if sizes["num_layers"]:
        attentions = ["attention", *["cross_attention"] * sizes.get("cross_attention", False)]
        for name in (f"layers.{one}" for one in attentions):
            dense |= {
                f"{name}.{one}": (width, width) for one in ("query", "key", "value", "output")
            }
            norms[f"{name}_norm"] = width
            if sizes.get("qk_norm"):
                norms |= {f"{name}.{one}_norm": width // num_heads for one in ("query", "key")}
        if sizes.get("mlp", "gelu") != "gelu":
            dense["layers.mlp.gate"] = width, sizes["mlp_size"]
        dense["layers.mlp.wide"] = width, sizes["mlp_size"]
        dense["layers.mlp.output"] = sizes["mlp_size"], width
        norms["layers.mlp_norm"] = width
        if sizes["position"] in ("relative", "gated"):
            found["distances.bias"] = (sizes["distance_buckets"], num_heads)
        if sizes["position"] == "gated":
            for gate in ("update", "reset"):
                found[f"layers.attention.gate.{gate}"] = (num_heads, width // num_heads)
            found["layers.attention.gate.scale"] = (num_heads,)
    for name, shape in dense.items():
        found[f"{name}.kernel"] = shape
        if sizes.get("bias", True):
            found[f"{name}.bias"] = shape[1:]
    for name, size in norms.items():
        found[f"{name}.scale"] = (size,)
        if sizes.get("norm", "layer") == "layer":
            found[f"{name}.bias"] = (size,)
    return {
        name: (sizes["num_layers"], *shape) if name.startswith("layers.") else shape
        for name, shape in found.items()
    }


def flat(params: Mapping[str, Any], sizes: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """Flatten nested parameters to float32 arrays by name; "head" may be absent.

    Rows of the table and the output bias beyond `vocab_size` are padding and left out. Raises
    ValueError if a shape does not match the sizes.
    """
    found, arrays = {}, dict(flattened(params))
    for name, shape in shapes(sizes, has_head="head" in params).items():
        array = np.asarray(arrays[name], np.float32)
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
            place = place.setdefault(key, {}) if isinstance(place, dict) else place
        if not isinstance(place, dict) or last in place:
            raise ValueError(f"parameter {name} is in the place of another; copy the file again")
        place[last] = array
    return params
