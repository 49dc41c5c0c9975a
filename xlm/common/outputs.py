"""Outputs of commands: new, or replaced by --overwrite; never a link, a device or an input.

A command enters `file` or `folder` before its work, and writes to the temporary path that it gets.
Both check the output then and again before publication, under a lock against other processes. A
hidden folder beside it has the lock and all unfinished files.
"""

import contextlib
import os
import pathlib
import shutil
from collections.abc import Callable, Iterator, Sequence

from absl import flags

from xlm.common import artifacts, places

_Output = contextlib.AbstractContextManager[pathlib.Path]
_Paths = Sequence[str | os.PathLike[str]]

flags.disclaim_key_flags()  # the flags below are those of the calling command


def define_flags(text: str) -> flags.FlagHolder[str | None]:
    """Define --output with the help `text`, and --overwrite; return the former."""
    flags.DEFINE_bool("overwrite", False, "Replace files of --output that exist.")
    return flags.DEFINE_string("output", None, text)


def file(name: str, inputs: _Paths = (), *, overwrite: bool | None = None) -> _Output:
    """Write a file, called `name` by the user, that is none of `inputs`.

    Raises ValueError or OSError if it is an input, exists and may not be replaced, is a folder, a
    link or a device, cannot be written, or another process writes it.
    """
    if places.is_url(name):
        return _in_bucket(name, inputs, is_folder=False, overwrite=overwrite)
    # Resolve the parent: links may lead elsewhere, and ".." out of a folder that does not exist.
    path = pathlib.Path(name).parent.resolve() / pathlib.Path(name).name

    inputs = [one for one in inputs if not places.is_url(one)]

    def check() -> None:
        if name.endswith(("/", "/.")):
            raise ValueError(f"{name} is a folder; name a file in it")
        artifacts.check_replaceable(path)
        for one in filter(os.path.exists, inputs if path.exists() else ()):
            if path.samefile(one):
                raise ValueError(f"{path} is an input, {one}; choose another path to write to")
        if path.exists() and not (flags.FLAGS.overwrite if overwrite is None else overwrite):
            raise ValueError(f"{path} exists; choose another path, or add --overwrite")

    return _written(name, check, artifacts.publish)


def folder(name: str, inputs: _Paths = (), *, overwrite: bool | None = None) -> _Output:
    """Write files to a folder, called `name` by the user, that neither is nor holds an input.

    Raises ValueError or OSError if it does, is not empty and may not be overwritten, has a link,
    folder or device of a file's name, cannot be written, or another process writes to it.
    """
    if places.is_url(name):
        return _in_bucket(name, inputs, is_folder=True, overwrite=overwrite)
    path = pathlib.Path(name).resolve()

    def check() -> None:
        for one in map(pathlib.Path, inputs):
            if path in (one.resolve(), *one.resolve().parents):
                raise ValueError(f"{path} is or holds an input, {one}; choose another folder")
        if os.path.islink(name) and not os.path.exists(name):
            raise ValueError(f"{name}: is a link to nothing; remove it, or name another folder")
        if os.path.ismount(path):
            raise ValueError(f"{path}: a disk is mounted there; name a folder inside it")
        if not (flags.FLAGS.overwrite if overwrite is None else overwrite):
            more = ", or add --overwrite to replace files in it" if overwrite is None else ""
            artifacts.check_empty(path, f"choose another folder{more}")

    return _written(name, check, _publish_files)


def parts(aside: pathlib.Path, key: str = "") -> pathlib.Path:
    """Folder for parts of `aside` that depend on `key`; kept until `aside` is published."""
    return aside.parents[1] / "parts" / key


@contextlib.contextmanager
def _in_bucket(
    url: str, inputs: _Paths, *, is_folder: bool, overwrite: bool | None
) -> Iterator[pathlib.Path]:
    if url in map(str, inputs):
        raise ValueError(f"{url} is an input; choose another path to write to")
    if is_folder:
        with places.locked(url) as copy, folder(str(copy), overwrite=overwrite) as aside:
            yield aside
        return
    target = places.path(url)
    if not (flags.FLAGS.overwrite if overwrite is None else overwrite) and target.exists():
        raise ValueError(f"{url} exists; choose another path, or add --overwrite")
    with places.written(url) as aside:
        yield aside


@contextlib.contextmanager
def _written(
    name: str, check: Callable[[], None], publish: Callable[[pathlib.Path, pathlib.Path], None]
) -> Iterator[pathlib.Path]:
    if name in ("", "-"):
        raise ValueError(f"--output is {name!r}, must be a path: results are written to files")
    check()
    path = pathlib.Path(name).resolve()
    # `_emptied` removes this folder, so its name must be unlike any of the user's.
    digest = artifacts.fingerprint(os.fsencode(path.name).hex())
    hidden = path.with_name(f".{path.name}.{digest}.output")
    try:
        with artifacts.made_parents(hidden):
            hidden.mkdir(exist_ok=True)
            with artifacts.locked(hidden, flag="--output"), _emptied(hidden):
                aside = hidden / "new" / path.name
                check()
                yield aside
                check()
                publish(aside, path)
                shutil.rmtree(hidden / "parts", ignore_errors=True)
    except OSError as error:
        if error.errno and str(error.filename or hidden).startswith(str(hidden)):
            error.filename = str(path)
        raise


@contextlib.contextmanager
def _emptied(hidden: pathlib.Path) -> Iterator[None]:
    """Remove the files of a killed process, and at the end all but parts."""
    shutil.rmtree(hidden / "new", ignore_errors=True)
    (hidden / "new").mkdir()
    try:
        yield
    finally:
        shutil.rmtree(hidden / "new", ignore_errors=True)
        (hidden / artifacts.LOCK).unlink(missing_ok=True)
        with contextlib.suppress(OSError):  # parts are there
            hidden.rmdir()


def _publish_files(aside: pathlib.Path, folder: pathlib.Path) -> None:
    """Move files to a folder, all at once if it is new; replace files of the same names."""
    if not folder.exists():
        artifacts.publish(aside, folder)
        return
    names = sorted(one.relative_to(aside) for one in aside.rglob("*") if one.is_file())
    for name in names:
        links = [one for one in list(name.parents)[:-1] if (folder / one).is_symlink()]
        for one in (*links, name):  # links lead elsewhere, and are refused
            artifacts.check_replaceable(folder / one)
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        artifacts.publish(aside / name, folder / name)
