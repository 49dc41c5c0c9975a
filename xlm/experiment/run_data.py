"""Records of the data files of runs of finetune.py, to detect other data in later calls.

Settings of a run name its files by patterns. `data.json` has the SHA-256 of each file that matched
when the run began. tensorflow-datasets have none.
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
    """Raise ValueError if a run that resumes has other data than at its beginning.

    The `folder` has no record of its data if it is new, or older than the records.
    """
    if (folder / DATA).exists():
        _check(folder, _read(folder), now)


def check_ended(folder: pathlib.Path, find: Callable[[], Iterable[pathlib.Path]]) -> None:
    """Raise ValueError if a run that has ended has other data now, found by `find`.

    If recorded files are gone, only the others are compared.
    """
    if not (folder / DATA).exists():
        return
    recorded = _read(folder)
    # Path.is_file raises for a name that is too long.
    there = [pathlib.Path(path) for path in recorded if os.path.isfile(path)]
    if len(there) == len(recorded):
        _check(folder, recorded, digests(find()))
        return
    _check(folder, recorded, {**recorded, **digests(there)})
    logging.info(
        "%s has ended, and %d of the %d files of its data are gone; the others are unchanged",
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
