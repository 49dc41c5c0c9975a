"""Parameters with notes (metadata) in one safetensors file: an encoder and the head of a task."""

import json
import pathlib
from collections.abc import Mapping
from typing import Annotated, Any

import msgspec

from xlm.common import artifacts, declarations
from xlm.common.declarations import Artefact, Count, Digest, Name
from xlm.interop import parameters, weights
from xlm.interop.weights import Seal

_NOTES = "notes"
# A finished run does nothing, and a resumed one starts after its last evaluation.
_REMEDY = (
    "copy it again, or move it, DONE and checkpoints out of the folder of the run, and rerun "
    "finetune.py with this --workdir to train from the start"
)


class Encoder(parameters.Architecture, frozen=True, kw_only=True):
    """Settings of an encoder, including those of its computation."""

    dtype: str
    attention: str = "xla"
    remat: str = "none"
    unroll: Annotated[int, msgspec.Meta(ge=0, le=1000)] = 0


class Notes(Artefact, frozen=True, kw_only=True):
    """Notes on the best parameters.

    Attributes:
      tokenizer: SHA-256 of the SentencePiece model.
      value: score that selected the step; None for a mean of checkpoints.
      symbols: table row of the symbol of each target language.
    """

    encoder: Encoder
    tokenizer: Digest
    step: Count
    value: float | None
    decoder: Encoder | None = None
    symbols: dict[Name, Count] = {}


def write_params(path: pathlib.Path, params: Mapping[str, Any], notes: Mapping[str, Any]) -> None:
    """Write nested dicts of arrays with `Notes`, atomically; ValueError for non-finite numbers."""
    tensors = dict(parameters.flattened(params, "/"))
    text = json.dumps(dict(notes), allow_nan=False)
    with artifacts.atomic_path(path) as aside, declarations.of_file(path):
        weights.write(aside, tensors, {_NOTES: text}, {_NOTES: text.encode()})


def read_params(path: pathlib.Path) -> tuple[dict[str, Any], Notes]:
    """Read a file of `write_params`; ValueError if it is missing, damaged or another file."""
    try:
        with weights.opened(path, _REMEDY) as file:
            metadata = file.metadata() or {}
            arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except FileNotFoundError:
        raise ValueError(f"{path} does not exist; {_REMEDY}") from None
    text, seal = metadata.get(_NOTES, ""), Seal(path, metadata)
    for name, array in arrays.items():
        seal.check(name, array)
    seal.check(_NOTES, text.encode())
    # Older files of a mean of checkpoints have "NaN" for the missing score.
    text = text.replace('"value": NaN', '"value": null')
    notes = declarations.parse(text, Notes, place=f"{path}, {_NOTES}", remedy=_REMEDY)
    with declarations.of_file(path):
        return parameters.nested(arrays, "/"), notes
