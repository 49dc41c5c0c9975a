"""Files that are whole or absent, and folders that know what they were made from.

The one module every room may import; standard library only. A stage of the pipeline marks its
folder with the settings it ran under. The folder then refuses other settings, so that results of
two configs never mix, and a finished stage is recognised and not run again.
"""

import contextlib
import dataclasses
import fcntl
import hashlib
import json
import os
import pathlib
import socket
from collections.abc import Iterator
from typing import Any

_SETTINGS = "settings.json"
_DONE = "DONE"
_LOCK = "LOCK"


@contextlib.contextmanager
def atomic_path(path: str | os.PathLike[str]) -> Iterator[pathlib.Path]:
    """Yields a temporary path beside `path`, renamed to it when the block ends well."""
    path = pathlib.Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    # The suffix stays last: writers such as np.save and savefig go by it.
    # Hosts of one image may have the same process numbers.
    aside = path.with_name(f".{path.stem}.{socket.gethostname()}-{os.getpid()}{path.suffix}")
    try:
        yield aside
        os.replace(aside, path)
    finally:
        aside.unlink(missing_ok=True)


def write_text(path: str | os.PathLike[str], text: str) -> None:
    """Writes `text` as UTF-8, whole or not at all."""
    with atomic_path(path) as aside:
        aside.write_text(text, encoding="utf-8")


def write_bytes(path: str | os.PathLike[str], data: bytes) -> None:
    """Writes `data`, whole or not at all."""
    with atomic_path(path) as aside:
        aside.write_bytes(data)


def write_json(path: str | os.PathLike[str], value: Any) -> None:
    """Writes `value` as readable JSON, whole or not at all."""
    write_text(path, json.dumps(value, indent=1, ensure_ascii=False, sort_keys=True) + "\n")


def read_json(path: str | os.PathLike[str]) -> Any:
    """Reads a JSON file."""
    return json.loads(pathlib.Path(path).read_text(encoding="utf-8"))


def fingerprint(*values: Any) -> str:
    """A short hash of JSON-able values; equal values, and only those, share it."""
    text = json.dumps(values, ensure_ascii=False, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


@dataclasses.dataclass(frozen=True)
class Stage:
    """One stage's folder; see `open_stage`."""

    folder: pathlib.Path
    settings: Any
    defaults: Any = None

    @property
    def done(self) -> bool:
        """Whether the stage has finished here before, under the same settings."""
        return (self.folder / _DONE).exists() and self._claimed

    @property
    def _claimed(self) -> bool:
        path = self.folder / _SETTINGS
        return path.exists() and self._recorded() == self.settings

    def _recorded(self) -> Any:
        """Settings of the folder, with defaults for those that it was made before."""
        return _filled(read_json(self.folder / _SETTINGS), self.settings, self.defaults)

    def claim(self) -> None:
        """Reserves the folder for these settings, before what is in it depends on them."""
        if not self._claimed:
            (self.folder / _DONE).unlink(missing_ok=True)
            write_json(self.folder / _SETTINGS, self.settings)

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Claims the folder and keeps other processes out of it until the block ends.

        The system lets go of it if the process is killed. Hosts that do not share locks of files
        do not notice each other.

        Raises:
          ValueError: another process holds the folder.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        with open(self.folder / _LOCK, "w") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise ValueError(
                    f"another process is at work in {self.folder}; wait for it or stop it, or "
                    "choose another --workdir"
                ) from None
            self.claim()
            yield

    def finish(self) -> None:
        """Marks the folder as whole; the last thing a stage does."""
        self.claim()
        write_text(self.folder / _DONE, "")


def open_stage(
    folder: str | os.PathLike[str], settings: Any, *, defaults: Any = None, replace: bool = False
) -> Stage:
    """Opens `folder` for a stage that runs under `settings` (JSON-able).

    Nothing is written until the stage claims the folder or finishes, so that a stage that failed
    for its settings can be run again with better ones.

    Args:
      folder: the stage's own.
      settings: all that its results depend on.
      defaults: of settings, in their shape: what a folder was made with that does not name them,
        since the code did not know them yet. Where they have none, such a folder is refused.
      replace: whether results of other settings are made anew instead of refused. For a stage that
        writes each of its files whole and keeps nothing of the old ones.

    Raises:
      ValueError: the folder belongs to other settings; the message names each that differs.
    """
    folder = pathlib.Path(folder)
    # Tuples become lists, as when read back.
    settings, defaults = json.loads(json.dumps([settings, defaults]))
    stage = Stage(folder, settings, defaults)
    if (folder / _SETTINGS).exists() and not replace:
        found = stage._recorded()
        if found != settings:
            differences = "\n".join(_differences(found, settings))
            raise ValueError(
                f"{folder} was made under another config:\n{differences}\n"
                f"Choose another --workdir, or delete {folder} to make it anew."
            )
    return stage


def _filled(found: Any, wanted: Any, defaults: Any) -> Any:
    """`found`, with the defaults of what `wanted` has and it has not."""
    if not (isinstance(found, dict) and isinstance(wanted, dict) and isinstance(defaults, dict)):
        return found
    absent = {key: defaults[key] for key in defaults if key in wanted and key not in found}
    nested = {key: _filled(one, wanted.get(key), defaults.get(key)) for key, one in found.items()}
    return {**absent, **nested}


def _differences(found: Any, wanted: Any, path: str = "") -> Iterator[str]:
    """One line for every leaf in which two JSON values differ."""
    if isinstance(found, dict) and isinstance(wanted, dict):
        for key in sorted({*found, *wanted}):
            missing = "(absent)"
            yield from _differences(
                found.get(key, missing), wanted.get(key, missing), f"{path}.{key}".lstrip(".")
            )
    elif found != wanted:
        yield f"  {path}: there {found!r}, now {wanted!r}"
