"""Model folders, with config.json, safetensors and a tokenizer, in one of three formats.

An encoder that `transformers` has as XLM-R or ModernBERT takes that format
(`xlm.interop.xlm_roberta`, `xlm.interop.modern_bert`), any other our own
(`xlm.interop.vocap_encoder`). `model_type` in config.json names the format. We also read RoBERTa,
CamemBERT and BERT. This needs no transformers, and torch only for pickled weights.
"""

import functools
import logging
import pathlib
from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import Any, Protocol

import msgspec
import numpy as np
import sentencepiece as spm

from xlm.common import artifacts, declarations
from xlm.interop import huggingface, modern_bert, parameters, vocap_encoder, weights, xlm_roberta
from xlm.interop.task_heads import TaskHead
from xlm.interop.vocabulary import TOKENIZER, parse
from xlm.interop.weights import WEIGHTS, Weights, read_seal

_CONFIG, _CARD = "config.json", "README.md"

# Settings that a run must share with its initial model, and further ones by `position`.
_ARCHITECTURE = (
    "embedding_size", "hidden_size", "num_layers", "num_heads", "mlp_size", "max_length",
    "norm_position", "embedding_norm", "norm_epsilon", "position", "norm", "first_norm", "mlp",
    "bias", "qk_norm", "local_window",
)  # fmt: skip
_OF_POSITION = {
    "learned": (),
    "rotary": ("rotary_theta",),
    "relative": ("distance_buckets", "max_distance"),
    "gated": ("distance_buckets", "max_distance"),
}
_NO_HEAD = (
    "{} holds an encoder without a masked-LM head, but masked LM starts with one. If it is a "
    "fine-tuned model, start from its pre-trained one. If it is a discriminator, export the "
    "generator (xlm export --part=generator) or start from the --workdir of the run. Or import a "
    "folder of XLMRobertaForMaskedLM"
)


class _Form(Protocol):
    """Interface of the formats: sizes as in `EncoderSettings`, `config` as in config.json."""

    @property
    def MODEL_TYPE(self) -> str: ...
    @property
    def DECLARATION(self) -> type[Any]: ...  # of config.json
    @property
    def REMEDY(self) -> str: ...  # for a config.json of another form
    @property
    def HEAD(self) -> str: ...  # prefix of the tensors of the masked-LM head

    def config(
        self, sizes: Mapping[str, Any], *, has_head: bool, task_head: TaskHead | None
    ) -> dict[str, Any]: ...

    def tensors(
        self, arrays: Mapping[str, np.ndarray], sizes: Mapping[str, Any], task_head: TaskHead | None
    ) -> dict[str, np.ndarray]: ...

    def read_sizes(self, config: Any, path: pathlib.Path) -> dict[str, Any]: ...

    def open_weights(self, folder: pathlib.Path) -> AbstractContextManager[Weights]: ...

    def read_arrays(self, folder: pathlib.Path, config: Any) -> dict[str, np.ndarray]: ...

    def read_task_head(self, folder: pathlib.Path, config: Any) -> TaskHead | None: ...


_OfTransformers = xlm_roberta.XLMRoberta | modern_bert.ModernBert
_OF_TRANSFORMERS = (xlm_roberta.XLM_R, xlm_roberta.XLM_R_XL, modern_bert.MODERN_BERT)
_FORMS: dict[str, _Form] = {
    form.MODEL_TYPE: form for form in (*_OF_TRANSFORMERS, *xlm_roberta.READ_ONLY, vocap_encoder)
}


def read_model(folder: pathlib.Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """Read a folder of `write_model`, or of `save_pretrained` of an XLM-R or its kin.

    Weights may be model.safetensors, pytorch_model.bin or the shards of either, of float32, float16
    or bfloat16. It skips heads for other tasks than masked LM, and untied ones. Returns the sizes,
    named as in `EncoderSettings`, and the parameters of `Encoder`, nested dicts of float32 arrays,
    with any "head". Raises ValueError if a file is missing or damaged, the format does not support
    a setting, or a tensor is missing, unknown, or of another shape.
    """
    form, config, sizes = _read_config(folder)
    arrays = form.read_arrays(folder, config)
    if (path := folder / TOKENIZER).exists():
        read_seal(folder / WEIGHTS).check(TOKENIZER, artifacts.read_bytes(path), path)
    return sizes, parameters.nested(arrays)


def read_sizes(folder: pathlib.Path) -> dict[str, Any]:
    """Read only the sizes of a folder's model; see `read_model`."""
    return _read_config(folder)[2]


def read_task_head(folder: pathlib.Path) -> TaskHead | None:
    """Read the head of a folder for a task; None without one that we support."""
    form, config, _ = _read_config(folder)
    return form.read_task_head(folder, config)


def why_not_transformers(
    sizes: Mapping[str, Any], *, has_head: bool = True, task_head: TaskHead | None = None
) -> str:
    """Return why `transformers` cannot load a model, without a full stop, or "" if it can."""
    form: _OfTransformers | None = _class_of(sizes)
    if form is None:
        is_rotary = sizes["position"] == "rotary"
        form = modern_bert.MODERN_BERT if is_rotary else xlm_roberta.XLM_R
    reasons = form.differences(sizes), form.refusal(has_head=has_head, task_head=task_head)
    if not any(reasons):
        return ""
    return (
        "transformers loads this model with trust_remote_code=True, by modeling_vocap.py in its "
        "folder: exports use its classes for ModernBERT, XLM-R, and XLM-R XL with its order of "
        f"LayerNorms, and compared with {form.prefix}, {'; '.join(filter(None, reasons))}"
    )


def _class_of(sizes: Mapping[str, Any]) -> _OfTransformers | None:
    return next((one for one in _OF_TRANSFORMERS if not one.differences(sizes)), None)


def write_model(
    folder: pathlib.Path, params: Mapping[str, Any], sizes: Mapping[str, Any], tokenizer: bytes, *,
    task_head: TaskHead | None = None, card: str = "",
) -> None:  # fmt: skip
    """Write a model folder, absent or empty before; commands write it to one of `outputs.folder`.

    `AutoTokenizer` reads it, and for an XLM-R or a ModernBERT so does `AutoModelForMaskedLM`, or
    the class of its task head. For a tokenizer of `huggingface.why_not_exported`, it logs a warning
    and writes only the SentencePiece model. Raises ValueError if the folder is not empty, the
    tokenizer is neither unigram nor BPE, or a parameter's shape does not match the sizes.

    Args:
      params: those of `Encoder`, nested dicts of arrays; "head" may be absent. Rows of table and
        bias beyond the tokenizer's pieces are padding, which it drops.
      sizes: named as in `EncoderSettings`, perhaps with other keys.
      tokenizer: the serialised SentencePiece model, with the special tokens of this project.
      task_head: head of a fine-tuned encoder, which has no masked-LM head.
      card: text of README.md; "" for none.
    """
    artifacts.check_empty(folder)
    reason = huggingface.why_not_exported(tokenizer)
    num_pieces = spm.SentencePieceProcessor(model_proto=tokenizer).get_piece_size()
    sizes = {**sizes, "vocab_size": num_pieces}
    has_head = "head" in params
    is_theirs = not why_not_transformers(sizes, has_head=has_head, task_head=task_head)
    form: _Form = (_class_of(sizes) if is_theirs else None) or vocap_encoder
    tensors = form.tensors(parameters.flat(params, sizes), sizes, task_head)
    config = form.config(sizes, has_head=has_head, task_head=task_head)
    if reason:
        huggingface.mark_unreadable(folder)
        logging.warning(
            "AutoTokenizer cannot read the model's folder: %s. Read its %s with sentencepiece",
            reason,
            TOKENIZER,
        )
    else:
        huggingface.export_tokenizer(tokenizer, folder, sizes["max_length"])
    artifacts.write_bytes(folder / TOKENIZER, tokenizer)
    # transformers reads the layout from "format".
    weights.write(folder / WEIGHTS, tensors, {"format": "pt"}, {TOKENIZER: tokenizer})
    artifacts.write_json(folder / _CONFIG, config)
    if form is vocap_encoder:
        modeling = vocap_encoder.MODELING
        artifacts.write_bytes(folder / modeling.name, modeling.read_bytes())
    if card:
        artifacts.write_text(folder / _CARD, card)


def read_tokenizer(folder: pathlib.Path) -> bytes:
    """Read the SentencePiece model of a folder; ValueError if it is missing or damaged."""
    path = folder / TOKENIZER
    if not path.exists():
        raise ValueError(
            f"{path} does not exist; give a folder of xlm export, or convert the model with xlm "
            "import"
        )
    found = artifacts.read_bytes(path)
    read_seal(folder / WEIGHTS).check(TOKENIZER, found, path)
    with declarations.of_file(path):
        parse(found)
    return found


def table_of(params: Mapping[str, Any]) -> tuple[np.ndarray, np.ndarray]:
    """Return the embedding table [V, E] of parameters, and the output bias [V], or zeros."""
    table = params["embeddings"]["table"]
    return table, params["head"]["bias"] if "head" in params else np.zeros(len(table), np.float32)


def with_table(params: Mapping[str, Any], table: np.ndarray, bias: np.ndarray) -> dict[str, Any]:
    """Return the parameters with the table [V, E] and any output bias [V] replaced."""
    changed = {**params, "embeddings": {**params["embeddings"], "table": table}}
    return {**changed, "head": {**params["head"], "bias": bias}} if "head" in params else changed


def check_initial(folder: pathlib.Path, settings: Mapping[str, Any], tokenizer: bytes) -> None:
    """Raise ValueError if `initial_params` would; read all but the weights' values."""
    if read_tokenizer(folder) != tokenizer:
        raise ValueError(
            f"{folder / TOKENIZER} is not the tokenizer of the run's rows; give the model that "
            "vocabulary: xlm import --vocabulary=WORKDIR/vocab/spm.model"
        )
    form, _, sizes = _read_config(folder)
    keys = (*_ARCHITECTURE, *_OF_POSITION[sizes["position"]])
    if sizes["local_window"]:
        keys += ("global_every", "local_rotary_theta")
    differing = [key for key in keys if settings[key] != sizes[key]]
    if differing:
        lines = (f"  model.{key}: there {sizes[key]!r}, now {settings[key]!r}" for key in differing)
        raise ValueError(
            f"{folder} holds a model of other settings:\n" + "\n".join(lines) + "\n"
            "Set these keys to its values, or start from another model."
        )
    with form.open_weights(folder) as found:
        if not found.has(form.HEAD):
            raise ValueError(_NO_HEAD.format(folder))


def initial_params(
    folder: pathlib.Path, settings: Mapping[str, Any], tokenizer: bytes
) -> dict[str, Any]:
    """Read a run's initial encoder and head from a folder of `write_model` or xlm import.

    `settings` are the run's encoder settings, named as in `EncoderSettings`; `vocab_size` includes
    padded rows. `tokenizer` is the SentencePiece model of its packed dataset. It reads
    cross-attention if run and folder have it. A run may also add its own.

    Returns the parameters of `Encoder`, nested dicts of float32 arrays, with zeros for padding.
    Raises ValueError as `read_model`, or if the folder has no masked-LM head, or its settings or
    vocabulary differ from the run's.
    """
    check_initial(folder, settings, tokenizer)
    sizes, params = read_model(folder)
    if "head" not in params:  # the run must not use a random one
        raise ValueError(_NO_HEAD.format(folder))
    if sizes["cross_attention"] and not settings["cross_attention"]:
        encoder = {**sizes, "cross_attention": False}
        params = parameters.nested(parameters.flat(params, encoder))
    table, bias = table_of(params)
    missing = settings["vocab_size"] - len(table)
    return with_table(params, np.pad(table, ((0, missing), (0, 0))), np.pad(bias, (0, missing)))


class _AnyConfig(msgspec.Struct, frozen=True):
    """The key that names the format of a config.json."""

    model_type: Any = None


def _read_config(folder: pathlib.Path) -> tuple[_Form, Any, dict[str, Any]]:
    """Return the format of a folder, config.json as that format declares it, and its sizes."""
    path = folder / _CONFIG
    if not path.exists():
        raise ValueError(f"{path} does not exist; give a folder of save_pretrained or xlm export")
    content = artifacts.read_bytes(path)
    parse_as = functools.partial(declarations.parse, content, place=str(path))
    model_type = parse_as(_AnyConfig, remedy=xlm_roberta.REMEDY).model_type
    if model_type not in tuple(_FORMS):  # a list is not hashable
        raise ValueError(
            f"{path}: model_type is {model_type!r}, must be {' or '.join(map(repr, _FORMS))}; give "
            "a masked language model of XLM-R's or ModernBERT's architecture, or one of xlm export"
        )
    form = _FORMS[model_type]
    config = parse_as(form.DECLARATION, remedy=form.REMEDY)
    return form, config, form.read_sizes(config, path)
