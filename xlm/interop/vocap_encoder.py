"""Our own format of a model folder, for encoders without a class in `transformers`.

config.json holds the settings of `xlm.models.settings.EncoderSettings`, except those of the
computation (`dtype`, `attention`, `remat`, `unroll`). Settings from `cross_attention` on in
`parameters.Architecture` are omitted at their defaults. `masked_lm_head` is false for an encoder
without one, such as a discriminator. `auto_map` names the classes of modeling_vocap.py beside it,
for `from_pretrained(folder, trust_remote_code=True)`. Each tensor is a parameter with its name and
shape in `xlm.interop.parameters`. A fine-tuned encoder has `task`: its kind, the labels, and the
names and shapes of the head's tensors, which begin with "task.". Readers of encoders skip these.
"""

import logging
import pathlib
from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import Annotated, Any

import msgspec
import numpy as np

from xlm.common.declarations import Artefact, one_of
from xlm.interop import parameters
from xlm.interop.task_heads import TaskHead
from xlm.interop.weights import Weights

MODEL_TYPE = "vocap-encoder"
_VERSION = 1
# Copied into a folder, for PyTorch.
MODELING = pathlib.Path(__file__).parent / "shipped" / "modeling_vocap.py"
HEAD = "head."  # prefix of the tensors of the masked-LM head
REMEDY = "write the folder again with xlm export"


class _Task(Artefact, frozen=True):
    kind: str
    labels: list[str]
    tensors: list[str]
    pooling: str = "first"
    shapes: dict[str, list[int]] = {}


class Config(parameters.Architecture, frozen=True, kw_only=True, omit_defaults=True):
    """The value of config.json."""

    model_type: Annotated[str, one_of(MODEL_TYPE)]
    format_version: int
    masked_lm_head: bool = True
    task: _Task | None = None
    # For PyTorch.
    architectures: list[str] = []
    auto_map: dict[str, str] = {}
    id2label: dict[str, str] = {}
    label2id: dict[str, int] = {}
    problem_type: str = ""
    # Required, unlike in older notes of parameters.
    position: parameters.Position
    rotary_theta: parameters.Positive
    distance_buckets: parameters.Size
    max_distance: parameters.Size
    distance_slope: parameters.Slope
    initializer: parameters.Initializer


DECLARATION = Config
_ARCHITECTURE = parameters.Architecture.__struct_fields__


def config(
    sizes: Mapping[str, Any], *, has_head: bool, task_head: TaskHead | None = None
) -> dict[str, Any]:
    # A folder of XLM-R lacks settings that its positions do not need.
    whole = parameters.Architecture(**{key: sizes[key] for key in _ARCHITECTURE if key in sizes})
    suffix = task_head.class_suffix if task_head else "MaskedLM" if has_head else ""
    classes = {"AutoConfig": "VocapConfig", "AutoModel": "VocapModel"}
    if suffix:
        classes[f"AutoModelFor{suffix}"] = f"VocapFor{suffix}"
    found = Config(
        model_type=MODEL_TYPE, format_version=_VERSION, masked_lm_head=has_head,
        task=_Task(**task_head.config()) if task_head else None,
        architectures=[[*classes.values()][-1]],
        auto_map={auto: f"{MODELING.stem}.{name}" for auto, name in classes.items()},
        **(task_head.their_config() if suffix and task_head else {}),
        **msgspec.structs.asdict(whole),
    )  # fmt: skip
    return msgspec.to_builtins(found)


def tensors(
    arrays: Mapping[str, np.ndarray], sizes: Mapping[str, Any], task_head: TaskHead | None = None
) -> dict[str, np.ndarray]:
    """Return all tensors of the file: parameters by name, and those of a task head."""
    del sizes
    found = {name: np.ascontiguousarray(array) for name, array in arrays.items()}
    return found | (task_head.tensors() if task_head else {})


def read_sizes(config: Config, path: pathlib.Path) -> dict[str, Any]:
    """Return the settings of config.json; ValueError for another version or indivisible width."""
    if config.format_version != _VERSION:
        raise ValueError(
            f"{path}: format_version is {config.format_version}, must be {_VERSION}; read it with "
            "its version of this project, or export the run again with this one"
        )
    if config.hidden_size % config.num_heads:
        raise ValueError(
            f"{path}: num_heads is {config.num_heads}, must be a divisor of hidden_size "
            f"{config.hidden_size}; {REMEDY}"
        )
    return {key: getattr(config, key) for key in _ARCHITECTURE}


def open_weights(folder: pathlib.Path) -> AbstractContextManager[Weights]:
    return Weights.open(folder, REMEDY)


def read_task_head(folder: pathlib.Path, config: Config) -> None:
    if config.task is not None:
        logging.warning("%s: skipping its head; export the run of finetune.py again", folder)


def read_arrays(folder: pathlib.Path, config: Config) -> dict[str, np.ndarray]:
    """Read the parameters by name, float32; call `read_sizes` first, which checks `config`.

    Raises ValueError if the file is missing or damaged, or a tensor is missing, unknown, or of
    another shape.
    """
    shapes = parameters.shapes(msgspec.structs.asdict(config), has_head=config.masked_lm_head)
    with open_weights(folder) as weights:
        weights.check(shapes, config.task.tensors if config.task else ())
        return {name: weights.read(name) for name in shapes}
