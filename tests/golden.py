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
from unittest import mock

import numpy as np
from absl.testing import absltest
from matplotlib import collections, figure, image, lines, patches, text

_ROUNDING = 1e-9
_RESIDUAL = re.compile(r"[+-]\d\.\de[+-](?:1\d|00) \(\w+\)")  # and whose it is, by chance


def check_report(
    case: absltest.TestCase, file: str, name: str, write: Callable[[pathlib.Path], Any]
) -> str:
    """Let `write` fill a folder; compare its text and what its plots show. Return report.md."""
    images = []

    def save(one: figure.Figure, *args, **kwargs) -> None:
        images.append(described(one))
        original(one, *args, **kwargs)

    original = figure.Figure.savefig
    folder = pathlib.Path(case.enter_context(tempfile.TemporaryDirectory())) / "report"
    with mock.patch.object(figure.Figure, "savefig", save):
        write(folder)
    parts = []
    pages = [path for path in folder.glob("*.*") if path.suffix != ".html"]  # made of report.md
    for path in sorted(pages, key=lambda path: (path.suffix != ".md", path.name)):
        content = path.read_bytes()[1:4].decode("latin-1")
        if path.suffix == ".json":
            content = json.dumps(_rounded(json.loads(path.read_bytes())), ensure_ascii=False)
        elif path.suffix in (".md", ".csv"):
            content = _RESIDUAL.sub("a rounding error", path.read_text(encoding="utf-8"))
        parts.append(f"<!-- {path.name} -->\n{content}")
    parts += [f"<!-- plot -->\n{shown}\n" for shown in sorted(images)]
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


def described(one: figure.Figure) -> str:
    """Return all data, labels and scales that a figure shows, a line for each artist."""
    found = [f"title {one.get_suptitle()!r}"] if one.get_suptitle() else []
    for axes in one.axes:
        ticks = [label.get_text() for label in (*axes.get_xticklabels(), *axes.get_yticklabels())]
        named = [label for label in ticks if any(map(str.isalpha, label))]
        found.append(
            f"panel {axes.get_title()!r}, x {axes.get_xlabel()!r} {axes.get_xscale()}, "
            f"y {axes.get_ylabel()!r} {axes.get_yscale()}{', ' * bool(named)}{' '.join(named)}"
        )
        for artist in axes.get_children():
            if isinstance(artist, lines.Line2D):
                points = [_numbers(values) for values in artist.get_data()]
                found.append(f"  line {_label(artist)}{points[0]}; {points[1]}")
            elif isinstance(artist, patches.Rectangle) and artist is not axes.patch:
                corner = (*artist.get_xy(), artist.get_width(), artist.get_height())
                found.append(f"  bar {_label(artist)}{_numbers(corner)}")
            elif isinstance(artist, collections.Collection) and axes.get_label() != "<colorbar>":
                paths = [_numbers(path.vertices.ravel()) for path in artist.get_paths()]
                found.append(f"  area {_label(artist)}{'; '.join(paths)}")
            elif isinstance(artist, image.AxesImage):
                found += [f"  image {_numbers(row)}" for row in np.ma.filled(artist.get_array(), 0)]
            elif isinstance(artist, text.Annotation):
                found.append(f"  text {artist.get_text()!r} at {_numbers(artist.xy)}")
    legends = [*one.legends, *(axes.get_legend() for axes in one.axes if axes.get_legend())]
    shown = [entry.get_text() for legend in legends for entry in legend.get_texts()]
    return "\n".join([*found, f"legend {shown}"])


def _label(artist) -> str:
    label = str(artist.get_label())
    hollow = isinstance(artist, lines.Line2D) and artist.get_markerfacecolor() in ("w", "white")
    return "hollow " * hollow + ("" if label.startswith("_") else f"{label!r} ")


def _numbers(values) -> str:
    return " ".join(f"{value:.4g}" for value in np.asarray(values, float).ravel())


def _rounded(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _rounded(one) for key, one in value.items()}
    if isinstance(value, list):
        return [_rounded(one) for one in value]
    if isinstance(value, float):
        return float(f"{value:.6g}") if abs(value) > _ROUNDING else 0.0
    return value
