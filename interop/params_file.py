"""Parameters with metadata in one safetensors file: an encoder and the head of a task."""

import json
import pathlib
from collections.abc import Mapping
from typing import Any

import numpy as np
import safetensors
from safetensors.numpy import save_file

from common import artifacts

_NOTES = "notes"
# A finished run does nothing, and a resumed one begins after its last evaluation.
_REMEDY = (
    "DONE and checkpoints in the folder of the run, and run finetune.py with this --workdir, which "
    "trains anew"
)


def write_params(path: pathlib.Path, params: Mapping[str, Any], notes: Mapping[str, Any]) -> None:
    """Write nested dicts of arrays with JSON-serialisable metadata (`notes`), atomically."""
    with artifacts.atomic_path(path) as aside:
        save_file(dict(_flat(params)), aside, metadata={_NOTES: json.dumps(dict(notes))})


def read_params(path: pathlib.Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """Read the parameters and the metadata of a file of `write_params`.

    Raises:
      ValueError: the file is missing or damaged, or was not written by `write_params`.
    """
    try:
        with safetensors.safe_open(path, framework="np") as file:
            notes = json.loads((file.metadata() or {})[_NOTES])
            params: dict[str, Any] = {}
            for name in file.keys():  # noqa: SIM118
                *folders, last = name.split("/")
                place = params
                for folder in folders:
                    place = place.setdefault(folder, {})
                place[last] = file.get_tensor(name)
    except FileNotFoundError:
        raise ValueError(f"{path} does not exist; copy it again, or delete {_REMEDY}") from None
    except (safetensors.SafetensorError, KeyError, json.JSONDecodeError) as error:
        raise ValueError(
            f"{path}: cannot be read ({error}); copy it again, or delete it, {_REMEDY}"
        ) from None
    return params, notes


def _flat(params: Mapping[str, Any], prefix: str = ""):
    for name, value in params.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{name}/")
        else:
            yield prefix + name, np.ascontiguousarray(value)
