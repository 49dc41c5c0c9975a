"""Metrics on disk, one JSON object per line.

`metrics.jsonl` holds computed values and no times, so a resumed run writes the same file, bit for
bit, as an uninterrupted one. `speed.jsonl` holds the times.
"""

import contextlib
import json
import math
import pathlib
from collections.abc import Iterator, Mapping

from xlm.common import artifacts, declarations

_NOT_IN_JSON = ((b": NaN", b": null"), (b": Infinity", b": null"), (b": -Infinity", b": null"))


class MetricsWriter:
    """Writer that appends metrics to a file."""

    def __init__(self, path: pathlib.Path, resume_step: int = 0):
        """Open `path`, and drop records of steps after `resume_step`, which the run repeats."""
        self._path = path
        kept = [record for record in read_metrics(path) if record["step"] <= resume_step]
        artifacts.write_text(path, "".join(_line(record) for record in kept))

    def write(self, step: int, values: Mapping[str, float]) -> None:
        """Append the finite metrics after `step` steps; OSError if this fails."""
        finite = {name: value for name, value in values.items() if math.isfinite(value)}
        with self._reported(), open(self._path, "a", encoding="utf-8") as file:
            file.write(_line({"step": step, **finite}))

    def sync(self) -> None:
        """Wait until the records are on disk, before a checkpoint of their step."""
        with self._reported():
            artifacts.sync(self._path)

    @contextlib.contextmanager
    def _reported(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise OSError(
                f"{self._path} could not be written ({error.strerror}). If the disk is full, make "
                "room; then rerun the command to resume from the last checkpoint"
            ) from error


def read_metrics(path: pathlib.Path) -> list[dict[str, float]]:
    """Read the records of a metrics file; empty without a file.

    Skips a truncated last line, the trace of a killed run. A ValueError names a damaged line.
    """
    if not path.exists():
        return []
    content = artifacts.read_bytes(path)
    for other, null in _NOT_IN_JSON:  # earlier releases wrote these
        content = content.replace(other, null)
    kind, remedy = dict[str, int | float | None], "move the file away to resume without its metrics"
    records = list(declarations.parse_lines(content, kind, place=str(path), remedy=remedy))
    for number, record in enumerate(records, start=1):
        if not isinstance(record.get("step"), int):
            raise ValueError(f"{path}, line {number}: step must be a whole number; {remedy}")
    return [{name: value for name, value in one.items() if value is not None} for one in records]


def _line(record: Mapping[str, float]) -> str:
    return json.dumps(record) + "\n"
