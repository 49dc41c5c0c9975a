"""Reports compared whole with stored ones, in a folder `golden` beside the test.

`REFRESH_GOLDEN=1 python -m pytest FILE` rewrites them. Read the difference before you commit it.
"""

import json
import os
import pathlib
import re
import tempfile
from collections.abc import Callable
from typing import Any
from xml.etree import ElementTree

from absl.testing import absltest

_ROUNDING = 1e-9
_RESIDUAL = re.compile(r"[+-]\d\.\de[+-](?:1\d|00) \(\w+\)")  # and whose it is, by chance


def check_report(
    case: absltest.TestCase, file: str, name: str, write: Callable[[pathlib.Path], Any]
) -> str:
    """Let `write` fill a folder; compare its text and what its charts say. Return report.md."""
    folder = pathlib.Path(case.enter_context(tempfile.TemporaryDirectory())) / "report"
    write(folder)
    parts = []
    pages = [path for path in folder.glob("*.*") if path.suffix != ".html"]  # made of report.md
    for path in sorted(pages, key=lambda path: (path.suffix != ".md", path.name)):
        content = path.read_text(encoding="utf-8")
        if path.suffix == ".json":
            content = json.dumps(_rounded(json.loads(content)), ensure_ascii=False)
        elif path.suffix in (".md", ".csv"):
            content = _RESIDUAL.sub("a rounding error", content)
        elif path.suffix == ".svg":
            content = described(content)
        parts.append(f"<!-- {path.name} -->\n{content}")
    check(case, file, name, "\n".join(parts))
    page = folder / "report.md"
    case.assertEqual((folder / "report.html").exists(), page.exists())
    return page.read_text(encoding="utf-8") if page.exists() else ""


def check(case: absltest.TestCase, file: str, name: str, found: str) -> None:
    """Compare text with the golden file `name` of the test `file`."""
    path = pathlib.Path(file).parent / "golden" / f"{name}.md"
    if os.environ.get("REFRESH_GOLDEN"):
        path.parent.mkdir(exist_ok=True)
        path.write_text(found, encoding="utf-8")
    case.assertEqual(found, path.read_text(encoding="utf-8"), f"see {path}; {__doc__}")


def described(svg: str) -> str:
    """Return what a chart says: a line of its texts, and one of the tips of each style of marks."""
    root, tips = ElementTree.fromstring(svg), {}
    texts = [one.text for one in root.iter() if one.tag.endswith("text")]
    for group in root.iter():
        found = [one.text for mark in group for one in mark if one.tag.endswith("title")]
        tips.setdefault(group.get("class", ""), []).extend(found)
    lines = {"says": [one for one in texts if any(map(str.isalpha, one))]} | tips
    return "\n".join(f"{style}: {' | '.join(one)}" for style, one in lines.items() if one) + "\n"


def _rounded(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _rounded(one) for key, one in value.items()}
    if isinstance(value, list):
        return [_rounded(one) for one in value]
    if isinstance(value, float):
        return float(f"{value:.6g}") if abs(value) > _ROUNDING else 0.0
    return value
