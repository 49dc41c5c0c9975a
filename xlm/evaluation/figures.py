"""Figures of reports, drawn without a display."""

import os
import statistics
from collections.abc import Sequence

import matplotlib
import matplotlib.pyplot as plt

from xlm.common import artifacts

matplotlib.use("Agg")


def save(figure: plt.Figure, path: str | os.PathLike[str], dpi: int = 120) -> None:
    """Write a figure as an image, atomically, and close it."""
    with artifacts.atomic_path(path) as aside:
        figure.savefig(aside, dpi=dpi)
    plt.close(figure)


def show_seeds(axes: plt.Axes, values: Sequence[float], place: int, size: float = 16) -> None:
    """Draw the values of the seeds side by side at height `place`, and a bar at their mean.

    Args:
      values: of the seeds, one or more.
      size: length of the bar in points.
    """
    axes.plot(values, [place] * len(values), "o", color="tab:blue", alpha=0.5)
    axes.plot(statistics.fmean(values), place, "|", color="black", ms=size, mew=2)
