"""Parameters of `xlm.models.encoder.Encoder` by name.

A name is the dotted path of a parameter, such as layers.mlp.wide.kernel. Kernels are [in, out].
Parameters with names in "layers" have a leading axis of layers.

Classes of `transformers` have kernels [out, in], and tensors for each layer. A table maps the names
of their tensors, with {} for the number of a layer, to the sequence of our parameters in each.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Annotated, Any

import msgspec
import numpy as np

from xlm.common.declarations import Artefact, Count, one_of

_Shapes = dict[str, tuple[int, ...]]
Table = Mapping[str, tuple[str, ...]]
# Our kinds of parameters of a module, and theirs.
KINDS = {"kernel": "weight", "scale": "weight", "bias": "bias"}

# Parameters whose first axis is the vocabulary, which may be padded.
_BY_PIECE = ("embeddings.table", "head.bias")

# Limits to check before allocating memory, well beyond any real model.
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


# Sizes by our names, and those in config.json of all classes of `transformers` that we read.
SIZES = {
    "vocab_size": "vocab_size",
    "hidden_size": "hidden_size",
    "num_layers": "num_hidden_layers",
    "num_heads": "num_attention_heads",
    "mlp_size": "intermediate_size",
}


def differences(sizes: Mapping[str, Any], fixed: Mapping[str, Any]) -> list[str]:
    """Describe differences from a class with settings `fixed` and embeddings as wide as layers."""
    found = [
        f"model.{key} is {sizes[key]!r}, there {theirs!r}"
        for key, theirs in fixed.items()
        if sizes.get(key, theirs) != theirs
    ]
    embedding_size, hidden_size = sizes["embedding_size"], sizes["hidden_size"]
    if embedding_size != hidden_size:
        found.append(
            f"model.embedding_size is {embedding_size} and model.hidden_size {hidden_size}, "
            "there equal"
        )
    return found


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


def table_of(own: Iterable[str], modules: Mapping[str, str]) -> Table:
    """Return the table of parameters `own` by our modules and theirs, one tensor for each.

    `modules` may also map a single parameter to its tensor.
    """
    found = {}
    for ours in own:
        module, _, kind = ours.rpartition(".")
        if theirs := modules.get(ours) or modules.get(module):
            found[theirs if ours in modules else f"{theirs}.{KINDS[kind]}"] = (ours,)
    return found


def places(
    table: Table, arrays: Mapping[str, np.ndarray]
) -> Iterator[tuple[str, list[np.ndarray]]]:
    """Yield their tensors and the views of our parameters to join, in their order of axes."""
    for name, ours in table.items():
        if "{}" not in name:
            yield name, [_turned(one, arrays[one]) for one in ours]
            continue
        for i in range(len(arrays.get(ours[0], ()))):
            yield name.format(i), [_turned(one, arrays[one][i]) for one in ours]


def _turned(name: str, array: np.ndarray) -> np.ndarray:
    return array.T if name.endswith(".kernel") else array


def their_shapes(table: Table, own: Mapping[str, tuple[int, ...]]) -> _Shapes:
    """Return the shapes of their tensors by those of our parameters."""
    # Views of a single number need no memory.
    views = {name: np.broadcast_to(np.float32(0), shape) for name, shape in own.items()}
    return {
        name: (sum(map(len, parts)), *parts[0].shape[1:]) for name, parts in places(table, views)
    }


def filled(
    table: Table, own: Mapping[str, tuple[int, ...]], read: Callable[[str], np.ndarray | None]
) -> dict[str, np.ndarray]:
    """Fill parameters of shapes `own` with the tensors from `read`, and ones without a tensor.

    It reads one by one, since all tensors and their stacks would be two copies of the model.
    """
    arrays = {name: np.ones(shape, np.float32) for name, shape in own.items()}
    for name, parts in places(table, arrays):
        if (found := read(name)) is not None:
            ends = np.cumsum([len(part) for part in parts])[:-1]
            for part, one in zip(parts, np.split(found, ends), strict=True):
                part[...] = one
    return arrays


def flat(params: Mapping[str, Any], sizes: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """Flatten nested parameters to float32 arrays by name; "head" may be absent.

    It drops padding, the rows of table and output bias beyond `vocab_size`. Raises ValueError if a
    shape does not match the sizes.
    """
    found, arrays = {}, dict(flattened(params))
    for name, shape in shapes(sizes, has_head="head" in params).items():
        array = np.asarray(arrays[name], np.float32)
        array = array[: sizes["vocab_size"]] if name in _BY_PIECE else array
        if array.shape != shape:
            raise ValueError(
                f"parameter {name} has shape {array.shape}, must be {shape}; give the sizes of "
                "this model"
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
