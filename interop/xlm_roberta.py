"""XLM-R as `transformers` keeps it, a folder with config.json and safetensors, to ours and back.

The two differ in form only:

- Theirs has kernels [out, in] and tensors for each layer; ours [in, out] and an axis of layers.
- Theirs counts positions from pad_token_id + 1, and no text reads the rows before; ours from 0.
- Theirs adds the embedding of the one token type everywhere. Here the positions take it in, and
  zeros are written in its place.
- Our table may be padded with rows that are no pieces.

Nothing is unpickled, and neither torch nor transformers is needed.
"""

import contextlib
import json
import os
import pathlib
import shutil
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
import sentencepiece as spm
from safetensors.numpy import save_file

import artifacts
from interop import huggingface
from interop.vocabulary import TOKENIZER
from interop.weights import WEIGHTS, Weights
from vocap.merge import BOS_ID, EOS_ID, PAD_ID

_CONFIG = "config.json"

_EMBEDDINGS = "roberta.embeddings."
_TABLE = _EMBEDDINGS + "word_embeddings.weight"
_POSITIONS = _EMBEDDINGS + "position_embeddings.weight"
_TOKEN_TYPE = _EMBEDDINGS + "token_type_embeddings.weight"
_BIAS = "lm_head.bias"
_TIED = {_TABLE: "lm_head.decoder.weight", _BIAS: "lm_head.decoder.bias"}
# Nothing of the masked language model: the classifier of another task, and a constant.
_UNUSED = (
    "roberta.pooler.dense.weight", "roberta.pooler.dense.bias", _EMBEDDINGS + "position_ids",
)  # fmt: skip

# Keys of config.json that must have one value, and what transformers takes where they are absent.
_FIXED = {
    "model_type": ("xlm-roberta", None),
    "hidden_act": ("gelu", "gelu"),
    "type_vocab_size": (1, 2),
    "layer_norm_eps": (1e-5, 1e-12),
    "position_embedding_type": ("absolute", "absolute"),
    "tie_word_embeddings": (True, True),
    "is_decoder": (False, False),
    "add_cross_attention": (False, False),
}
_SIZES = {
    "vocab_size": "vocab_size",
    "hidden_size": "hidden_size",
    "num_layers": "num_hidden_layers",
    "num_heads": "num_attention_heads",
    "mlp_size": "intermediate_size",
}
_RATES = {
    "dropout_rate": "hidden_dropout_prob",
    "attention_dropout_rate": "attention_probs_dropout_prob",
}
# What a run must share with the model that it starts from.
_ARCHITECTURE = (
    "embedding_size", "hidden_size", "num_layers", "num_heads", "mlp_size", "max_length",
    "norm_position",
)  # fmt: skip


class _Parameter(NamedTuple):
    """A parameter of ours, and the tensor that it is there."""

    path: tuple[str, ...]
    name: str  # with {} for the number of a layer
    shape: tuple[int, ...]  # there

    @property
    def is_layered(self) -> bool:
        return self.path[0] == "layers"

    def turned(self, array: np.ndarray) -> np.ndarray:
        """From their order of axes to ours, and back."""
        return array.T if self.path[-1] == "kernel" else array


def read_model(folder: pathlib.Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """Reads a folder that `XLMRobertaForMaskedLM.save_pretrained` has written.

    Args:
      folder: with config.json, and model.safetensors or its shards and their index; float32,
        float16 or bfloat16.

    Returns:
      The sizes by the names of `EncoderSettings`, those that say how to compute left out, and the
      parameters of `Encoder`, nested dicts of float32 arrays.

    Raises:
      ValueError: a file is missing or damaged, a setting is none of XLM-R's, or a tensor is
        missing, unknown, or of another shape.
    """
    sizes, first = _read_sizes(folder)
    parameters, width = _parameters(sizes), sizes["hidden_size"]
    names = {name for parameter in parameters for name in _names(parameter, sizes)}
    with Weights.open(folder, tied=_TIED) as weights:
        weights.check_names({*names, _POSITIONS, _TOKEN_TYPE}, _UNUSED)
        params: dict[str, Any] = {}
        for parameter in parameters:
            _put(params, parameter.path, _read_parameter(weights, parameter, sizes))
        positions = weights.read(_POSITIONS, (first + sizes["max_length"], width))[first:]
        token_type = weights.read(_TOKEN_TYPE, (1, width))
        # Adding zeros would turn -0 into 0, and what was written is to come back bit by bit.
        params["embeddings"]["positions"] = (
            positions + token_type if token_type.any() else positions
        )
    return sizes, params


def check_writable(folder: pathlib.Path, sizes: Mapping[str, Any]) -> None:
    """Raises ValueError if `write_model` would, for the sizes or for the folder."""
    if sizes["norm_position"] != "post":
        raise ValueError(
            f"model.norm_position is {sizes['norm_position']!r}; XLM-R has LayerNorm after each "
            'sub-layer, so only models trained with "post" can be exported as XLM-R'
        )
    if sizes["embedding_size"] != sizes["hidden_size"]:
        raise ValueError(
            f"model.embedding_size is {sizes['embedding_size']}, model.hidden_size is "
            f"{sizes['hidden_size']}; XLM-R has no projection between them, so only models trained "
            "with equal ones can be exported as XLM-R"
        )
    if folder.exists() and any(folder.iterdir()):
        raise ValueError(f"{folder} is not empty; remove it, or choose another folder to write")


def write_model(
    folder: pathlib.Path, params: Mapping[str, Any], sizes: Mapping[str, Any], tokenizer: bytes
) -> None:
    """Writes a folder that `AutoModelForMaskedLM` and `AutoTokenizer` read, whole or not at all.

    Args:
      folder: to be written; absent or empty.
      params: the parameters of `Encoder`, nested dicts of arrays. Rows of the table and of the
        bias beyond the tokenizer's pieces are padding and left out.
      sizes: of the model, by the names of `EncoderSettings`; more keys do no harm.
      tokenizer: the serialised SentencePiece model, as `vocap.merge.write_model` makes it. It is
        kept beside the files for `transformers`.

    Raises:
      ValueError: XLM-R has no such model, the folder is not empty, the tokenizer cannot be
        exported, or a parameter does not have the shape that follows from the sizes.
    """
    check_writable(folder, sizes)
    num_pieces = spm.SentencePieceProcessor(model_proto=tokenizer).get_piece_size()
    sizes = {**sizes, "vocab_size": num_pieces}
    with _new_folder(folder) as aside:
        huggingface.export_tokenizer(tokenizer, aside)
        artifacts.write_bytes(aside / TOKENIZER, tokenizer)
        # transformers wants to be told that the tensors are laid out as PyTorch's.
        save_file(_tensors(params, sizes), aside / WEIGHTS, metadata={"format": "pt"})
        artifacts.write_json(aside / _CONFIG, _config(sizes))


def read_tokenizer(folder: pathlib.Path) -> bytes:
    """The SentencePiece model of a folder of `write_model`.

    Raises:
      ValueError: there is none.
    """
    try:
        return (folder / TOKENIZER).read_bytes()
    except FileNotFoundError:
        raise ValueError(
            f"{folder / TOKENIZER} does not exist; this takes folders of export_model.py and "
            "import_model.py, which makes one of a model of other origin"
        ) from None


def table_of(params: Mapping[str, Any]) -> tuple[np.ndarray, np.ndarray]:
    """The embedding table [V, D] of parameters, and the output bias [V]."""
    return params["embeddings"]["table"], params["head"]["bias"]


def with_table(params: Mapping[str, Any], table: np.ndarray, bias: np.ndarray) -> dict[str, Any]:
    """The parameters with another table [V, D] and output bias [V]."""
    return {
        **params,
        "embeddings": {**params["embeddings"], "table": table},
        "head": {**params["head"], "bias": bias},
    }


def check_initial(folder: pathlib.Path, settings: Mapping[str, Any], tokenizer: bytes) -> None:
    """Raises ValueError if a run cannot start from a folder; reads all but the weights.

    Args:
      folder, settings, tokenizer: as of `initial_params`.
    """
    if read_tokenizer(folder) != tokenizer:
        raise ValueError(
            f"{folder / TOKENIZER} is not the tokenizer that the run's rows were made with; give "
            "the model this vocabulary: import_model.py --vocabulary=WORKDIR/vocab/spm.model"
        )
    sizes, _ = _read_sizes(folder)
    differing = [key for key in _ARCHITECTURE if settings[key] != sizes[key]]
    if differing:
        lines = (f"  model.{key}: there {sizes[key]!r}, now {settings[key]!r}" for key in differing)
        raise ValueError(
            f"{folder} holds a model of other sizes:\n" + "\n".join(lines) + "\n"
            "Set these keys as there, or start from another model."
        )


def initial_params(
    folder: pathlib.Path, settings: Mapping[str, Any], tokenizer: bytes
) -> dict[str, Any]:
    """The parameters that a run starts from.

    Args:
      folder: as `write_model` or import_model.py made it.
      settings: of the run's encoder, by the names of `EncoderSettings`; its `vocab_size` is the
        number of rows of the table, padding included.
      tokenizer: the SentencePiece model that the run's rows were made with.

    Returns:
      The parameters of `Encoder`, nested dicts of float32 arrays. Padding is zero.

    Raises:
      ValueError: as `read_model`; the folder's model has other sizes than the run's, or another
        vocabulary.
    """
    check_initial(folder, settings, tokenizer)
    _, params = read_model(folder)
    table, bias = table_of(params)
    missing = settings["vocab_size"] - len(table)
    return with_table(params, np.pad(table, ((0, missing), (0, 0))), np.pad(bias, (0, missing)))


def _parameters(sizes: Mapping[str, Any]) -> list[_Parameter]:
    """All parameters but the positions, which take in the token type."""
    width, mlp_size, vocab_size = (sizes[key] for key in ("hidden_size", "mlp_size", "vocab_size"))
    layer, attention = "roberta.encoder.layer.{}.", ("layers", "attention")

    def dense(path: tuple[str, ...], name: str, shape: tuple[int, int]) -> Iterator[_Parameter]:
        yield _Parameter((*path, "kernel"), name + ".weight", shape)
        yield _Parameter((*path, "bias"), name + ".bias", shape[:1])

    def norm(path: tuple[str, ...], name: str) -> Iterator[_Parameter]:
        yield _Parameter((*path, "scale"), name + ".weight", (width,))
        yield _Parameter((*path, "bias"), name + ".bias", (width,))

    layers = [
        *dense((*attention, "query"), layer + "attention.self.query", (width, width)),
        *dense((*attention, "key"), layer + "attention.self.key", (width, width)),
        *dense((*attention, "value"), layer + "attention.self.value", (width, width)),
        *dense((*attention, "output"), layer + "attention.output.dense", (width, width)),
        *norm(("layers", "attention_norm"), layer + "attention.output.LayerNorm"),
        *dense(("layers", "mlp", "wide"), layer + "intermediate.dense", (mlp_size, width)),
        *dense(("layers", "mlp", "output"), layer + "output.dense", (width, mlp_size)),
        *norm(("layers", "mlp_norm"), layer + "output.LayerNorm"),
    ]
    return [
        _Parameter(("embeddings", "table"), _TABLE, (vocab_size, width)),
        *norm(("embeddings", "norm"), _EMBEDDINGS + "LayerNorm"),
        *(layers if sizes["num_layers"] else []),
        *dense(("head", "dense"), "lm_head.dense", (width, width)),
        *norm(("head", "norm"), "lm_head.layer_norm"),
        _Parameter(("head", "bias"), _BIAS, (vocab_size,)),
    ]


def _names(parameter: _Parameter, sizes: Mapping[str, Any]) -> list[str]:
    """The tensors of a parameter, one for each layer if it has layers."""
    if not parameter.is_layered:
        return [parameter.name]
    return [parameter.name.format(layer) for layer in range(sizes["num_layers"])]


def _read_parameter(
    weights: Weights, parameter: _Parameter, sizes: Mapping[str, Any]
) -> np.ndarray:
    names = _names(parameter, sizes)
    if not parameter.is_layered:
        return np.ascontiguousarray(parameter.turned(weights.read(names[0], parameter.shape)))
    # Filled layer by layer: a list of them, and then the stack, would be two copies of the model.
    stack: np.ndarray | None = None
    for layer, name in enumerate(names):
        array = parameter.turned(weights.read(name, parameter.shape))
        stack = np.empty((len(names), *array.shape), np.float32) if stack is None else stack
        stack[layer] = array
    assert stack is not None
    return stack


def _tensors(params: Mapping[str, Any], sizes: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """All tensors of the file; `sizes["vocab_size"]` rows of the table.

    Raises:
      ValueError: a parameter has another shape than follows from the sizes.
    """
    tensors = {}
    for parameter in _parameters(sizes):
        array, names = (
            np.asarray(_get(params, parameter.path), np.float32),
            _names(parameter, sizes),
        )
        if parameter.name in _TIED:
            array = array[: sizes["vocab_size"]]
        for name, one in zip(names, array if parameter.is_layered else array[None], strict=True):
            tensors[name] = _contiguous(parameter.turned(one), parameter.shape, parameter.path)
    width, path = sizes["hidden_size"], ("embeddings", "positions")
    positions = np.asarray(_get(params, path), np.float32)
    positions = _contiguous(positions, (sizes["max_length"], width), path)
    tensors[_POSITIONS] = np.pad(positions, ((PAD_ID + 1, 0), (0, 0)))
    tensors[_TOKEN_TYPE] = np.zeros((1, width), np.float32)
    return tensors


def _contiguous(array: np.ndarray, shape: tuple[int, ...], path: Iterable[str]) -> np.ndarray:
    if array.shape != shape:
        raise ValueError(
            f"parameter {'/'.join(path)} has shape {array.shape} in their order of axes, must be "
            f"{shape}; are the sizes those of another model?"
        )
    return np.ascontiguousarray(array)


def _config(sizes: Mapping[str, Any]) -> dict[str, Any]:
    """The value of config.json; ids are those of every tokenizer that can be exported."""
    return {
        "architectures": ["XLMRobertaForMaskedLM"],
        **{key: value for key, (value, _) in _FIXED.items()},
        **{theirs: sizes[ours] for ours, theirs in (_SIZES | _RATES).items()},
        "max_position_embeddings": sizes["max_length"] + PAD_ID + 1,
        "bos_token_id": BOS_ID,
        "pad_token_id": PAD_ID,
        "eos_token_id": EOS_ID,
    }


def _read_sizes(folder: pathlib.Path) -> tuple[dict[str, Any], int]:
    """The sizes by the names of `EncoderSettings`, and the first row of positions for text."""
    config = _read_config(folder / _CONFIG)
    sizes = {ours: config[theirs] for ours, theirs in (_SIZES | _RATES).items()}
    first = config["pad_token_id"] + 1
    sizes |= {
        "embedding_size": sizes["hidden_size"],
        "max_length": config["max_position_embeddings"] - first,
        "norm_position": "post",
    }
    return sizes, first


def _read_config(path: pathlib.Path) -> dict[str, Any]:
    """config.json, whose settings are known to be XLM-R's."""
    try:
        config = artifacts.read_json(path)
    except FileNotFoundError:
        raise ValueError(
            f"{path} does not exist; give the folder that save_pretrained or export_model.py wrote"
        ) from None
    except json.JSONDecodeError as error:
        raise ValueError(f"{path}: not JSON ({error}); copy or download it again") from None
    for key, (wanted, default) in _FIXED.items():
        if (found := config.get(key, default)) != wanted:
            raise ValueError(
                f"{path}: {key} is {found!r}, must be {wanted!r}; only masked language models of "
                "XLM-R's architecture can be read"
            )
    counts = (*_SIZES.values(), "max_position_embeddings", "pad_token_id")
    for key in (*counts, *_RATES.values()):
        kinds = (int,) if key in counts else (int, float)
        if type(config.get(key)) not in kinds or config[key] < 0:
            raise ValueError(
                f"{path}: {key} is {config.get(key)!r}, must be a number; write the folder again "
                "with save_pretrained"
            )
    if not config["num_attention_heads"] or config["hidden_size"] % config["num_attention_heads"]:
        raise ValueError(
            f"{path}: hidden_size {config['hidden_size']} is no multiple of num_attention_heads "
            f"{config['num_attention_heads']}; the file is not the one of these weights"
        )
    if config["max_position_embeddings"] < config["pad_token_id"] + 2:
        raise ValueError(
            f"{path}: max_position_embeddings is {config['max_position_embeddings']}, of which "
            f"pad_token_id {config['pad_token_id']} and those before leave none for text; the file "
            "is not the one of these weights"
        )
    return config


def _get(tree: Mapping[str, Any], path: Iterable[str]) -> Any:
    for key in path:
        tree = tree[key]
    return tree


def _put(tree: dict[str, Any], path: tuple[str, ...], value: np.ndarray) -> None:
    for key in path[:-1]:
        tree = tree.setdefault(key, {})
    tree[path[-1]] = value


@contextlib.contextmanager
def _new_folder(folder: pathlib.Path) -> Iterator[pathlib.Path]:
    """Yields a folder beside `folder`, absent or empty, renamed to it when the block ends well."""
    folder = folder.absolute()
    aside = folder.with_name(f".{folder.name}.{os.getpid()}")
    aside.mkdir(parents=True)
    try:
        yield aside
        os.replace(aside, folder)
    finally:
        shutil.rmtree(aside, ignore_errors=True)
