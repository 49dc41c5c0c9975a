"""Places of files: paths of this machine, and URLs of buckets, such as s3://BUCKET/run.

Text is read where it lies, as a stream. Everything else is worked on in a local copy of its folder,
since stages map files into memory, rename and append: `fetched` brings a copy to read, `held` one
to write, which is published while the stage works. A bucket cannot rename a folder. So readers
believe `MANIFEST` alone, one object that is written after all that it lists. Needs the extra
`remote`; fsspec's packages find the credentials.
"""

import contextlib
import dataclasses
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
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, BinaryIO

from xlm.common import artifacts, packages

# Folder of local copies, by default `vocap/places` below $XDG_CACHE_HOME or ~/.cache; and the
# gigabytes that they may take.
CACHE, CACHE_GB = "XLM_CACHE", "XLM_CACHE_GB"
PUBLISH_SECONDS = "XLM_PUBLISH_SECONDS"  # between publications of a stage at work; 30
MANIFEST, LOCK = ".published.json", ".LOCK.json"
# A stage is not finished while its other files change: these go first and come last.
_MARKS = ("DONE", "meta.json")
_NEVER = re.compile(r"LOCK|\..*\.tmp(\..*)?|.*\.output|.*\.orbax-checkpoint-tmp.*|\.LOCK\.json")
_WORK = re.compile(r"(.*/)?(work|cache)/.*")  # what only the stage itself reads
_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")
# Read ahead in the background: one block is used while the next one comes.
_STREAM = {"block_size": 8 << 20, "cache_type": "background"}
_LOCK_SECONDS = 300  # without a sign of its owner, a lock is void
_ATTEMPTS = 5

State = tuple[int, int]  # bytes, and time of the last change (ns) or hash of the version
_held: dict[str, "_Place"] = {}  # by this process


def is_url(name: str | os.PathLike[str]) -> bool:
    return _URL.match(str(name)) is not None


def check(name: str) -> None:
    """Raise ValueError unless the packages for a URL's scheme are installed."""
    with packages.needed(name, "remote"):
        import fsspec
        import upath  # noqa: F401

        fsspec.get_filesystem_class(name.partition("://")[0])


def path(name: str | os.PathLike[str]) -> Any:
    """Return a pathlib.Path, or for a URL a path of the same methods, whose text is streamed."""
    if not is_url(name):
        return pathlib.Path(name)
    check(str(name))
    import upath

    return upath.UPath(str(name))


def join(root: Any, name: str) -> Any:
    """Return `name` below `root`, or by itself if it is absolute or a URL."""
    if is_url(name) or os.path.isabs(name):
        return path(name)
    return root.joinpath(*pathlib.PurePath(name).parts)  # a bucket has no folder "."


def glob(root: Any, pattern: str) -> list[Any]:
    """Return the paths below `root` that match a glob pattern, `**` for any folders."""
    if isinstance(root, pathlib.Path):
        return [root / one for one in local_glob.glob(pattern, root_dir=root, recursive=True)]
    return [
        root / one for one in _relative(root.fs, root.path, root.fs.glob(f"{root.path}/{pattern}"))
    ]


def opened(path: Any) -> BinaryIO:
    """Open a file for reading bytes; one in a bucket by ranges, read ahead in the background."""
    if isinstance(path, pathlib.Path):
        return open(path, "rb")
    return io.BufferedReader(path.fs.open(path.path, "rb", **_STREAM), 1 << 20)


def state(path: Any) -> State:
    """Return bytes and time (ns) of a file; of one in a bucket a hash of its version."""
    if isinstance(path, pathlib.Path):
        found = path.stat()
        return found.st_size, found.st_mtime_ns
    path.fs.invalidate_cache(path.fs._parent(path.path))
    return _version(path.fs.info(path.path))


def _version(info: dict[str, Any]) -> State:
    keys = ("generation", "ETag", "etag", "md5", "LastModified", "mtime", "created")
    version = next((str(info[key]) for key in keys if info.get(key)), "")
    return int(info["size"]), int(hashlib.sha256(version.encode()).hexdigest()[:12], 16)


def _relative(fs: Any, root: str, found: Any) -> list[str]:
    return sorted(fs._strip_protocol(one)[len(root.rstrip("/")) + 1 :] for one in found)


def cache_folder() -> pathlib.Path:
    parent = os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache"
    return pathlib.Path(os.environ.get(CACHE) or pathlib.Path(parent, "vocap", "places")).absolute()


def local(name: str | os.PathLike[str]) -> pathlib.Path:
    """Return where a file or folder is worked on: the path itself, or that of its local copy."""
    return _Place(str(name)).copy if is_url(name) else pathlib.Path(name)


def fetched(name: str | os.PathLike[str]) -> pathlib.Path:
    """Return a path to read a file or folder at, of one in a bucket that of a local copy.

    Raises ValueError if there is nothing, or the copy is larger than `CACHE_GB`.
    """
    if not is_url(name):
        return pathlib.Path(name)
    place = _Place(str(name))
    # One that is held here is newer than the bucket.
    with contextlib.suppress(BlockingIOError), _flock(place.side / "HELD"):
        if not place.fetch(lambda one: not _WORK.fullmatch(one)):
            raise ValueError(f"{name}: there is no such file or folder; correct the URL")
    return place.copy


@contextlib.contextmanager
def held(name: str | os.PathLike[str]) -> Iterator[pathlib.Path]:
    """Work on a folder until the block ends; of one in a bucket on a copy, which is published.

    Publishes every `PUBLISH_SECONDS`, and at the end whatever ends the block. Blocks of one process
    may be nested. Raises ValueError if another process works on it, OSError if the last publication
    fails.
    """
    url = str(name).rstrip("/")
    if not is_url(url) or url in _held:
        yield local(url)
        return
    place = _Place(url)
    try:
        with contextlib.ExitStack() as stack:
            stack.enter_context(_flock(place.side / "HELD"))
            stack.enter_context(place.locked())
            place.fetch()
            logging.info("%s is worked on in %s", url, place.copy)
            _held[url] = place
            stack.callback(_held.pop, url)
            stack.enter_context(place.published())
            yield place.copy
    except BlockingIOError:
        raise ValueError(
            f"another process on this machine works on {url}; wait for it or stop it, or choose "
            "another --workdir"
        ) from None


@dataclasses.dataclass
class _Files:
    """What a folder holds: the state of each file, and targets of links; `id` names a version."""

    id: str = ""
    files: dict[str, State] = dataclasses.field(default_factory=dict)
    links: dict[str, str] = dataclasses.field(default_factory=dict)

    @classmethod
    def read(cls, text: bytes | str) -> "_Files":
        found = json.loads(text)
        files = {name: (size, change) for name, (size, change) in found["files"].items()}
        return cls(found["id"], files, found["links"])

    def text(self) -> str:
        return json.dumps(dataclasses.asdict(self))


class _Place:
    """A file or folder of a bucket, and its local copy."""

    def __init__(self, url: str):
        check(url)
        import fsspec

        self.url = url.rstrip("/")
        self.fs, self.root = fsspec.url_to_fs(self.url, use_listings_cache=False)
        self.side = cache_folder() / artifacts.fingerprint(self.url)
        self.copy = self.side / self.url.rpartition("/")[2]
        self._token, self._fault = secrets.token_hex(8), ""
        self._known = _Files()  # of the bucket, as far as the copy has it

    def fetch(self, wanted: Callable[[str], bool] = lambda _: True) -> bool:
        """Bring the copy up to date; return whether there is anything.

        What a killed stage has not published stays, unless another machine has published since.
        """
        with _flock(self.side / "FETCH", waits=True):
            record = self.side / "fetched.json"
            here = _Files.read(record.read_text()) if record.exists() else _Files()
            for attempt in range(_ATTEMPTS):
                there = self.read_manifest() or self._listed()
                try:
                    self._bring(here, there, wanted)
                    break
                except FileNotFoundError:  # another version was published meanwhile
                    if attempt == _ATTEMPTS - 1:
                        raise
            artifacts.write_text(record, self._known.text())
        return bool(there.files)

    def _bring(self, here: _Files, there: _Files, wanted: Callable[[str], bool]) -> None:
        now = _scan(self.copy)
        kept = dict(here.files)
        if here.id != there.id:
            kept = {one: it for one, it in there.files.items() if now.files.get(one) == it}
            for one in (*now.links, *(set(now.files) - set(kept))):
                self._at(one).unlink()
        needed = [one for one in there.files if one not in kept and wanted(one)]
        _make_room(self.side, sum(there.files[one][0] for one in needed))
        for one in needed:
            self._at(one).parent.mkdir(parents=True, exist_ok=True)
        asides = [artifacts.aside_of(self._at(one)) for one in needed]
        if needed:
            self.fs.get([self._key(one) for one in needed], list(map(str, asides)))
        for one, aside in zip(needed, asides, strict=True):
            os.utime(aside, ns=(there.files[one][1],) * 2)
            aside.replace(self._at(one))
            kept[one] = there.files[one]
        for one, target in there.links.items() if here.id != there.id else ():
            self._at(one).parent.mkdir(parents=True, exist_ok=True)
            self._at(one).symlink_to(target, target_is_directory=True)
        self._known = _Files(there.id, kept, there.links)

    def _at(self, name: str) -> pathlib.Path:
        return self.copy / name if name else self.copy

    def _key(self, name: str) -> str:
        return f"{self.root}/{name}" if name else self.root

    def read_manifest(self) -> _Files | None:
        try:
            return _Files.read(self.fs.cat_file(self._key(MANIFEST)))
        except (FileNotFoundError, NotADirectoryError):
            return None

    def _listed(self) -> _Files:
        """Describe a file or folder that others have put there."""
        found = self.fs.find(self.root, detail=True)
        names = _relative(self.fs, self.root, found)
        files = dict(zip(names, (_version(found[one]) for one in sorted(found)), strict=True))
        files = {one: state for one, state in files.items() if one != LOCK}
        return _Files(artifacts.fingerprint(files), files)

    @contextlib.contextmanager
    def published(self) -> Iterator[None]:
        """Publish the copy again and again until the block ends, and then once more."""
        ends, every = threading.Event(), float(os.environ.get(PUBLISH_SECONDS) or 30)

        def work() -> None:
            while not ends.wait(every):
                try:
                    self._renew()
                    self.publish()
                except Exception as error:  # of any package; the last publication raises
                    logging.warning("%s: not published yet: %s", self.url, error)

        thread = threading.Thread(target=work, daemon=True)
        thread.start()
        try:
            yield
        finally:
            ends.set()
            thread.join()
            self.publish()

    def publish(self) -> None:
        """Upload what has changed, then the manifest; remove what is gone."""
        if self._fault:
            raise OSError(self._fault)
        shutil.rmtree(self.side / "upload", ignore_errors=True)
        now, sources = self._snapshot()
        known = self._known.files
        gone = [one for one in known if one not in now.files]
        if not sources and not gone and now.links == self._known.links:
            return
        if marks := {one for one in (*sources, *gone) if one in known and _name(one) in _MARKS}:
            rest = {one: known[one] for one in known if one not in marks}
            self._write_manifest(_Files(secrets.token_hex(8), rest, self._known.links))
        new = [one for one in sources if one not in known]
        if new:
            self.fs.put([str(sources[one]) for one in new], list(map(self._key, new)))
        # In the order in which the stage has written them: a kill may come in between.
        for one in sorted(set(sources) - set(new), key=lambda one: now.files[one][1]):
            self.fs.put_file(str(sources[one]), self._key(one))
        self._write_manifest(_Files(secrets.token_hex(8), now.files, now.links))
        for one in gone:
            with contextlib.suppress(FileNotFoundError):
                self.fs.rm_file(self._key(one))
        shutil.rmtree(self.side / "upload", ignore_errors=True)

    def _snapshot(self) -> tuple[_Files, dict[str, pathlib.Path]]:
        """Return what the copy holds at one moment, and hard links to what is not published."""
        while True:
            now, sources = _scan(self.copy), {}
            (self.side / "upload").mkdir(parents=True, exist_ok=True)
            try:
                for one, found in now.files.items():
                    if self._known.files.get(one) != found:
                        sources[one] = self.side / "upload" / secrets.token_hex(8)
                        os.link(self._at(one), sources[one])
                if _scan(self.copy).files.keys() == now.files.keys():
                    return now, sources
            except FileNotFoundError:  # replaced or removed meanwhile
                continue

    def _write_manifest(self, files: _Files) -> None:
        self.fs.pipe_file(self._key(MANIFEST), files.text().encode())
        self._known = files
        if self.side.exists():
            artifacts.write_text(self.side / "fetched.json", files.text())

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the lock object of a folder, made by the store only where there is none."""
        while True:
            try:
                self.fs.pipe_file(self._key(LOCK), self._sign(), mode="create")
                break
            except FileExistsError:
                self._check_void()
        try:
            yield
        finally:
            if not self._fault:
                self.fs.rm_file(self._key(LOCK))

    def _sign(self) -> bytes:
        host = socket.gethostname()
        found = {"token": self._token, "host": host, "pid": os.getpid(), "time": time.time()}
        return json.dumps(found).encode()

    def _check_void(self) -> None:
        """Remove a lock whose owner is gone; ValueError if it is at work."""
        try:
            found = json.loads(self.fs.cat_file(self._key(LOCK)))
        except FileNotFoundError:
            return
        # Whoever had it on this machine has ended, since this process has the local lock.
        age = time.time() - found["time"]
        if found["host"] != socket.gethostname() and age < _LOCK_SECONDS:
            raise ValueError(
                f"process {found['pid']} on {found['host']} works on {self.url}, with a sign "
                f"{age:.0f} s ago; wait for it or stop it, or choose another --workdir (a lock "
                f"without a sign for {_LOCK_SECONDS} s is void)"
            )
        self.fs.rm_file(self._key(LOCK))

    def _renew(self) -> None:
        found = json.loads(self.fs.cat_file(self._key(LOCK)))
        if found["token"] != self._token:
            self._fault = (
                f"process {found['pid']} on {found['host']} has taken {self.url} over; what this "
                f"process did since is in {self.copy} only: stop one of them"
            )
            raise OSError(self._fault)
        self.fs.pipe_file(self._key(LOCK), self._sign())


def _name(path: str) -> str:
    return path.rpartition("/")[2]


def _scan(folder: pathlib.Path) -> _Files:
    """Describe a local folder, or a file, called ""; without what is unfinished."""
    found = _Files()
    if folder.is_file():
        found.files[""] = state(folder)
    for parent, folders, names in os.walk(folder):
        below = os.path.relpath(parent, folder)
        for name in [one for one in folders if os.path.islink(os.path.join(parent, one))]:
            found.links[os.path.normpath(f"{below}/{name}")] = os.readlink(f"{parent}/{name}")
        folders[:] = [one for one in folders if not _NEVER.fullmatch(one)]
        for name in names:
            with contextlib.suppress(FileNotFoundError):
                if not _NEVER.fullmatch(name):
                    one = state(pathlib.Path(parent, name))
                    found.files[os.path.normpath(f"{below}/{name}")] = one
    return found


def _make_room(side: pathlib.Path, size: int) -> None:
    """Remove the copies that were used longest ago, until `size` more bytes fit."""
    most = float(os.environ.get(CACHE_GB) or 200) * 1e9
    others = [one for one in side.parent.iterdir() if one != side]
    total = {one: sum(found[0] for found in _scan(one).files.values()) for one in (side, *others)}
    for one in sorted(others, key=lambda one: one.stat().st_mtime):
        if sum(total.values()) + size <= most:
            break
        record = one / "fetched.json"
        with contextlib.suppress(BlockingIOError), _flock(one / "HELD"):
            known = _Files.read(record.read_text()) if record.exists() else _Files()
            copies = [folder for folder in one.iterdir() if folder.is_dir()]
            if all(known.files.items() >= _scan(folder).files.items() for folder in copies):
                shutil.rmtree(one)
                del total[one]
    if sum(total.values()) + size > most:
        raise ValueError(
            f"{side.parent} would hold {(sum(total.values()) + size) / 1e9:.1f} GB, and may hold "
            f"{most / 1e9:g}; set {CACHE_GB} to more, or {CACHE} to a folder on a larger disk"
        )
    os.utime(side)


@contextlib.contextmanager
def _flock(path: pathlib.Path, *, waits: bool = False) -> Iterator[None]:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX | (0 if waits else fcntl.LOCK_NB))
        yield
