"""Report of `studies.sampling_quality`: tables and plots from its records alone.

Losses of a run are means over languages, in nats per token.
"""

import dataclasses
import pathlib
import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
from ml_collections import ConfigDict

from common import artifacts
from evaluation import figures
from studies import downstream, sampling_tasks
from studies.downstream import spread
from studies.sampling_settings import (
    CORRECTED,
    FULL,
    FULL_BIAS,
    GROUPS,
    PUBLISHED,
    Setting,
    study,
)

_NEAR = 0.5  # nats, see `plot_methods`


@dataclasses.dataclass(frozen=True)
class Row:
    """Results of a setting over its seeds.

    Attributes:
      name: of the setting.
      label: in tables and plots.
      loss: exact held-out loss of each seed.
      above_unigram: the same minus the cross-entropy of the languages' unigram distributions.
      difference: the same minus that of the full softmax with the same initial output bias, for
        each seed of both; empty for a full softmax itself with the whole embedding.
      languages: loss of each language, mean over seeds.
      candidates, overflow, steps_per_second: means over seeds.
      staleness: share of the index that a refresh changes, mean over seeds; None without an index.
      vocab_size: V.
    """

    name: str
    label: str
    loss: Mapping[int, float]
    above_unigram: Mapping[int, float]
    difference: Mapping[int, float]
    languages: Mapping[str, float]
    candidates: float
    overflow: float
    steps_per_second: float
    staleness: float | None
    vocab_size: int


def write_report(
    config: ConfigDict,
    settings: Sequence[Setting],
    seeds: Sequence[int],
    tasks: Sequence[str],
    workdir: pathlib.Path,
) -> str:
    """Write tables and plots of all records in `workdir`, and list missing runs; return the text.

    Raises:
      ValueError: there are no records.
    """
    records = [artifacts.read_json(path) for path in sorted(workdir.glob("runs/*/*/record.json"))]
    if not records:
        raise ValueError(f"{workdir} has no finished runs to report")
    everything = study(config)
    rows = summarise(everything, records)
    found = read_speed(workdir)
    speed = speed_ratios(config, everything, found["times"])
    unigram = records[0]["unigram"]
    train, layer = config.train, config.output_layer
    parts = [
        f"# Output layers: {len(unigram)} languages, {records[0]['vocab_size']} pieces",
        f"{train.num_steps} steps of {train.batch_size} rows; S = {layer.num_negatives}. Unigram "
        f"distributions of the languages: {statistics.fmean(unigram.values()):.3f} nats a token. "
        "Differences are means of those of each seed; from the full softmax they are taken where "
        "the output bias starts alike. "
        f"Speed: full softmax = 1, side by side; {found['machine'] or 'not measured yet'}.",
        _missing(settings, seeds, tasks, rows, workdir),
    ]
    parts += _loss_tables(everything, rows, speed)
    methods = [rows[one.name] for one in everything if one.group == "method" and one.name in rows]
    folder = workdir / "report"
    plot_methods(methods, folder / "methods.png")
    _plot_k(config, everything, rows, folder / "neighbours.png")
    parts += ["## Languages", language_table(methods, unigram)]
    scores = sampling_tasks.read_scores(workdir)
    plot_tuned_k(_by_k(config, everything), scores, folder / "neighbours_tuned.png")
    parts += ["## Fine-tuning", *_task_tables(scores, everything)]
    images = {
        "methods": "Loss by method",
        "neighbours": "Loss by k",
        "neighbours_tuned": "Tasks by k",
    }
    parts += [
        f"![{title}]({name}.png)"
        for name, title in images.items()
        if (folder / f"{name}.png").exists()
    ]
    text = "\n\n".join(parts) + "\n"
    artifacts.write_text(folder / "report.md", text)
    return text


def _loss_tables(
    settings: Sequence[Setting],
    rows: Mapping[str, Row],
    speed: Mapping[str, Mapping[str, float]],
) -> list[str]:
    """Markdown tables of exact losses and speed, by group of settings, with titles."""
    # References of the comparison are in all tables.
    common = [name for name in (FULL, FULL_BIAS, PUBLISHED, CORRECTED) if name in rows]
    parts = []
    for group, title in GROUPS.items():
        names = [one.name for one in settings if one.group == group and one.name in rows]
        if names:
            shown = names if group == "method" else [*common, *names]
            parts += [f"## {title}", table([rows[name] for name in shown], speed)]
    return parts


def _task_tables(scores: sampling_tasks.Scores, settings: Sequence[Setting]) -> list[str]:
    """Markdown tables of all fine-tuned scores, by group of settings and task, with titles."""
    parts = []
    for group, title in GROUPS.items():
        members = [one for one in settings if one.group == group and one.is_fine_tuned]
        references = {FULL, *(one.tuned_reference for one in members)}
        shown = [one for one in settings if one in members or one.name in references]
        for name, task in sampling_tasks.TASKS.items():
            by_encoder = scores.get(name, {})
            if any(one.name in by_encoder for one in members):
                parts += [f"### {title}: {task.title}", sampling_tasks.table(by_encoder, shown)]
    return parts or ["Nothing yet."]


def _by_k(config: ConfigDict, settings: Sequence[Setting]) -> dict[str, dict[int, Setting]]:
    """Settings of k-NN sampling by form, as published and corrected, and by k."""
    forms: dict[str, dict[int, Setting]] = {}
    for one in settings:
        if one.group == "k" or one.name in (PUBLISHED, CORRECTED):
            form = "as published" if one.reference == FULL else "corrected"
            forms.setdefault(form, {})[one.config(config).output_layer.k] = one
    return forms


def _plot_k(
    config: ConfigDict,
    settings: Sequence[Setting],
    rows: Mapping[str, Row],
    path: pathlib.Path,
) -> None:
    """Plot the losses of k-NN sampling against k, as far as there are rows."""
    by_form: dict[str, dict[int, Row]] = {}
    full = {}
    for form, by_k in _by_k(config, settings).items():
        for k, one in by_k.items():
            if one.name in rows:
                by_form.setdefault(form, {})[k] = rows[one.name]
                if one.reference in rows:
                    full[form] = rows[one.reference]
    if by_form:
        plot_k(by_form, full, path)


def _missing(
    settings: Sequence[Setting],
    seeds: Sequence[int],
    tasks: Sequence[str],
    rows: Mapping[str, Row],
    workdir: pathlib.Path,
) -> str:
    """Describe which of the requested runs have no result yet."""
    runs = sampling_tasks.task_runs(settings, seeds, tasks)
    wanted = [(one.name, seed) for one in settings for seed in seeds]
    absent = [
        (name, seed) for name, seed in wanted if name not in rows or seed not in rows[name].loss
    ]
    absent += [
        (f"{run.task} of {run.column}", run.seed)
        for run in runs
        if not run.result(workdir).exists()
    ]
    by_name: dict[str, list[str]] = {}
    for name, seed in absent:
        by_name.setdefault(name, []).append(str(seed))
    if not by_name:
        return f"All {len(wanted) + len(runs)} runs are done."
    listed = "; ".join(f"{name} ({', '.join(seeds)})" for name, seeds in by_name.items())
    return f"**Missing**, {len(absent)} of {len(wanted) + len(runs)} runs (seeds): {listed}."


def summarise(settings: Sequence[Setting], records: Iterable[Mapping[str, Any]]) -> dict[str, Row]:
    """Summarise the settings that have records, in the order of the settings.

    Args:
      settings: all of them.
      records: of finished runs, see `sampling_quality.record`.
    """
    by_setting: dict[str, dict[int, Mapping[str, Any]]] = {}
    for one in records:
        by_setting.setdefault(one["setting"], {})[one["seed"]] = one
    losses = {
        name: {seed: float(np.mean(list(one["loss"].values()))) for seed, one in own.items()}
        for name, own in by_setting.items()
    }
    rows = {}
    for setting in settings:
        name = setting.name
        if name not in by_setting:
            continue
        own, loss = list(by_setting[name].values()), losses[name]
        unigram = _mean(own[0]["unigram"].values())
        is_reference = name == setting.reference
        full = {} if is_reference else losses.get(setting.reference, {})
        languages = {lang: _mean(one["loss"][lang] for one in own) for lang in own[0]["loss"]}
        stale = [one["staleness"] for one in own if one["staleness"] is not None]
        rows[name] = Row(
            name,
            setting.label,
            loss=loss,
            above_unigram={seed: one - unigram for seed, one in loss.items()},
            difference={seed: loss[seed] - full[seed] for seed in loss if seed in full},
            languages=languages,
            candidates=_mean(one["candidates"] for one in own),
            overflow=_mean(one["overflow"] for one in own),
            steps_per_second=_mean(one["steps_per_second"] for one in own),
            staleness=_mean(stale) if stale else None,
            vocab_size=own[0]["vocab_size"],
        )
    return rows


_HEADER = (
    "| | seeds | exact loss | minus unigram | least to largest | minus full | least to largest "
    "| V' | of V | overflow | stale % | speed of a step | of a run |\n|---|" + "---:|" * 12
)


def table(rows: Sequence[Row], speed: Mapping[str, Mapping[str, float]]) -> str:
    """Markdown table: a line per setting.

    Args:
      rows: rows to show.
      speed: speed-up over the full softmax of `step` and `run`, for some or no settings.
    """
    lines = [_HEADER]
    for row in rows:
        fast = speed.get(row.name, {})
        cells = [
            str(len(row.loss)),
            f"{_mean(row.loss.values()):.3f}",
            *spread(row.above_unigram.values(), "{:+.3f}"),
            *spread(row.difference.values(), "{:+.3f}"),
            f"{row.candidates:.0f}",
            f"{row.candidates / row.vocab_size:.3f}",
            f"{row.overflow:.0f}",
            "" if row.staleness is None else f"{100 * row.staleness:.0f}",
            *(f"{fast[what]:.2f}" if what in fast else "" for what in ("step", "run")),
        ]
        lines.append(f"| {row.label} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def language_table(rows: Sequence[Row], unigram: Mapping[str, float]) -> str:
    """Markdown table: loss of each language, and of the unigram distribution."""
    lines = ["| | " + " | ".join(unigram) + " | mean |\n|---|" + "---:|" * (len(unigram) + 1)]
    shown = [("unigram of the language", unigram), *((row.label, row.languages) for row in rows)]
    for label, losses in shown:
        values = [losses[language] for language in unigram]
        cells = [f"{value:.3f}" for value in (*values, _mean(values))]
        lines.append(f"| {label} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def plot_methods(rows: Sequence[Row], path: pathlib.Path) -> None:
    """Plot loss minus unigram by method, seeds and mean; a second panel near the full softmax."""
    full = [_mean(row.above_unigram.values()) for row in rows if row.name == FULL]
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
            losses = list(row.above_unigram.values())
            axes.plot(losses, [place] * len(losses), "o", color="tab:blue", alpha=0.5)
            axes.plot(_mean(losses), place, "|", color="black", ms=16, mew=2)
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
        means = [_mean(by_k[k].above_unigram.values()) for k in ks]
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
    axes.axhline(_mean(values), color="tab:red", lw=1, label=label)
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

    def means(name: str, by_encoder: Mapping[str, sampling_tasks.BySeed]) -> list[float]:
        return [downstream.zero_shot(one) for one in by_encoder.get(name, {}).values()]

    tuned = {one.name for by_k in forms.values() for one in by_k.values() if one.group == "k"}
    shown = {name: scores[name] for name in sampling_tasks.TASKS if tuned & {*scores.get(name, ())}}
    if not shown:
        return
    figure, panels = plt.subplots(
        1, len(shown), figsize=(4.5 * len(shown), 4), layout="constrained", squeeze=False
    )
    for axes, (task, by_encoder) in zip(panels[0], shown.items(), strict=True):
        for number, (form, by_k) in enumerate(forms.items()):
            found = {k: means(one.name, by_encoder) for k, one in sorted(by_k.items())}
            found = {k: values for k, values in found.items() if values}
            # Side by side, since seeds of the two forms overlap.
            places = {k: k * (0.96, 1.04)[number] for k in found}
            color = f"C{number}"
            for k, values in found.items():
                axes.plot([places[k]] * len(values), values, "o", color=color, alpha=0.4)
            averages = [_mean(values) for values in found.values()]
            axes.plot(list(places.values()), averages, "-", color=color, label=f"k-NN {form}")
        if full := means(FULL, by_encoder):
            _show_full(axes, full, "full softmax")
        _show_k(axes, sorted({k for by_k in forms.values() for k in by_k}))
        axes.set_title(f"{sampling_tasks.TASKS[task].title}, mean without English", fontsize=10)
    panels[0][0].legend()
    figures.save(figure, path)


def read_speed(workdir: pathlib.Path) -> dict[str, Any]:
    """Read the seconds of each setting, and the machine; empty before the measurement."""
    path = workdir / "speed.json"
    return artifacts.read_json(path) if path.exists() else {"times": {}, "machine": ""}


def speed_ratios(
    config: ConfigDict, settings: Sequence[Setting], times: Mapping[str, Mapping[str, float]]
) -> dict[str, dict[str, float]]:
    """Speed-up over the full softmax, of a step and a whole run; empty without times."""
    if FULL not in times:
        return {}
    full = times[FULL]["step"]
    return {
        one.name: {
            "step": full / times[one.name]["step"],
            "run": full / seconds_a_step(one.config(config), times[one.name]),
        }
        for one in settings
        if one.name in times
    }


def seconds_a_step(config: ConfigDict, times: Mapping[str, float]) -> float:
    """Mean seconds per step over a whole run, refreshes and exact steps included."""
    layer, steps = config.output_layer, config.train.num_steps
    exact = round(layer.full_softmax_fraction * steps) if "exact" in times else 0
    refreshes = -(-(steps - exact) // layer.refresh_every) if "refresh" in times else 0
    total = (
        (steps - exact) * times["step"]
        + exact * times.get("exact", 0)
        + refreshes * times.get("refresh", 0)
    )
    return total / steps


def _mean(values: Iterable[float]) -> float:
    return float(np.mean(list(values)))
