"""Builders of objectives, selected by `config.objective`."""

import dataclasses
import importlib
import os
import pathlib
import sys
from typing import Any, TypeVar

import flax.linen as nn
import jax
from jax.sharding import AbstractMesh, Mesh
from ml_collections import ConfigDict

from input_pipeline.packed_dataset import PackedDataset
from xlm.common import entry_point
from xlm.common.schema import settings
from xlm.objectives.objective import Objective
from xlm.training.digests import named
from xlm.training.settings import MeshSettings
from xlm.training.sharding import padded_vocab_size

T = TypeVar("T")
# Shapes of parameters by their paths.
Shapes = dict[str, tuple[int, ...]]

_ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
# Module and function that build each objective. A user's config may name others as
# "package.module:function".
OBJECTIVES = {
    "masked_lm": "xlm.experiment.masked_lm:build",
    "replaced_token": "xlm.experiment.replaced_token:build",
    "veco": "xlm.experiment.veco:build",
}


@dataclasses.dataclass(frozen=True)
class Setup:
    """Inputs for building an objective.

    Attributes:
      config: the whole config; prefer `settings` for reading sections.
      dataset: packed dataset, with its vocabulary and statistics.
      mesh: mesh that the objective will run on; None for a single device.
    """

    config: ConfigDict
    dataset: PackedDataset
    mesh: Mesh | AbstractMesh | None = None

    def settings(self, kind: type[T], name: str, **derived: Any) -> T:
        """Convert the section `name` to its settings class, see `xlm.common.schema.settings`.

        Raises ValueError if there is no such section, or a key of it is unknown or missing.
        """
        if name not in self.config:
            raise ValueError(
                f"the config has no section {name!r}, which objective "
                f"{self.config.objective!r} needs"
            )
        return settings(kind, self.config[name], **derived)

    @property
    def mesh_settings(self) -> MeshSettings:
        return self.settings(MeshSettings, "mesh")

    @property
    def vocab_size(self) -> int:
        """Rows of an embedding table: the vocabulary size, padded to shard over the mesh."""
        return padded_vocab_size(self.dataset.vocab_size, self.mesh_settings.vocab_multiple)

    @property
    def num_steps(self) -> int:
        return self.config.train.num_steps

    @property
    def batch_size(self) -> int:
        """Number of sequences planned together: a batch, or a part of it."""
        return self.config.train.batch_size // self.config.train.accumulation_steps


def objective(
    config: ConfigDict, dataset: PackedDataset, mesh: Mesh | AbstractMesh | None = None
) -> Objective:
    """Build the objective that the config names.

    It will run on `mesh`, None for a single device. Raises ValueError if there is no such
    objective, or settings do not fit the data; the message names the keys.
    """
    name = OBJECTIVES.get(config.objective, config.objective)
    module, colon, function = name.partition(":")
    if not colon:
        raise ValueError(
            f"objective is {config.objective!r}, must be one of {', '.join(OBJECTIVES)}, or the "
            '"package.module:function" that builds one'
        )
    if config.objective not in OBJECTIVES:
        _check_place(module, config, dataset)
    try:
        build = getattr(importlib.import_module(module), function)
    except (ImportError, AttributeError) as error:
        raise ValueError(
            f"objective {config.objective!r} cannot be imported: {error}; correct its name"
        ) from error
    return build(Setup(config, dataset, mesh))


def _check_place(module: str, config: ConfigDict, dataset: PackedDataset) -> None:
    """Raise ValueError if a module would be imported from a folder of runs or data."""
    strings = entry_point.strings("config", config.to_dict())
    # corpus.text is below corpus.root, so its "." is not the folder that the command runs in.
    named = (value for name, value in strings if name != "config.corpus.text")
    # The folder of rows lies in the working directory.
    folders = [
        _ROOT / "runs",
        dataset.folder.parent,
        *map(pathlib.Path, filter(os.path.isdir, named)),
    ]
    closed = {one.resolve() for one in folders} - {_ROOT, *_ROOT.parents}
    first, *_ = module.split(".")
    for start in sys.path:
        if not any(pathlib.Path(start).glob(f"{first}*")):
            continue  # such as transformers' cache of models, whose folder is temporary
        place = pathlib.Path(start, *module.split("."))
        for path in (place.resolve(), place.with_suffix(".py").resolve()):
            if found := closed & {path, *path.parents}:
                raise ValueError(
                    f"objective is {config.objective!r}, which would be imported from "
                    f"{found.pop()}, a folder of runs or data; move the module out of it"
                )


def parameter_shapes(objective: Objective) -> Shapes:
    """Shapes of the parameters of an objective by their paths."""
    return shapes(nn.unbox(jax.eval_shape(objective.init, jax.random.key(0))))


def shapes(params: Any) -> Shapes:
    return {name: array.shape for name, array in named(params)}


def differing(there: Shapes, here: Shapes) -> list[str]:
    """Names of the parameters that one side lacks, or has in another shape."""
    return [name for name in sorted({*there, *here}) if there.get(name) != here.get(name)]


def checked_params(objective: Objective, params: Any) -> Any:
    """Return parameters; raise ValueError unless they have the objective's names and shapes."""
    there, here = shapes(params), parameter_shapes(objective)
    if wrong := differing(there, here):
        raise ValueError(
            f"parameter {wrong[0]} has shape {there.get(wrong[0], 'none')}, must be "
            f"{here.get(wrong[0], 'none')} by the notes and settings of the run; copy the whole "
            "folder of the run"
        )
    return params
