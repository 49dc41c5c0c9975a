"""Rows of Parquet and Arrow files, such as those that `datasets` saves; needs pyarrow."""

import json
import pathlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from xlm.common import packages

# First bytes of Parquet, of an Arrow file, and of an Arrow stream, as `datasets` writes.
_BEGINS = (b"PAR1", b"ARROW1", b"\xff\xff\xff\xff")


def is_arrow(path: pathlib.Path) -> bool:
    """Return whether a file is Parquet or Arrow, by its first bytes."""
    with open(path, "rb") as file:
        return file.read(8).startswith(_BEGINS)


def read_rows(path: pathlib.Path) -> Iterator[dict[str, Any]]:
    """Yield the rows of a file; numbered classes of `datasets` get their names, hidden ones None.

    Raise ValueError if the file is damaged, or pyarrow is not installed.
    """
    with packages.needed(f"{path} is Parquet or Arrow", "parquet"):
        import pyarrow
        from pyarrow import ipc, parquet
    try:
        with pyarrow.memory_map(str(path)) as file:
            if (begins := file.read(6)) == b"ARROW1":
                table = ipc.open_file(file).read_all()
            else:
                file.seek(0)
                is_parquet = begins.startswith(b"PAR1")
                table = parquet.read_table(file) if is_parquet else ipc.open_stream(file).read_all()
            names = _class_names(table.schema.metadata or {})
            for batch in table.to_batches(1 << 12):
                for row in batch.to_pylist():
                    yield row | {key: _named(row[key], names[key]) for key in names}
    except (pyarrow.ArrowException, OSError) as error:
        raise ValueError(
            f"{path}: cannot be read ({error}); it may be cut off or damaged: download it again"
        ) from error


def _class_names(metadata: Mapping[bytes, bytes]) -> dict[str, list[str]]:
    """Return the names of numbered classes, or lists of such, by column (`datasets.ClassLabel`)."""
    try:
        features = json.loads(metadata[b"huggingface"])["info"]["features"]
    except (KeyError, TypeError, ValueError):
        return {}
    found = {}
    for column, one in features.items():
        one = one[0] if isinstance(one, list) else one
        one = one.get("feature", one)
        if isinstance(one, dict) and isinstance(one.get("names"), list):
            found[column] = one["names"]
    return found


def _named(value: Any, names: Sequence[str]) -> Any:
    if isinstance(value, list):
        return [_named(one, names) for one in value]
    return names[value] if isinstance(value, int) and 0 <= value < len(names) else None
