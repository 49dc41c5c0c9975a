"""Metrics on disk, one JSON object per line.

`metrics.jsonl` holds computed values and no times, so a resumed run writes the same file, bit for
bit, as an uninterrupted one. `speed.jsonl` holds the times.
"""

import json
import pathlib
from collections.abc import Mapping

from common import artifacts


class MetricsWriter:
    """Writer that appends metrics to a file, without records that a resumed run will repeat."""

    def __init__(self, path: pathlib.Path, resume_step: int = 0):
        """Open `path` for appending, keeping records of steps up to `resume_step`."""
        self._path = path
        kept = [record for record in read_metrics(path) if record["step"] <= resume_step]
        artifacts.write_text(path, "".join(_line(record) for record in kept))

    def write(self, step: int, values: Mapping[str, float]) -> None:
        """Append the metrics after `step` steps.

        Raises:
          OSError: the file cannot be written; the message names the file and a remedy.
        """
        try:
            with open(self._path, "a", encoding="utf-8") as file:
                file.write(_line({"step": step, **values}))
        except OSError as error:
            raise OSError(
                f"{self._path} could not be written ({error.strerror}). If the disk is full, make "
                "room; the same command then goes on from the last checkpoint"
            ) from error


def read_metrics(path: pathlib.Path) -> list[dict[str, float]]:
    """Read the records of a metrics file; empty without a file.

    A truncated last line, as left by a killed run, is skipped.
    """
    if not path.exists():
        return []
    lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
    return [json.loads(line) for line in lines if line.endswith("\n")]


def _line(record: Mapping[str, float]) -> str:
    return json.dumps(record) + "\n"
