"""Arrays in .npy files: written in pieces, checked when read, and several files read as one."""

import bisect
import contextlib
import functools
import hashlib
import itertools
import math
import os
import pathlib
from collections.abc import Iterator, Sequence
from typing import BinaryIO

import numpy as np

from input_pipeline import manifest
from xlm.common import artifacts

# A process has 1,024 file descriptors on many systems.
_FILES_AT_ONCE = 256
_NUMBERS_AT_ONCE = 1 << 20


def _mapped(path: pathlib.Path, shape: tuple[int | None, ...]) -> np.memmap:
    """Map an array of integers of a shape (None: any length).

    Raise ValueError if the file is missing or damaged, or the array has another shape or type.
    """
    remedy = manifest.remedy(path.parent)
    try:
        found = np.load(path, mmap_mode="r")
    except FileNotFoundError:
        raise ValueError(f"{path} does not exist, but meta.json lists it; {remedy}") from None
    except (ValueError, EOFError) as error:
        raise ValueError(
            f"{path}: cannot be read ({error}); the file may be cut off or damaged: {remedy}"
        ) from error
    if path.stat().st_size != found.offset + found.nbytes:
        raise ValueError(
            f"{path}: {path.stat().st_size} bytes, must have {found.offset + found.nbytes}; "
            f"{remedy}"
        )
    is_alike = len(found.shape) == len(shape) and all(
        wanted in (None, size) for wanted, size in zip(shape, found.shape, strict=True)
    )
    if not is_alike or not np.issubdtype(found.dtype, np.integer):
        expected = ", ".join("any" if size is None else str(size) for size in shape)
        raise ValueError(
            f"{path}: an array of shape {found.shape} and type {found.dtype}, must be integers of "
            f"shape ({expected}) by meta.json; {remedy}"
        )
    return found


def shard_names(language: str, split: str, count: int) -> list[str]:
    """Return the file names of a language's split, in order."""
    if count == 1:
        return [f"{language}.{split}.npy"]
    return [f"{language}.{split}-{i:05d}-of-{count:05d}.npy" for i in range(count)]


class ArrayWriter:
    """Array in a .npy file that grows along the first axis; see `array_file`."""

    def __init__(self, file: BinaryIO, shape: tuple[int, ...], dtype: np.dtype):
        self.length = 0
        self._file, self._shape, self._dtype = file, shape, np.dtype(dtype)
        self._write_header()

    def append(self, entries: np.ndarray) -> None:
        """Append entries, [n, *shape]."""
        self._file.write(np.ascontiguousarray(entries, self._dtype).tobytes())
        self.length += len(entries)

    def finish(self) -> None:
        """Rewrite the header with the final length; numpy leaves room for it to grow."""
        self._file.seek(0)
        self._write_header()

    def _write_header(self) -> None:
        header = {
            "descr": np.lib.format.dtype_to_descr(self._dtype),
            "fortran_order": False,
            "shape": (self.length, *self._shape),
        }
        np.lib.format.write_array_header_1_0(self._file, header)


def save(path: pathlib.Path, array: np.ndarray) -> None:
    """Write an array of numbers to a file, atomically."""
    with artifacts.atomic_path(path) as aside:
        np.save(aside, array, allow_pickle=False)


@contextlib.contextmanager
def array_file(
    path: pathlib.Path, shape: tuple[int, ...], dtype: np.dtype | type
) -> Iterator[ArrayWriter]:
    """Write an array of entries of `shape` in pieces, atomically, with the bytes of `np.save`."""
    with artifacts.atomic_path(path) as aside, aside.open("wb") as file:
        writer = ArrayWriter(file, shape, np.dtype(dtype))
        yield writer
        writer.finish()


def narrow(path: pathlib.Path) -> None:
    """Rewrite ascending int64 numbers [n] as uint32, atomically, if all are below 2^32."""
    found = np.load(path, mmap_mode="r", allow_pickle=False)
    if not len(found) or found[-1] < 1 << 32:
        with array_file(path, (), np.uint32) as file:
            for first in range(0, len(found), _NUMBERS_AT_ONCE):
                file.append(found[first : first + _NUMBERS_AT_ONCE])


def sha256(path: pathlib.Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


class MappedArrays(Sequence[np.ndarray]):
    """Arrays in .npy files. Each access maps its file again, so that none stays open."""

    def __init__(self, paths: Sequence[pathlib.Path]):
        self._paths = list(paths)

    def __len__(self) -> int:
        return len(self._paths)

    def __getitem__(self, number):
        return np.load(self._paths[number], mmap_mode="r", allow_pickle=False)


class _OpenFile:
    """Array in an open file, for reads anywhere by any thread.

    Not memory-mapped: reads of a mapped file that has been truncated kill the process.
    """

    def __init__(self, path: pathlib.Path, shape: tuple[int, ...]):
        found = _mapped(path, shape)
        self._path, self._dtype, self._entry = path, found.dtype, shape[1:]
        self._offset, self._entry_bytes = found.offset, found.itemsize * math.prod(shape[1:])
        self._descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)

    def __del__(self):
        if hasattr(self, "_descriptor"):
            os.close(self._descriptor)

    def read(self, first: int, count: int) -> np.ndarray:
        """Read `count` entries from `first` on."""
        place, size = self._offset + first * self._entry_bytes, count * self._entry_bytes
        content = os.pread(self._descriptor, size, place)
        while len(content) < size:  # one read returns at most 2 GiB
            more = os.pread(self._descriptor, size - len(content), place + len(content))
            if not more:
                raise ValueError(
                    f"{self._path}: ends before entry {first + count}; the file has become shorter "
                    f"since it was opened; {manifest.remedy(self._path.parent)}"
                )
            content += more
        return np.frombuffer(content, self._dtype).reshape(count, *self._entry)


@functools.lru_cache(maxsize=_FILES_AT_ONCE)
def _opened(path: pathlib.Path, shape: tuple[int, ...], changed: int) -> _OpenFile:
    """Open a file, or return the open one; a new time `changed` opens it again."""
    return _OpenFile(path, shape)


def close_files() -> None:
    """Close the cached open files: a disk with an open file cannot be unmounted."""
    _opened.cache_clear()


class ShardedRows:
    """Array in several files: sequences [sequences, L] or numbers, read when it is indexed.

    A first read opens a file. At most 256 files of all datasets are open. Entries have shape
    `entry`, (L,) or (). Indexing checks that all numbers are below `limit`.
    """

    def __init__(
        self,
        paths: Sequence[pathlib.Path],
        counts: Sequence[int],
        entry: tuple[int, ...],
        dtype: np.dtype,
        limit: int | None = None,
        changed: int = 0,
    ):
        self._paths, self._entry = list(paths), entry
        self._limit, self._changed = limit, changed
        self._ends = list(itertools.accumulate(map(int, counts)))
        self._starts = [0, *self._ends[:-1]]
        self.dtype = np.dtype(dtype)
        self.shape = (self._ends[-1], *entry)

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, index: int | slice | np.ndarray | Sequence[int]) -> np.ndarray:
        """Return an entry, or the entries of a slice or an array of numbers, [n, *entry].

        Raise IndexError for a number out of range, ValueError if a file is missing or damaged.
        """
        if isinstance(index, slice):
            first, stop, step = index.indices(len(self))
            if step == 1:
                return self._checked(self.read(first, stop), range(first, stop))
            index = np.arange(first, stop, step)
        places, count = np.asarray(index), len(self)
        places = np.flatnonzero(places) if places.dtype == bool else places.astype(np.int64)
        if places.size and not (-count <= places.min() and places.max() < count):
            raise IndexError(f"sequences {places.min()} to {places.max()} of {count}")
        places = np.where(places < 0, places + count, places)
        found = np.empty((*places.shape, *self._entry), self.dtype)
        for place, number in np.ndenumerate(places):
            found[place] = self.entry(int(number))
        return self._checked(found, places)

    def __array__(self, dtype=None, copy=None) -> np.ndarray:
        return np.asarray(self[:], dtype)

    def damaged(self, number: int) -> ValueError:
        """Return the error for an entry with a number beyond the limit."""
        shard = bisect.bisect_right(self._ends, number)
        path = self._paths[shard]
        return ValueError(
            f"{path}: entry {number - self._starts[shard]} holds a token id that is not below "
            f"{self._limit}, the vocabulary's size; {manifest.remedy(path.parent)}"
        )

    def _checked(self, found: np.ndarray, numbers: range | np.ndarray) -> np.ndarray:
        """Return the entries `numbers` as read; raise ValueError if they are damaged."""
        if self._limit is not None and found.size and found.max() >= self._limit:
            places = np.ravel(numbers)
            raise self.damaged(int(places[found.reshape(len(places), -1).max(axis=1).argmax()]))
        return found

    def read(self, start: int, stop: int) -> np.ndarray:
        """Read consecutive entries, unchecked, with one read per file."""
        parts = []
        shard = bisect.bisect_right(self._ends, start)
        while start < stop:
            end = min(stop, self._ends[shard])
            if start < end:
                parts.append(self._file(shard).read(start - self._starts[shard], end - start))
            start, shard = end, shard + 1
        if len(parts) == 1:
            return parts[0]
        return np.concatenate([np.zeros((0, *self._entry), self.dtype), *parts])

    def entry(self, number: int) -> np.ndarray:
        """Read an entry, unchecked."""
        shard = bisect.bisect_right(self._ends, number)
        return self._file(shard).read(number - self._starts[shard], 1)[0]

    def _file(self, shard: int) -> _OpenFile:
        count = self._ends[shard] - self._starts[shard]
        return _opened(self._paths[shard], (count, *self._entry), self._changed)


class ArrayFile(ShardedRows):
    """Array in one file, checked when it is opened."""

    def __init__(self, path: pathlib.Path, shape: tuple[int | None, ...], limit: int | None = None):
        found = _mapped(path, shape)
        changed = path.stat().st_mtime_ns
        super().__init__([path], [len(found)], found.shape[1:], found.dtype, limit, changed)

    def contradiction(self, fault: str) -> ValueError:
        """Return the error for a file with a fault."""
        path = self._paths[0]
        return ValueError(f"{path}: {fault}; {manifest.remedy(path.parent)}")
