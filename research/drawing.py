"""Figures of studies, drawn without a display. The only import of matplotlib."""

import os
from typing import Any

from xlm.common import artifacts


def new(size: tuple[float, float] = (8, 4), **options) -> tuple[Any, Any]:
    """Create a figure of `size` inches and its panels, like `plt.subplots`."""
    os.environ["MPLBACKEND"] = "agg"  # before the import, since it refuses unknown names
    import matplotlib.pyplot as plt

    return plt.subplots(figsize=size, layout="constrained", **options)


def save(figure: Any, path: str | os.PathLike[str], dpi: int = 120) -> None:
    """Write a figure as an image, atomically, and close it."""
    import matplotlib.pyplot as plt

    with artifacts.atomic_path(path) as aside:
        figure.savefig(aside, dpi=dpi)
    plt.close(figure)
