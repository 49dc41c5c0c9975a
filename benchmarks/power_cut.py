"""Possible contents of a disk after a power cut, from the changes recorded by faulty_disk.c.

Data are safe after a sync of their file, and names after a sync of their folder. Everything else
may be lost: the names of a folder from some moment on, in the order of their changes, and any tail
of the data. POSIX promises no more. ext4 and XFS keep more.
"""

import dataclasses
import pathlib
import random
import shutil
from collections.abc import Iterator
from typing import NamedTuple


@dataclasses.dataclass(eq=False)
class _Node:
    """File or folder.

    Attributes:
      source: its place before the recording; None for a new one.
      is_folder: whether it is a folder.
      names: names in a folder at the end.
      first: names in it at the start.
      changes: data changes (number, offset, bytes); a cut has its size in place of bytes.
      syncs: numbers of the changes before which it was synced.
    """

    source: pathlib.Path | None = None
    is_folder: bool = False
    names: dict[str, "_Node"] = dataclasses.field(default_factory=dict)
    first: dict[str, "_Node"] = dataclasses.field(default_factory=dict)
    changes: list[tuple[int, int, bytes | int]] = dataclasses.field(default_factory=list)
    syncs: list[int] = dataclasses.field(default_factory=list)

    def last_sync(self, moment: int) -> int:
        """Return the number of the last change before the last sync up to a moment, or -1."""
        return max((one for one in self.syncs if one <= moment), default=-1)

    def data(self, moment: int, share: float) -> bytes:
        """Return the bytes on the disk: all synced ones, and a share of later ones."""
        found = bytearray(self.source.read_bytes() if self.source else b"")
        safe, late = self.last_sync(moment), [one for one in self.changes if one[0] <= moment]
        kept = [one for one in late if one[0] <= safe]
        for _, offset, what in kept + late[len(kept) :][: round(share * (len(late) - len(kept)))]:
            if isinstance(what, int):
                del found[what:]
                continue
            found.extend(bytes(max(offset - len(found), 0)))
            found[offset : offset + len(what)] = what
        return bytes(found)

    def below(self) -> Iterator["_Node"]:
        """Yield this node and all below it, by the present end of the recording."""
        yield self
        for node in self.names.values():
            yield from node.below()


class _Renaming(NamedTuple):
    """Change of names: new nodes (or None) by folder and name."""

    number: int
    entries: tuple[tuple[_Node, str, _Node | None], ...]


class Published(NamedTuple):
    """Name given by a rename to a complete file or folder.

    Attributes:
      name: path relative to the folder.
      is_data_safe: whether all data were synced before.
      is_name_safe: whether the folder was synced afterwards.
    """

    name: str
    is_data_safe: bool
    is_name_safe: bool


class Recording:
    """Changes below a folder, starting from a copy of it.

    Attributes:
      count: number of changes.
      renames: numbers of the changes that are renames.
    """

    def __init__(self, before: pathlib.Path, folder: pathlib.Path, log: pathlib.Path):
        """Read the `log` of faulty_disk.c on changes of `folder`, an absolute path without links.

        `before` is a copy of the folder before the changes.
        """
        self._top, self._folder = _read(before), folder
        self._moves: list[_Renaming] = []
        self._published: list[tuple[int, str, _Node, bool]] = []  # the node is the folder's
        self.count = 0
        for fields, data in records(log):
            self._apply(fields, data)
            self.count += 1
        self.renames = [number for number, *_ in self._published]

    def _find(self, path: str) -> tuple[_Node, str]:
        """Return the folder of a path, and its name there; ("", top) for the top."""
        node, parts = self._top, pathlib.Path(path).relative_to(self._folder).parts
        for part in parts[:-1]:
            node = node.names[part]
        return node, parts[-1] if parts else ""

    def _node(self, path: str) -> _Node:
        folder, name = self._find(path)
        return folder.names[name] if name else folder

    def _move(self, *entries: tuple[_Node, str, _Node | None]) -> None:
        for folder, name, node in entries:
            if node is None:
                folder.names.pop(name, None)
            else:
                folder.names[name] = node
        self._moves.append(_Renaming(self.count, entries))

    def _apply(self, fields: list[str], data: bytes) -> None:
        action, one, two, offset = fields[0], fields[1], fields[2], int(fields[3])
        if one.endswith(" (deleted)"):  # an open file without a name
            return
        if action == "write":
            self._node(one).changes.append((self.count, offset, data))
        elif action == "truncate":
            self._node(one).changes.append((self.count, 0, offset))
        elif action == "sync":
            self._node(one).syncs.append(self.count)
        elif action in ("create", "mkdir"):
            self._move((*self._find(one), _Node(is_folder=action == "mkdir")))
        elif action == "unlink":
            self._move((*self._find(one), None))
        elif action == "link":
            self._move((*self._find(two), self._node(one)))
        elif action == "rename":
            node = self._node(one)
            self._publish(two, node)
            self._move((*self._find(one), None), (*self._find(two), node))
        else:
            raise ValueError(f"unknown change {action!r}")

    def _publish(self, path: str, node: _Node) -> None:
        name = str(pathlib.Path(path).relative_to(self._folder))
        whole = all(
            one.last_sync(self.count) >= max((change[0] for change in one.changes), default=-1)
            and (not one.is_folder or not one.names or one.last_sync(self.count) >= 0)
            for one in node.below()
        )
        self._published.append((self.count, name, self._find(path)[0], whole))

    def published(self) -> list[Published]:
        """Return all names given by renames, in order, and whether a power cut spares them."""
        found = []
        for number, name, folder, is_whole in self._published:
            if not any(part.startswith(".") for part in pathlib.Path(name).parts):
                found.append(Published(name, is_whole, any(one > number for one in folder.syncs)))
        return found

    def write(self, to: pathlib.Path, moment: int, rng: random.Random) -> None:
        """Write a possible disk after a power cut, just after change `moment`, to a new folder.

        `rng` chooses the losses: all possible names, some or none, and all data, half or none.
        """
        names, share = rng.choice((0.0, 1.0, None)), rng.choice((0.0, 0.5, 1.0))
        cuts: dict[_Node, float] = {}
        listing: dict[_Node, dict[str, _Node]] = {}
        for number, entries in self._moves:
            if number > moment:
                break
            for folder, *_ in entries:
                if folder not in cuts:
                    safe = folder.last_sync(moment)
                    kept = rng.random() if names is None else names
                    cuts[folder] = safe + kept * (moment - safe)
            if all(number <= cuts[folder] for folder, *_ in entries):
                for folder, name, node in entries:
                    held = listing.setdefault(folder, dict(folder.first))
                    if node is None:
                        held.pop(name, None)
                    else:
                        held[name] = node
        self._write(self._top, to, moment, share, listing)

    def _write(
        self, node: _Node, to: pathlib.Path, moment: int, share: float,
        listing: dict[_Node, dict[str, _Node]],
    ) -> None:  # fmt: skip
        if not node.is_folder:
            if node.source and not node.changes:
                shutil.copy2(node.source, to)  # with its time
            else:
                to.write_bytes(node.data(moment, share))
            return
        to.mkdir()
        for name, one in listing.get(node, node.first).items():
            self._write(one, to / name, moment, share, listing)


def _read(path: pathlib.Path) -> _Node:
    if not path.is_dir():
        return _Node(path)
    names = {one.name: _read(one) for one in path.iterdir()}
    return _Node(path, True, dict(names), names)


def records(log: pathlib.Path) -> Iterator[tuple[list[str], bytes]]:
    """Yield fields and data of each change."""
    with open(log, "rb") as file:
        for line in file:
            fields = line.decode().rstrip("\n").split("\t")
            yield fields, file.read(int(fields[4])) if fields[0] == "write" else b""
