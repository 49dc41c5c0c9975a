"""Entries of a cache: files with digests beside them, which reveal damage."""

import contextlib
import hashlib
import logging
import pathlib
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from xlm.common import artifacts

T = TypeVar("T")


def kept(
    path: pathlib.Path, make: Callable[[], Any], write: Callable[[pathlib.Path, Any], None],
    read: Callable[[pathlib.Path], T],
) -> T:  # fmt: skip
    """Read an entry; unless it is whole, make and write it first."""
    if not is_whole(path):
        found = make()
        with written(path) as aside:
            write(aside, found)
    return read(path)


@contextlib.contextmanager
def written(path: pathlib.Path) -> Iterator[pathlib.Path]:
    """Yield a temporary path, which becomes the entry `path` when the block succeeds."""
    with artifacts.atomic_path(path) as aside:
        yield aside
        # The digest comes first, so that a killed process leaves no entry without it.
        artifacts.write_bytes(_beside(path), _digest(aside, path.name))


def is_whole(path: pathlib.Path) -> bool:
    """Return whether an entry is intact under this name; remove a damaged or foreign one.

    Raise OSError if the path is not a regular file, or cannot be read.
    """
    for one in (path, _beside(path)):
        artifacts.check_replaceable(one)
    if not path.exists():
        return False
    with contextlib.suppress(FileNotFoundError, ValueError):
        if artifacts.read_bytes(_beside(path), 64) == _digest(path, path.name):
            return True
    logging.warning("%s: damaged, or of another version; rebuilding it", path)
    path.unlink()
    return False


def _beside(path: pathlib.Path) -> pathlib.Path:
    return path.with_name(f"{path.name}.sha256")


def _digest(path: pathlib.Path, name: str) -> bytes:
    """Return the SHA-256 of a name and a file: a copy under another name counts as damaged."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.sha256(name.encode())).hexdigest().encode()
