"""Reading of a folder of safetensors, in one file or several. Nothing is ever unpickled."""

import contextlib
import pathlib
import types
from collections.abc import Collection, Iterator, Mapping
from typing import Any

import ml_dtypes
import numpy as np
import safetensors

from common import artifacts

WEIGHTS = "model.safetensors"
_INDEX = "model.safetensors.index.json"
_TYPES = (np.float32, np.float16, ml_dtypes.bfloat16)


class Weights:
    """Tensors of a folder by name."""

    def __init__(
        self,
        folder: pathlib.Path,
        files: Mapping[pathlib.Path, Any],
        remedy: str,
        tied: Mapping[str, str],
    ):
        """Initialise from opened `files`; see `open`."""
        self._folder, self._remedy, self._tied = folder, remedy, tied
        self._files = {name: (path, file) for path, file in files.items() for name in file.keys()}  # noqa: SIM118

    @classmethod
    @contextlib.contextmanager
    def open(
        cls, folder: pathlib.Path, remedy: str, tied: Mapping[str, str] = types.MappingProxyType({})
    ) -> Iterator["Weights"]:
        """Open model.safetensors, or the shards that its index lists.

        Args:
          folder: folder of the files.
          remedy: instruction for writing such a folder again, for error messages.
          tied: tensor -> alias of the same tensor, which files may hold in addition or instead.

        Raises:
          ValueError: a file is missing or damaged.
        """
        with contextlib.ExitStack() as stack:
            files = {}
            for path in _weight_files(folder, remedy):
                try:
                    files[path] = stack.enter_context(safetensors.safe_open(path, framework="np"))
                except FileNotFoundError:
                    raise ValueError(
                        f"{path} does not exist, but {folder / _INDEX} lists it; copy or download "
                        "it again"
                    ) from None
                except safetensors.SafetensorError as error:
                    raise ValueError(
                        f"{path}: cannot be read ({error}); copy or download it again"
                    ) from None
            yield cls(folder, files, remedy, tied)

    @property
    def names(self) -> Collection[str]:
        """Names of the tensors."""
        return self._files.keys()

    def check_names(self, wanted: Collection[str], unused: Collection[str] = ()) -> None:
        """Raise ValueError unless all `wanted` tensors exist, and no others except `unused`."""
        found = set(self._files)
        missing = {name for name in wanted if not {name, self._tied.get(name)} & found}
        unknown = found - {*wanted, *unused, *self._tied.values()}
        for fault, names in (("lacks", missing), ("has unknown", unknown)):
            if names:
                shown = ", ".join(sorted(names)[:3]) + (", ..." if len(names) > 3 else "")
                raise ValueError(
                    f"{self._folder} {fault} tensors, {len(names)}: {shown}. It must hold one "
                    f"model, that of its config.json; {self._remedy}"
                )

    def read(self, name: str, shape: tuple[int, ...]) -> np.ndarray:
        """Read a tensor as float32.

        Raises:
          ValueError: the tensor has another shape, is not floating point, or differs from the one
            that it is tied to.
        """
        tied = self._tied.get(name, name)
        if name not in self._files:
            name = tied
        array = self._read(name, shape)
        if tied != name and tied in self._files and (array != self._read(tied, shape)).any():
            raise ValueError(
                f"{self._folder}: {name} and {tied} differ, but XLM-R's output layer is tied to "
                "its embeddings; such a model cannot be read"
            )
        return array

    def _read(self, name: str, shape: tuple[int, ...]) -> np.ndarray:
        path, file = self._files[name]
        array = file.get_tensor(name)
        if array.shape != shape:
            raise ValueError(
                f"{path}: {name} has shape {array.shape}, must be {shape} by config.json; are they "
                "of one model?"
            )
        if array.dtype not in _TYPES:
            raise ValueError(
                f"{path}: {name} is of type {array.dtype}, must be float32, float16 or bfloat16; "
                f"{self._remedy}"
            )
        return array.astype(np.float32)


def _weight_files(folder: pathlib.Path, remedy: str) -> list[pathlib.Path]:
    if (folder / WEIGHTS).exists():
        return [folder / WEIGHTS]
    index = folder / _INDEX
    if not index.exists():
        raise ValueError(
            f"{folder} has neither {WEIGHTS} nor {_INDEX}; other kinds of files, such as pickled "
            f"pytorch_model.bin, are never read: {remedy}"
        )
    try:
        names = sorted(set(artifacts.read_json(index)["weight_map"].values()))
        if not all(isinstance(name, str) for name in names):
            raise TypeError(f"files are {names[:3]}")
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(
            f"{index}: not an index of weights ({error!r}); copy or download it again"
        ) from None
    outside = [name for name in names if pathlib.Path(name).name != name]
    if outside:
        raise ValueError(f"{index}: lists {outside[0]!r}, which is not in its folder; not read")
    return [folder / name for name in names]
