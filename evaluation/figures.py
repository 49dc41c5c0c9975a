"""Figures of reports, drawn without a display."""

import os

import matplotlib
import matplotlib.pyplot as plt

from common import artifacts

matplotlib.use("Agg")


def save(figure: plt.Figure, path: str | os.PathLike[str], dpi: int = 120) -> None:
    """Write a figure as an image, atomically, and close it."""
    with artifacts.atomic_path(path) as aside:
        figure.savefig(aside, dpi=dpi)
    plt.close(figure)
