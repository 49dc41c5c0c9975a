"""ModernBERT's format of a model folder, as in `transformers`, which mmBERT has too.

Their parameters and ours differ only in layout. Their kernels are [out, in]. One tensor holds those
of query, key and value, and another the two halves of a gated MLP. Their first layer has no norm
before its attention. Ours has a row for it that nothing reads.

Their heads for tasks are a dense layer without bias, an activation, a norm and a dense layer with
bias. Our head for texts has this form. Our heads for tags and answers have only the last layer. The
final norm makes them a case of theirs: the first layer divides by the final norm's scale, the
activation is linear, and the second norm restores the scale.
"""

import contextlib
import logging
import pathlib
from collections.abc import Mapping
from typing import Any, Literal

import msgspec
import numpy as np

from vocap.settings import BOS_ID, EOS_ID, PAD_ID
from xlm.common.declarations import Count
from xlm.interop import parameters, task_heads
from xlm.interop.parameters import Layers, Positive, Rate, Size
from xlm.interop.task_heads import SEQUENCES, TaskHead
from xlm.interop.weights import Weights

_SAVE_AGAIN = "load it as ModernBertForMaskedLM in float32 and write it with save_pretrained"
_PREFIX = "model."  # of an encoder's tensors, except in a folder of only the encoder
_TABLE = "model.embeddings.tok_embeddings.weight"
_LAYER = "model.layers.{}."
_NORM = _LAYER + "attn_norm.weight"

_ENCODER: parameters.Table = {
    _TABLE: ("embeddings.table",),
    "model.embeddings.norm.weight": ("embeddings.norm.scale",),
    "model.final_norm.weight": ("final_norm.scale",),
    _NORM: ("layers.attention_norm.scale",),
    _LAYER + "attn.Wqkv.weight": tuple(
        f"layers.attention.{name}.kernel" for name in ("query", "key", "value")
    ),
    _LAYER + "attn.Wo.weight": ("layers.attention.output.kernel",),
    _LAYER + "mlp_norm.weight": ("layers.mlp_norm.scale",),
    _LAYER + "mlp.Wi.weight": ("layers.mlp.wide.kernel", "layers.mlp.gate.kernel"),
    _LAYER + "mlp.Wo.weight": ("layers.mlp.output.kernel",),
}
_HEAD: parameters.Table = {
    "head.dense.weight": ("head.dense.kernel",),
    "head.norm.weight": ("head.norm.scale",),
    "decoder.bias": ("head.bias",),
}
_TASK_MODULES = {"dense": "head.dense", "norm": "head.norm", "output": "classifier"}
_POOLINGS = {"first": "cls", "mean": "mean"}  # ours and theirs
_GATES = {"gelu": "geglu", "silu": "swiglu"}  # activations, and our MLPs
_KINDS = ("full_attention", "sliding_attention")
_THETAS = ("global_rope_theta", "local_rope_theta")


class _Fixed(msgspec.Struct, frozen=True, kw_only=True):
    """Keys of config.json with their only supported value."""

    norm_bias: bool = False
    attention_bias: bool = False
    mlp_bias: bool = False
    classifier_bias: bool = False
    decoder_bias: bool = True
    tie_word_embeddings: bool = True


class _Rotary(msgspec.Struct, frozen=True):
    rope_theta: Positive | None = None
    rope_type: str = "default"


class Config(_Fixed, frozen=True, kw_only=True):
    """The keys of config.json that we read, with the defaults of the class."""

    vocab_size: Size
    hidden_size: Size
    num_hidden_layers: Layers
    num_attention_heads: Size
    intermediate_size: Size
    max_position_embeddings: Size
    hidden_activation: str = "gelu"
    norm_eps: Positive = 1e-5
    embedding_dropout: Rate = 0.0
    attention_dropout: Rate = 0.0
    local_attention: Count = 128
    # Of heads; the activation is also that of the masked-LM head.
    classifier_activation: Literal["gelu", "linear"] = "gelu"
    classifier_pooling: Literal["cls", "mean"] = "cls"
    architectures: list[str] | None = None
    id2label: dict[str, Any] | None = None
    problem_type: str | None = None
    # Keys of transformers 5, then of 4.
    layer_types: list[Literal["full_attention", "sliding_attention"]] | None = None
    rope_parameters: dict[str, _Rotary] | None = None
    global_attn_every_n_layers: Size = 3
    global_rope_theta: Positive = 160_000.0
    local_rope_theta: Positive | None = 10_000.0

    def thetas(self) -> list[float]:
        """Return the bases of rotary positions of global and of local layers."""
        local = self.local_rope_theta or self.global_rope_theta
        given = self.rope_parameters or {}
        found = (given.get(kind, _Rotary()).rope_theta for kind in _KINDS)
        return [a or b for a, b in zip(found, (self.global_rope_theta, local), strict=True)]

    def period(self) -> int:
        """Return n if layers 0, n, 2n, ... are the global ones; 0 if others are."""
        size = self.num_hidden_layers
        counts = (self.global_attn_every_n_layers, *range(1, size + 1))
        wanted = self.layer_types
        return next((n for n in counts if wanted is None or wanted == _types(size, n)), 0)


_FIXED = msgspec.structs.asdict(_Fixed())
_SIZES = {
    **parameters.SIZES,
    "max_length": "max_position_embeddings",
    "norm_epsilon": "norm_eps",
    "dropout_rate": "embedding_dropout",
    "attention_dropout_rate": "attention_dropout",
}
_ARCHITECTURE: dict[str, Any] = {
    "position": "rotary", "norm_position": "pre", "embedding_norm": True, "norm": "layer_no_bias",
    "first_norm": False, "bias": False, "qk_norm": False, "cross_attention": False,
}  # fmt: skip


def _types(num_layers: int, every: int) -> list[str]:
    return [_KINDS[i % every > 0] for i in range(num_layers)]


class ModernBert:
    """Format of the folders of `ModernBertForMaskedLM` and `ModernBertModel`."""

    MODEL_TYPE = "modernbert"
    DECLARATION = Config
    REMEDY = "write the folder again with save_pretrained"
    HEAD = "decoder."
    prefix = "ModernBert"

    def differences(self, sizes: Mapping[str, Any]) -> str:
        """Describe the settings of a model that the class does not support; "" for none."""
        given = {**dict.fromkeys(_ARCHITECTURE), **sizes}  # a missing key is a difference
        found = parameters.differences(given, _ARCHITECTURE)
        if sizes.get("mlp") not in _GATES.values():
            found.append(f"model.mlp is {sizes.get('mlp')!r}, there 'geglu' or 'swiglu'")
        return "; ".join(found)

    def refusal(self, *, has_head: bool, task_head: TaskHead | None) -> str:
        """Return why no class of theirs has the model's head; "" if one has."""
        del has_head  # an encoder without one is a ModernBertModel
        return "" if task_head is None else task_head.refusal(has_norm=True, poolings=(*_POOLINGS,))

    def open_weights(self, folder: pathlib.Path) -> contextlib.AbstractContextManager[Weights]:
        return Weights.open(folder, _SAVE_AGAIN, tied={_TABLE: "decoder.weight"})

    def read_arrays(self, folder: pathlib.Path, config: Config) -> dict[str, np.ndarray]:
        """Read the parameters by name, float32, with those of any masked-LM head.

        Call `read_sizes` first, which checks `config`. Raises ValueError if a file is missing or
        damaged, or a tensor is missing, unknown, or of another shape.
        """
        with self.open_weights(folder) as weights:
            has_head = weights.has(self.HEAD)
            drop = "" if weights.has(_PREFIX) else _PREFIX  # in a folder of only the encoder
            shapes = parameters.shapes(self._sizes(config), has_head=has_head)
            wanted = their_shapes(shapes, has_head=has_head)
            others = () if has_head else ("head.", "classifier.")  # a task's head
            unused = [name for name in weights.names if others and name.startswith(others)]
            weights.check({name.removeprefix(drop): one for name, one in wanted.items()}, unused)

            def read(name: str) -> np.ndarray | None:
                return weights.read(name.removeprefix(drop)) if name in wanted else None

            return parameters.filled(_table(has_head=has_head), shapes, read)

    def read_task_head(self, folder: pathlib.Path, config: Config) -> TaskHead | None:
        """Read the head of config.json's class for a task; None without one that we support."""
        suffix = task_heads.class_of(config, self.prefix)
        is_text, is_linear = suffix == SEQUENCES, config.classifier_activation == "linear"
        if suffix and is_text == is_linear:
            logging.warning("%s: skipping its head, which has a layer that ours lacks", folder)
        if not suffix or is_text == is_linear:
            return None
        modules = _TASK_MODULES if is_text else {"output": "classifier"}
        pooling = "mean" if is_text and config.classifier_pooling == "mean" else "first"
        with self.open_weights(folder) as weights:
            return task_heads.read(weights, config, suffix, modules, pooling)

    def tensors(
        self,
        arrays: Mapping[str, np.ndarray],
        sizes: Mapping[str, Any],
        task_head: TaskHead | None = None,
    ) -> dict[str, np.ndarray]:
        """Return all tensors of the file from parameters by name."""
        has_head = "head.bias" in arrays
        drop = "" if has_head or task_head else _PREFIX
        places = dict(parameters.places(_table(has_head=has_head), arrays))
        places.pop(_NORM.format(0), None)
        found = {name.removeprefix(drop): np.concatenate(one) for name, one in places.items()}
        if task_head is None:
            return found
        if not task_head.has_norm:
            scale = arrays["final_norm.scale"]
            if not scale.all():
                raise ValueError(
                    "a scale of the final norm is 0, for which ModernBERT has no head; train on"
                )
            found["head.dense.weight"] = np.diag(1 / scale)
            # A second norm divides by the root of 1 + epsilon.
            found["head.norm.weight"] = scale * np.float32(np.sqrt(1 + sizes["norm_epsilon"]))
        modules = {ours: _TASK_MODULES[ours] for ours in task_head.params}
        return found | task_head.their_tensors(modules)

    def config(
        self, sizes: Mapping[str, Any], *, has_head: bool = True, task_head: TaskHead | None = None
    ) -> dict[str, Any]:
        """Return the value of config.json; the special ids are those of all exported tokenizers."""
        every = sizes["global_every"] if sizes["local_window"] else 1
        thetas = sizes["rotary_theta"], sizes["local_rotary_theta"]
        rotary = {
            kind: {"rope_type": "default", "rope_theta": theta}
            for kind, theta in zip(_KINDS, thetas, strict=True)
        }
        (activation,) = (theirs for theirs, ours in _GATES.items() if ours == sizes["mlp"])
        suffix = task_head.class_suffix if task_head else "MaskedLM" if has_head else ""
        is_linear = task_head is not None and not task_head.has_norm
        return {
            "architectures": [self.prefix + (f"For{suffix}" if suffix else "Model")],
            "classifier_activation": "linear" if is_linear else "gelu",
            "classifier_pooling": _POOLINGS[task_head.pooling if task_head else "first"],
            "model_type": self.MODEL_TYPE, **_FIXED,
            **{theirs: sizes[ours] for ours, theirs in _SIZES.items()},
            "mlp_dropout": sizes["dropout_rate"], "hidden_activation": activation,
            "local_attention": sizes["local_window"] or 128,
            "layer_types": _types(sizes["num_layers"], every), "rope_parameters": rotary,
            "global_attn_every_n_layers": every, **dict(zip(_THETAS, thetas, strict=True)),
            "bos_token_id": BOS_ID, "cls_token_id": BOS_ID, "pad_token_id": PAD_ID,
            "eos_token_id": EOS_ID, "sep_token_id": EOS_ID,
            **(task_head.their_config() if task_head else {}),
        }  # fmt: skip

    def read_sizes(self, config: Config, path: pathlib.Path) -> dict[str, Any]:
        """Return the sizes of config.json; ValueError if a setting is not supported."""
        scaled = {one.rope_type for one in (config.rope_parameters or {}).values()} - {"default"}
        heads, width = config.num_attention_heads, config.hidden_size
        values = {key: (getattr(config, key), wanted) for key, wanted in _FIXED.items()}
        faults = [f"{key} is {a!r}, must be {b!r}" for key, (a, b) in values.items() if a != b]
        if config.hidden_activation not in _GATES:
            faults.append(
                f"hidden_activation is {config.hidden_activation!r}, must be gelu or silu"
            )
        if config.classifier_activation != "gelu" and not task_heads.class_of(config, self.prefix):
            faults.append("classifier_activation is 'linear', must be 'gelu' in a masked-LM head")
        if not config.period():
            faults.append(
                f"layer_types are {config.layer_types}, must be full_attention for the first layer "
                "and each n-th after it, and sliding_attention for the others"
            )
        if scaled:
            faults.append(f"rope_type is {' '.join(scaled)!r}, must be 'default'")
        if width % (2 * heads):
            faults.append(f"hidden_size is {width}, must be a multiple of twice the {heads} heads")
        if config.local_attention % 2:
            faults.append(f"local_attention is {config.local_attention}, must be even")
        if faults:
            raise ValueError(
                f"{path}: {faults[0]} as in the published ModernBERT and mmBERT; give a model with "
                "these settings"
            )
        return self._sizes(config)

    def _sizes(self, config: Config) -> dict[str, Any]:
        rotary, local = config.thetas()
        every = config.period()
        return {
            **{ours: getattr(config, theirs) for ours, theirs in _SIZES.items()}, **_ARCHITECTURE,
            "embedding_size": config.hidden_size, "mlp": _GATES[config.hidden_activation],
            "local_window": config.local_attention if every > 1 else 0, "global_every": every,
            "rotary_theta": rotary, "local_rotary_theta": local, "initializer": "megatron",
        }  # fmt: skip


def their_shapes(
    own: Mapping[str, tuple[int, ...]], *, has_head: bool
) -> dict[str, tuple[int, ...]]:
    """Return the shapes of all tensors by those of our parameters."""
    found = parameters.their_shapes(_table(has_head=has_head), own)
    found.pop(_NORM.format(0), None)
    return found


def _table(*, has_head: bool) -> parameters.Table:
    """Return the table of all tensors; it includes a norm of the first layer, which has none."""
    return {**_ENCODER, **(_HEAD if has_head else {})}


MODERN_BERT = ModernBert()
