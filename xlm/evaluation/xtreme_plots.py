"""Plots of fine-tuning runs."""

import pathlib
from collections.abc import Sequence

import numpy as np

from vocap import figures
from xlm.evaluation.xtreme_runs import Variant, average, averaged_metrics, names

_AVERAGE = "average"


def plot_task(of_task: Sequence[Variant], averaged: Sequence[str], path: pathlib.Path) -> None:
    """Plot a row per language and for the average: dots are variants, bars standard deviations."""
    scores = [_scores(one, averaged) for one in of_task]
    # The average, then languages: those of the first variant best first, then the others'.
    labels = list(
        dict.fromkeys(
            name
            for found in scores
            for name in sorted(found, key=lambda name: (name != _AVERAGE, -found[name][0]))
        )
    )
    height = 1.3 + len(labels) * (0.14 + 0.08 * len(of_task)) + 0.2 * len(of_task)
    figure, axes = figures.new((7.5, height))
    offsets = 0.6 * (np.arange(len(of_task)) + 0.5) / len(of_task) - 0.3
    for name, found, offset in zip(names(of_task), scores, offsets, strict=True):
        rows = np.array([labels.index(label) for label in found]) + offset
        centers, spreads = zip(*found.values(), strict=True)
        axes.errorbar(centers, rows, xerr=spreads, fmt="o", ms=3.5, lw=1, label=name)
    for row in range(0, len(labels), 2):
        axes.axhspan(row - 0.5, row + 0.5, color="black", alpha=0.05, lw=0)
    if labels[0] == _AVERAGE:
        axes.axhline(0.5, color="black", lw=0.8)
    figures.name_rows(axes, labels)
    metrics = averaged_metrics(of_task[0].task)
    mean = ", their mean" if len(metrics) > 1 else ""
    axes.set_xlabel(f"{' and '.join(metrics)}{mean} (%)")
    axes.set_title(f"{of_task[0].table}: score by language", fontsize=10)
    figures.legend(figure, columns=1)
    figures.save(figure, path)


def _scores(one: Variant, averaged: Sequence[str]) -> dict[str, tuple[float, float]]:
    """Return per cent and standard deviation of each language, and of the average of several."""
    found = {language: one.over_seeds(average, {language}) for language in one.languages}
    if len(found) > 1:
        found[_AVERAGE] = one.over_seeds(average, averaged)
    return {
        name: (100 * value.center, 100 * (value.spread or 0.0))
        for name, value in found.items()
        if value is not None
    }
