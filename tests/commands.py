"""Commands imported into the process of the tests, each with its own flags.

Commands define flags of the same names, such as `config`, when they are imported; a process may
define each only once.
"""

import contextlib
import importlib
import types
from collections.abc import Iterator, Mapping

from absl import flags

_flags_of: dict[str, dict[str, flags.Flag]] = {}


def load(name: str) -> types.ModuleType:
    """Import a command without leaving its flags defined."""
    if name in _flags_of:
        return importlib.import_module(name)
    there = {flag: flags.FLAGS[flag] for flag in flags.FLAGS if not _is_of_absl(flag)}
    with _removed(there):
        module = importlib.import_module(name)
        found = {flag: flags.FLAGS[flag] for flag in flags.FLAGS if not _is_of_absl(flag)}
        for flag in found:
            delattr(flags.FLAGS, flag)
    _flags_of[name] = found
    return module


@contextlib.contextmanager
def parsed(name: str, *arguments: str) -> Iterator[list[str]]:
    """Define the flags of a loaded command, with the values that `arguments` give them."""
    found = _flags_of[name]
    with _removed({flag: flags.FLAGS[flag] for flag in found if flag in flags.FLAGS}):
        for flag, one in found.items():
            one.unparse()
            flags.FLAGS[flag] = one
        try:
            yield flags.FLAGS([name, *arguments])
        finally:
            for flag in found:
                delattr(flags.FLAGS, flag)


@contextlib.contextmanager
def _removed(some: Mapping[str, flags.Flag]) -> Iterator[None]:
    """Remove flags for a while."""
    modules = {flag: flags.FLAGS.find_module_defining_flag(flag) for flag in some}
    for flag in some:
        delattr(flags.FLAGS, flag)
    try:
        yield
    finally:
        for flag, one in some.items():
            flags.FLAGS[flag] = one
            flags.FLAGS.register_flag_by_module(modules[flag], one)


def _is_of_absl(flag: str) -> bool:
    return flags.FLAGS.find_module_defining_flag(flag, "").startswith("absl")
