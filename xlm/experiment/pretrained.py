"""Pre-trained encoders for fine-tuning, from runs of train.py or xlm export."""

import dataclasses
import hashlib
import pathlib
from typing import Any

import jax
import numpy as np
from ml_collections import ConfigDict

from input_pipeline.packed_dataset import tokenizer_hash
from xlm.common import artifacts, declarations, places
from xlm.common.schema import settings
from xlm.experiment import model, objectives, schema
from xlm.experiment.data import ELSEWHERE, Folders, open_packed_dataset
from xlm.experiment.masked_lm import encoder_of
from xlm.interop import model_folder, parameters
from xlm.models.encoder import EncoderSettings, without_cross_attention
from xlm.objectives.objective import Objective
from xlm.training.checkpoint import restore_latest_params, restore_mean_params
from xlm.training.settings import MeshSettings
from xlm.training.sharding import make_mesh
from xlm.training.step import TrainFunctions

SETTINGS = "settings.json"
# A single device: the caller needs only parameters, and the batch may not divide over more.
_MESH: dict[str, Any] = {"data": 1, "fsdp": 1, "model": 1, "slices": 1, "rules": ()}


@dataclasses.dataclass(frozen=True)
class Pretrained:
    """Pre-trained encoder, with cross-attention on request only.

    Attributes:
      params: of `xlm.models.encoder.Encoder`, nested dicts of float32 arrays; table rows beyond the
        tokenizer's pieces are padding.
      step: of the checkpoint; None for a model folder.
      num_steps: of the run; 0 for a model folder.
    """

    settings: EncoderSettings
    params: dict[str, Any]
    tokenizer: bytes
    step: int | None = None
    num_steps: int = 0

    def digests(self) -> dict[str, str]:
        """Identity of the tokenizer and of the parameters, as a run of finetune.py records them."""
        hasher = hashlib.sha256()
        for path, array in jax.tree.leaves_with_path(self.params):
            hasher.update(f"{jax.tree_util.keystr(path)} {array.shape}".encode())
            hasher.update(np.ascontiguousarray(array).data)
        return {"tokenizer": tokenizer_hash(self.tokenizer), "parameters": hasher.hexdigest()}


def read_pretrained(
    path: str, *, keeps_decoder: bool = False, objective: str = "", part_of: Any = encoder_of
) -> Pretrained:
    """Read an encoder from a working directory of train.py or a model folder.

    `keeps_decoder` keeps cross-attention. `objective` is that of `run_config`. `part_of` maps an
    objective to its part with the encoder. Raises ValueError if the folder is neither, or damaged.
    """
    folder, step, num_steps = places.fetched(path), None, 0
    if _is_model_folder(folder, path):
        sizes, params = model_folder.read_model(folder)
        found = EncoderSettings(**sizes, dtype="float32")
        tokenizer = model_folder.read_tokenizer(folder)
    else:
        trained = read_run(Folders(folder), objective)
        step, num_steps = trained.step, run_config(Folders(folder), objective).train.num_steps
        found, params, tokenizer = _of_run(folder, part_of(trained.objective), trained.params)
    if not keeps_decoder:  # tasks of understanding do without (VECO, Section 2.3)
        found = dataclasses.replace(found, cross_attention=False)
        params = without_cross_attention(params)
    return Pretrained(found, params, tokenizer, step, num_steps)


def _of_run(
    folder: pathlib.Path, encoder: Any, params: Any
) -> tuple[EncoderSettings, dict[str, Any], bytes]:
    found, params = encoder.encoder.settings, jax.device_get(encoder.encoder_params(params))
    # A user's own objective may have more beside them.
    names = {one.partition(".")[0] for one in parameters.shapes(dataclasses.asdict(found))}
    params = {name: one for name, one in params.items() if name in names}
    return found, params, Folders(folder).read_tokenizer()


def read_last(folder: pathlib.Path, count: int) -> tuple[Pretrained, list[int]]:
    """Read the mean of the last `count` checkpoints of a run of train.py, and their steps.

    Raises ValueError if it is no such run, or has fewer checkpoints.
    """
    if _is_model_folder(folder, str(folder)):
        raise ValueError(f"{folder} is a model's folder, without checkpoints; name a run")
    built, functions = _built(Folders(folder))
    steps, params = restore_mean_params(folder / "train" / "checkpoints", functions, count)
    return Pretrained(*_of_run(folder, encoder_of(built), params)), steps


def read_settings(
    path: str, *, keeps_decoder: bool = False, objective: str = ""
) -> EncoderSettings:
    """Read the architecture as `read_pretrained`, without weights.

    Raises ValueError if it is no encoder, or damaged.
    """
    folder = places.fetched(path)
    if _is_model_folder(folder, path):
        found = EncoderSettings(**model_folder.read_sizes(folder), dtype="float32")
    else:
        folders = Folders(folder)
        config, dataset = run_config(folders, objective), open_packed_dataset(folders)
        with declarations.of_file(folders.train / SETTINGS):
            found = encoder_of(objectives.objective(config, dataset)).encoder.settings
    return found if keeps_decoder else dataclasses.replace(found, cross_attention=False)


def _is_model_folder(folder: pathlib.Path, path: str) -> bool:
    """Whether a folder is a model folder, or else a working directory of train.py.

    Raises ValueError if it is neither.
    """
    if (folder / "config.json").exists():
        return True
    if (folder / "train" / "settings.json").exists():
        return False
    raise ValueError(
        f"{path!r} (init_from, or --model) is no encoder; give a --workdir of train.py, or an "
        "--output of xlm import, xlm merge or xlm export"
    )


def read_run(folders: Folders, objective: str = "") -> model.Trained:
    """Read the latest checkpoint of a run of train.py, on one device; see `run_config`."""
    built, functions = _built(folders, objective)
    return model.Trained(built, *restore_latest_params(folders.train / "checkpoints", functions))


def _built(folders: Folders, objective: str = "") -> tuple[Objective, TrainFunctions]:
    config, dataset = run_config(folders, objective), open_packed_dataset(folders)
    with declarations.of_file(folders.train / SETTINGS):
        mesh = make_mesh(settings(MeshSettings, config.mesh), jax.local_devices()[:1])
        built = objectives.objective(config, dataset, mesh)
        return built, model.train_functions(config, built, mesh)


def run_config(folders: Folders, objective: str = "") -> ConfigDict:
    """Read the recorded config of a run of train.py, for one device.

    `objective` names one of another package that the user trusts: a record by itself imports no
    code. Raises ValueError if the record is no config, or its objective is neither built in nor
    this one.
    """
    path = folders.train / SETTINGS
    # Sections of other stages do not belong to a record, and could name folders.
    sections = artifacts.read_object(path).items()
    recorded = {name: value for name, value in sections if name not in ("rows", *ELSEWHERE)}
    name = recorded.get("objective", "")
    if name not in (*objectives.OBJECTIVES, objective):
        raise ValueError(
            f"{path}: objective is {name!r}, which is not built in, and code is not imported "
            "because a folder names it; if you trust it, name it yourself by --config.objective "
            "(xlm export, encode: --objective; python -m research.forgetting: --allow_objective)"
        )
    with declarations.of_file(path):
        config = schema.recorded(recorded)
    config.mesh = {**config.mesh.to_dict(), **_MESH}
    return config
