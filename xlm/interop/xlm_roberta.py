"""Formats of XLM-R and XLM-R XL of `transformers`; RoBERTa, CamemBERT and BERT become XLM-R.

XL has LayerNorm before each sub-layer and after the last, and none after the embeddings. Their
parameters and ours differ only in layout:

- `parameters` describes the orders of axes, and the tensors for each layer.
- They count positions from pad_token_id + 1 and leave earlier rows unused. We count from 0.
- They add the embedding of the single token type everywhere. Reading adds it to the position
  embeddings, and writing puts zeros in its place.
- BERT counts positions from 0 like us, and has other names for the masked-LM head.
"""

import contextlib
import dataclasses
import logging
import pathlib
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec
import numpy as np

from vocap.settings import BOS_ID, EOS_ID, PAD_ID
from xlm.common.declarations import Count
from xlm.interop import parameters, task_heads
from xlm.interop.parameters import Layers, Positive, Rate, Size
from xlm.interop.task_heads import SEQUENCES, TaskHead
from xlm.interop.weights import Weights

REMEDY = "write the folder again with save_pretrained"
_NOT_OF_THESE = "the file does not belong to these weights: copy both again"
_SAVE_AGAIN = "load it as {} in float32 and write it with save_pretrained"

_PREFIX = "roberta."  # of an encoder's tensors, except in a folder of only the encoder
_EMBEDDINGS = _PREFIX + "embeddings."
_TABLE = _EMBEDDINGS + "word_embeddings.weight"
_POSITIONS = _EMBEDDINGS + "position_embeddings.weight"
_TOKEN_TYPE = _EMBEDDINGS + "token_type_embeddings.weight"
_BIAS = "lm_head.bias"
_TIED = {_TABLE: "lm_head.decoder.weight", _BIAS: "lm_head.decoder.bias"}
# Tensors that the masked language model does not use: of classifiers, sentences, and a constant.
_POOLER = ("roberta.pooler.dense.weight", "roberta.pooler.dense.bias")
_UNUSED = (
    *_POOLER, _EMBEDDINGS + "position_ids",
    "cls.seq_relationship.weight", "cls.seq_relationship.bias",
)  # fmt: skip
# Prefixes of BERT's names, by those of RoBERTa; the first match counts.
_OF_BERT = {
    _PREFIX: "bert.",
    "lm_head.dense.": "cls.predictions.transform.dense.",
    "lm_head.layer_norm.": "cls.predictions.transform.LayerNorm.",
    "lm_head.": "cls.predictions.",
}

# Prefixes of tensors of the masked-LM head, and of other heads, which replace it.
_HEAD = "lm_head."
_OTHER_HEADS = ("classifier.", "qa_outputs.")


class _Fixed(msgspec.Struct, frozen=True, kw_only=True):
    """Keys of config.json with their only supported value."""

    hidden_act: str = "gelu"
    position_embedding_type: str = "absolute"
    is_decoder: bool = False
    add_cross_attention: bool = False


class Config(_Fixed, frozen=True, kw_only=True):
    """The keys of config.json that we read; `transformers` writes many others."""

    vocab_size: Size
    hidden_size: Size
    num_hidden_layers: Layers
    num_attention_heads: Size
    intermediate_size: Size
    max_position_embeddings: Size
    pad_token_id: Count
    hidden_dropout_prob: Rate
    attention_probs_dropout_prob: Rate
    # None for the default of the class.
    type_vocab_size: Size | None = None
    layer_norm_eps: Positive | None = None
    tie_word_embeddings: bool = True
    # Of a head for a task.
    architectures: list[str] | None = None
    id2label: dict[str, Any] | None = None
    problem_type: str | None = None


_FIXED = msgspec.structs.asdict(_Fixed())
_RATES = {
    "dropout_rate": "hidden_dropout_prob",
    "attention_dropout_rate": "attention_probs_dropout_prob",
}

_LAYER = "roberta.encoder.layer.{}."
# Our modules, or parameters, and theirs, with {} for the number of a layer.
_MODULES = {
    "layers.attention.query": _LAYER + "attention.self.query",
    "layers.attention.key": _LAYER + "attention.self.key",
    "layers.attention.value": _LAYER + "attention.self.value",
    "layers.attention.output": _LAYER + "attention.output.dense",
    "layers.mlp.wide": _LAYER + "intermediate.dense",
    "layers.mlp.output": _LAYER + "output.dense",
    "head.dense": "lm_head.dense",
    "head.norm": "lm_head.layer_norm",
    "head.bias": _BIAS,
    "embeddings.table": _TABLE,
}
_POST_NORMS = {
    "embeddings.norm": _EMBEDDINGS + "LayerNorm",
    "layers.attention_norm": _LAYER + "attention.output.LayerNorm",
    "layers.mlp_norm": _LAYER + "output.LayerNorm",
}
_PRE_NORMS = {
    "layers.attention_norm": _LAYER + "attention.self_attn_layer_norm",
    "layers.mlp_norm": _LAYER + "LayerNorm",
    "final_norm": "roberta.encoder.LayerNorm",
}


@dataclasses.dataclass(frozen=True)
class XLMRoberta:
    """Format of the folders of a class in `transformers`, whose names begin with `prefix`.

    Attributes:
      norms: our LayerNorms and theirs, without the head's.
      fixed: common settings of all models of the class, named as in `EncoderSettings`.
      defaults: values of the class for missing keys of config.json.
      names: prefixes of the class's names by those of XLM-R, such as `_OF_BERT`.
      skips_padding: whether the positions up to pad_token_id are unused.
    """

    MODEL_TYPE: str
    prefix: str
    norms: Mapping[str, str]
    fixed: Mapping[str, Any]
    defaults: Mapping[str, Any]
    names: Mapping[str, str] = dataclasses.field(default_factory=dict)
    skips_padding: bool = True

    DECLARATION = Config
    REMEDY = REMEDY

    @property
    def HEAD(self) -> str:
        return self._named(_HEAD)

    @property
    def class_name(self) -> str:
        """Class of the masked language model."""
        return f"{self.prefix}ForMaskedLM"

    def differences(self, sizes: Mapping[str, Any]) -> str:
        """Describe the settings of a model that the class does not support; "" for none."""
        return "; ".join(parameters.differences(sizes, self.fixed))

    def refusal(self, *, has_head: bool, task_head: TaskHead | None) -> str:
        """Return why no class of theirs has the model's head; "" if one has."""
        del has_head  # an encoder without one is an XLMRobertaModel
        if task_head is None:
            return ""
        return task_head.refusal(has_norm=False, poolings=("first",))

    def open_weights(self, folder: pathlib.Path) -> contextlib.AbstractContextManager[Weights]:
        tied = {self._named(name): self._named(alias) for name, alias in _TIED.items()}
        return Weights.open(folder, _SAVE_AGAIN.format(self.class_name), tied=tied)

    def their_shapes(self, config: Config, *, has_head: bool = True) -> dict[str, tuple[int, ...]]:
        """Return names and shapes of the tensors to read."""
        own = parameters.shapes(self._sizes(config), has_head=has_head)
        found = parameters.their_shapes(self._table(own), own)
        types = config.type_vocab_size or self.defaults["type_vocab_size"]
        found[self._named(_POSITIONS)] = config.max_position_embeddings, config.hidden_size
        found[self._named(_TOKEN_TYPE)] = types, config.hidden_size
        return found

    def read_arrays(self, folder: pathlib.Path, config: Config) -> dict[str, np.ndarray]:
        """Read the parameters by name, float32, with those of any masked-LM head.

        It logs a warning and skips a head with its own table. Call `read_sizes` first, which checks
        `config`. Raises ValueError if a file is missing or damaged, or a tensor is missing,
        unknown, or of another shape.
        """
        with self.open_weights(folder) as weights:
            head, prefix = self._named(_HEAD), self._named(_PREFIX)
            has_head = weights.has(head) and self._is_tied(weights, config, folder)
            drop = "" if weights.has(prefix) else prefix  # in a folder of only the encoder
            shapes = self.their_shapes(config, has_head=has_head)
            heads = () if has_head else (head, *_OTHER_HEADS)
            others = [name for name in weights.names if name.startswith(heads)]
            weights.check(
                {name.removeprefix(drop): shape for name, shape in shapes.items()},
                {*(self._named(name).removeprefix(drop) for name in _UNUSED), *others},
            )

            def read(name: str) -> np.ndarray:
                return weights.read(name.removeprefix(drop))

            own = parameters.shapes(self._sizes(config), has_head=has_head)
            arrays = parameters.filled(self._table(own), own, read)
            positions = read(self._named(_POSITIONS))[self._first(config) :]
            # All tokens of a text, or pair of texts, of XLM-R have type 0.
            token_type = read(self._named(_TOKEN_TYPE))[:1]
        # Adding zeros would turn -0 into 0, but reading must restore a written model bit by bit.
        arrays["embeddings.positions"] = positions + token_type if token_type.any() else positions
        return arrays

    def _is_tied(self, weights: Weights, config: Config, folder: pathlib.Path) -> bool:
        decoder = self._named(_TIED[_TABLE])
        is_absent = decoder not in weights.names
        if config.tie_word_embeddings if is_absent else weights.same(self._named(_TABLE), decoder):
            return True
        weights.untie()
        logging.warning("%s: %s is not tied; skipping the masked-LM head", folder, decoder)
        return False

    def read_task_head(self, folder: pathlib.Path, config: Config) -> TaskHead | None:
        """Read the head of config.json's class for a task; None without one."""
        suffix = task_heads.class_of(config, self.prefix)
        if not suffix:
            return None
        modules = task_heads.MODULES[suffix]
        if self.names and suffix == SEQUENCES:
            modules = {"dense": self._named("roberta.pooler.dense"), "output": "classifier"}
        with self.open_weights(folder) as weights:
            return task_heads.read(weights, config, suffix, modules)

    def tensors(
        self,
        arrays: Mapping[str, np.ndarray],
        sizes: Mapping[str, Any],
        task_head: TaskHead | None = None,
    ) -> dict[str, np.ndarray]:
        """Return all tensors of the file: parameters by name, and those of a task head."""
        has_head, found = "head.bias" in arrays, {}
        if task_head is not None:
            found = task_head.their_tensors(task_heads.MODULES[task_head.class_suffix])
        for name, (part,) in parameters.places(self._table(arrays), arrays):
            found[name] = np.ascontiguousarray(part)
        found[_POSITIONS] = np.pad(arrays["embeddings.positions"], ((PAD_ID + 1, 0), (0, 0)))
        width = sizes["hidden_size"]
        found[_TOKEN_TYPE] = np.zeros((1, width), np.float32)
        if has_head or task_head is not None:
            return found
        # Their class of a bare encoder has a pooler, which would otherwise be random.
        found |= {
            name: np.zeros((width,) * (3 - n), np.float32) for n, name in enumerate(_POOLER, 1)
        }
        return {name.removeprefix(_PREFIX): array for name, array in found.items()}

    def config(
        self, sizes: Mapping[str, Any], *, has_head: bool = True, task_head: TaskHead | None = None
    ) -> dict[str, Any]:
        """Return the value of config.json; the special ids are those of all exported tokenizers."""
        name = self.class_name if has_head else f"{self.prefix}Model"
        name = f"{self.prefix}For{task_head.class_suffix}" if task_head else name
        return {
            "architectures": [name], "model_type": self.MODEL_TYPE, **_FIXED,
            "tie_word_embeddings": True,
            **{theirs: sizes[ours] for ours, theirs in (parameters.SIZES | _RATES).items()},
            "max_position_embeddings": sizes["max_length"] + PAD_ID + 1,
            "type_vocab_size": 1, "layer_norm_eps": sizes.get("norm_epsilon", 1e-5),
            "bos_token_id": BOS_ID, "pad_token_id": PAD_ID, "eos_token_id": EOS_ID,
            **(task_head.their_config() if task_head else {}),
        }  # fmt: skip

    def read_sizes(self, config: Config, path: pathlib.Path) -> dict[str, Any]:
        """Return the sizes of config.json; ValueError if a setting is not one of the class's."""
        for key, wanted in _FIXED.items():
            if (found := getattr(config, key)) != wanted:
                raise ValueError(
                    f"{path}: {key} is {found!r}, must be {wanted!r}; give a masked language model "
                    "of XLM-R's architecture"
                )
        if config.hidden_size % config.num_attention_heads:
            raise ValueError(
                f"{path}: hidden_size {config.hidden_size} is no multiple of num_attention_heads "
                f"{config.num_attention_heads}; {_NOT_OF_THESE}"
            )
        if config.max_position_embeddings <= self._first(config):
            raise ValueError(
                f"{path}: max_position_embeddings is {config.max_position_embeddings}, but text "
                f"starts after pad_token_id {config.pad_token_id}, which leaves none; "
                f"{_NOT_OF_THESE}"
            )
        return self._sizes(config)

    def _sizes(self, config: Config) -> dict[str, Any]:
        names = parameters.SIZES | _RATES
        sizes = {ours: getattr(config, theirs) for ours, theirs in names.items()}
        return sizes | {
            "embedding_size": config.hidden_size,
            "max_length": config.max_position_embeddings - self._first(config),
            "norm_epsilon": config.layer_norm_eps or self.defaults["layer_norm_eps"],
            **self.fixed,
        }

    def _first(self, config: Config) -> int:
        """Return the row of the first position of a text."""
        return config.pad_token_id + 1 if self.skips_padding else 0

    def _named(self, name: str) -> str:
        """Return the class's name for a tensor, or a prefix, of XLM-R."""
        ours = next(filter(name.startswith, self.names), "")
        return self.names.get(ours, "") + name.removeprefix(ours)

    def _table(self, own: Iterable[str]) -> parameters.Table:
        """Return the table of our parameters `own`, except positions, which include the type."""
        found = parameters.table_of(own, {**_MODULES, **self.norms})
        return {self._named(theirs): ours for theirs, ours in found.items()}


XLM_R = XLMRoberta(
    "xlm-roberta", "XLMRoberta", _POST_NORMS,
    {"position": "learned", "norm_position": "post", "embedding_norm": True,
     "cross_attention": False, "norm": "layer", "mlp": "gelu", "bias": True, "qk_norm": False,
     "local_window": 0, "first_norm": True},
    {"type_vocab_size": 2, "layer_norm_eps": 1e-12},
)  # fmt: skip
XLM_R_XL = XLMRoberta(
    "xlm-roberta-xl", "XLMRobertaXL", _PRE_NORMS,
    {**XLM_R.fixed, "norm_position": "pre", "embedding_norm": False},
    {"type_vocab_size": 1, "layer_norm_eps": 1e-5},
)  # fmt: skip

ROBERTA = dataclasses.replace(XLM_R, MODEL_TYPE="roberta", prefix="Roberta")
CAMEMBERT = dataclasses.replace(XLM_R, MODEL_TYPE="camembert", prefix="Camembert")
BERT = dataclasses.replace(
    XLM_R, MODEL_TYPE="bert", prefix="Bert", names=_OF_BERT, skips_padding=False
)
READ_ONLY = (ROBERTA, CAMEMBERT, BERT)  # exports write them as XLM-R
