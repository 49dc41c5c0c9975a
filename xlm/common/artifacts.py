"""Atomic files, and stage folders that record their provenance; needs the standard library only.

A stage of the pipeline records its settings in its folder. The folder then refuses other settings,
so results of two configs never mix. A finished stage does nothing when it is started again.
"""

import contextlib
import dataclasses
import errno
import fcntl
import hashlib
import json
import math
import os
import pathlib
import re
import secrets
import shutil
import stat
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

# Limit on files to read whole. Larger ones are refused before they take memory.
MAX_BYTES = 1 << 30
_SETTINGS = "settings.json"
_DONE = "DONE"
LOCK = "LOCK"
# Names of `aside_of`, unlike any user's file.
_ASIDE = re.compile(r"\..*\.[0-9a-f]{16}\.tmp(\.[^.]*)?")
# Reading the umask sets it for all threads, so read it only once.
_UMASK = os.umask(0o077)
os.umask(_UMASK)


@contextlib.contextmanager
def made_parents(path: pathlib.Path) -> Iterator[None]:
    """Make the folders above `path`; remove them again if the block fails."""
    made = [folder for folder in path.parents if not folder.exists()]
    path.parent.mkdir(parents=True, exist_ok=True)
    for folder in made:
        sync(folder.parent)
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

    A power cut then loses neither file nor name, which are synced to the disk. Raises OSError if
    writing fails, and before the block if `path` is no regular file.
    """
    path = pathlib.Path(path)
    check_replaceable(path)
    aside = aside_of(path)
    with made_parents(path):
        try:
            yield aside
            publish(aside, path)
        except OSError as error:
            raise _with_path(error, path) from error
        finally:
            # If a file stands in place of a folder, an error says so already.
            with contextlib.suppress(NotADirectoryError):
                aside.unlink(missing_ok=True)


def publish(aside: pathlib.Path, path: pathlib.Path) -> None:
    """Rename a file or folder to `path` once it is on the disk; the umask says who can read it."""
    for one in (aside, *aside.rglob("*")):
        mode = one.stat().st_mode
        if stat.S_ISREG(mode) and (public := mode | 0o666 & ~_UMASK) != mode:
            one.chmod(stat.S_IMODE(public))
    sync_tree(aside)
    os.replace(aside, path)
    sync(path.parent)


def sync_tree(path: pathlib.Path) -> None:
    """Wait until a file, or a folder with all its contents, is on the disk."""
    for folder, _, names in os.walk(path):
        for name in (*names, "."):
            sync(pathlib.Path(folder, name))
    if not path.is_dir():
        sync(path)


def sync(path: pathlib.Path) -> None:
    """Wait until a file, or the names in a folder, are on the disk."""
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except PermissionError:  # a folder to write to, but not to list
        return
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):  # no folders, on some file systems
            raise
    finally:
        os.close(descriptor)


def aside_of(path: pathlib.Path) -> pathlib.Path:
    """Return a new path beside a file or folder at which to write it before a rename."""
    # The suffix stays last, since np.save and savefig depend on it.
    return path.with_name(f".{path.stem}.{secrets.token_hex(8)}.tmp{path.suffix}")


def remove_leftovers(folder: pathlib.Path) -> None:
    """Remove temporary files of killed processes in a folder that this process has locked."""
    for parent, folders, names in os.walk(folder):
        # Commands clear these themselves, see `outputs`.
        folders[:] = [name for name in folders if not name.endswith(".output")]
        for name in filter(_ASIDE.fullmatch, names):
            pathlib.Path(parent, name).unlink(missing_ok=True)
        for name in list(filter(_ASIDE.fullmatch, folders)):
            folders.remove(name)
            shutil.rmtree(pathlib.Path(parent, name), ignore_errors=True)


def check_plain(path: pathlib.Path, name: str = "") -> None:
    """Raise ValueError if checkpoints cannot be written below an absolute path, called `name`.

    Orbax reads "*", "?" and "[" as patterns. Tensorstore reads a backslash as a separator and "gs:"
    as a bucket. Neither takes names that are not UTF-8. Control characters break scripts.
    """
    found = re.search(
        r"[*?\[\\\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]|/gs:(?=/|\Z)", str(path)
    )
    if found:
        raise ValueError(
            f"{name or 'the folder'} is {str(path)!r}, with {found[0]!r}; paths of runs must be "
            "without * ? [ \\ gs: and control characters, and UTF-8: choose another folder"
        )


def check_replaceable(path: pathlib.Path) -> None:
    """Raise OSError unless `path` is a regular file or absent, and no device or link."""
    # A path such as ".", "x/.." or "/" ends in no name of its own: it is a folder.
    if path.name in ("", "..") or (path.is_dir() and not path.is_symlink()):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    with contextlib.suppress(FileNotFoundError, NotADirectoryError):
        _check_regular(path, path.lstat().st_mode, "written")


def _check_regular(path: pathlib.Path, mode: int, verb: str) -> None:
    if not stat.S_ISREG(mode):
        kinds = {stat.S_IFLNK: "a link", stat.S_IFIFO: "a pipe", stat.S_IFSOCK: "a socket"}
        kind = kinds.get(stat.S_IFMT(mode), "a device")
        raise OSError(
            f"{path}: is {kind}; only regular files are {verb}: choose another path, or move it"
        )


def _check_folders(folder: pathlib.Path) -> None:
    """Raise ValueError if a folder in `folder` is a link to a place that is not the stage's."""
    for one in sorted(folder.iterdir()):
        if one.is_symlink() and one.is_dir():
            raise ValueError(
                f"{one}: is a link to a folder, in which a stage would write and remove files; "
                "put the folder itself there, or link the whole --workdir"
            )


def _with_path(error: OSError, path: pathlib.Path) -> OSError:
    """Return an error of writing that names `path`; the system's error on a full disk does not."""
    if error.errno is None:
        return OSError(
            f"{path}: cannot be written ({error}); make room on the disk, or choose a folder on "
            "another one"
        )
    if error.filename is None:
        error.filename = str(path)
    return error


def check_empty(folder: pathlib.Path, remedy: str = "choose another folder") -> None:
    if folder.exists() and any(folder.iterdir()):
        raise ValueError(f"{folder} is not empty; {remedy}")


def write_text(path: str | os.PathLike[str], text: str) -> None:
    write_bytes(path, text.encode())


def write_bytes(path: str | os.PathLike[str], data: bytes) -> None:
    with atomic_path(path) as aside:
        aside.write_bytes(data)


def with_nulls(value: Any) -> Any:
    """Replace numbers that are not finite (means over no examples) by None."""
    if isinstance(value, dict):
        return {key: with_nulls(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [with_nulls(one) for one in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def write_json(path: str | os.PathLike[str], value: Any) -> None:
    """Write indented JSON, atomically; raise ValueError for numbers that are not finite."""
    options: dict[str, Any] = {"indent": 1, "ensure_ascii": False, "sort_keys": True}
    try:
        text = json.dumps(value, allow_nan=False, **options)
    except ValueError as error:
        raise ValueError(f"{path} cannot be written as JSON: {error}") from error
    write_text(path, text + "\n")


def read_bytes(path: str | os.PathLike[str], most: int = MAX_BYTES) -> bytes:
    """Read a regular file; OSError if it is none or unreadable, ValueError above `most` bytes."""
    path = pathlib.Path(path)
    with open(path, "rb", opener=_open_regular) as file:
        if (size := os.fstat(file.fileno()).st_size) > most:
            raise ValueError(
                f"{path}: {size:,} bytes, must be at most {most:,}; it is no file of this kind: "
                "correct the path, or copy it again"
            )
        return file.read(size)  # read(most) would allocate `most` bytes


def existing(path: str | os.PathLike[str]) -> pathlib.Path:
    """Return the path of a file; ValueError if there is none."""
    if not os.path.isfile(path):
        raise ValueError(f"{path}: no such file; correct the path")
    return pathlib.Path(path)


def check_readable(path: str | os.PathLike[str]) -> None:
    """Raise OSError unless `path` is a regular file, or a link to one."""
    found = os.stat(path)
    if stat.S_ISDIR(found.st_mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    _check_regular(pathlib.Path(path), found.st_mode, "read")


def _open_regular(path: str, flags: int) -> int:
    """Open a regular file, without waiting for the writer of a pipe."""
    check_readable(path)
    return os.open(path, flags | os.O_NONBLOCK)


def read_json(path: str | os.PathLike[str]) -> Any:
    """Read JSON; raise ValueError, with path and line, if the file is not JSON or not UTF-8."""
    content = read_bytes(path)
    try:
        return json.loads(content.decode("utf-8"))
    except json.JSONDecodeError as error:
        fault, place = error.msg, error.lineno
    except UnicodeDecodeError as error:
        fault, place = str(error.reason), content.count(b"\n", 0, error.start) + 1
    except RecursionError:
        fault, place = "nested too deeply", 1
    except ValueError as error:  # a whole number of thousands of digits
        fault, place = str(error), 1
    raise ValueError(
        f"{path}, line {place}: not JSON ({fault}); the file may be cut off or damaged: copy or "
        "download it again, or remove it and rerun the command that wrote it"
    )


def read_object(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Read JSON as `read_json`; raise ValueError also if the file holds no object."""
    found = read_json(path)
    if not isinstance(found, dict):
        raise ValueError(
            f"{path}: holds {type(found).__name__}, must hold one JSON object; copy it again, or "
            "remove it and rerun the command that wrote it"
        )
    return found


def fingerprint(*values: Any) -> str:
    """Return a short hash that identifies JSON-able values."""
    text = json.dumps(values, ensure_ascii=False, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


@dataclasses.dataclass(frozen=True)
class Stage:
    """Folder of a stage; see `open_stage`."""

    folder: pathlib.Path
    settings: Any
    defaults: Any = None
    uncompared: Sequence[str] = ()
    replace: Callable[[], bool] = lambda: False
    reads: Sequence[pathlib.Path] = ()

    @property
    def done(self) -> bool:
        """Whether the stage has already finished here under the same settings."""
        return (self.folder / _DONE).exists() and self.claimed

    @property
    def claimed(self) -> bool:
        """Whether the folder is reserved for these settings."""
        path = self.folder / _SETTINGS
        return path.exists() and self._recorded() == self.settings

    def _recorded(self) -> Any:
        """Settings of the folder, with defaults for newer ones and wanted uncompared ones."""
        found = _filled(read_object(self.folder / _SETTINGS), self.settings, self.defaults)
        for path in self.uncompared:
            found = _with_wanted(found, self.settings, path.split("."))
        return found

    def changes(self) -> dict[str, tuple[Any, Any]]:
        """Settings that differ from the record of the folder, by path: recorded and present."""
        if self.settings is None or not (self.folder / _SETTINGS).exists():
            return {}
        return dict(_differences(self._recorded(), self.settings))

    def check(self) -> None:
        """Raise ValueError if the folder belongs to other settings and may not be replaced."""
        if not self.replace() and (changes := self.changes()):
            differences = "\n".join(_lines(changes))
            raise ValueError(
                f"{self.folder} was made under another config:\n{differences}\n"
                "Choose another --workdir, or set the keys back."
            )

    def claim(self) -> None:
        """Reserve the folder for these settings, before its contents depend on them."""
        if not self.claimed:
            self.record()

    def record(self) -> None:
        """Record these settings, also uncompared ones, in place of the folder's."""
        (self.folder / _DONE).unlink(missing_ok=True)
        write_json(self.folder / _SETTINGS, self.settings)

    def has_recorded(self, paths: Iterable[str]) -> bool:
        """Whether the folder's record has these settings at `paths`, keys joined by dots."""
        found = _filled(read_object(self.folder / _SETTINGS), self.settings, self.defaults)
        return all(_with_wanted(found, self.settings, one.split(".")) == found for one in paths)

    @contextlib.contextmanager
    def locked(self, *, claims: bool = True) -> Iterator[None]:
        """Claim the folder and lock it against other processes until the block ends.

        Folders that the stage reads are locked against writers. The system releases the locks of a
        killed process. Hosts without shared file locks do not exclude each other. Without `claims`,
        the block itself claims the folder before it replaces results of other settings. Raises
        ValueError if another process holds a folder, or has claimed it for other settings.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        with contextlib.ExitStack() as stack:
            for folder in self.reads:
                stack.enter_context(locked(folder, is_shared=True))
            stack.enter_context(locked(self.folder))
            self.check()
            _check_folders(self.folder)
            remove_leftovers(self.folder)
            if claims:
                self.claim()
            yield

    def finish(self) -> None:
        """Mark the folder as complete, at the end of a stage."""
        self.claim()
        write_text(self.folder / _DONE, "")


@contextlib.contextmanager
def locked(
    folder: pathlib.Path, *, is_shared: bool = False, flag: str = "--workdir"
) -> Iterator[None]:
    """Lock an existing folder against other processes until the block ends.

    Other processes may share a lock that `is_shared`. `flag` names the folder in messages. The
    holder may remove the lock file. Raises ValueError if another process holds the lock.
    """
    path = folder / LOCK
    flags = os.O_RDWR | os.O_CREAT | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        descriptor = os.open(path, flags, 0o666)
    except OSError:
        if not is_shared:
            raise
        yield  # other processes cannot write to it either
        return
    with open(descriptor) as file:
        _check_regular(path, os.fstat(file.fileno()).st_mode, "locked")
        try:
            fcntl.flock(file, (fcntl.LOCK_SH if is_shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
            if not os.fstat(file.fileno()).st_nlink:
                raise BlockingIOError
        except BlockingIOError:
            raise ValueError(
                f"another process is at work in {folder}; wait for it or stop it, or choose "
                f"another {flag}"
            ) from None
        yield


def open_stage(
    folder: str | os.PathLike[str], settings: Any, *, defaults: Any = None,
    uncompared: Sequence[str] = (), replace: Callable[[], bool] = lambda: False,
    reads: Sequence[pathlib.Path] = (),
) -> Stage:  # fmt: skip
    """Open `folder` for a stage with `settings` (JSON-able).

    The stage writes nothing until it claims the folder or finishes. So a stage that failed because
    of its settings can start again with others. Raises ValueError, with all differences, if the
    folder belongs to other settings.

    Args:
      defaults: values, in the structure of `settings`, for settings that an older record lacks. A
        record that lacks a setting without a default is refused. None marks a setting of older
        records that is gone.
      uncompared: dotted paths of recorded settings that may differ, such as that of a folder whose
        contents other settings identify.
      replace: whether to replace results of other settings, asked again under the lock. For stages
        that write each file atomically and reuse no old ones.
      reads: folders of earlier stages, whose files must stay during this one.
    """
    # Tuples become lists, as in a record.
    settings, defaults = json.loads(json.dumps([settings, defaults]))
    stage = Stage(pathlib.Path(folder), settings, defaults, uncompared, replace, reads)
    stage.check()
    return stage


def differences(
    folder: str | os.PathLike[str], sections: dict[str, dict[str, Any]], *, defaults: Any = None
) -> list[str]:
    """Return a line for each setting that differs from the record of a folder, if it has one.

    `sections` are JSON-able settings. The comparison ignores sections and keys that they or the
    record lack. `defaults` are those of `open_stage`.
    """
    path = pathlib.Path(folder) / _SETTINGS
    recorded = read_object(path) if path.exists() else {}
    wanted, defaults = json.loads(json.dumps([sections, defaults]))
    wanted = {key: value for key, value in wanted.items() if isinstance(recorded.get(key), dict)}
    found = _filled({name: recorded[name] for name in wanted}, wanted, defaults)
    for name, section in wanted.items():
        found[name] = {key: value for key, value in found[name].items() if key in section}
    return _lines(dict(_differences(found, wanted)))


def _filled(found: Any, wanted: Any, defaults: Any) -> Any:
    """Add to `found` the defaults of keys that only `wanted` has; drop keys that are gone."""
    if not (isinstance(found, dict) and isinstance(wanted, dict) and isinstance(defaults, dict)):
        return found
    absent = {key: defaults[key] for key in defaults if key in wanted and key not in found}
    nested = {
        key: _filled(one, wanted.get(key), defaults.get(key))
        for key, one in found.items()
        if key in wanted or defaults.get(key, 0) is not None
    }
    return {**absent, **nested}


def _with_wanted(found: Any, wanted: Any, path: Sequence[str]) -> Any:
    """Replace the value at a path of keys by the one in `wanted`, if both have one."""
    if not path:
        return wanted
    key, *rest = path
    if not all(isinstance(one, dict) and key in one for one in (found, wanted)):
        return found
    return {**found, key: _with_wanted(found[key], wanted[key], rest)}


def _differences(found: Any, wanted: Any, path: str = "") -> Iterator[tuple[str, tuple[Any, Any]]]:
    """Yield path and values of every leaf in which two JSON values differ."""
    if isinstance(found, dict) and isinstance(wanted, dict):
        for key in sorted({*found, *wanted}):
            missing = "(absent)"
            yield from _differences(
                found.get(key, missing), wanted.get(key, missing), f"{path}.{key}".lstrip(".")
            )
    elif found != wanted:
        yield path, (found, wanted)


def _lines(changes: dict[str, tuple[Any, Any]]) -> list[str]:
    return [f"  {path}: there {old!r}, now {new!r}" for path, (old, new) in changes.items()]
