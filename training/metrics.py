"""Metrics on disk, one JSON object a line.

`metrics.jsonl` holds what the run computed and nothing of the clock, so a resumed run writes the
same file, bit by bit, as one that was never stopped. `speed.jsonl` holds the clock.
"""

import json
import pathlib
from collections.abc import Mapping

from common import artifacts


class MetricsWriter:
    """Appends metrics to a file; after a resume, takes back what the resumed run will repeat."""

    def __init__(self, path: pathlib.Path, resume_step: int = 0):
        """Opens `path` for appending, keeping records of steps up to `resume_step`."""
        self._path = path
        kept = [record for record in read_metrics(path) if record["step"] <= resume_step]
        artifacts.write_text(path, "".join(_line(record) for record in kept))

    def write(self, step: int, values: Mapping[str, float]) -> None:
        """Appends the metrics after `step` steps.

        Raises:
          OSError: that is not possible; the message names the file and what to do.
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
    """The records of a metrics file; none if there is no file.

    A last line that a kill cut off is left out.
    """
    if not path.exists():
        return []
    lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
    return [json.loads(line) for line in lines if line.endswith("\n")]


def _line(record: Mapping[str, float]) -> str:
    return json.dumps(record) + "\n"
