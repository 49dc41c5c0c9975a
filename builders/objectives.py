"""Builders of objectives, selected by `config.objective`."""

import dataclasses
import importlib
from collections.abc import Sequence
from typing import Any, TypeVar

from jax.sharding import AbstractMesh, Mesh
from ml_collections import ConfigDict

from builders import data
from input_pipeline.packed_dataset import PackedDataset
from objectives.objective import Objective
from training.sharding import MeshSettings, padded_vocab_size

T = TypeVar("T")

# Module and function that build each objective. A config may name others as
# "package.module:function".
OBJECTIVES = {
    "masked_lm": "builders.masked_lm:build",
    "replaced_token": "builders.replaced_token:build",
    "veco": "builders.veco:build",
}


@dataclasses.dataclass(frozen=True)
class Setup:
    """Inputs for building an objective.

    Attributes:
      config: the whole config; prefer `settings` for reading sections.
      store: packed dataset, with its vocabulary and statistics.
      mesh: mesh that the objective will run on; None for a single device.
    """

    config: ConfigDict
    store: PackedDataset
    mesh: Mesh | AbstractMesh | None = None

    def settings(
        self, kind: type[T], name: str, read_elsewhere: Sequence[str] = (), **derived: Any
    ) -> T:
        """Convert the section `name` to its settings class, see `builders.data.settings`.

        Raises:
          ValueError: there is no such section, or a key of it is unknown or missing.
        """
        if name not in self.config:
            raise ValueError(
                f"the config has no section {name!r}, which objective "
                f"{self.config.objective!r} needs"
            )
        return data.settings(kind, self.config[name], name, read_elsewhere, **derived)

    @property
    def mesh_settings(self) -> MeshSettings:
        return self.settings(MeshSettings, "mesh")

    @property
    def vocab_size(self) -> int:
        """Rows of an embedding table: the vocabulary size, padded to shard over the mesh."""
        return padded_vocab_size(self.store.vocab_size, self.mesh_settings.vocab_multiple)

    @property
    def num_steps(self) -> int:
        return self.config.train.num_steps

    @property
    def batch_size(self) -> int:
        """Number of sequences planned together: a batch, or a part of it."""
        return self.config.train.batch_size // self.config.train.accumulation_steps


def objective(
    config: ConfigDict, store: PackedDataset, mesh: Mesh | AbstractMesh | None = None
) -> Objective:
    """Build the objective that the config names.

    Args:
      config: the whole config.
      store: packed dataset, with its vocabulary and statistics.
      mesh: mesh that the objective will run on; None for a single device.

    Raises:
      ValueError: there is no such objective, or settings do not fit the data; the message names
        the keys.
    """
    name = OBJECTIVES.get(config.objective, config.objective)
    module, colon, function = name.partition(":")
    if not colon:
        raise ValueError(
            f"objective is {config.objective!r}, must be one of {', '.join(OBJECTIVES)}, or the "
            '"package.module:function" that builds one'
        )
    try:
        build = getattr(importlib.import_module(module), function)
    except (ImportError, AttributeError) as error:
        raise ValueError(
            f"objective {config.objective!r} cannot be imported: {error}; correct its name"
        ) from error
    return build(Setup(config, store, mesh))
