"""Blocks of pages of docs, run as printed in a folder of a test.

Blocks of bash and Python are run, in the order of the page. `<!-- not run: REASON -->` above a
block says why one is not. Blocks without a language are output.
"""

import contextlib
import importlib.util
import io
import pathlib
import re
import shlex
import subprocess
import warnings
from collections.abc import Mapping
from typing import Any, NamedTuple

from tests import commands, folders
from xlm.cli.main import VERBS

_BLOCK = re.compile(r"(?:<!-- not run: (.+?) -->\n)?^```(\w*)\n(.*?)^```", re.M | re.S)


class Block(NamedTuple):
    language: str
    text: str
    not_run: str = ""  # why not


def blocks(page: str) -> list[Block]:
    """All blocks of a page below docs/."""
    text = (commands.ROOT / "docs" / page).read_text(encoding="utf-8")
    return [Block(language, code, why) for why, language, code in _BLOCK.findall(text)]


class PageTest(folders.FolderTest):
    """Runs a page. `small` has flags by command that fit little data, `swapped` other code."""

    small: Mapping[str, tuple[str, ...]] = {}
    swapped: Mapping[str, str] = {}

    def setUp(self):
        super().setUp()
        self.names: dict[str, Any] = {}  # what the Python of the page has defined

    def link(self, name: str, target: pathlib.Path) -> None:
        (self.folder / name).parent.mkdir(parents=True, exist_ok=True)
        (self.folder / name).symlink_to(target)

    def run_page(self, page: str) -> list[str]:
        """Run the blocks of a page that are to be run, and return what each printed."""
        found = [one for one in blocks(page) if one.language in ("bash", "python")]
        return [self.run_block(one) for one in found if not one.not_run]

    def run_block(self, block: Block) -> str:
        text = block.text
        for large, small in self.swapped.items():
            text = text.replace(large, small)
        if block.language == "bash":
            return "".join(map(self.run_line, text.replace("\\\n", " ").splitlines()))
        for name in re.findall(r"^(?:from|import) (\w+)", text, re.M):
            if not importlib.util.find_spec(name):
                self.skipTest(f"the page imports {name}, which is not installed")
        with (
            contextlib.redirect_stdout(io.StringIO()) as printed,
            contextlib.chdir(self.folder),
            warnings.catch_warnings(),
        ):
            warnings.simplefilter("ignore")  # of other libraries, about each other
            exec(compile(text, "block", "exec"), self.names)
        return printed.getvalue()

    def run_line(self, line: str) -> str:
        words = shlex.split(line, comments=True)
        if words[:1] not in (["xlm"], ["python"]):
            command = ["bash", "-euc", line]
            done = subprocess.run(command, cwd=self.folder, capture_output=True, text=True)
        else:
            name = VERBS[words[1]] if words[0] == "xlm" else words[1].removesuffix(".py")
            flags = self.small.get(name, ())
            done = commands.execute(name, *words[2:], *flags, folder=self.folder)
        self.assertEqual(done.returncode, 0, f"{line}\n{done.stderr}")
        return done.stdout
