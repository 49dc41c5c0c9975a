"""Contents of an installation: optional packages, recipes, the embedded corpus."""

import contextlib
import importlib
import importlib.util
import pathlib
import sys
from collections.abc import Iterator


@contextlib.contextmanager
def needed(by: str, extra: str = "train") -> Iterator[None]:
    """Let the block import packages; a ValueError says how to install their `extra`."""
    try:
        yield
    except ImportError as error:
        own = ", best in an environment of its own" if extra in ("beam", "datasets") else ""
        fault = " ".join(str(error).split())
        raise ValueError(f"{by}: {fault}; pip install '.[{extra}]' in a checkout{own}") from error


def embedded(name: str) -> pathlib.Path:
    """Folder "configs" or "corpus" of the checkout or package; relative if below the cwd."""
    package = pathlib.Path(__file__).resolve().parent.parent
    found = package / name if (package / name).is_dir() else package.parent / name
    here = pathlib.Path.cwd()
    return found.relative_to(here) if found.is_relative_to(here) else found


def find_recipes() -> None:
    """Make `configs` importable where this package is installed: recipes build on each other."""
    if "configs" in sys.modules:
        return
    root = embedded("configs").resolve().parent
    if root.name == "xlm":
        sys.modules["configs"] = importlib.import_module("xlm.configs")
    elif importlib.util.find_spec("configs") is None:  # of an editable installation
        sys.path.append(str(root))


def recipe(path: str) -> str:
    """Path of the user's config file `path`, which may be an installed recipe."""
    name, colon, argument = path.partition(":")
    there = embedded("configs").parent / name
    if pathlib.Path(name).exists() or not name.startswith("configs/") or not there.is_file():
        return path
    return f"{there}{colon}{argument}"
