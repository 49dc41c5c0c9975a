"""Plots of results: lines by number, dots by name, bars by item, and dots with a fit."""

import dataclasses
import math
import pathlib
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib.pyplot as plt
import numpy as np

from research import drawing

# Values of the seeds, by series and x.
Series = Mapping[str, Mapping[Any, Sequence[float]]]


@dataclasses.dataclass(frozen=True)
class Panel:
    """Part of a plot.

    Attributes:
      series: values of the seeds by series and x, or by label and place.
      marks: values of reference lines, by label.
      x, y: labels of the axes.
      ticks: labels of x.
      is_log: whether x is logarithmic.
      is_band: whether the range of seeds is a band instead of dots.
      has_names: whether x has names instead of numbers, so no lines.
      xlim: limits of the horizontal axis.
    """

    title: str
    series: Series
    marks: Mapping[str, Sequence[float]] = dataclasses.field(default_factory=dict)
    x: str = ""
    y: str = ""
    ticks: Mapping[Any, str] = dataclasses.field(default_factory=dict)
    is_log: bool = False
    is_band: bool = False
    has_names: bool = False
    xlim: tuple[float, float] | None = None


def lines(panels: Sequence[Panel], path: pathlib.Path, columns: int = 3) -> None:
    """Plot the values of seeds and their means by x, with a line per series."""
    figure, flat = _figure(len(panels), columns, (4.4, 3.7))
    for axes, panel in zip(flat, panels, strict=False):
        for number, (series, by_x) in enumerate(panel.series.items()):
            drawn = {x: list(some) for x, some in sorted(by_x.items()) if some}
            _line(axes, panel, series, drawn, f"C{number}")
        for label, some in panel.marks.items():
            axes.axhline(statistics.fmean(some), color="tab:red", lw=1, label=label)
            if len(some) > 1:
                axes.axhspan(min(some), max(some), color="tab:red", alpha=0.12)
        if panel.is_log:
            axes.set_xscale("log")
        if panel.ticks:
            axes.set_xticks(list(panel.ticks), list(panel.ticks.values()), fontsize=8)
            axes.minorticks_off()
        axes.set(xlabel=panel.x, ylabel=panel.y)
        axes.set_title(panel.title, fontsize=10)
        axes.grid(alpha=0.3)
        if len(panel.series) > 1 or panel.marks:
            axes.legend(fontsize=8)
    drawing.save(figure, path, dpi=110)


def _line(axes: plt.Axes, panel: Panel, label: str, drawn: Mapping, colour: str) -> None:
    means = [statistics.fmean(some) for some in drawn.values()]
    style: dict[str, Any] = {"color": colour, "label": label}
    if panel.has_names:
        style |= {"marker": "_", "linestyle": "", "markersize": 24, "markeredgewidth": 2}
    axes.plot(list(drawn), means, **style)
    if panel.is_band:
        ends = [[pick(some) for some in drawn.values()] for pick in (min, max)]
        axes.fill_between(list(drawn), *ends, color=colour, alpha=0.15, lw=0)
        return
    for x, some in drawn.items():
        axes.plot([x] * len(some), some, "o", color=colour, alpha=0.4, ms=4)


def places(panels: Sequence[Panel], path: pathlib.Path, columns: int = 2) -> None:
    """Plot the values of seeds and their means at one height per label.

    The only series of a panel has values by label.
    """
    tallest = max(len(panel.series) for panel in panels)
    figure, flat = _figure(len(panels), columns, (5.5, 1.2 + 0.34 * tallest))
    for axes, panel in zip(flat, panels, strict=False):
        for place, by_x in enumerate(panel.series.values()):
            for some in filter(None, by_x.values()):
                _show_seeds(axes, some, place)
        for label, some in panel.marks.items():
            axes.axvline(statistics.fmean(some), color="tab:red", lw=1, label=label)
        axes.set_yticks(range(len(panel.series)), list(panel.series), fontsize=8)
        axes.set_title(panel.title, fontsize=10)
        axes.set_xlabel(panel.x)
        axes.grid(alpha=0.3)
        axes.invert_yaxis()
        if panel.xlim:
            axes.set_xlim(panel.xlim)
    drawing.save(figure, path, dpi=110)


def bars(panels: Sequence[tuple[str, Mapping[str, Mapping[str, float]]]], y: str, path) -> None:
    """Plot values by item as grouped bars, in stacked panels, with a colour per series."""
    figure, flat = _figure(len(panels), 1, (11, 2.6))
    for axes, (title, series) in zip(flat, panels, strict=True):
        names = sorted({name for values in series.values() for name in values})
        width = 0.8 / max(len(series), 1)
        for place, (label, values) in enumerate(series.items()):
            heights = [values.get(name, math.nan) for name in names]
            offset = (place - (len(series) - 1) / 2) * width
            axes.bar(np.arange(len(names)) + offset, heights, width, label=label)
        axes.set_xticks(range(len(names)), names)
        axes.axhline(0, color="black", lw=0.8)
        axes.set_title(title, fontsize=10)
        axes.set_ylabel(y)
        axes.grid(axis="y", alpha=0.3)
    flat[0].legend(fontsize=8)
    drawing.save(figure, path)


def dots(panels: Sequence[Panel], path: pathlib.Path, columns: int) -> None:
    """Plot means over seeds by x with standard deviations and a least-squares line."""
    figure, flat = _figure(len(panels), columns, (2.6, 2.5))
    for axes, panel in zip(flat, panels, strict=False):
        for by_x in panel.series.values():
            x, some = list(by_x), list(by_x.values())
            y = [statistics.fmean(one) for one in some]
            spreads = [statistics.stdev(one) if len(one) > 1 else 0 for one in some]
            axes.errorbar(x, y, yerr=spreads, fmt="o", ms=4, lw=1)
            if len(x) > 2:
                slope, start = np.polyfit(x, y, 1)
                axes.plot(x, start + slope * np.array(x), "--", lw=1, color="tab:gray")
        axes.set_title(panel.title, fontsize=9)
        axes.set(xlabel=panel.x, ylabel=panel.y)
        axes.locator_params(axis="x", nbins=4)
        axes.tick_params(labelsize=8)
        axes.grid(alpha=0.3)
    drawing.save(figure, path, dpi=110)


def _show_seeds(axes: plt.Axes, values: Sequence[float], place: int, size: float = 16) -> None:
    """Draw the values of the seeds around height `place`, and a bar at their mean."""
    axes.plot(values, [place] * len(values), "o", color="tab:blue", alpha=0.5)
    axes.plot(statistics.fmean(values), place, "|", color="black", ms=size, mew=2)


def _figure(count: int, columns: int, size: tuple[float, float]) -> tuple[plt.Figure, list]:
    """Return a figure with panels in rows of some columns, without unused panels."""
    columns = min(columns, count)
    rows = math.ceil(count / columns)
    figure, panels = plt.subplots(
        rows, columns, figsize=(size[0] * columns, size[1] * rows), layout="constrained",
        squeeze=False,
    )  # fmt: skip
    flat = list(panels.flat)
    for axes in flat[count:]:
        axes.axis("off")
    return figure, flat
