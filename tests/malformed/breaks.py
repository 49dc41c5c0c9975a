"""Cases, and what breaks an input or makes it right again."""

import json
import lzma
import pathlib
import shutil
from collections.abc import Callable
from typing import Any

from tests.malformed import templates
from tests.malformed.harness import Break, Case


def case(
    kind: str, name: str, command: str, breaks: Break, *says: str, template="rows", flags=None,
    repairs: Break | None = None, **changes: Any,
) -> Case:  # fmt: skip
    """A case of a command with the flags of `templates.config`, changed or replaced."""
    own = {key: changes.pop(key) for key in ("surroundings", "leaves") if key in changes}
    flags = templates.config(**changes) if flags is None else tuple(flags)
    return Case(kind, name, command, template, flags, breaks, says, repairs, **own)


def nothing(folder: pathlib.Path) -> None:
    """Leave the folder as it is: the flags are wrong, or a stage is missing."""


def write(name: str, content: bytes | str = b"") -> Break:
    """Write a file, or one in place of a folder; compressed if its name ends in .xz."""
    data = content.encode() if isinstance(content, str) else content

    def breaks(folder: pathlib.Path) -> None:
        path = folder / name
        if path.is_dir():
            shutil.rmtree(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(lzma.compress(data) if path.suffix == ".xz" else data)

    return breaks


def remove(*names: str) -> Break:
    def breaks(folder: pathlib.Path) -> None:
        for path in (folder / name for name in names):
            shutil.rmtree(path) if path.is_dir() else path.unlink()

    return breaks


def cut(name: str, share: float = 0.5) -> Break:
    return lambda folder: templates.truncate(folder / name, share)


def changed(name: str, change: Callable[[Any], Any]) -> Break:
    def breaks(folder: pathlib.Path) -> None:
        value = json.loads((folder / name).read_text(encoding="utf-8"))
        (folder / name).write_text(json.dumps(change(value)), encoding="utf-8")

    return breaks


def restored(name: str, template: str = "rows") -> Break:
    def repairs(folder: pathlib.Path) -> None:
        path = folder / name
        path.unlink(missing_ok=True)
        shutil.copy(templates.template(template) / name, path)

    return repairs
