"""Folders of models, with config.json, safetensors and a tokenizer, in one of two forms.

An encoder that XLM-R's class of `transformers` computes is kept as that (`interop.xlm_roberta`),
any other in a form of our own (`interop.vocap_encoder`); `model_type` in config.json tells them
apart. Nothing is unpickled, and neither torch nor transformers is needed.
"""

import contextlib
import json
import os
import pathlib
import shutil
from collections.abc import Iterator, Mapping
from typing import Any, Protocol

import numpy as np
import sentencepiece as spm
from safetensors.numpy import save_file

from common import artifacts
from interop import huggingface, parameters, vocap_encoder, xlm_roberta
from interop.vocabulary import TOKENIZER
from interop.weights import WEIGHTS

_CONFIG = "config.json"

# What a run must share with the model that it starts from, and besides by the model's positions.
_ARCHITECTURE = (
    "embedding_size", "hidden_size", "num_layers", "num_heads", "mlp_size", "max_length",
    "norm_position", "position",
)  # fmt: skip
_OF_POSITION = {
    "learned": (),
    "rotary": ("rotary_theta",),
    "relative": ("distance_buckets", "max_distance"),
    "gated": ("distance_buckets", "max_distance"),
}


class _Form(Protocol):
    """A module that knows one form.

    Sizes are by the names of `EncoderSettings`, arrays by those of `interop.parameters`, and
    `config` is the value of config.json.
    """

    MODEL_TYPE: str
    METADATA: Mapping[str, str]  # of the file of tensors

    def config(self, sizes: Mapping[str, Any]) -> dict[str, Any]: ...

    def tensors(
        self, arrays: Mapping[str, np.ndarray], sizes: Mapping[str, Any]
    ) -> dict[str, np.ndarray]: ...

    def read_sizes(self, config: Mapping[str, Any], path: pathlib.Path) -> dict[str, Any]: ...

    def read_arrays(
        self, folder: pathlib.Path, config: Mapping[str, Any]
    ) -> dict[str, np.ndarray]: ...


_FORMS: dict[str, _Form] = {form.MODEL_TYPE: form for form in (xlm_roberta, vocap_encoder)}


def read_model(folder: pathlib.Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """Reads a folder of `write_model`, or of `XLMRobertaForMaskedLM.save_pretrained`.

    Args:
      folder: with config.json, and model.safetensors or its shards and their index; float32,
        float16 or bfloat16.

    Returns:
      The sizes by the names of `EncoderSettings`, those that say how to compute left out, and the
      parameters of `Encoder`, nested dicts of float32 arrays.

    Raises:
      ValueError: a file is missing or damaged, a setting is none of the form's, or a tensor is
        missing, unknown, or of another shape.
    """
    form, config = _read_config(folder)
    sizes = form.read_sizes(config, folder / _CONFIG)
    return sizes, parameters.nested(form.read_arrays(folder, config))


def why_not_transformers(sizes: Mapping[str, Any]) -> str:
    """Why `transformers` cannot load a model, a sentence without its end; "" if it can."""
    found = xlm_roberta.differences(sizes)
    return found and (
        "transformers cannot load this model: its only class that models are exported to is XLM-R, "
        f"and {found}"
    )


def check_writable(folder: pathlib.Path) -> None:
    """Raises ValueError if `write_model` would, for the folder."""
    if folder.exists() and any(folder.iterdir()):
        raise ValueError(f"{folder} is not empty; remove it, or choose another folder to write")


def write_model(
    folder: pathlib.Path, params: Mapping[str, Any], sizes: Mapping[str, Any], tokenizer: bytes
) -> None:
    """Writes a folder, whole or not at all.

    `AutoTokenizer` reads it, and if the model is an XLM-R, so does `AutoModelForMaskedLM`.

    Args:
      folder: to be written; absent or empty.
      params: the parameters of `Encoder`, nested dicts of arrays. Rows of the table and of the
        bias beyond the tokenizer's pieces are padding and left out.
      sizes: of the model, by the names of `EncoderSettings`; more keys do no harm.
      tokenizer: the serialised SentencePiece model, as `vocap.merge.write_model` makes it. It is
        kept beside the files for `transformers`.

    Raises:
      ValueError: the folder is not empty, the tokenizer cannot be exported, or a parameter does
        not have the shape that follows from the sizes.
    """
    check_writable(folder)
    num_pieces = spm.SentencePieceProcessor(model_proto=tokenizer).get_piece_size()
    sizes = {**sizes, "vocab_size": num_pieces}
    form: _Form = vocap_encoder if xlm_roberta.differences(sizes) else xlm_roberta
    with _new_folder(folder) as aside:
        huggingface.export_tokenizer(tokenizer, aside)
        artifacts.write_bytes(aside / TOKENIZER, tokenizer)
        tensors = form.tensors(parameters.flat(params, sizes), sizes)
        save_file(tensors, aside / WEIGHTS, metadata=dict(form.METADATA))
        artifacts.write_json(aside / _CONFIG, form.config(sizes))


def read_tokenizer(folder: pathlib.Path) -> bytes:
    """The SentencePiece model of a folder of `write_model`.

    Raises:
      ValueError: there is none.
    """
    try:
        return (folder / TOKENIZER).read_bytes()
    except FileNotFoundError:
        raise ValueError(
            f"{folder / TOKENIZER} does not exist; this takes folders of tools.export_model and "
            "tools.import_model, which makes one of a model of other origin"
        ) from None


def table_of(params: Mapping[str, Any]) -> tuple[np.ndarray, np.ndarray]:
    """The embedding table [V, E] of parameters, and the output bias [V]."""
    return params["embeddings"]["table"], params["head"]["bias"]


def with_table(params: Mapping[str, Any], table: np.ndarray, bias: np.ndarray) -> dict[str, Any]:
    """The parameters with another table [V, E] and output bias [V]."""
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
            "the model this vocabulary: tools.import_model --vocabulary=WORKDIR/vocab/spm.model"
        )
    form, config = _read_config(folder)
    sizes = form.read_sizes(config, folder / _CONFIG)
    keys = (*_ARCHITECTURE, *_OF_POSITION[sizes["position"]])
    differing = [key for key in keys if settings[key] != sizes[key]]
    if differing:
        lines = (f"  model.{key}: there {sizes[key]!r}, now {settings[key]!r}" for key in differing)
        raise ValueError(
            f"{folder} holds a model of other settings:\n" + "\n".join(lines) + "\n"
            "Set these keys as there, or start from another model."
        )


def initial_params(
    folder: pathlib.Path, settings: Mapping[str, Any], tokenizer: bytes
) -> dict[str, Any]:
    """The parameters that a run starts from.

    Args:
      folder: as `write_model` or tools.import_model made it.
      settings: of the run's encoder, by the names of `EncoderSettings`; its `vocab_size` is the
        number of rows of the table, padding included.
      tokenizer: the SentencePiece model that the run's rows were made with.

    Returns:
      The parameters of `Encoder`, nested dicts of float32 arrays. Padding is zero.

    Raises:
      ValueError: as `read_model`; the folder's model has other settings than the run's, or another
        vocabulary.
    """
    check_initial(folder, settings, tokenizer)
    _, params = read_model(folder)
    table, bias = table_of(params)
    missing = settings["vocab_size"] - len(table)
    return with_table(params, np.pad(table, ((0, missing), (0, 0))), np.pad(bias, (0, missing)))


def _read_config(folder: pathlib.Path) -> tuple[_Form, dict[str, Any]]:
    """The form of a folder, and the value of its config.json."""
    path = folder / _CONFIG
    try:
        config = artifacts.read_json(path)
    except FileNotFoundError:
        raise ValueError(
            f"{path} does not exist; give the folder that save_pretrained or tools.export_model "
            "wrote"
        ) from None
    except json.JSONDecodeError as error:
        raise ValueError(f"{path}: not JSON ({error}); copy or download it again") from None
    model_type = config.get("model_type") if isinstance(config, dict) else None
    if model_type not in tuple(_FORMS):  # a list is no key
        raise ValueError(
            f"{path}: model_type is {model_type!r}, must be {' or '.join(map(repr, _FORMS))}; only "
            "masked language models of XLM-R's architecture, and those that tools.export_model "
            "wrote, can be read"
        )
    return _FORMS[model_type], config


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
