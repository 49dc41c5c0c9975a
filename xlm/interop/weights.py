"""Files of weights: safetensors to read and write, and pytorch_model.bin to read.

We unpickle nothing: torch's weights-only reader, which takes only tensors, reads pytorch_model.bin.
"""

import contextlib
import hashlib
import json
import pathlib
import types
import zipfile
from collections.abc import Collection, Iterator, Mapping
from typing import Any, BinaryIO

import ml_dtypes
import msgspec
import numpy as np
import safetensors

from xlm.common import artifacts, declarations
from xlm.common.declarations import Digest, Name

WEIGHTS = "model.safetensors"
INDEX = "model.safetensors.index.json"
_TORCH, _TORCH_INDEX = "pytorch_model.bin", "pytorch_model.bin.index.json"
_OLDEST_TORCH = 2, 6  # files can make the weights-only reader of older ones execute code
_NEEDS_TORCH = "only torch 2.6 or newer reads pickled weights safely, and "
TYPES = (np.float32, np.float16, ml_dtypes.bfloat16)
_AT_ONCE = 1 << 24  # bytes
_DIGESTS = "sha256"  # in the metadata of a file
_COPY = "copy or download it again"
_NOT_FINITE = "numbers that are not finite, a sign of failed training; take another checkpoint"


class _Index(msgspec.Struct, frozen=True):
    """The index of shards; Hugging Face's has further fields."""

    weight_map: dict[str, Name]


def write(
    path: pathlib.Path,
    tensors: Mapping[str, np.ndarray],
    metadata: Mapping[str, str],
    files: Mapping[str, bytes],
) -> None:
    """Write float32 tensors as safetensors, with the SHA-256 of each and of `files` beside them.

    Equal content gives equal bytes, while safetensors' own writer puts metadata in any order.
    Raises ValueError if a number is not finite.
    """
    arrays = {name: np.asarray(tensors[name], np.float32, order="C") for name in sorted(tensors)}
    for name, array in arrays.items():
        if not np.isfinite(array).all():
            raise ValueError(f"{name} has {_NOT_FINITE}")
    digests = {name: _digest(value) for name, value in (*arrays.items(), *files.items())}
    header: dict[str, Any] = {"__metadata__": {**metadata, _DIGESTS: json.dumps(digests)}}
    end = 0
    for name, array in arrays.items():
        place = [end, end := end + array.nbytes]
        header[name] = {"dtype": "F32", "shape": array.shape, "data_offsets": place}
    with path.open("wb") as file:
        _write_header(file, header)
        for array in arrays.values():
            file.write(array.data)


def copy(
    source: pathlib.Path, target: pathlib.Path, changed: Mapping[str, np.ndarray],
    files: Mapping[str, bytes],
) -> None:  # fmt: skip
    """Copy a safetensors file byte by byte except for the tensors `changed`, of the same types.

    It updates digests of these, and of `files` beside it, if the file has any.
    """
    with source.open("rb") as old, target.open("wb") as new:
        header = json.loads(old.read(int.from_bytes(old.read(8), "little")))
        begin, metadata = old.tell(), header.pop("__metadata__", {})
        digests = json.loads(metadata.get(_DIGESTS, "{}"))
        if digests:
            now = {**changed, **files}
            digests |= {name: _digest(now[name]) for name in sorted(digests.keys() & now.keys())}
            metadata = {**metadata, _DIGESTS: json.dumps(digests)}
        order = sorted(header, key=lambda name: header[name]["data_offsets"])
        places, end = {name: header[name]["data_offsets"] for name in order}, 0
        for name in order:
            size = changed[name].nbytes if name in changed else places[name][1] - places[name][0]
            shape = changed[name].shape if name in changed else header[name]["shape"]
            header[name] = {
                **header[name],
                "shape": shape,
                "data_offsets": [end, end := end + size],
            }
        _write_header(new, {"__metadata__": metadata, **header} if metadata else header)
        for name in order:
            if name in changed:
                new.write(np.ascontiguousarray(changed[name]).tobytes())
                continue
            old.seek(begin + places[name][0])
            left = places[name][1] - places[name][0]
            while left:
                left -= new.write(old.read(min(left, _AT_ONCE)))


def _write_header(file: BinaryIO, header: Mapping[str, Any]) -> None:
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)
    file.write(len(text).to_bytes(8, "little") + text)


def _digest(value: Any) -> str:
    if isinstance(value, bytes):
        return hashlib.sha256(value).hexdigest()
    hasher = hashlib.sha256(f"{value.dtype} {value.shape}".encode())
    hasher.update(np.ascontiguousarray(value).data)
    return hasher.hexdigest()


class Seal:
    """Digests in a safetensors file of its tensors, and of files beside it; old files have none."""

    def __init__(self, path: pathlib.Path, metadata: Mapping[str, str] | None):
        text = (metadata or {}).get(_DIGESTS, "{}")
        place = f"{path}, {_DIGESTS}"
        self._path = path
        self._found = declarations.parse(text, dict[str, Digest], place=place, remedy=_COPY)

    def check(self, name: str, value: np.ndarray | bytes, path: pathlib.Path | None = None) -> None:
        """Raise ValueError if a tensor, or the file `path`, is damaged or not finite."""
        where = f"{self._path}: {name}" if path is None else f"{path}"
        if name in self._found and _digest(value) != self._found[name]:
            raise ValueError(f"{where} is damaged, its SHA-256 differs; {_COPY}")
        if isinstance(value, np.ndarray) and not np.isfinite(value).all():
            raise ValueError(f"{where} has {_NOT_FINITE}")


def read_seal(path: pathlib.Path) -> Seal:
    """Read the digests of a safetensors file; none if there is no file."""
    if not path.exists():
        return Seal(path, None)
    with opened(path) as file:
        return Seal(path, file.metadata())


@contextlib.contextmanager
def opened(path: pathlib.Path, remedy: str = _COPY) -> Iterator[Any]:
    """Open a safetensors file; ValueError, with the remedy, if it is damaged."""
    try:
        artifacts.check_readable(path)  # reading a pipe would never end
        with safetensors.safe_open(path, framework="np") as file:
            yield file
    except safetensors.SafetensorError as error:
        fault = " ".join(str(error).split())  # it quotes the file
        raise ValueError(f"{path}: cannot be read ({fault}); {remedy}") from None


class _TorchFile:
    """A file of torch.save, with the methods of a safetensors file that we use."""

    def __init__(self, path: pathlib.Path, remedy: str):
        artifacts.check_readable(path)
        try:
            import torch
        except ImportError:
            raise ValueError(f"{path}: {_NEEDS_TORCH}none is installed; {remedy}") from None
        if tuple(map(int, torch.__version__.split(".")[:2])) < _OLDEST_TORCH:
            raise ValueError(f"{path}: {_NEEDS_TORCH}{torch.__version__} is installed; {remedy}")
        is_zip = zipfile.is_zipfile(path)
        try:
            found = torch.load(path, map_location="cpu", weights_only=True, mmap=is_zip)
            self._tensors = {str(name): tensor.detach() for name, tensor in found.items()}
        except Exception:  # of several types, some of which advise to execute the file's code
            fault = "is damaged, or holds more than tensors by name; copy it again, or"
            raise ValueError(f"{path}: {fault} {remedy}") from None

    def keys(self) -> Collection[str]:
        return self._tensors.keys()

    def get_tensor(self, name: str) -> np.ndarray:
        tensor = self._tensors[name]
        is_brain = str(tensor.dtype) == "torch.bfloat16"  # unknown to NumPy
        found: np.ndarray = (tensor.float() if is_brain else tensor).contiguous().numpy()
        return found

    def get_slice(self, name: str) -> Any:
        return types.SimpleNamespace(get_shape=lambda: self._tensors[name].shape)

    def metadata(self) -> None:
        return None


class Weights:
    """Tensors of a folder by name, from opened `files`; see `open`."""

    def __init__(
        self, folder: pathlib.Path, files: Mapping[pathlib.Path, Any], remedy: str,
        tied: Mapping[str, str],
    ):  # fmt: skip
        self._folder, self._remedy, self._tied = folder, remedy, tied
        self._files = {
            _current(name): (path, file, seal, name)
            for path, file in files.items()
            for seal in [Seal(path, file.metadata())]
            for name in file.keys()  # noqa: SIM118
        }

    @classmethod
    @contextlib.contextmanager
    def open(
        cls, folder: pathlib.Path, remedy: str, tied: Mapping[str, str] = types.MappingProxyType({})
    ) -> Iterator["Weights"]:
        """Open model.safetensors, or the shards of its index, or pytorch_model.bin likewise.

        `remedy` tells users how to write such a folder again. `tied` maps a tensor to an alias,
        which files may hold in addition or instead. Raises ValueError if one is damaged.
        """
        with contextlib.ExitStack() as stack:
            files: dict[pathlib.Path, Any] = {}
            for path in weight_files(folder, remedy, is_pickled_too=True):
                if not path.exists():
                    raise ValueError(
                        f"{path} does not exist, but the index beside it lists it; {_COPY}"
                    )
                if path.suffix == ".bin":
                    files[path] = _TorchFile(path, remedy)
                else:
                    files[path] = stack.enter_context(opened(path))
            yield cls(folder, files, remedy, tied)

    @property
    def names(self) -> Collection[str]:
        return self._files.keys()

    def has(self, prefix: str) -> bool:
        return any(name.startswith(prefix) for name in self._files)

    def untie(self) -> None:
        """Read each tensor by its own name, without comparing aliases."""
        self._tied = {}

    def same(self, name: str, other: str) -> bool:
        """Whether two tensors are equal, or the first is missing."""
        names = (name, other) if name in self._files else (other, other)
        one, two = (self._files[key][1].get_tensor(self._files[key][3]) for key in names)
        return np.array_equal(one, two)

    def check(self, wanted: Mapping[str, tuple[int, ...]], unused: Collection[str] = ()) -> None:
        """Raise ValueError unless all `wanted` tensors exist in their shapes, and no others.

        Tensors of `unused` may exist. It reads no numbers: memory is only for a model that fits its
        config.json.
        """
        found = set(self._files)
        missing = {name for name in wanted if not {name, self._tied.get(name)} & found}
        unknown = found - {*wanted, *unused, *self._tied.values()}
        for fault, names in (("lacks", missing), ("has unknown", unknown)):
            if names:
                shown = ", ".join(sorted(names)[:3]) + (", ..." if len(names) > 3 else "")
                raise ValueError(
                    f"{self._folder} {fault} tensors, {len(names)}: {shown}; it must hold the "
                    f"model of its config.json; {self._remedy}"
                )
        for name, shape in wanted.items():
            for one in sorted({name, self._tied.get(name, name)} & found):
                path, file, _, own = self._files[one]
                if (there := tuple(file.get_slice(own).get_shape())) != shape:
                    raise ValueError(
                        f"{path}: {one} has shape {there}, must be {shape} by config.json; give "
                        "both files of one model"
                    )

    def read(self, name: str) -> np.ndarray:
        """Read a tensor as float32 after `check`; ValueError for another type or alias."""
        tied = self._tied.get(name, name)
        if name not in self._files:
            name = tied
        array = self._read(name)
        if tied != name and tied in self._files and (array != self._read(tied)).any():
            raise ValueError(
                f"{self._folder}: {name} and {tied} differ, but the output layer must be tied to "
                "the embeddings; give a model with a tied output layer"
            )
        return array

    def _read(self, name: str) -> np.ndarray:
        path, file, seal, own = self._files[name]
        array = file.get_tensor(own)
        if array.dtype not in TYPES:
            raise ValueError(
                f"{path}: {name} is of type {array.dtype}, must be float32, float16 or bfloat16; "
                f"{self._remedy}"
            )
        seal.check(own, array)
        return array.astype(np.float32)


def _current(name: str) -> str:
    """Return the current name of a tensor; LayerNorms of old BERTs have a gamma and a beta."""
    path, dot, last = name.rpartition("LayerNorm.")
    return path + dot + {"gamma": "weight", "beta": "bias"}.get(last, last)


def weight_files(
    folder: pathlib.Path, remedy: str, *, is_pickled_too: bool = False
) -> list[pathlib.Path]:
    """Return the files of a folder's weights, safetensors first; an index may list missing files.

    Raises ValueError if there are none, or only pickled ones unless `is_pickled_too`.
    """
    kinds = [(WEIGHTS, INDEX), *[(_TORCH, _TORCH_INDEX)] * is_pickled_too]
    for whole, index in kinds:
        if (folder / whole).exists():
            return [folder / whole]
        if (folder / index).exists():
            found = declarations.read(folder / index, _Index, remedy=_COPY).weight_map.values()
            return [folder / name for name in sorted(set(found))]
    names = " nor ".join(name for kind in kinds for name in kind)
    raise ValueError(f"{folder} has neither {names}; {remedy}")
