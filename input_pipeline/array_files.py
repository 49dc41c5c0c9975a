"""Arrays in .npy files: written piece by piece, checked when read, and several read as one."""

import contextlib
import functools
import hashlib
import pathlib
from collections.abc import Iterator, Sequence
from typing import BinaryIO

import numpy as np

from common import artifacts

# Each map holds a file descriptor, of which a process has 1,024 on many systems.
_MAPS_AT_ONCE = 256


def load_array(
    path: pathlib.Path, shape: tuple[int | None, ...], *, is_mapped: bool = False
) -> np.ndarray:
    """Load an array of integers.

    Args:
      path: of the file.
      shape: that it must have, None for any length.
      is_mapped: whether to map it into memory.

    Raises:
      ValueError: the file is missing or damaged, or the array has another shape or type.
    """
    remedy = f"remove {path.parent} and run prepare_data.py again"
    try:
        found = np.load(path, mmap_mode="r" if is_mapped else None, allow_pickle=False)
    except FileNotFoundError:
        raise ValueError(f"{path} does not exist, but meta.json lists it; {remedy}") from None
    except (ValueError, EOFError) as error:
        raise ValueError(
            f"{path}: cannot be read ({error}); the file may be cut off or damaged: {remedy}"
        ) from error
    if isinstance(found, np.memmap) and path.stat().st_size != found.offset + found.nbytes:
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
    """Return the names of the files of a language's split, in order."""
    if count == 1:
        return [f"{language}.{split}.npy"]
    return [f"{language}.{split}-{i:05d}-of-{count:05d}.npy" for i in range(count)]


class ArrayWriter:
    """Array in a .npy file that is appended to along the first axis; see `array_file`."""

    def __init__(self, file: BinaryIO, shape: tuple[int, ...], dtype: np.dtype):
        self.length = 0
        self._file, self._shape, self._dtype = file, shape, np.dtype(dtype)
        self._write_header()

    def append(self, entries: np.ndarray) -> None:
        """Append entries, [n, *shape]."""
        self._file.write(np.ascontiguousarray(entries, self._dtype).tobytes())
        self.length += len(entries)

    def finish(self) -> None:
        """Write the header anew, in whose first axis numpy leaves room to grow."""
        self._file.seek(0)
        self._write_header()

    def _write_header(self) -> None:
        header = {
            "descr": np.lib.format.dtype_to_descr(self._dtype),
            "fortran_order": False,
            "shape": (self.length, *self._shape),
        }
        np.lib.format.write_array_header_1_0(self._file, header)


@contextlib.contextmanager
def array_file(
    path: pathlib.Path, shape: tuple[int, ...], dtype: np.dtype | type
) -> Iterator[ArrayWriter]:
    """Write an array to a .npy file in pieces, atomically; the bytes are those of `np.save`.

    Args:
      path: of the file; it appears when the block succeeds.
      shape: of one entry, () for numbers.
      dtype: of the entries.
    """
    with artifacts.atomic_path(path) as aside, aside.open("wb") as file:
        writer = ArrayWriter(file, shape, np.dtype(dtype))
        yield writer
        writer.finish()


def sha256(path: pathlib.Path) -> str:
    """Return the SHA-256 of a file, in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@functools.lru_cache(maxsize=_MAPS_AT_ONCE)
def _mapped(path: pathlib.Path, shape: tuple[int, ...], changed: int = 0) -> np.ndarray:
    """Map a file; one that was `changed` at another time is another one."""
    return load_array(path, shape, is_mapped=True)


class ArrayFile:
    """Array in a file, read like a memory-mapped one.

    The file is checked at once, and mapped when it is read, as those of `ShardedRows`.
    """

    def __init__(self, path: pathlib.Path, shape: tuple[int | None, ...]):
        """Check the file, see `load_array`."""
        found = load_array(path, shape, is_mapped=True)
        self._path, self.shape, self.dtype = path, found.shape, found.dtype
        self._changed = path.stat().st_mtime_ns

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, index: int | slice | np.ndarray) -> np.ndarray:
        return self._mapped()[index]

    def __array__(self, dtype=None, copy=None) -> np.ndarray:
        return np.asarray(self._mapped(), dtype)

    def parts(self, first: int, stop: int) -> Iterator[tuple[np.ndarray, int, int]]:
        """Yield the memory-mapped array and the range in it, see `block_reader.InFiles`."""
        yield self._mapped(), first, stop

    def _mapped(self) -> np.ndarray:
        return _mapped(self._path, self.shape, self._changed)


class MappedArrays(Sequence[np.ndarray]):
    """Arrays in .npy files, each mapped anew whenever it is looked at, so that none stays open."""

    def __init__(self, paths: Sequence[pathlib.Path]):
        """Name the files; none is opened."""
        self._paths = list(paths)

    def __len__(self) -> int:
        return len(self._paths)

    def __getitem__(self, number):
        return np.load(self._paths[number], mmap_mode="r", allow_pickle=False)


class ShardedRows:
    """Sequences [sequences, L] in several files, read like one memory-mapped array.

    Files are mapped when they are first read, some 256 of all datasets at a time.
    """

    def __init__(
        self, paths: Sequence[pathlib.Path], counts: Sequence[int], length: int, dtype: np.dtype
    ):
        """Describe the files; none is opened.

        Args:
          paths: of the files, in order.
          counts: number of sequences of each.
          length: L.
          dtype: of the token ids.
        """
        self._paths, self._length = list(paths), length
        self._ends = np.cumsum(np.asarray(counts, np.int64))
        self._starts = self._ends - np.asarray(counts, np.int64)
        self.dtype = np.dtype(dtype)

    @property
    def shape(self) -> tuple[int, int]:
        return int(self._ends[-1]), self._length

    @property
    def ndim(self) -> int:
        return 2

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, index: int | np.integer | slice | np.ndarray | Sequence[int]):
        """Return a sequence [L], or those of a slice or of an array of numbers, [n, L].

        Raises:
          IndexError: there is no such sequence.
          ValueError: a file is missing or damaged.
        """
        if isinstance(index, slice):
            start, stop, step = index.indices(len(self))
            if step != 1:
                return self._gather(np.arange(start, stop, step))
            return self._slice(start, max(start, stop))
        numbers = np.asarray(index)
        if numbers.dtype == bool:
            numbers = np.flatnonzero(numbers)
        numbers = self._checked(numbers.astype(np.int64))
        return self._gather(numbers) if numbers.ndim else self._gather(numbers[None])[0]

    def __array__(self, dtype=None, copy=None) -> np.ndarray:
        return np.asarray(self[:], dtype)

    def _checked(self, numbers: np.ndarray) -> np.ndarray:
        count = len(self)
        if numbers.size and not (-count <= numbers.min() and numbers.max() < count):
            raise IndexError(f"sequences {numbers.min()} to {numbers.max()} of {count}")
        return np.where(numbers < 0, numbers + count, numbers)

    def _shard(self, number: int) -> np.ndarray:
        count = int(self._ends[number] - self._starts[number])
        return _mapped(self._paths[number], (count, self._length))

    def parts(self, first: int, stop: int) -> Iterator[tuple[np.ndarray, int, int]]:
        """Yield the memory-mapped array of each file that holds sequences, and the range in it."""
        begin = int(np.searchsorted(self._ends, first, side="right"))
        end = int(np.searchsorted(self._starts, stop, side="left"))
        for number in range(begin, end):
            start, after = int(self._starts[number]), int(self._ends[number])
            if start < after:
                yield self._shard(number), max(first - start, 0), min(stop, after) - start

    def _slice(self, start: int, stop: int) -> np.ndarray:
        parts = [array[first:end] for array, first, end in self.parts(start, stop)]
        if not parts:
            return np.zeros((0, self._length), self.dtype)
        return parts[0] if len(parts) == 1 else np.concatenate(parts)

    def _gather(self, numbers: np.ndarray) -> np.ndarray:
        found = np.empty((*numbers.shape, self._length), self.dtype)
        shards = np.searchsorted(self._ends, numbers, side="right")
        for shard in np.unique(shards):
            here = shards == shard
            found[here] = self._shard(int(shard))[numbers[here] - self._starts[shard]]
        return found
