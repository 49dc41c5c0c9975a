"""Plots of a run's metrics by step."""

import pathlib
from collections.abc import Mapping, Sequence

from vocap import figures

Metrics = Sequence[Mapping[str, float]]


def plot_loss(metrics: Metrics, unigram: float, exact_from: int, path: pathlib.Path) -> None:
    """Plot training loss, exact held-out loss with its range over languages, and unigram level.

    For a mixture of objectives, and for replaced-token detection, the training loss is that of
    masked LM on packed sequences, since other losses are not comparable. Training is exact from
    `exact_from`.
    """
    recorded = {name for record in metrics for name in record}
    names = ("train/mlm_loss", "train/mrtd/generator_loss", "train/loss")
    training = next((name for name in names if name in recorded), "train/loss")
    lines = {"training": training, "exact, held-out rows, mean of languages": "eval/loss"}
    level = (f"unigram, mean of languages ({unigram:.3f})", unigram)
    figure, axes = _by_step(metrics, lines, level, "loss (nats a masked token)", exact_from)
    ranges = [
        (record["step"], min(values), max(values))
        for record in metrics
        if (values := [one for name, one in record.items() if name.startswith("eval/loss/")])
    ]
    if ranges:
        label = "languages, lowest to highest"
        axes.fill_between(*zip(*ranges, strict=True), color="tab:orange", alpha=0.15, label=label)
    _save(figure, path)


def plot_detection(metrics: Metrics, path: pathlib.Path) -> None:
    """Plot the AUC of a discriminator by step, on each corruption of held-out text."""
    lines = {
        "unigram samples": "rtd/unigram/auc",
        "samples of a frozen generator": "rtd/frozen/auc",
        "samples of its own generator": "rtd/own/auc",
    }
    figure, _ = _by_step(metrics, lines, ("chance", 0.5), "AUC, mean of languages")
    _save(figure, path)


def plot_candidates(metrics: Metrics, capacity: int, exact_from: int, path: pathlib.Path) -> None:
    """Plot |V'| of the recorded steps up to `exact_from` against its capacity, and the overflow."""
    lines = {"|V'|, before the cut": "train/candidates", "overflow": "train/overflow"}
    level = (f"capacity {capacity}", capacity)
    figure, axes = _by_step(metrics, lines, level, "pieces", exact_from, sampled_only=True)
    axes.set_ylim(bottom=0)
    _save(figure, path)


def _by_step(
    metrics: Metrics,
    lines: Mapping[str, str],
    level: tuple[str, float],
    label: str,
    exact_from: float = float("inf"),
    *,
    sampled_only: bool = False,
):
    """Draw a line for each metric, by label, and a labelled level; shade the exact steps."""
    figure, axes = figures.new()
    for name, metric in lines.items():
        found = [(record["step"], record[metric]) for record in metrics if metric in record]
        if sampled_only:
            found = [one for one in found if one[0] <= exact_from]
        if found:
            style = {} if metric.startswith("train/") else {"marker": "o"}
            axes.plot(*zip(*found, strict=True), label=name, alpha=0.8, **style)
    last = max((record["step"] for record in metrics), default=0)
    if exact_from < last:
        shade = {"color": "tab:green", "alpha": 0.12, "linewidth": 0}
        axes.axvspan(exact_from, last, label="steps with the exact softmax", **shade)
    axes.axhline(level[1], color="black", linestyle="--", label=level[0])
    axes.set(xlabel="step", ylabel=label)
    axes.grid(alpha=0.3)
    return figure, axes


def _save(figure, path: pathlib.Path) -> None:
    figures.legend(figure, place="upper", columns=2)
    figures.save(figure, path)
