"""Commands imported into the process of the tests, each with its own flags.

Commands define flags on import, with common names such as `config`. A process may define a name
only once.
"""

import contextlib
import copy
import importlib
import io
import logging
import pathlib
import re
import shlex
import subprocess
import sys
import types
import warnings
from collections.abc import Iterator, Mapping
from unittest import mock

from absl import flags

from xlm.cli.main import VERBS
from xlm.common import entry_point, packages

ROOT = pathlib.Path(__file__).resolve().parent.parent
_flags_of: dict[str, dict[str, flags.Flag]] = {}
# By the defining module, which another command may have imported first.
_defined: dict[str, list[flags.Flag]] = {}


def module(name: str) -> str:
    """Return the full name of a module, maybe one of the package of commands."""
    return f"xlm.cli.{name}" if name in VERBS.values() else name


def printed(page: str, left_out: str = r"$^") -> list[list[str]]:
    """Return module and arguments of each command of a page, without some lines."""
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    blocks = re.findall(r"^```bash\n(.*?)^```", text, re.M | re.S)
    lines = "".join(blocks).replace("\\\n", " ").splitlines()
    split = [shlex.split(line) for line in lines if not re.search(left_out, line)]
    return [
        [VERBS[words[1]], *words[2:]] if words[0] == "xlm" else [words[1][:-3], *words[2:]]
        for words in split
    ]


def load(name: str) -> types.ModuleType:
    """Import a command without leaving its flags defined."""
    name = module(name)
    if name in _flags_of:
        return importlib.import_module(name)
    if name in sys.modules:  # imported by a test without this function
        own = flags.FLAGS.flags_by_module_dict().get(name) or _defined.get(name, ())
        _flags_of[name] = {flag.name: flag for flag in own}
        return sys.modules[name]
    there = {flag: flags.FLAGS[flag] for flag in flags.FLAGS if not _is_of_absl(flag)}
    with _removed(there):
        loaded = importlib.import_module(name)
        found = {flag: flags.FLAGS[flag] for flag in flags.FLAGS if not _is_of_absl(flag)}
        for place, some in flags.FLAGS.flags_by_module_dict().items():
            if own := [one for one in some if found.get(one.name) is one]:
                _defined[place] = own
        for flag in found:
            delattr(flags.FLAGS, flag)
    _flags_of[name] = found
    return loaded


def has_flags(name: str) -> bool:
    """Return whether a loaded command defines its flags on import."""
    return bool(_flags_of[module(name)])


@contextlib.contextmanager
def parsed(name: str, *arguments: str) -> Iterator[list[str]]:
    """Define the flags of a loaded command, with the values of `arguments`."""
    found = _flags_of[module(name)]
    with _removed({flag: flags.FLAGS[flag] for flag in found if flag in flags.FLAGS}):
        others = set(flags.FLAGS)
        for flag, one in found.items():
            one.unparse()
            flags.FLAGS[flag] = one
        try:
            # The place of overrides, --config.section.key.
            given = [re.sub(r"(?<=^--config=).+", _recipe, one) for one in arguments]
            with mock.patch.object(sys, "argv", [name, *given]), warnings.catch_warnings():
                # ml_collections reads a config file in this way.
                warnings.filterwarnings("ignore", r"the load_module\(\)", DeprecationWarning)
                for one in found.values():
                    if type(one.parser).__name__ == "_InlineConfigParser":  # defines overrides so
                        one.parse(copy.deepcopy(one.default))
                rest = flags.FLAGS(sys.argv)
            yield rest
        finally:
            for flag in set(flags.FLAGS) - others:
                delattr(flags.FLAGS, flag)
            for one in found.values():
                one.unparse()  # a test that imported the command has the same flags


def execute(
    name: str, *arguments: str, folder: pathlib.Path = ROOT
) -> subprocess.CompletedProcess[str]:
    """Run a command in a folder; return its status, its output, and its log from warnings on.

    This saves the seconds of starting a process. Errors without a plain message are raised.
    """
    main, status = load(name).main, 0
    stdout, stderr = io.StringIO(), io.StringIO()
    handler, logger = logging.StreamHandler(stderr), logging.getLogger("absl")
    logger.addHandler(handler)
    try:
        with (
            contextlib.chdir(folder),
            parsed(name, *arguments) as rest,
            contextlib.redirect_stdout(stdout),
            contextlib.redirect_stderr(stderr),
        ):
            entry_point.call(main, rest)
    except SystemExit as ended:
        status = ended.code if isinstance(ended.code, int) else 1
    finally:
        logger.removeHandler(handler)
    return subprocess.CompletedProcess(arguments, status, stdout.getvalue(), stderr.getvalue())


def _recipe(config: re.Match[str]) -> str:
    return packages.recipe(config[0])  # which other folders than the checkout lack


@contextlib.contextmanager
def error(pattern: str) -> Iterator[None]:
    """Expect the block to end like a command that prints a user's error."""
    with contextlib.redirect_stderr(io.StringIO()) as stderr:
        try:
            yield
        except SystemExit as ended:
            if ended.code == 2 and re.search(f"^error: .*{pattern}", stderr.getvalue(), re.M):
                return
    raise AssertionError(f"no error {pattern!r} with status 2: {stderr.getvalue()}")


@contextlib.contextmanager
def no_flags() -> Iterator[None]:
    """Hide the flags of all commands during the block, and drop new ones."""
    there = {flag: flags.FLAGS[flag] for flag in flags.FLAGS if not _is_of_absl(flag)}
    with _removed(there):
        before = set(flags.FLAGS)
        try:
            yield
        finally:
            for flag in set(flags.FLAGS) - before:
                delattr(flags.FLAGS, flag)


@contextlib.contextmanager
def _removed(some: Mapping[str, flags.Flag]) -> Iterator[None]:
    """Remove flags during the block."""
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
    # Overrides of a config, config.section.key, are defined there, too, as a command line is read.
    defined_by = flags.FLAGS.find_module_defining_flag(flag, "")
    return defined_by.startswith("absl") and "." not in flag
