"""Plots of fine-tuning runs."""

import pathlib
from collections.abc import Sequence

import matplotlib.pyplot as plt
import numpy as np

from xlm.evaluation import figures
from xlm.evaluation.xtreme_runs import Variant, average, averaged_metrics, names

_AVERAGE = "average"
_LEGEND_LINE = 0.2  # inches


def plot_task(of_task: Sequence[Variant], averaged: Sequence[str], path: pathlib.Path) -> None:
    """One row a language and one for an average, one dot a variant; bars: standard deviation.

    Languages stand in the order of the first variant's scores.

    Args:
      averaged: the languages that the average is over, the same for all of them.
    """
    scores = [_scores(one, averaged) for one in of_task]
    labels = _order(scores)
    height = 1.3 + len(labels) * (0.14 + 0.08 * len(of_task)) + _LEGEND_LINE * len(of_task)
    figure, axes = plt.subplots(figsize=(7.5, height), layout="constrained")
    offsets = 0.6 * (np.arange(len(of_task)) + 0.5) / len(of_task) - 0.3
    for name, found, offset in zip(names(of_task), scores, offsets, strict=True):
        rows = [i for i, label in enumerate(labels) if label in found]
        axes.errorbar(
            [found[labels[i]][0] for i in rows],
            [i + offset for i in rows],
            xerr=[found[labels[i]][1] for i in rows],
            fmt="o",
            ms=3.5,
            lw=1,
            label=name,
        )
    for row in range(0, len(labels), 2):
        axes.axhspan(row - 0.5, row + 0.5, color="black", alpha=0.05, lw=0)
    if labels[0] == _AVERAGE:
        axes.axhline(0.5, color="black", lw=0.8)
    axes.set_yticks(range(len(labels)), labels)
    axes.set_ylim(len(labels) - 0.5, -0.5)
    axes.grid(axis="x", alpha=0.3)
    task = of_task[0].task
    axes.set_xlabel(f"{' and '.join(averaged_metrics(task))}{_mean_of(task)} (%)")
    axes.set_title(f"{of_task[0].table}: score by language", fontsize=10)
    figure.legend(loc="outside lower center", fontsize=9)
    figures.save(figure, path)


def _mean_of(task: str) -> str:
    return ", their mean" if len(averaged_metrics(task)) > 1 else ""


def _scores(one: Variant, averaged: Sequence[str]) -> dict[str, tuple[float, float]]:
    """Per cent and standard deviation of each language, and of the average of several."""
    found = {language: one.over_seeds(average, {language}) for language in one.languages}
    if len(found) > 1:
        found[_AVERAGE] = one.over_seeds(average, averaged)
    return {
        name: (100 * value.center, 100 * (value.spread or 0.0))
        for name, value in found.items()
        if value is not None
    }


def _order(scores: Sequence[dict[str, tuple[float, float]]]) -> list[str]:
    """The average, then languages: those of the first variant best first, then the others'."""
    labels = dict.fromkeys([_AVERAGE] if any(_AVERAGE in found for found in scores) else [])
    for found in scores:
        labels |= dict.fromkeys(sorted(found, key=lambda name: -found[name][0]))
    return list(labels)
