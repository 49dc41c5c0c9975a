"""Report of `studies.sampling_quality`: tables and plots from its records alone."""

import pathlib
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from ml_collections import ConfigDict

from common import artifacts
from studies import sampling_plots, sampling_tasks
from studies.downstream import spread
from studies.sampling_losses import Row, summarise
from studies.sampling_settings import (
    CORRECTED,
    FULL,
    FULL_BIAS,
    GROUPS,
    PUBLISHED,
    Setting,
    study,
)


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
    methods = [one for one in everything if one.group == "method"]
    of_methods = [rows[one.name] for one in methods if one.name in rows]
    folder = workdir / "report"
    sampling_plots.plot_methods(of_methods, folder / "methods.png")
    _plot_k(config, everything, rows, folder / "neighbours.png")
    parts += ["## Languages", language_table(of_methods, unigram)]
    scores = sampling_tasks.read_scores(workdir)
    sampling_plots.plot_tuned_methods(methods, scores, folder / "methods_tuned.png")
    sampling_plots.plot_tuned_k(_by_k(config, everything), scores, folder / "neighbours_tuned.png")
    parts += ["## Fine-tuning", *_task_tables(scores, everything)]
    images = {
        "methods": "Loss by method",
        "methods_tuned": "Tasks by method",
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
        sampling_plots.plot_k(by_form, full, path)


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
            f"{statistics.fmean(row.loss.values()):.3f}",
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
        cells = [f"{value:.3f}" for value in (*values, statistics.fmean(values))]
        lines.append(f"| {label} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


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
