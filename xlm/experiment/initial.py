"""Initial parameters of a run: random, of a model folder, or of another run."""

import dataclasses
import logging
import pathlib
from collections.abc import Callable
from typing import Any

import jax
from ml_collections import ConfigDict

from xlm.common import places
from xlm.experiment import objectives
from xlm.experiment.data import Folders, open_packed_dataset
from xlm.experiment.masked_lm import masked_lm_of
from xlm.experiment.objectives import Shapes, parameter_shapes
from xlm.models.encoder import CROSS_ATTENTION, without_cross_attention
from xlm.objectives.objective import Objective
from xlm.objectives.replaced_token import GENERATOR


def initial_params(
    config: ConfigDict, objective: Objective, folders: Folders
) -> Callable[[], Any] | None:
    """Build a reader of the initial parameters in `train.init_from`; None for random ones.

    A working directory of train.py gives all parameters of its latest checkpoint, also of generator
    and discriminator. A model folder gives those of a masked LM. Cross-attention of one side only
    is left out, and random if the run has it. Raises ValueError if the run has not started and
    cannot start from there.
    """
    if not config.train.init_from:
        if config.optimizer.stages:
            logging.warning(
                "optimizer.stages are %s, but train.init_from is empty: the first stages leave "
                "random what they do not train",
                config.optimizer.stages,
            )
        return None
    source = places.fetched(config.train.init_from)
    # Before the run claims its folder.
    check = not (folders.train / "checkpoints").exists()
    if (source / "train" / "settings.json").exists():
        return _of_run(source, config.objective, objective, folders, check=check)
    return _of_folder(source, objective, folders, check=check)


def _of_folder(
    source: pathlib.Path, objective: Objective, folders: Folders, *, check: bool
) -> Callable[[], Any]:
    from xlm.interop import model_folder

    masked_lm = masked_lm_of(objective)
    if check and masked_lm.scope:
        raise ValueError(
            f"train.init_from is {source}, which is no --workdir of train.py; a run of objective "
            "replaced_token has two encoders, and starts only from another such run"
        )
    if check and not (source / "config.json").exists():
        raise ValueError(
            f"train.init_from is {source}, which is no --workdir of train.py and no folder with a "
            "model; name one, or an --output of xlm export or xlm import"
        )
    args = source, dataclasses.asdict(masked_lm.encoder.settings), folders.read_tokenizer()
    if check:
        model_folder.check_initial(*args)
    return lambda: model_folder.initial_params(*args)


def _of_run(
    source: pathlib.Path, name: str, objective: Objective, folders: Folders, *, check: bool
) -> Callable[[], Any]:
    """Reader of the latest checkpoint of another run on the same vocabulary."""
    from xlm.experiment.pretrained import read_run, run_config

    other = Folders(source)
    if check:
        if other.read_tokenizer() != folders.read_tokenizer():
            raise ValueError(
                f"train.init_from: {other.tokenizer} is not {folders.tokenizer}, with which this "
                f"run's rows were made; copy {other.vocab} to {folders.workdir} and run "
                "prepare_data.py again"
            )
        their_config = run_config(other, name)
        theirs = objectives.objective(their_config, open_packed_dataset(other))
        there, here = parameter_shapes(theirs), parameter_shapes(objective)
        _check_same_parts(source, their_config.objective, there, here)
        _check_same_parameters(source, there, here)
        if not any((other.train / "checkpoints").glob("*")):
            raise ValueError(
                f"train.init_from is {source}, a run without a checkpoint; finish it first"
            )
    keeps = any(map(_is_cross_attention, parameter_shapes(objective)))

    def read() -> Any:
        params = jax.device_get(read_run(other, name).params)
        return params if keeps else without_cross_attention(params)

    return read


def _check_same_parts(source: pathlib.Path, name: str, there: Shapes, here: Shapes) -> None:
    theirs, ours = (any(one.startswith(f"{GENERATOR}.") for one in side) for side in (there, here))
    if theirs != ours:
        other = "its folder of xlm export --part=generator" if theirs else "one that has them"
        raise ValueError(
            f"train.init_from is {source}, a run {'with' if theirs else 'without'} a generator and "
            f"a discriminator: its objective is {name}; set the same objective, or name {other}"
        )


def _check_same_parameters(source: pathlib.Path, there: Shapes, here: Shapes) -> None:
    """Raise ValueError unless the parameters of two objectives have equal names and shapes.

    Cross-attention may be missing from either.
    """
    for name in objectives.differing(there, here):
        if _is_cross_attention(name) and not (name in there and name in here):
            continue
        raise ValueError(
            f"train.init_from: parameter {name} has shape {there.get(name, 'none')} in the run "
            f"in {source} and {here.get(name, 'none')} in this one; set objective, model, "
            "replaced_token and mesh.vocab_multiple as there, or start from another run"
        )


def _is_cross_attention(name: str) -> bool:
    return not set(CROSS_ATTENTION).isdisjoint(name.split("."))
