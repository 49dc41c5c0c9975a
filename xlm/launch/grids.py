"""Grids: runs of a config for a figure or a table, named in `GRIDS` of its file.

Each run is an argument of its config, so that launchers and stages start the same runs:

    python -m xlm.launch.start --config=configs/vocap_paper.py:short_full,DATA \\
        --grid=table2 --workdir=DIR
"""

import hashlib
import importlib
import json
import pathlib
from types import ModuleType

from ml_collections import ConfigDict


def _module(config: str) -> ModuleType:
    """Return the module of a value of --config, "FILE:RUN,DATA", FILE below the cwd."""
    file = pathlib.PurePath(config.partition(":")[0])
    return importlib.import_module(".".join(file.with_suffix("").parts))


def choose(config: str, name: str) -> tuple[str, ...]:
    """Return the runs of a grid of a config; raise ValueError if there is no such grid."""
    found: dict[str, tuple[str, ...]] = getattr(_module(config), "GRIDS", {})
    if name not in found:
        file = config.partition(":")[0]
        raise ValueError(f"--grid is {name!r}; {file} has {', '.join(found) or 'no grids'}")
    return found[name]


def config_of(config: str, run: str) -> str:
    """Return the value of --config for a run of a grid."""
    file, _, argument = config.partition(":")
    return f"{file}:{run},{argument.partition(',')[2]}"


def load(config: str) -> ConfigDict:
    return _module(config).get_config(config.partition(":")[2])


def run_folder(run: str, seed: int) -> str:
    """Return the working directory of a run, below the directory of its grids."""
    return f"runs/{run}/seed{seed}"


def data_folder(config: ConfigDict) -> str:
    """Return the folder of a run's vocabulary and packed rows, below the directory of its grids.

    Runs with equal text, vocabulary and sequence length share it.
    """
    sections = {name: config[name].to_dict() for name in ("corpus", "vocab", "store")}
    for section, key in (("corpus", "root"), ("vocab", "num_workers"), ("store", "num_workers")):
        del sections[section][key]  # no effect on rows
    text = json.dumps(sections, sort_keys=True, default=list)
    return f"data/{hashlib.sha256(text.encode()).hexdigest()[:10]}"
