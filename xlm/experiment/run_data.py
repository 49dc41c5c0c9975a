"""Records of the data files of runs of finetune.py, by which a later call sees other data.

Settings of a run name its files by patterns. `data.json` has the SHA-256 of each file that they
matched when the run began; data of tensorflow-datasets have none.
"""

import os
import pathlib
from collections.abc import Callable, Iterable, Mapping

from absl import logging

from input_pipeline.array_files import sha256
from xlm.common import declarations
from xlm.common.declarations import Digest
from xlm.experiment.run_folder import DATA

_MAX_LISTED = 8  # files in a message


def digests(files: Iterable[pathlib.Path]) -> dict[str, str]:
    """Return the SHA-256 of files by path."""
    return {str(path): sha256(path) for path in files}


def check_resumed(folder: pathlib.Path, now: Mapping[str, str]) -> None:
    """Check that a run that goes on, or begins, has the data that it began with.

    The `folder` has no record of its data if it is new, or older than the records. Raises
    ValueError if they are other data.
    """
    if (folder / DATA).exists():
        _check(folder, _read(folder), now)


def check_ended(folder: pathlib.Path, find: Callable[[], Iterable[pathlib.Path]]) -> None:
    """Check that a run that has ended has the data that it began with, as far as they are there.

    `find` finds the files of its data. Raises ValueError if there are other data.
    """
    if not (folder / DATA).exists():
        return
    recorded = _read(folder)
    there = [pathlib.Path(path) for path in recorded if os.path.isfile(path)]  # of any length
    if len(there) == len(recorded):
        _check(folder, recorded, digests(find()))
        return
    _check(folder, recorded, {**recorded, **digests(there)})
    logging.info(
        "%s has ended, and its data are not read: %d of its %d files are gone",
        folder, len(recorded) - len(there), len(recorded),
    )  # fmt: skip


def _read(folder: pathlib.Path) -> dict[str, str]:
    remedy = "copy it again, or choose another --workdir"
    return declarations.read(folder / DATA, dict[str, Digest], remedy=remedy)


def _check(folder: pathlib.Path, recorded: Mapping[str, str], now: Mapping[str, str]) -> None:
    lines = [
        f"  {path}: {'new' if path not in recorded else 'changed' if path in now else 'gone'}"
        for path in sorted({*recorded, *now})
        if recorded.get(path) != now.get(path)
    ]
    if lines:
        listed = "\n".join(lines[:_MAX_LISTED]) + ("\n  ..." if len(lines) > _MAX_LISTED else "")
        raise ValueError(
            f"{folder} was made from other data:\n{listed}\nRestore these files, or choose another "
            "--workdir."
        )
