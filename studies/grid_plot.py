"""Plot of `studies.grid`: our values by x, and the paper's."""

import math
import pathlib
import statistics
from collections.abc import Sequence
from typing import Any

import matplotlib.pyplot as plt

from configs.grids import Grid
from evaluation import figures
from studies.grid_runs import Runs, measures, values


def plot(grid: Grid, found: Runs, path: pathlib.Path) -> None:
    """Plot each measure by x, seeds and their mean, a line per series, and the paper's values."""
    chosen = measures(found)
    count = len(chosen) + bool(grid.paper)
    rows = math.ceil(count / 3)
    figure, panels = plt.subplots(
        rows, 3, figsize=(13, 3.6 * rows), layout="constrained", squeeze=False
    )
    flat = list(panels.flat)
    for axes, measure in zip(flat, chosen, strict=False):
        for number, series in enumerate(dict.fromkeys(point.series for point in grid.points)):
            points = [p for p in grid.ordered() if p.series == series and p.run in found]
            of_points = [(p.x, values(measure, found[p.run])) for p in points]
            drawn = [(x, some) for x, some in of_points if some]
            color = f"C{number}"
            for x, some in drawn:
                axes.plot([x] * len(some), some, "o", color=color, alpha=0.4, ms=4)
            means = [statistics.fmean(some) for _, some in drawn]
            axes.plot([x for x, _ in drawn], means, color=color, label=series, **_style(grid))
        better = "more" if measure.sign > 0 else "less"
        axes.set_title(f"{measure.title} ({better} is better)", fontsize=10)
        _set_axis(grid, axes, [point.x for point in grid.points])
    if grid.paper:
        _plot_paper(grid, flat[len(chosen)])
    for axes in flat[count:]:
        axes.axis("off")
    if len({point.series for point in grid.points}) > 1:
        flat[0].legend(fontsize=8)
    figures.save(figure, path, dpi=110)


def _style(grid: Grid, marker: str = "") -> dict[str, Any]:
    """Return the style of a line of means; of an axis of names, which have no order, no line."""
    if grid.ticks:
        return {"marker": "_", "linestyle": "", "markersize": 24, "markeredgewidth": 2}
    return {"marker": marker, "linestyle": "-"}


def _plot_paper(grid: Grid, axes) -> None:
    axes.set_title(f"paper: {grid.measure}", fontsize=10)
    for number, (series, by_x) in enumerate(grid.paper.items()):
        style = _style(grid, "s")
        axes.plot(list(by_x), list(by_x.values()), color=f"C{number}", label=series, **style)
    axes.legend(fontsize=8)
    _set_axis(grid, axes, sorted({x for by_x in grid.paper.values() for x in by_x}))


def _set_axis(grid: Grid, axes, xs: Sequence[float]) -> None:
    if grid.is_log:
        axes.set_xscale("log")
    ticks = sorted(set(xs))
    axes.set_xticks(ticks, [grid.tick(x) for x in ticks], fontsize=8)
    axes.minorticks_off()
    axes.set_xlabel(grid.axis)
    axes.grid(alpha=0.3)
