"""Changes of a job's files and folders, for hostile_table.py; names are relative to the job."""

import functools
import io
import json
import os
import pathlib
import pickle
import random
import shutil
import socket
import stat
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from benchmarks.hostile_world import World

Change = Callable[[World], Any]


def replaced(name: str, make: Callable[[pathlib.Path, World], Any]) -> Change:
    """Remove a file or folder, and make something else."""

    def change(world: World) -> None:
        path = world.job / name
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        path.unlink(missing_ok=True)
        path.parent.mkdir(parents=True, exist_ok=True)
        make(path, world)

    return change


def edited(name: str, edit: Callable[[bytes], bytes]) -> Change:
    """Change the bytes of all files that match a pattern."""

    def change(world: World) -> None:
        found = sorted(path for path in world.job.glob(name) if path.is_file())
        if not found:
            raise FileNotFoundError(f"no {name} to break")
        for path in found:
            path.write_bytes(edit(path.read_bytes()))

    return change


def in_json(name: str, edit: Callable[[Any], Any]) -> Change:
    return edited(name, lambda data: json.dumps(edit(json.loads(data))).encode())


def with_values(**values: Any) -> Callable[[Any], Any]:
    """Set keys; __ stands for the dots of nested keys."""

    def edit(found: Any) -> Any:
        for key, value in values.items():
            *folders, last = key.split("__")
            place = functools.reduce(lambda one, part: one[part], folders, found)
            place[last] = value
        return found

    return edit


def added(section: str, name: str) -> Callable[[Any], Any]:
    """Repeat the first entry of a section under another name."""

    def edit(found: Any) -> Any:
        found[section][name] = next(iter(found[section].values()))
        return found

    return edit


def leaf(
    replace: Callable[[Any], Any], kind: type | tuple[type, ...], not_of: Sequence[str] = ()
) -> Callable[[Any], Any]:
    """Replace one value of a type in JSON, always the same one, outside the keys `not_of`."""

    def edit(found: Any) -> Any:
        places: list[tuple[Any, Any]] = []

        def walk(one: Any) -> None:
            items = one.items() if isinstance(one, dict) else enumerate(one)
            for key, value in items:
                if key in not_of:  # may hold any text
                    continue
                if isinstance(value, dict | list):
                    walk(value)
                elif isinstance(value, kind) and not isinstance(value, bool):
                    places.append((one, key))

        walk(found)
        if places:
            place, key = random.Random(len(places)).choice(places)
            place[key] = replace(place[key])
        return found

    return edit


def all_of(*changes: Change) -> Change:
    return lambda world: [change(world) for change in changes] and None


def half(data: bytes) -> bytes:
    return data[: len(data) // 2]


def flipped(data: bytes) -> bytes:
    rng, found = random.Random(len(data)), bytearray(data)
    for _ in range(1 + len(data) // 2000):
        found[rng.randrange(len(found) // 8, len(found))] ^= 1 << rng.randrange(8)
    return bytes(found)


def fifo(path: pathlib.Path, world: World) -> None:
    os.mkfifo(path)


def zero(path: pathlib.Path, world: World) -> None:
    path.symlink_to("/dev/zero")


def a_folder(path: pathlib.Path, world: World) -> None:
    path.mkdir()
    (path / "mine.txt").write_text("of the user\n")


def device(path: pathlib.Path, world: World) -> None:
    os.mknod(path, stat.S_IFCHR | 0o666, os.makedev(1, 3))  # its own null device


def a_link(path: pathlib.Path, world: World) -> None:
    path.symlink_to(world.outside / "mine.txt")


def link_to_folder(path: pathlib.Path, world: World) -> None:
    path.symlink_to(world.outside)


def link_to_own(path: pathlib.Path, world: World) -> None:
    (path.parent / "elsewhere").mkdir()
    path.symlink_to("elsewhere")


def dangling(path: pathlib.Path, world: World) -> None:
    path.symlink_to(world.outside / "none")


def a_socket(path: pathlib.Path, world: World) -> None:
    socket.socket(socket.AF_UNIX).bind(os.path.relpath(path))


def deep(path: pathlib.Path, world: World) -> None:
    path.write_text("[" * 200_000 + "]" * 200_000)


def a_file(content: bytes) -> Callable[[pathlib.Path, World], Any]:
    return lambda path, world: path.write_bytes(content)


class Bomb:
    """Writes a file when unpickled."""

    def __reduce__(self):
        return (os.system, ('touch "$CANARY"',))


def pickled(path: pathlib.Path, world: World) -> None:
    path.write_bytes(pickle.dumps(Bomb()))


def pickled_array(data: bytes) -> bytes:
    file = io.BytesIO()
    np.save(file, np.array([Bomb()], object), allow_pickle=True)
    return file.getvalue()
