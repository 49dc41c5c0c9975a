"""Our own format of a model folder, for encoders without a class in `transformers`.

config.json holds the settings, named as in `models.encoder.EncoderSettings`, all but those of how
to compute (`dtype`, `attention`, `remat`, `unroll`), and `masked_lm_head`, false for an encoder
without one, such as a discriminator. `cross_attention` is there if it is true, `embedding_norm` if
it is false, `norm_epsilon` if it is not 1e-5. Each tensor is a parameter with its name and shape in
`interop.parameters`. A fine-tuned encoder has `task`, with the kind of its task, the labels and the
names of the head's tensors, which begin with "task."; readers of encoders leave them out.
"""

import pathlib
from collections.abc import Mapping
from typing import Any

import numpy as np

from interop import parameters, task_heads
from interop.task_heads import TaskHead
from interop.weights import Weights

MODEL_TYPE = "vocap-encoder"
METADATA: Mapping[str, str] = {}
_VERSION = 1
_HEAD = "head."  # beginning of the tensors of the masked-LM head
_EXPORT_AGAIN = "write the folder again with tools.export_model"

# Keys of config.json besides model_type and format_version, with the minimum or the choices.
_COUNTS = {
    "vocab_size": 1, "embedding_size": 1, "hidden_size": 1, "num_layers": 0, "num_heads": 1,
    "mlp_size": 1, "max_length": 1, "distance_buckets": 1, "max_distance": 1,
}  # fmt: skip
_NUMBERS = ("dropout_rate", "attention_dropout_rate", "rotary_theta", "distance_slope")
_CHOICES = {
    "norm_position": ("post", "pre"),
    "position": ("learned", "rotary", "relative", "gated"),
    "initializer": ("normal", "fan_in"),
}
_SETTINGS = (*_COUNTS, *_NUMBERS, *_CHOICES)
# Defaults of settings that a folder of XLM-R lacks, since its positions and weights need none.
_NOT_OF_XLM_R = {
    "distance_buckets": 32, "max_distance": 128, "rotary_theta": 10_000.0, "distance_slope": 0.0,
    "initializer": "normal",
}  # fmt: skip
# With their defaults, at which they are left out.
_SWITCHES = {"cross_attention": False, "embedding_norm": True}
_OPTIONAL: dict[str, Any] = {**_SWITCHES, "norm_epsilon": 1e-5}


def config(
    sizes: Mapping[str, Any], *, has_head: bool, task_head: TaskHead | None = None
) -> dict[str, Any]:
    """Return the value of config.json."""
    settings = {key: {**_NOT_OF_XLM_R, **sizes}[key] for key in _SETTINGS}
    head = {} if has_head else {"masked_lm_head": False}
    optional = {
        key: sizes[key] for key, default in _OPTIONAL.items() if sizes.get(key, default) != default
    }
    task = {"task": task_head.config()} if task_head else {}
    form = {"model_type": MODEL_TYPE, "format_version": _VERSION}
    return {**form, **settings, **optional, **head, **task}


def tensors(
    arrays: Mapping[str, np.ndarray], sizes: Mapping[str, Any], task_head: TaskHead | None = None
) -> dict[str, np.ndarray]:
    """Return all tensors of the file, for parameters by name, and those of a task head."""
    del sizes
    found = {name: np.ascontiguousarray(array) for name, array in arrays.items()}
    return found | (task_head.tensors() if task_head else {})


def read_sizes(config: Mapping[str, Any], path: pathlib.Path) -> dict[str, Any]:
    """Read the settings of config.json.

    Raises:
      ValueError: the version is not supported, or a setting is missing or invalid.
    """
    if (version := config.get("format_version")) != _VERSION:
        raise ValueError(
            f"{path}: format_version is {version!r}, must be {_VERSION}; read it with the version "
            "of this project that wrote it, or export the run again with this one"
        )
    for key, least in _COUNTS.items():
        if type(config.get(key)) is not int or config[key] < least:
            _refuse(path, config, key, f"a whole number of at least {least}")
    for key in _NUMBERS:
        if type(config.get(key)) not in (int, float) or not config[key] >= 0:
            _refuse(path, config, key, "a number of at least 0")
    epsilon = config.get("norm_epsilon", 1e-5)
    if type(epsilon) not in (int, float) or not epsilon > 0:
        _refuse(path, config, "norm_epsilon", "a number above 0")
    for key, choices in _CHOICES.items():
        if config.get(key) not in choices:
            _refuse(path, config, key, f"one of {choices}")
    for key in ("masked_lm_head", *_SWITCHES):
        if not isinstance(config.get(key, True), bool):
            _refuse(path, config, key, "true or false")
    if not isinstance(config.get("task", {}), dict):
        _refuse(path, config, "task", "an object")
    if config["hidden_size"] % config["num_heads"]:
        _refuse(path, config, "num_heads", f"a divisor of hidden_size {config['hidden_size']}")
    optional = {key: config.get(key, default) for key, default in _OPTIONAL.items()}
    return {key: config[key] for key in _SETTINGS} | optional


def _refuse(path: pathlib.Path, config: Mapping[str, Any], key: str, wanted: str) -> None:
    raise ValueError(f"{path}: {key} is {config.get(key)!r}, must be {wanted}; {_EXPORT_AGAIN}")


def has_head(folder: pathlib.Path) -> bool:
    """Whether a folder has a masked-LM head, by the names of its tensors."""
    with Weights.open(folder, _EXPORT_AGAIN) as weights:
        return any(name.startswith(_HEAD) for name in weights.names)


def read_arrays(folder: pathlib.Path, config: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """Read the parameters by name, float32.

    Args:
      folder: with model.safetensors.
      config: the value of config.json, validated by `read_sizes`.

    Raises:
      ValueError: the file is missing or damaged, or a tensor is missing, unknown, or of a different
        shape.
    """
    shapes = parameters.shapes(config, has_head=config.get("masked_lm_head", True))
    with Weights.open(folder, _EXPORT_AGAIN) as weights:
        weights.check_names(shapes, task_heads.tensor_names(config))
        return {name: weights.read(name, shape) for name, shape in shapes.items()}
