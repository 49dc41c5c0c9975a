"""Places of files: paths of this machine, and URLs of buckets, such as s3://BUCKET/run.

Readers stream text from its place. Stages map other files into memory, rename them and append, so
they work on a local copy of the folder. `fetched` brings a copy to read, `locked` a copy to write,
which it publishes while the stage works. A bucket cannot rename a folder. So readers believe one
object, `MANIFEST`, written after all that it lists. The packages of the extra `remote` find the
credentials.
"""

import contextlib
import fcntl
import glob as local_glob
import hashlib
import io
import json
import logging
import os
import pathlib
import re
import secrets
import shutil
import socket
import tempfile
import threading
import time
from collections.abc import Iterator
from typing import Any, BinaryIO

from xlm.common import artifacts, packages

# Variables: the folder of local copies, by default `vocap/places` below $XDG_CACHE_HOME or
# ~/.cache; the gigabytes that it may hold; the seconds between publications of a stage at work.
CACHE, CACHE_GB, PUBLISH_SECONDS = "XLM_CACHE", "XLM_CACHE_GB", "XLM_PUBLISH_SECONDS"
MANIFEST, LOCK = ".published.json", ".lock.json"
# Marks of finished stages. A publication removes them before it changes other files.
_MARK = re.compile(r"(.*/)?(DONE|meta\.json)")
_UNFINISHED = re.compile(r"LOCK|\..*\.tmp(\..*)?|.*\.output|.*\.orbax-checkpoint-tmp.*")
_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")
# Large blocks, since a request may take 50 ms. A thread that reads ahead outlives its reader, and
# is not needed: other processes compute while one waits.
_STREAM = {"block_size": 8 << 20, "cache_type": "readahead"}
_LOCK_SECONDS = 300  # without a sign of its owner, a lock is void
_BUSY = "a process on {} works on {}; wait for it or stop it, or choose another folder"

_held: set[str] = set()  # by this process


def is_url(name: str | os.PathLike[str]) -> bool:
    return _URL.match(str(name)) is not None


def check(name: str) -> None:
    """Raise ValueError unless the packages for a URL's scheme are installed."""
    with packages.needed(name, "remote"):
        import fsspec
        import upath  # noqa: F401

        try:
            fsspec.get_filesystem_class(name.partition("://")[0])
        except ValueError as error:
            raise ValueError(f"{error}; correct the URL") from error


def path(name: str | os.PathLike[str]) -> Any:
    """Return a pathlib.Path, or for a URL a path with the same methods."""
    if not is_url(name):
        return pathlib.Path(name)
    check(str(name))
    import upath

    found = upath.UPath(str(name))
    found.fs.invalidate_cache()  # of listings, which others may have changed
    return found


def join(root: Any, name: str) -> Any:
    """Return `name` below `root`, or by itself if it is absolute or a URL."""
    if is_url(name) or os.path.isabs(name):
        return path(name)
    return root.joinpath(*pathlib.PurePath(name).parts)  # a bucket has no folder "."


def glob(root: Any, pattern: str) -> list[Any]:
    """Return the paths below `root` that match a glob pattern, `**` for any folders."""
    if isinstance(root, pathlib.Path):
        return [root / one for one in local_glob.glob(pattern, root_dir=root, recursive=True)]
    folder = root.path.rstrip("/")
    return [root / one[len(folder) + 1 :] for one in root.fs.glob(f"{folder}/{pattern}")]


def matching(pattern: str) -> list[Any]:
    """Return the files that match a glob pattern, a path or a URL."""
    if not is_url(pattern):
        return [pathlib.Path(one) for one in local_glob.glob(pattern, recursive=True)]
    root = path(pattern)
    return [path(root.fs.unstrip_protocol(one)) for one in root.fs.glob(root.path)]


@contextlib.contextmanager
def written(name: str | os.PathLike[str]) -> Iterator[pathlib.Path]:
    """Yield a temporary path on a disk; its file then appears at `name` as a whole."""
    if not is_url(name):
        with artifacts.atomic_path(name) as aside:
            yield aside
        return
    target = path(name)
    with tempfile.TemporaryDirectory() as scratch:
        yield (aside := pathlib.Path(scratch, "file"))
        target.fs.put_file(str(aside), target.path)


def remove(url: str) -> None:
    """Remove a folder of a bucket with its files, if it is there."""
    if (folder := path(url)).exists():
        folder.fs.rm(folder.path, recursive=True)


def opened(path: Any) -> BinaryIO:
    """Open a file for reading bytes, in a bucket by ranges of 8 MiB."""
    if isinstance(path, pathlib.Path):
        return open(path, "rb")
    return io.BufferedReader(path.fs.open(path.path, "rb", **_STREAM), 1 << 20)


def state(path: Any) -> tuple[int, int]:
    """Return size and time (ns) of a file; in a bucket, size and a hash of its version."""
    if not isinstance(path, pathlib.Path):
        return _version(path.fs.info(path.path))
    found = path.stat()
    return found.st_size, found.st_mtime_ns


def _version(info: dict[str, Any]) -> tuple[int, int]:
    keys = ("generation", "ETag", "etag", "md5", "LastModified", "mtime", "created")
    version = next((str(info[key]) for key in keys if info.get(key)), "")
    return int(info["size"]), int(hashlib.sha256(version.encode()).hexdigest()[:12], 16)


def _cache() -> pathlib.Path:
    parent = os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache"
    return pathlib.Path(os.environ.get(CACHE) or pathlib.Path(parent, "vocap", "places")).absolute()


def local(name: str | os.PathLike[str]) -> pathlib.Path:
    """Return the path itself, or for a URL the path of its local copy."""
    return _Place(str(name)).copy if is_url(name) else pathlib.Path(name)


def fetched(name: str | os.PathLike[str]) -> pathlib.Path:
    """Return a path to read a file or folder; from a bucket, that of a fresh local copy.

    Raises ValueError if it does not exist, or copies would take more than `CACHE_GB`.
    """
    if not is_url(name):
        return pathlib.Path(name)
    place = _Place(str(name))
    # A copy that a process of this machine holds is newer than the bucket.
    with contextlib.suppress(BlockingIOError), _flock(place.side / "HELD"):
        with _naming(place.url):
            place.fetch()
        if not place.known["files"]:
            raise ValueError(f"{name}: there is no such file or folder; correct the URL")
    return place.copy


@contextlib.contextmanager
def locked(name: str | os.PathLike[str]) -> Iterator[pathlib.Path]:
    """Work on a folder until the block ends; for a bucket, on a copy that is published.

    Publishes every `PUBLISH_SECONDS`, 30 by default, and whenever the block ends. A process may
    nest blocks. Raises ValueError if another process works on the folder, OSError if the last
    publication fails.
    """
    url = str(name).rstrip("/")
    if not is_url(url) or url in _held:
        yield local(url)
        return
    place = _Place(url)
    with contextlib.ExitStack() as stack:
        try:
            stack.enter_context(_flock(place.side / "HELD"))
        except BlockingIOError:
            raise ValueError(_BUSY.format("this machine", url)) from None
        with _naming(place.url):
            stack.enter_context(place.locked())
            place.fetch()
        logging.info("%s has its local copy in %s", url, place.copy)
        _held.add(url)
        stack.callback(_held.remove, url)
        stack.enter_context(place.published())
        yield place.copy


@contextlib.contextmanager
def _naming(url: str) -> Iterator[None]:
    """Turn an error of a store, such as a missing bucket, into a ValueError."""
    try:
        yield
    except OSError as error:
        raise ValueError(
            f"{url}: {error}; correct the URL, or give this machine's account the right to it"
        ) from error


class _Place:
    """A file or folder of a bucket, and its local copy.

    `known` is the last manifest equal to the copy: a random "id", and "files" by name. A file has
    its size and the time of its last change (ns), a link its target.
    """

    def __init__(self, url: str):
        check(url)
        import fsspec

        self.url = url.rstrip("/")
        self._fs, self._root = fsspec.url_to_fs(self.url, use_listings_cache=False)
        self.side = _cache() / artifacts.fingerprint(self.url)
        self.copy = self.side / self.url.rpartition("/")[2]
        self._record = self.side / MANIFEST
        self.known: dict[str, Any] = {"id": "", "files": {}}
        self._token, self._host = secrets.token_hex(8), socket.gethostname()

    def _key(self, name: str) -> str:
        return f"{self._root}/{name}".rstrip("/")

    def fetch(self) -> None:
        """Bring the copy up to date.

        Unpublished files of a killed stage stay, unless another machine has published since.
        """
        with _flock(self.side / "FETCH", waits=True):
            if self._record.exists():
                self.known = artifacts.read_object(self._record)
            for is_last in (False, False, False, True):
                there = self._read(MANIFEST) or self._listed()
                try:
                    if there["id"] != self.known["id"]:
                        self._bring(there["files"])
                        self.known = there
                        artifacts.write_json(self._record, there)
                    return
                except FileNotFoundError:  # another version was published meanwhile
                    if is_last:
                        raise

    def _read(self, name: str) -> Any:
        """Read an object of JSON; None if there is none."""
        try:
            return json.loads(self._fs.cat_file(self._key(name)))
        except (FileNotFoundError, NotADirectoryError):
            return None

    def _listed(self) -> dict[str, Any]:
        """Describe a file or folder without a manifest."""
        found = self._fs.find(self._root, detail=True)
        files = {one[len(self._root) + 1 :]: list(_version(found[one])) for one in found}
        files.pop(LOCK, None)
        return {"id": artifacts.fingerprint(files), "files": files}

    def _bring(self, there: dict[str, Any]) -> None:
        for name, entry in there.items():
            target = f"{os.path.dirname(name)}/{entry}" if isinstance(entry, str) else name
            if os.path.normpath(f"./{target}").startswith("..") or name.startswith("/"):
                raise ValueError(
                    f"{self.url} lists {name!r}, outside of it; remove it from the list"
                )
        here = _scan(self.copy)
        for name in here:
            if here[name] != there.get(name):
                (self.copy / name).unlink()
        needed = {name: there[name] for name in there if here.get(name) != there[name]}
        files = [name for name in needed if isinstance(needed[name], list)]
        asides = [artifacts.aside_of(self.copy / name) for name in files]
        _check_room(sum(there[name][0] for name in files))
        for name, target in needed.items():
            (self.copy / name).parent.mkdir(parents=True, exist_ok=True)
            if name not in files:
                (self.copy / name).symlink_to(target, target_is_directory=True)
        if files:
            self._fs.get(list(map(self._key, files)), list(map(str, asides)))
        for name, aside in zip(files, asides, strict=True):
            os.utime(aside, ns=(there[name][1],) * 2)
            aside.replace(self.copy / name)

    @contextlib.contextmanager
    def published(self) -> Iterator[None]:
        """Publish the copy again and again until the block ends, and then once more."""
        ends, every = threading.Event(), float(os.environ.get(PUBLISH_SECONDS) or 30)
        # Without a manifest, readers would take a cut-off first publication for a whole one.
        self._publish_manifest(self.known["files"])

        def work() -> None:
            while not ends.wait(every):
                try:
                    self._publish()
                except Exception as error:  # of any package; the last publication raises
                    logging.warning("%s: not published yet: %s", self.url, error)

        thread = threading.Thread(target=work, daemon=True)
        thread.start()
        try:
            yield
        finally:
            ends.set()
            thread.join()
            self._publish()

    def _publish(self) -> None:
        """Upload changed files, then the manifest, and then remove files that are gone."""
        self._renew()
        known, links = self.known["files"], self.side / "upload"
        shutil.rmtree(links, ignore_errors=True)
        links.mkdir()
        now = self._snapshot(links)
        changed = {name for name in (*now, *known) if now.get(name) != known.get(name)}
        if not changed:
            return
        if marks := {one for one in changed & known.keys() if _MARK.fullmatch(one)}:
            self._publish_manifest({one: known[one] for one in known if one not in marks})
        if files := [name for name in changed if isinstance(now.get(name), list)]:
            sources = [str(links / artifacts.fingerprint(name)) for name in files]
            self._fs.put(sources, list(map(self._key, files)))
        self._publish_manifest(now)
        for name in known.keys() - now.keys():
            with contextlib.suppress(FileNotFoundError):
                self._fs.rm_file(self._key(name))

    def _snapshot(self, links: pathlib.Path) -> dict[str, Any]:
        """Return the content of the copy at one moment, and link its unpublished files there."""
        while True:
            now = _scan(self.copy)
            with contextlib.suppress(FileNotFoundError):  # renamed or removed meanwhile
                for name, found in now.items():
                    link = links / artifacts.fingerprint(name)
                    if isinstance(found, list) and self.known["files"].get(name) != found:
                        link.unlink(missing_ok=True)
                        os.link(self.copy / name, link)
                if _scan(self.copy).keys() == now.keys():
                    return now

    def _publish_manifest(self, files: dict[str, Any]) -> None:
        self.known = {"id": secrets.token_hex(8), "files": files}
        self._fs.pipe_file(self._key(MANIFEST), json.dumps(self.known).encode())
        artifacts.write_json(self._record, self.known)

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the lock of a folder, an object that the store creates only once."""
        for is_last in (False, True):
            with contextlib.suppress(FileExistsError):
                self._sign(mode="create")
                break
            found = self._read(LOCK) or {"host": self._host, "time": 0}
            age = time.time() - found["time"]
            # An owner on this machine has ended, since this process has the local lock.
            if is_last or (found["host"] != self._host and age < _LOCK_SECONDS):
                raise ValueError(
                    f"{_BUSY.format(found['host'], self.url)} (its lock is void after "
                    f"{_LOCK_SECONDS} s without a sign, the last {age:.0f} s ago)"
                )
            with contextlib.suppress(FileNotFoundError):
                self._fs.rm_file(self._key(LOCK))
        try:
            yield
        finally:
            if (self._read(LOCK) or {}).get("token") == self._token:
                self._fs.rm_file(self._key(LOCK))

    def _sign(self, **mode: str) -> None:
        content = {"token": self._token, "host": self._host, "time": time.time()}
        self._fs.pipe_file(self._key(LOCK), json.dumps(content).encode(), **mode)

    def _renew(self) -> None:
        """Give a sign that the owner of the lock is at work; OSError if another one has it."""
        found = self._read(LOCK) or {}
        if found.get("token") != self._token:
            raise OSError(
                f"{self.url}: a process on {found.get('host')} has taken the folder over; the "
                f"unpublished files of this one are in {self.copy}: stop one of them"
            )
        self._sign()


def _scan(folder: pathlib.Path) -> dict[str, Any]:
    """Describe a local folder, or a file, called "", as a manifest, without unfinished files."""
    if folder.is_file():
        return {"": list(state(folder))}
    found: dict[str, Any] = {}
    for parent, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if not _UNFINISHED.fullmatch(name)]
        for name in (*names, *folders):
            one = pathlib.Path(parent, name)
            with contextlib.suppress(FileNotFoundError):
                if one.is_symlink():
                    found[str(one.relative_to(folder))] = os.readlink(one)
                elif name in names and not _UNFINISHED.fullmatch(name):
                    found[str(one.relative_to(folder))] = list(state(one))
    return found


def _check_room(size: int) -> None:
    """Raise ValueError if all copies with `size` more bytes would exceed their limit."""
    most = float(os.environ.get(CACHE_GB) or 500)
    total = (size + sum(one[0] for one in _scan(_cache()).values() if isinstance(one, list))) / 1e9
    if size and total > most:
        raise ValueError(
            f"{_cache()} would hold {total:.3g} GB, may hold {most:g}; remove folders that "
            f"no run needs, set {CACHE_GB} to more, or {CACHE} to a folder on another disk"
        )


@contextlib.contextmanager
def _flock(path: pathlib.Path, *, waits: bool = False) -> Iterator[None]:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX | (0 if waits else fcntl.LOCK_NB))
        yield
