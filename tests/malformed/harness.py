"""Commands run in this process on input that a case has broken, and what must come of it."""

import contextlib
import dataclasses
import io
import os
import pathlib
import re
import runpy
import shutil
import signal
import sys
import tempfile
import unittest
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any
from unittest import mock

from absl import app

from tests import commands
from xlm.common import entry_point

Break = Callable[[pathlib.Path], Any]

# What a message must do besides naming the fault: say what would be right, or what to do.
_REMEDY = re.compile(
    r"\b(add|ask|average|call|change|check|choose|convert|copy|correct|cut|delete|drop|export|"
    r"finish|give|install|leave out|lower|lists?|make|map|mount|move|must|name|needs?|put|raise|"
    r"remove|rename|run|set|take|train|wait|write|expected)\b"
)
_PREFIX = "error (--verbose for the traceback): "


@dataclasses.dataclass(frozen=True)
class Case:
    """One malformed input.

    Attributes:
      kind, name: of the input, as in the table of docs/errors.md, and of the case.
      command, template, arguments: what is run, in a copy of a folder of `templates.TEMPLATES`,
        "DIR" in its arguments.
      breaks: what writes or breaks the input.
      says: regular expressions that the message must match, above all file and place.
      repairs: what makes the input right again, after which the command must succeed; None not to.
      surroundings: what holds while the command runs, such as a full disk.
      leaves: names of what may be left: the claim of a stage that had begun.
    """

    kind: str
    name: str
    command: str
    template: str
    arguments: tuple[str, ...]
    breaks: Break
    says: tuple[str, ...]
    repairs: Break | None = None
    surroundings: Callable[[pathlib.Path], contextlib.AbstractContextManager[None]] = (
        lambda folder: contextlib.nullcontext()
    )
    leaves: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True)
class Result:
    status: int
    errors: str
    output: str = dataclasses.field(repr=False)


class ReachedTraining(Exception):
    """The checks of a command have passed, and it would begin to train."""


def run(command: str, arguments: Sequence[str]) -> Result:
    """Run a command in this process, as `xlm` would.

    Errors that would end in a traceback are raised. Where a command would train, it ends well.
    """
    errors, output = io.StringIO(), io.StringIO()
    argv = [command, *arguments]
    sys.modules.pop("config_config", None)  # the name under which every config file is imported
    with (
        contextlib.ExitStack() as stack,
        commands.no_flags(),
        mock.patch.object(app, "run", lambda main, flags_parser: main(flags_parser(sys.argv))),
        mock.patch.object(sys, "argv", argv),
        contextlib.redirect_stderr(errors),
        contextlib.redirect_stdout(output),
        warnings.catch_warnings(),
    ):
        # Commands that print help set it. A server that closes a connection would end the tests.
        stack.callback(signal.signal, signal.SIGPIPE, signal.getsignal(signal.SIGPIPE))
        # ml_collections reads the file of a config so.
        warnings.filterwarnings("ignore", r"the load_module\(\)", DeprecationWarning)
        # Other tests have imported the command.
        warnings.filterwarnings("ignore", ".*found in sys.modules after import", RuntimeWarning)
        status = 0
        try:
            module = commands.module(command)
            if module == command:
                runpy.run_module(module, run_name="__main__")
            else:
                found = runpy.run_module(module, alter_sys=True)
                entry_point.run(found["main"], **found["OPTIONS"])
        except SystemExit as end:
            status = end.code if isinstance(end.code, int) else 0
        except ReachedTraining:
            pass
        return Result(status, errors.getvalue(), output.getvalue())


def snapshot(folder: pathlib.Path) -> dict[str, Any]:
    """Names, times and contents of everything below a folder, but for locks."""
    found: dict[str, Any] = {}
    for path in folder.rglob("*"):
        if path.name == "LOCK":
            continue
        name = str(path.relative_to(folder))
        is_file = path.is_file() and not path.is_symlink()
        found[name] = (path.stat().st_mtime_ns, path.read_bytes()) if is_file else None
    return found


@contextlib.contextmanager
def folder_of(case: Case, template: pathlib.Path) -> Iterator[pathlib.Path]:
    """A copy of the case's template, broken."""
    with tempfile.TemporaryDirectory(dir=os.environ.get("MALFORMED_DIR")) as name:
        folder = pathlib.Path(name) / "dir"
        shutil.copytree(template, folder)
        case.breaks(folder)
        yield folder


def check(test: unittest.TestCase, case: Case, template: pathlib.Path) -> str:
    """Run a case and check all that its error must be; return the message.

    It must be plain, name file and place and a remedy, end with the status of errors of the user,
    and leave everything as it was. The repaired input must be accepted in the same folder.
    """
    with folder_of(case, template) as folder:
        arguments = [one.replace("DIR", str(folder)) for one in case.arguments]
        before = snapshot(folder)
        with case.surroundings(folder):
            result = run(case.command, arguments)
        message = result.errors.partition(_PREFIX)[2]
        test.assertEqual(result.status, 2, f"{case.name}: {result}")
        test.assertTrue(message, f"{case.name}: no message: {result.errors}")
        test.assertNotIn("Traceback", message)
        test.assertNotRegex(message, r"^[A-Z]\w+(Error|Exception)\b")
        for expected in case.says:
            test.assertRegex(message, expected)
        test.assertRegex(message, _REMEDY)
        changed = [one for one in _changed(before, snapshot(folder)) if one not in case.leaves]
        test.assertEqual(changed, [], f"{case.name}: {message}")
        if case.repairs is not None:
            case.repairs(folder)
            repaired = run(case.command, arguments)
            test.assertEqual(repaired.status, 0, f"{case.name}, repaired: {repaired.errors}")
    return message


def _changed(before: dict[str, Any], after: dict[str, Any]) -> list[str]:
    names = sorted({*before, *after})
    missing = object()
    return [one for one in names if before.get(one, missing) != after.get(one, missing)]
