"""Atomic files, and stage folders that record their provenance.

Any package may import this module; it needs the standard library only. A stage of the pipeline
records its settings in its folder. The folder then refuses other settings, so that results of two
configs never mix, and a finished stage is recognised and not run again.
"""

import contextlib
import dataclasses
import errno
import fcntl
import hashlib
import json
import os
import pathlib
import shutil
import socket
from collections.abc import Iterator, Sequence
from typing import Any

_SETTINGS = "settings.json"
_DONE = "DONE"
_LOCK = "LOCK"


@contextlib.contextmanager
def made_parents(path: pathlib.Path) -> Iterator[None]:
    """Make the folders above `path`; those that are made go again if the block fails."""
    made = [folder for folder in path.parents if not folder.exists()]
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        yield
    except BaseException:
        with contextlib.suppress(OSError):  # others have written there meanwhile
            for folder in made:
                folder.rmdir()
        raise


@contextlib.contextmanager
def atomic_path(path: str | os.PathLike[str]) -> Iterator[pathlib.Path]:
    """Yield a temporary path beside `path`, renamed to it when the block succeeds.

    Raises:
      OSError: the file cannot be written, or `path` is a folder, which is found before the block.
    """
    path = pathlib.Path(path)
    check_no_folder(path)
    aside = aside_of(path)
    with made_parents(path):
        try:
            yield aside
            os.replace(aside, path)
        except OSError as error:
            raise _with_path(error, path) from error
        finally:
            # Where a file is in place of a folder, the first error has been told.
            with contextlib.suppress(NotADirectoryError):
                aside.unlink(missing_ok=True)


def aside_of(path: pathlib.Path) -> pathlib.Path:
    """Return the path beside a file or folder at which this process writes it before a rename."""
    # The suffix stays last, since writers such as np.save and savefig depend on it.
    # Hosts of one image may have the same process ids.
    return path.with_name(f".{path.stem}.{socket.gethostname()}-{os.getpid()}{path.suffix}")


def check_no_folder(path: pathlib.Path) -> None:
    """Raise IsADirectoryError if `path`, a file to be written, is a folder."""
    if _is_unnamed(path) or path.is_dir():
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))


def _is_unnamed(path: pathlib.Path) -> bool:
    """Whether a path such as ".", "x/.." or "/" ends in no name of its own: it is a folder."""
    return path.name in ("", "..")


def _with_path(error: OSError, path: pathlib.Path) -> OSError:
    """Return an error of writing that names `path`: one of a full disk names no file."""
    if error.errno is None:
        return OSError(
            f"{path}: cannot be written ({error}); make room on the disk, or choose a folder on "
            "another one"
        )
    if error.filename is None:
        error.filename = str(path)
    return error


@contextlib.contextmanager
def atomic_files(folder: str | os.PathLike[str]) -> Iterator[pathlib.Path]:
    """Yield a temporary folder, whose files are moved to `folder` when the block succeeds.

    Raises:
      ValueError: `folder` is the root of the file system.
      OSError: `folder` is a file, or cannot be written.
    """
    # A relative one may have no name, as ".", and a link leads to another disk.
    folder = pathlib.Path(folder).resolve()
    if _is_unnamed(folder):
        raise ValueError(f"{folder}: the root folder is not written to; choose one below it")
    aside = aside_of(folder)
    with made_parents(folder):
        if folder.exists() and not folder.is_dir():
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(folder))
        # Of a process that was killed: in a container the next has its name and number.
        shutil.rmtree(aside, ignore_errors=True)
        aside.mkdir()
        try:
            yield aside
            folder.mkdir(exist_ok=True)
            for path in sorted(aside.iterdir()):
                os.replace(path, folder / path.name)
        finally:
            shutil.rmtree(aside, ignore_errors=True)


def write_text(path: str | os.PathLike[str], text: str) -> None:
    """Write `text` as UTF-8, atomically."""
    with atomic_path(path) as aside:
        aside.write_text(text, encoding="utf-8")


def write_bytes(path: str | os.PathLike[str], data: bytes) -> None:
    """Write `data`, atomically."""
    with atomic_path(path) as aside:
        aside.write_bytes(data)


def write_json(path: str | os.PathLike[str], value: Any) -> None:
    """Write `value` as indented JSON, atomically."""
    write_text(path, json.dumps(value, indent=1, ensure_ascii=False, sort_keys=True) + "\n")


def read_json(path: str | os.PathLike[str]) -> Any:
    """Read a JSON file.

    Raises:
      ValueError: it is not JSON, or not UTF-8; the message names path and line.
    """
    content = pathlib.Path(path).read_bytes()
    try:
        return json.loads(content.decode("utf-8"))
    except json.JSONDecodeError as error:
        fault, place = error.msg, error.lineno
    except UnicodeDecodeError as error:
        fault, place = str(error.reason), content.count(b"\n", 0, error.start) + 1
    except RecursionError:
        fault, place = "nested too deeply", 1
    raise ValueError(
        f"{path}, line {place}: not JSON ({fault}); the file may be cut off or damaged: copy or "
        "download it again, or remove it and run again what wrote it"
    )


def read_object(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Read a JSON file that holds one object.

    Raises:
      ValueError: as `read_json`, or it holds another value.
    """
    found = read_json(path)
    if not isinstance(found, dict):
        raise ValueError(
            f"{path}: holds {type(found).__name__}, must hold one JSON object; copy it again, or "
            "remove it and run again what wrote it"
        )
    return found


def fingerprint(*values: Any) -> str:
    """Short hash that identifies JSON-able values."""
    text = json.dumps(values, ensure_ascii=False, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


@dataclasses.dataclass(frozen=True)
class Stage:
    """Folder of a stage; see `open_stage`."""

    folder: pathlib.Path
    settings: Any
    defaults: Any = None
    uncompared: Sequence[str] = ()

    @property
    def done(self) -> bool:
        """Whether the stage has already finished here under the same settings."""
        return (self.folder / _DONE).exists() and self._claimed

    @property
    def _claimed(self) -> bool:
        path = self.folder / _SETTINGS
        return path.exists() and self._recorded() == self.settings

    def _recorded(self) -> Any:
        """Settings of the folder, with defaults for newer ones, and uncompared ones as wanted."""
        found = _filled(read_object(self.folder / _SETTINGS), self.settings, self.defaults)
        for path in self.uncompared:
            found = _with_wanted(found, self.settings, path.split("."))
        return found

    def claim(self) -> None:
        """Reserve the folder for these settings, before any of its contents depend on them."""
        if not self._claimed:
            (self.folder / _DONE).unlink(missing_ok=True)
            write_json(self.folder / _SETTINGS, self.settings)

    @contextlib.contextmanager
    def held(self, *, claims: bool = True) -> Iterator[None]:
        """Claim the folder and lock it against other processes until the block ends.

        The system releases the lock if the process is killed. Hosts without shared file locks do
        not exclude each other.

        Args:
          claims: whether to claim the folder at once; otherwise the block does, before it replaces
            results of other settings.

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
            if claims:
                self.claim()
            yield

    def finish(self) -> None:
        """Mark the folder as complete; the last action of a stage."""
        self.claim()
        write_text(self.folder / _DONE, "")


def open_stage(
    folder: str | os.PathLike[str],
    settings: Any,
    *,
    defaults: Any = None,
    uncompared: Sequence[str] = (),
    replace: bool = False,
) -> Stage:
    """Open `folder` for a stage with `settings` (JSON-able).

    Nothing is written until the stage claims the folder or finishes, so that a stage that failed
    because of its settings can be run again with others.

    Args:
      folder: of the stage.
      settings: everything that determines its results.
      defaults: values, in the structure of `settings`, for settings missing from the record of an
        older folder because the code did not have them yet. Without a default, such a folder is
        refused.
      uncompared: paths of settings, keys joined by dots, that are recorded and may differ, such as
        that of a folder whose contents other settings identify.
      replace: whether to replace results of other settings instead of refusing them. For a stage
        that writes each of its files atomically and reuses none of the old ones.

    Raises:
      ValueError: the folder belongs to other settings; the message names each that differs.
    """
    folder = pathlib.Path(folder)
    # Tuples become lists, as when read back.
    settings, defaults = json.loads(json.dumps([settings, defaults]))
    stage = Stage(folder, settings, defaults, uncompared)
    if (folder / _SETTINGS).exists() and not replace:
        found = stage._recorded()
        if found != settings:
            differences = "\n".join(_differences(found, settings))
            raise ValueError(
                f"{folder} was made under another config:\n{differences}\n"
                f"Choose another --workdir, or delete {folder} to make it anew."
            )
    return stage


def differences(
    folder: str | os.PathLike[str], sections: dict[str, dict[str, Any]], *, defaults: Any = None
) -> list[str]:
    """Return one line for each setting that differs from the record of a folder, if it has one.

    Args:
      folder: of a stage.
      sections: JSON-able settings by section. Sections and keys that they or the record lack are
        not compared.
      defaults: as of `open_stage`.
    """
    path = pathlib.Path(folder) / _SETTINGS
    recorded = read_object(path) if path.exists() else {}
    wanted, defaults = json.loads(json.dumps([sections, defaults]))
    wanted = {key: value for key, value in wanted.items() if isinstance(recorded.get(key), dict)}
    found = _filled({name: recorded[name] for name in wanted}, wanted, defaults)
    for name, section in wanted.items():
        found[name] = {key: value for key, value in found[name].items() if key in section}
    return list(_differences(found, wanted))


def _filled(found: Any, wanted: Any, defaults: Any) -> Any:
    """Add to `found` the defaults of keys that only `wanted` has."""
    if not (isinstance(found, dict) and isinstance(wanted, dict) and isinstance(defaults, dict)):
        return found
    absent = {key: defaults[key] for key in defaults if key in wanted and key not in found}
    nested = {key: _filled(one, wanted.get(key), defaults.get(key)) for key, one in found.items()}
    return {**absent, **nested}


def _with_wanted(found: Any, wanted: Any, path: Sequence[str]) -> Any:
    """Replace the value at a path of keys by that of `wanted`, where both have one."""
    if not path:
        return wanted
    key, *rest = path
    if not all(isinstance(one, dict) and key in one for one in (found, wanted)):
        return found
    return {**found, key: _with_wanted(found[key], wanted[key], rest)}


def _differences(found: Any, wanted: Any, path: str = "") -> Iterator[str]:
    """Yield one line for every leaf in which two JSON values differ."""
    if isinstance(found, dict) and isinstance(wanted, dict):
        for key in sorted({*found, *wanted}):
            missing = "(absent)"
            yield from _differences(
                found.get(key, missing), wanted.get(key, missing), f"{path}.{key}".lstrip(".")
            )
    elif found != wanted:
        yield f"  {path}: there {found!r}, now {wanted!r}"
