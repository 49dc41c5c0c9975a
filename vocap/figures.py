"""Figures of reports, drawn without a display. The first one imports matplotlib."""

import os
from collections.abc import Sequence
from typing import Any

from xlm.common import artifacts

_ROW = 0.19  # inches of a named row


def new(size: tuple[float, float] = (8, 4), **options) -> tuple[Any, Any]:
    """Create a figure of so many inches, and its panels, as `plt.subplots` does."""
    os.environ["MPLBACKEND"] = "agg"  # before the import, which refuses a name it does not know
    import matplotlib.pyplot as plt

    return plt.subplots(figsize=size, layout="constrained", **options)


def rows(names: Sequence[str], row: float = _ROW) -> tuple[Any, Any]:
    """Create a figure with a row for each name, the first at the top."""
    figure, axes = new((8, 1.6 + row * len(names)))
    name_rows(axes, names)
    return figure, axes


def name_rows(axes: Any, names: Sequence[str]) -> None:
    axes.set_yticks(range(len(names)), names, fontsize=8)
    axes.set_ylim(max(len(names), 1) - 0.4, -0.6)
    axes.grid(axis="x", alpha=0.3)


def legend(figure: Any, *, place: str = "lower", columns: int = 3, **options) -> None:
    """Draw the legend of the first panel outside of all panels, "lower" or "upper"."""
    options = dict(zip(("handles", "labels"), figure.axes[0].get_legend_handles_labels(),
                       strict=True)) | options  # fmt: skip
    figure.legend(
        loc=f"outside {place} center", ncols=columns, fontsize=8, frameon=False, **options
    )


def save(figure: Any, path: str | os.PathLike[str], dpi: int = 120) -> None:
    """Write a figure as an image, atomically, and close it."""
    import matplotlib.pyplot as plt

    with artifacts.atomic_path(path) as aside:
        figure.savefig(aside, dpi=dpi)
    plt.close(figure)
