"""Charts as SVG, without a library: lines, dots, bars, areas and cells, with values on hover.

A file of `save` needs no page and has light colours. `html_report` puts the same chart into a page.
"""

import dataclasses
import html
import itertools
import math
import pathlib
import re
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from xlm.common import artifacts

STYLE = pathlib.Path(__file__).with_name("charts.css")
Values = Any  # a sequence or array of numbers
_WIDTH, _RIGHT, _LETTER, _COLOURS = 760, 744, 6.1, 10  # pixels; colours of charts.css
_ROW, _LEAST_ROW, _TICKS = 19, 9, 7  # pixels of a row, of one with a name; ticks of an axis
_MOST_POINTS, _MOST_TEXTS, _MOST_TIPS = 200, 150, 1000  # of a line; of cells


class Axis(NamedTuple):
    """An axis; `names` are rows or columns at 0, 1, ...; the values `ends` must be in view."""

    label: str = ""
    is_log: bool = False
    names: Sequence[str] = ()
    ends: Values = ()


@dataclasses.dataclass(frozen=True)
class Marks:
    """Marks of one entry in the legend; without a name there is no entry.

    Attributes:
      kind: "line", "dots", "dotted" (a line and dots), "bars" (from `starts` to x, in row
        y), "spans" (thin bars), "area" (from `starts` to y), "cells" (whose shades, 0 to 1, are
        `starts`), "rule" (across, at a y or an x), or "shade" (between two x).
      style: classes of charts.css, such as "c3 hollow"; by default the next colour.
      tips: texts on hover by point, instead of its name and numbers.
    """

    name: str
    xs: Values
    ys: Values
    kind: str = "line"
    starts: Values = ()
    style: str = ""
    tips: Sequence[str] = ()


_NO_AXIS = Axis()


def chart(
    marks: Iterable[Marks], x: Axis = _NO_AXIS, y: Axis = _NO_AXIS, *, title: str = "",
    height: int = 300,
) -> str:  # fmt: skip
    """Draw marks, without points that an axis cannot show. Rows replace `height`."""
    places = itertools.count()
    there = [one if one.style else restyled(one, next(places))
             for one in (_shown(one, x, y) for one in marks)]  # fmt: skip
    row = max(min(_ROW, 560 / len(y.names)), 2) if x.names and y.names else _ROW
    left = 10 + max([58, *(_room(name) for name in y.names if row >= _LEAST_ROW)])
    left += 14 * bool(y.names and y.label)
    top, legend = _legend([(one.name, one.style) for one in there if one.name], 22 if title else 6)
    bottom = top + (len(y.names) * row + 8 if y.names else height)
    across = _Scale(x, there, ("xs", "bars", "spans"), left, _RIGHT)
    down = _Scale(y, there, ("ys", "area"), *((top, bottom) if y.names else (bottom, top)))
    parts = [_text(left, 14, title, "title"), legend]
    parts += _axes(across, down, x, y, (left, top, bottom), row)
    for one in sorted(there, key=lambda one: one.kind not in ("area", "shade")):
        drawn = _drawn(one, across, down, y.names, (left, top, bottom), row)
        parts.append(f'<g class="{one.style}">{"".join(drawn)}</g>')
    below = 0.87 * max(map(_room, x.names), default=0)
    return _svg(_WIDTH, bottom + below + 46, title or y.label or x.label, parts)


def by_step(records: Sequence[Mapping[str, float]], metric: str, name: str = "") -> Marks:
    """Return the line of a metric over the steps of `records`; evaluations also have dots."""
    found = [one for one in records if metric in one]
    steps, values = ([one[key] for one in found] for key in ("step", metric))
    kind = "line" if metric.startswith(("train/", "speed/")) else "dotted"
    return Marks(name or metric, steps, values, kind)


def restyled(one: Marks, place: int) -> Marks:
    """Return marks in the colour of number `place`: ten, then the same ten dashed."""
    style = f"c{place % _COLOURS} dash{place // _COLOURS % 4} {one.style}".rstrip()
    return dataclasses.replace(one, style=style)


def stacked(charts: Sequence[str]) -> str:
    """Put charts below one another."""
    heights = [float(re.findall(r' height="([\d.]+)"', one)[0]) for one in charts]
    tops = itertools.accumulate(heights, initial=0.0)
    inside = [one.replace('<svg class="chart"', f'<svg y="{top:g}"', 1)
              for one, top in zip(charts, tops, strict=False)]  # fmt: skip
    return _svg(_WIDTH, sum(heights), "charts", inside)


def save(svg: str, path: pathlib.Path) -> None:
    """Write a chart as a file of its own, with its style in light colours."""
    light = re.sub(r"light-dark\((.*?), .*?\)", r"\1", STYLE.read_text(encoding="utf-8"))
    paper = '<rect class="paper" width="100%" height="100%"/>'
    artifacts.write_text(path, svg.replace(">", f"><style>\n{light}</style>{paper}", 1) + "\n")


def markup(path: pathlib.Path) -> str:
    """Return the chart of a file of `save` for a page that has `STYLE`."""
    text = path.read_text(encoding="utf-8").rstrip("\n")
    return re.sub(r"<style>.*?</style><rect class=.paper.*?/>", "", text, count=1, flags=re.DOTALL)


class _Scale:
    """Map of values to pixels between `start` and `end`, with room around the values."""

    def __init__(
        self, axis: Axis, marks: Iterable[Marks], of: Sequence[str], start: float, end: float
    ):
        """`of` has the field of the values, and the kinds of marks whose starts are values."""
        self._is_log, self._start, self._end = axis.is_log, start, end
        there = [(getattr(one, of[0]), one.starts if one.kind in of else ()) for one in marks]
        found = [*(v for both in there for v in (*both[0], *both[1])), *axis.ends] or [1.0]
        low, high = self._inner(min(found)), self._inner(max(found))
        margin = 0.02 * (high - low) if high - low > 1e-12 else 0.5
        self._low, self._high = low - margin, high + margin
        if axis.names:
            self._low, self._high = -0.6, len(axis.names) - 0.4

    def _inner(self, value: float) -> float:
        return math.log10(value) if self._is_log else value

    def __call__(self, value: float) -> float:
        share = (self._inner(value) - self._low) / (self._high - self._low)
        return self._start + share * (self._end - self._start)

    def ticks(self) -> list[float]:
        span = self._high - self._low
        if self._is_log:
            subs = range(1, 10) if span < 1 else (1, 2, 5) if span < 3 else (1,)
            powers = range(math.floor(self._low), math.ceil(self._high) + 1)
            found = [sub * 10.0**power for power in powers for sub in subs]
            return [one for one in found if self._low <= math.log10(one) <= self._high]
        unit = 10 ** math.floor(math.log10(span / _TICKS))
        step = next(one * unit for one in (1, 2, 2.5, 5, 10) if one * unit >= span / _TICKS)
        places = range(math.ceil(self._low / step), math.floor(self._high / step) + 1)
        return [round(at * step, 12) for at in places]


def _shown(one: Marks, x: Axis, y: Axis) -> Marks:
    """Leave out points that an axis cannot show, and most points of a long line."""
    if one.kind in ("rule", "shade"):
        return dataclasses.replace(one, style=one.kind)
    kept = [
        i
        for i, (at, value) in enumerate(zip(one.xs, one.ys, strict=True))
        if math.isfinite(at) and math.isfinite(value) and (at > 0 or not x.is_log)
        and (value > 0 or not y.is_log) and (not one.starts or math.isfinite(one.starts[i]))
    ]  # fmt: skip
    if one.kind == "line" and len(kept) > _MOST_POINTS:
        kept = [*kept[:: math.ceil(len(kept) / _MOST_POINTS)], kept[-1]]
    fields = ((name, getattr(one, name)) for name in ("xs", "ys", "starts", "tips"))
    found: dict[str, Any] = {name: [of[i] for i in kept] if len(of) else () for name, of in fields}
    return dataclasses.replace(one, **found)


def _drawn(
    one: Marks, across: _Scale, down: _Scale, rows: Sequence[str], box: Values, row: float
) -> Iterable[str]:
    left, top, bottom = box
    if one.kind == "rule":
        yield from (_line("rule", left, down(y), _RIGHT, down(y), one.name) for y in one.ys)
        yield from (_line("rule", across(x), top, across(x), bottom, one.name) for x in one.xs)
        return
    if one.kind == "shade":
        x, end = map(across, one.xs)
        yield _tag("rect", "", one.name, x=x, y=top, width=end - x, height=bottom - top)
        return
    pixels = [(across(x), down(y)) for x, y in zip(one.xs, one.ys, strict=True)]
    drawn, name = pixels, "polyline"
    if one.kind == "area":
        below = [(across(x), down(y)) for x, y in zip(one.xs, one.starts, strict=True)]
        drawn, name = [*pixels, *below[::-1]], "polygon"
    if one.kind in ("line", "dotted", "area"):
        points = " ".join(f"{x:.1f},{y:.1f}" for x, y in drawn)
        yield f'<{name} points="{points}"/>'
    for i, (x, y) in enumerate(pixels if one.kind != "area" else ()):
        tip = one.tips[i] if one.tips else _tip(one, i, rows)
        start = one.starts[i] if one.starts else 0.0
        if one.kind == "bars":
            begin, end = sorted((x, across(start)))
            at: Any = {"x": begin, "y": y - row / 3, "width": end - begin, "height": row / 1.5}
            yield _tag("rect", "bar", tip, **at)
        elif one.kind == "spans":
            yield _line("span", across(start), y, x, y, tip)
        elif one.kind == "cells":
            wide, gap = across(1) - across(0), row > _LEAST_ROW
            at = {"x": x - wide / 2, "y": y - row / 2, "width": wide - gap, "height": row - gap}
            tip = tip if len(pixels) <= _MOST_TIPS else ""
            yield _tag("rect", "cell", tip, f'fill-opacity="{start:.2f}"', **at)
            if len(pixels) <= _MOST_TEXTS and _room(tip) < wide:
                yield _text(x, y + 4, tip, "mid light" if start > 0.5 else "mid")
        else:  # points of a line appear on hover
            style, size = ("hit", 5) if one.kind == "line" else ("", 3.4)
            yield _tag("circle", style, tip, cx=x, cy=y, r=size)


def _tip(one: Marks, i: int, rows: Sequence[str]) -> str:
    x, y = one.xs[i], one.ys[i]
    if not rows:
        return f"{one.name}: {y:,.5g} at {x:,.6g}"
    begin = f"{one.starts[i]:,.5g} to " if one.starts else ""
    return ", ".join(filter(None, (rows[round(y)], one.name))) + f": {begin}{x:,.5g}"


def _axes(
    across: _Scale, down: _Scale, x: Axis, y: Axis, box: Values, row: float
) -> Iterable[str]:  # fmt: skip
    left, top, bottom = box
    last, middle = -math.inf, (top + bottom) / 2
    for value in () if x.names else across.ticks():
        at, text = across(value), format(value, ",.6g")
        yield _line("tick", at, top, at, bottom)
        if at - last > _room(text) + 8:
            yield _text(at, bottom + 16, text, "mid")
            last = at
    for value in () if y.names else down.ticks():
        yield _line("tick", left, down(value), _RIGHT, down(value))
        yield _text(left - 6, down(value) + 4, format(value, ",.6g"), "end")
    for i, name in enumerate(y.names if row >= _LEAST_ROW else ()):
        yield _text(left - 6, down(i) + 4, name, "end")
    for i, name in enumerate(x.names):
        px, py = across(i) + 4, bottom + 8
        yield _text(px, py, name, "end", f'transform="rotate(-60 {px:.1f} {py:.1f})"')
    below = bottom + 36 + 0.87 * max(map(_room, x.names), default=0)
    yield _text((left + _RIGHT) / 2, below, x.label, "mid soft")
    yield _text(12, middle, y.label, "mid soft", f'transform="rotate(-90 12 {middle:.1f})"')


def _legend(entries: Sequence[tuple[str, str]], top: float) -> tuple[float, str]:
    """Return the lower end of the legend, and its rows."""
    x, y, parts = 12.0, top + 8, []
    for name, style in entries:
        if x + _room(name) + 34 > _WIDTH and x > 12:
            x, y = 12.0, y + 17
        line, text = _line(style, x, y, x + 16, y), _text(x + 21, y + 4, name)
        parts.append(f'<g class="{style} key">{line}{text}</g>')
        x += _room(name) + 40
    return y + 14 if entries else top, "".join(parts)


def _room(text: str) -> float:  # pixels, about
    return _LETTER * sum(1 + (unicodedata.east_asian_width(c) in "WF") for c in text)


def _tag(name: str, style: str, says: str = "", more: str = "", **places: float) -> str:
    """Return an element; `says` is its text, or for a mark the text on hover."""
    says = html.escape(says)
    if says and name != "text":
        says = f"<title>{says}</title>"
    at = " ".join(f'{key}="{value:.1f}"' for key, value in places.items())
    return f'<{name} class="{style}" {at} {more}>{says}</{name}>'


def _line(style: str, x: float, y: float, to_x: float, to_y: float, tip: str = "") -> str:
    return _tag("line", style, tip, x1=x, y1=y, x2=to_x, y2=to_y)


def _text(x: float, y: float, text: str, style: str = "", more: str = "") -> str:
    return _tag("text", style, text, more, x=x, y=y) if text else ""


def _svg(width: float, height: float, title: str, parts: Iterable[str]) -> str:
    begin = '<svg class="chart" xmlns="http://www.w3.org/2000/svg" role="img"'
    size = f'viewBox="0 0 {width:g} {height:g}" width="{width:g}" height="{height:g}"'
    return f'{begin} {size} aria-label="{html.escape(title)}">{"".join(parts)}</svg>'
