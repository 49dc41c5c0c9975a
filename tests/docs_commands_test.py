"""Commands on the pages of the documentation: their flags and config keys exist.

Other tests run them. tests/pages.py runs those of README.md, docs/tutorials, docs/own_task.md and
some more pages as printed. The tests of each room run the others.
"""

import ast
import contextlib
import pathlib
import re
import shlex
import sys
import warnings
from collections.abc import Iterator
from unittest import mock

from absl import flags
from absl.testing import parameterized

from tests import commands
from xlm.cli.main import VERBS

PAGES = sorted([commands.ROOT / "README.md", *commands.ROOT.glob("docs/**/*.md")])
WITHOUT_ABSL = ("tests.fuzz_artefacts",)


def printed(page: pathlib.Path) -> list[tuple[str, ...]]:
    """Commands of a page or docstring: module and arguments, by block and line, without loops."""
    text, block = page.read_text(encoding="utf-8"), r"^```\w*\n(.*?)^```"
    if page.suffix == ".py":
        text, block = ast.get_docstring(ast.parse(text)) or "", r"^(    .*?)(?:^\S|\Z)"
    blocks = re.findall(block, text, re.M | re.S)
    inline = (one.replace("\n", " ") for one in re.findall(r"`((?:python3?|xlm) [^`]+)`", text))
    lines = [*"\n".join(blocks).replace("\\\n", " ").splitlines(), *inline]
    found = []
    for line in lines:
        line = line.partition(" #")[0].strip()
        match = re.search(r"(?:^|\s)(?:python3? (?:-m )?|xlm )([\w./-]+)((?: .*)?)$", line)
        if not match or re.search(r"[$<>|&;]", line):
            continue
        name = VERBS.get(match[1], match[1].removesuffix(".py").replace("/", "."))
        if source(name).exists():
            arguments = match[2].replace("=CONFIG", "=configs/quickstart.py")
            found.append((name, *shlex.split(arguments)))
    return found


def source(name: str) -> pathlib.Path:
    return commands.ROOT / f"{commands.module(name).replace('.', '/')}.py"


@contextlib.contextmanager
def with_flags(name: str) -> Iterator[None]:
    """Define the flags of the last block of a loaded command during the `with` block."""
    module = sys.modules[name]
    tree = ast.parse(source(name).read_text(encoding="utf-8"))
    last = tree.body[-1]
    assert isinstance(last, ast.If), f"{name} has no block for commands"
    defined = ast.Module(body=last.body[:-1], type_ignores=[])
    with commands.no_flags():
        exec(compile(defined, name, "exec"), vars(module))
        yield


class PagesTest(parameterized.TestCase):
    @parameterized.named_parameters((str(page.relative_to(commands.ROOT)), page) for page in PAGES)
    def test_flags_of_commands_exist(self, page):
        for name, *arguments in printed(page):
            if name in WITHOUT_ABSL or any(one.startswith("--help") for one in arguments):
                continue
            with self.subTest(" ".join([name, *arguments])), warnings.catch_warnings():
                # ml_collections reads a config file in this way.
                warnings.filterwarnings("ignore", r"the load_module", DeprecationWarning)
                commands.load(name)
                if commands.has_flags(name):
                    with commands.parsed(name, *arguments):
                        continue
                with with_flags(name), mock.patch.object(sys, "argv", [name, *arguments]):
                    flags.FLAGS(sys.argv)
