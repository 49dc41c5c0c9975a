"""Plots of `studies.sampling_quality`: exact losses and fine-tuned scores, by method and by k."""

import pathlib
import statistics
from collections.abc import Mapping, Sequence, Set

import matplotlib.pyplot as plt
import numpy as np

from evaluation import figures
from studies import downstream, sampling_tasks
from studies.sampling_losses import Row
from studies.sampling_settings import FULL, RANDOM, RANDOM_LABEL, Setting

_NEAR = 0.5  # nats, see `plot_methods`


def plot_methods(rows: Sequence[Row], path: pathlib.Path) -> None:
    """Plot loss minus unigram by method, seeds and mean; a second panel near the full softmax."""
    full = [statistics.fmean(row.above_unigram.values()) for row in rows if row.name == FULL]
    near = [
        loss for row in rows for loss in row.above_unigram.values()
        if full and abs(loss - full[0]) < _NEAR
    ]  # fmt: skip
    count = 2 if near else 1
    figure, panels = plt.subplots(
        1,
        count,
        figsize=(3 + 4.5 * count, 1.2 + 0.36 * len(rows)),
        sharey=True,
        layout="constrained",
    )
    panels = np.atleast_1d(panels)
    for axes in panels:
        for place, row in enumerate(rows):
            figures.show_seeds(axes, list(row.above_unigram.values()), place)
        for mean in full:
            axes.axvline(mean, color="tab:red", lw=1, label="full softmax")
            axes.axvspan(mean - 0.02, mean + 0.02, color="tab:red", alpha=0.12, label="± 0.02")
        axes.set_yticks(range(len(rows)), [row.label for row in rows])
        axes.locator_params(axis="x", nbins=6)
        axes.set_xlabel("exact held-out loss minus unigram (nats a token)")
        axes.grid(alpha=0.3)
    panels[0].axvline(0, color="gray", ls="--", lw=1)
    panels[0].invert_yaxis()
    if near:
        margin = 0.1 * (max(near) - min(near)) + 0.03
        panels[1].set_xlim(min(near) - margin, max(near) + margin)
        panels[1].set_title(f"within {_NEAR} nats of the full softmax", fontsize=10)
        panels[1].legend()
    figures.save(figure, path)


def plot_k(
    by_form: Mapping[str, Mapping[int, Row]], full: Mapping[str, Row], path: pathlib.Path
) -> None:
    """Plot loss minus unigram against k, seeds and mean, a panel per form of k-NN sampling.

    Args:
      by_form: rows by k of each form.
      full: reference full softmax of each form, where there is one.
      path: path of the image.
    """
    figure, panels = plt.subplots(
        1, len(by_form), figsize=(5.5 * len(by_form), 4), layout="constrained"
    )
    for axes, (form, by_k) in zip(np.atleast_1d(panels), by_form.items(), strict=True):
        ks = sorted(by_k)
        for k in ks:
            losses = list(by_k[k].above_unigram.values())
            axes.plot([k] * len(losses), losses, "o", color="tab:blue", alpha=0.4)
            share = f"{100 * by_k[k].candidates / by_k[k].vocab_size:.0f} %"
            axes.annotate(share, (k, max(losses)), (0, 7), textcoords="offset points", ha="center")
        means = [statistics.fmean(by_k[k].above_unigram.values()) for k in ks]
        axes.plot(ks, means, "-", color="tab:blue", label="k-NN; its |V'| in % of V")
        if form in full:
            _show_full(axes, list(full[form].above_unigram.values()), full[form].label)
        _show_k(axes, ks)
        axes.margins(y=0.2)
        axes.set_title(form, fontsize=10)
        axes.set_ylabel("exact held-out loss minus unigram (nats a token)")
        axes.legend()
    figures.save(figure, path)


def _show_k(axes: plt.Axes, ks: Sequence[int]) -> None:
    """Make k the horizontal axis."""
    axes.set_xscale("log")
    axes.set_xticks(ks, [str(k) for k in ks])
    axes.minorticks_off()
    axes.set_xlabel("neighbours k")
    axes.grid(alpha=0.3)


def _show_full(axes: plt.Axes, values: Sequence[float], label: str) -> None:
    """Draw the mean of the full softmax, and the range of its seeds."""
    axes.axhline(statistics.fmean(values), color="tab:red", lw=1, label=label)
    axes.axhspan(min(values), max(values), color="tab:red", alpha=0.12)


def plot_tuned_k(
    forms: Mapping[str, Mapping[int, Setting]],
    scores: sampling_tasks.Scores,
    path: pathlib.Path,
) -> None:
    """Plot fine-tuned scores without English against k, seeds and mean, a panel for each task.

    Args:
      forms: settings by form and k.
      scores: of fine-tuning.
      path: path of the image; nothing is written where no k but the study's has scores.
    """
    tuned = {one.name for by_k in forms.values() for one in by_k.values() if one.group == "k"}
    shown = _tasks_with_any(tuned, scores)
    if not shown:
        return
    figure, panels = plt.subplots(
        1, len(shown), figsize=(4.5 * len(shown), 4), layout="constrained", squeeze=False
    )
    for axes, (task, by_encoder) in zip(panels[0], shown.items(), strict=True):
        for number, (form, by_k) in enumerate(forms.items()):
            found = {k: _without_english(by_encoder, one.name) for k, one in sorted(by_k.items())}
            found = {k: values for k, values in found.items() if values}
            # Side by side, since seeds of the two forms overlap.
            places = {k: k * (0.96, 1.04)[number] for k in found}
            color = f"C{number}"
            for k, values in found.items():
                axes.plot([places[k]] * len(values), values, "o", color=color, alpha=0.4)
            averages = [statistics.fmean(values) for values in found.values()]
            axes.plot(list(places.values()), averages, "-", color=color, label=f"k-NN {form}")
        if full := _without_english(by_encoder, FULL):
            _show_full(axes, full, "full softmax")
        _show_k(axes, sorted({k for by_k in forms.values() for k in by_k}))
        axes.set_title(_title(task), fontsize=10)
    panels[0][0].legend()
    figures.save(figure, path)


def plot_tuned_methods(
    settings: Sequence[Setting], scores: sampling_tasks.Scores, path: pathlib.Path
) -> None:
    """Plot fine-tuned scores without English by method, seeds and mean, a panel for each task.

    Args:
      settings: the methods; those without scores are left out.
      scores: of fine-tuning.
      path: path of the image; nothing is written where no method but the full softmax has scores.
    """
    shown = _tasks_with_any({one.name for one in settings} - {FULL}, scores)
    if not shown:
        return
    tuned = set().union(*shown.values())
    labels = {one.name: one.label for one in settings if one.name in tuned}
    if RANDOM in tuned:
        labels[RANDOM] = RANDOM_LABEL
    figure, panels = plt.subplots(
        1,
        len(shown),
        figsize=(3.5 + 3.5 * len(shown), 1.2 + 0.36 * len(labels)),
        sharey=True,
        layout="constrained",
        squeeze=False,
    )
    for axes, (task, by_encoder) in zip(panels[0], shown.items(), strict=True):
        for place, name in enumerate(labels):
            if values := _without_english(by_encoder, name):
                figures.show_seeds(axes, values, place)
        if full := _without_english(by_encoder, FULL):
            axes.axvline(statistics.fmean(full), color="tab:red", lw=1)
        axes.set_yticks(range(len(labels)), labels.values())
        axes.set_xlabel(_title(task))
        axes.grid(alpha=0.3)
    panels[0][0].invert_yaxis()
    figures.save(figure, path)


def _tasks_with_any(names: Set[str], scores: sampling_tasks.Scores) -> sampling_tasks.Scores:
    """Scores of the tasks that some of the encoders have, in the order of the tasks."""
    return {task: scores[task] for task in sampling_tasks.TASKS if names & {*scores.get(task, ())}}


def _without_english(by_encoder: Mapping[str, sampling_tasks.BySeed], name: str) -> list[float]:
    """Mean without English under each seed; [] without scores."""
    return [downstream.zero_shot(one) for one in by_encoder.get(name, {}).values()]


def _title(task: str) -> str:
    return f"{sampling_tasks.TASKS[task].title}, mean without English"
