"""The report of many fine-tuning runs: tables per task and language, averages, comparisons."""

import csv
import io
import pathlib
import re
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from input_pipeline.tasks.tasks import TASKS
from xlm.common import artifacts
from xlm.evaluation import markdown, xtreme_plots
from xlm.evaluation.published import GROUPS, UNLISTED, Published
from xlm.evaluation.xtreme_runs import (
    XTREME,
    Statistic,
    Variant,
    all_languages,
    average,
    averaged_languages,
    averaged_metrics,
    chosen,
    label,
    names,
    place,
    selected,
    transfer_gap,
)

_GAP = "transfer gap"
_ON_TEST = "†"  # marks scores of data that chose something
_ABSENT = "–"
_RULES = {
    "english": "the English development data (as XTREME)",
    "all_languages": "the mean over all development data (as VoCap and VECO)",
    "each_language": "each language's own development data (XLM-R's models by language)",
}


def write_report(
    folder: pathlib.Path, variants: Sequence[Variant], published: Published
) -> pathlib.Path:
    """Write report.md, scores.csv, averages.csv and a plot a task; return the report's path.

    Args:
      folder: where to; other files there stay.
      variants: see `xtreme_runs.variants`.
      published: numbers to compare with, and sizes of corpora.
    """
    best = chosen(variants)
    for task, of_task in _by_task(best).items():
        xtreme_plots.plot_task(of_task, averaged_languages(of_task), folder / _plot(task))
    artifacts.write_text(folder / "scores.csv", scores_csv(variants))
    artifacts.write_text(folder / "averages.csv", averages_csv(variants, published))
    path = folder / "report.md"
    artifacts.write_text(path, page(variants, published))
    return path


def page(variants: Sequence[Variant], published: Published) -> str:
    """The report as Markdown; its plots are named by their tasks."""
    best = chosen(variants)
    sections = ["# Fine-tuning", _how(best), "## Averages", averages_table(best)]
    gaps = gap_table(best, published)
    if gaps:
        sections += ["## Cross-lingual transfer gap", _GAP_NOTE, gaps]
    for task, of_task in _by_task(best).items():
        title, table = markdown.escaped(task), task_table(of_task, published)
        sections += [f"## {title}", table, f"![{title}]({_plot(task)})"]
        comparison = comparison_table(of_task, published)
        if comparison:
            sections += ["Beside the papers, scores averaged over languages:", comparison]
    sweeps = sweep_table(variants, best)
    if sweeps:
        sections += ["## Hyper-parameters", _SWEEP_NOTE, sweeps]
    return "\n\n".join(sections) + "\n"


_GAP_NOTE = """\
English score minus the mean of the other languages', in points: less is better. Of questions it is
that of exact match (XY-LENT, Table 4). The papers' gaps are over all languages of a dataset."""

_METRIC_RULE = "the mean of F1 and exact match for questions, and the first metric of others"

_SWEEP_NOTE = """\
A row of each task, model and setting, all else being equal, is chosen, marked *, by its score on
the development data; only that one is in the tables above."""


def _how(best: Sequence[Variant]) -> str:
    limits = ", ".join(f"*{name}* from {least:g}" for name, least in GROUPS.items())
    center = best[0].center
    on_validation = sorted({one.table for one in best if one.runs[0].split == "validation"})
    text = f"""\
Per cent; of several seeds the {center} ± standard deviation, with their number n.
The score of a task is {_METRIC_RULE}, averaged over the languages that all runs of the task have.
Resource groups by gigabytes of CommonCrawl text (VoCap, Table 7): {limits}."""
    if any(run.selected_on_test for one in best for run in one.runs):
        text += f"""
{_ON_TEST} marks scores of data on which a checkpoint, a threshold or, of several tried,
hyperparameters were chosen, and averages with such scores: they are too high."""
    if on_validation:
        text += f"\nScores of validation data, for want of test data: {', '.join(on_validation)}."
    return text


def averages_table(best: Sequence[Variant]) -> str:
    """One row a model and setting: average of each task, and of the tasks, as XTREME makes them."""
    tasks = list(_by_task(best))
    is_xtreme = any(task in XTREME for task in tasks)  # not a user's own
    common = _averaged_by_task(best)
    rows = []
    for name, group in _by_label(best).items():
        found = {one.table: one.over_seeds(average, common[one.table]) for one in group}
        marks = {one.table: _mark(one, common[one.table]) for one in group}
        cells = [_cell(found.get(task)) + marks.get(task, "") for task in tasks]
        means = [_mean_cell(found, XTREME), _mean_cell(found, XTREME[:-2])]
        rows.append([name, *cells, *(means if is_xtreme else [])])
    if not is_xtreme:
        return _table(["model", *tasks], rows)
    header = ["model", *tasks, "XTREME (9 tasks)", "without retrieval (7)"]
    notes = [
        f"- {markdown.without_html(name)}: no runs of {', '.join(missing)}."
        for name, group in _by_label(best).items()
        if (missing := [task for task in XTREME if task not in {one.task for one in group}])
    ]
    rule = "A mean over fewer tasks than all, in brackets, compares only with one over the same."
    return "\n\n".join([_table(header, rows), "\n".join([rule, *notes]) if notes else rule])


def _mean_cell(found: Mapping[str, Statistic | None], tasks: Sequence[str]) -> str:
    """The mean of the tasks' scores; in brackets, with their number, if some are missing."""
    centers = [one.center for task in tasks if (one := found.get(task)) is not None]
    if not centers:
        return ""
    mean = f"{100 * np.mean(centers):.1f}"
    return mean if len(centers) == len(tasks) else f"({mean}, {len(centers)} tasks)"


def gap_table(best: Sequence[Variant], published: Published) -> str:
    """Transfer gap of each task, one row a model; empty if there is none."""
    common = _averaged_by_task(best)
    gaps = {
        name: {
            one.table: gap
            for one in group
            if (gap := one.over_seeds(transfer_gap, common[one.table]))
        }
        for name, group in _by_label(best).items()
    }
    tasks = [task for task in common if any(task in found for found in gaps.values())]
    rows = [
        [name, *(_cell(found.get(task)) for task in tasks)] for name, found in gaps.items() if found
    ]
    if not rows:
        return ""
    for row in published.rows:
        if any(task in row.gap for task in tasks):
            cells = [f"{row.gap[task]:.1f}" if task in row.gap else "" for task in tasks]
            rows.append([f"{row.model} ({row.source})", *cells])
    return _table(["model", *tasks], rows)


def task_table(of_task: Sequence[Variant], published: Published) -> str:
    """One row a language, one column a variant; then averages, resource groups, transfer gap."""
    languages = all_languages(run for one in of_task for run in one.runs)
    header = ["language", *names(of_task)]
    rows = [
        [language, *(_language_cell(one, language) for one in of_task)] for language in languages
    ]
    common = averaged_languages(of_task)
    averages = {"average": common, **groups(common, published)}
    for name, members in averages.items():
        cells = [_average_cell(one, members) for one in of_task]
        rows.append([f"**{name}** ({len(members)})", *cells])
    gaps = [one.over_seeds(transfer_gap, common) for one in of_task]
    if any(gaps):
        rows.append([f"**{_GAP}**", *map(_cell, gaps)])
    caption = " / ".join(averaged_metrics(of_task[0].task)) + _selection(of_task)
    notes = [f"\n\n{note}" for note in _left_out(of_task, languages, common)]
    return f"{caption}\n\n{_table(header, rows)}{''.join(notes)}"


def _selection(of_task: Sequence[Variant]) -> str:
    """Return the rule that selected the checkpoints, and of which runs where it differs."""
    rules: dict[str, list[str]] = {}
    for name, one in zip(names(of_task, seeds=False), of_task, strict=True):
        rules.setdefault(one.runs[0].rule, []).append(name)
    rules.pop("", None)
    if not rules:
        return ""
    found = [
        _RULES.get(rule, "its rule") + (f" ({', '.join(those)})" if len(rules) > 1 else "")
        for rule, those in rules.items()
    ]
    return markdown.without_html(f". Checkpoints selected on {'; '.join(found)}.")


def _left_out(
    of_task: Sequence[Variant], languages: Sequence[str], common: Sequence[str]
) -> list[str]:
    """Notes on the languages of a table that no average is over."""
    absent = [one for one in languages if not all(one in variant.languages for variant in of_task)]
    others = [one for one in languages if one not in {*common, *absent}]
    notes = []
    if absent:
        notes.append(
            f"Not every run has {', '.join(absent)} ({_ABSENT}): averages and the gap are over the "
            f"{len(common)} languages that all have, and compare with none over others."
        )
    if others:
        task = of_task[0].task
        notes.append(f"In no average, since {task} as published is without: {', '.join(others)}.")
    return notes


def _mark(one: Variant, languages: Iterable[str]) -> str:
    """The mark of scores over languages of which the data of some chose something."""
    chosen_on = {language for run in one.runs for language in run.selected_on_test}
    return _ON_TEST if chosen_on & set(languages) else ""


def groups(languages: Iterable[str], published: Published) -> dict[str, list[str]]:
    """The languages by resource group, those with most text first."""
    found = {name: [one for one in languages if published.group(one) == name] for name in _GROUPS}
    return {name: members for name, members in found.items() if members}


_GROUPS = (*GROUPS, UNLISTED)


def _language_cell(one: Variant, language: str) -> str:
    if language not in one.languages:
        return _ABSENT
    metrics = averaged_metrics(one.task)
    cells = (_cell(one.over_seeds(average, {language}, metric)) for metric in metrics)
    return " / ".join(cells) + _mark(one, [language])


def _average_cell(one: Variant, languages: Sequence[str]) -> str:
    """The averaged score; of questions also the average of each metric."""
    mean = _cell(one.over_seeds(average, languages)) + _mark(one, languages)
    metrics = averaged_metrics(one.task)
    if len(metrics) == 1 or not mean:
        return mean
    parts = [_cell(one.over_seeds(average, languages, metric)) for metric in metrics]
    return f"{mean} ({' / '.join(parts)})"


def comparison_table(of_task: Sequence[Variant], published: Published) -> str:
    """Runs and published rows of the same setting; empty if no paper prints the task.

    Papers average over all of the dataset's languages. Where they print them one by one, the
    average over the languages of the runs is given too: the one to compare with.
    """
    languages = averaged_languages(of_task)
    task = of_task[0].task
    here = [
        [name, "", _cell(one.over_seeds(average, languages)) + _mark(one, languages), ""]
        for name, one in zip(names(of_task), of_task, strict=True)
    ]
    rows = []
    for row in published.rows:
        printed = row.printed(task)
        same = row.average(task, languages)
        if (printed, same) == (None, None) or row.setting not in {v.setting for v in of_task}:
            continue
        cells = ["" if value is None else f"{value:.1f}" for value in (same, printed)]
        rows.append([label(row.model, row.setting), row.source, *cells])
    if not rows:
        return ""
    where = ", ".join(languages) if len(languages) <= 6 else f"these {len(languages)} languages"
    return _table(["model", "source", where, "all of the paper's"], [*here, *rows], left=2)


def sweep_table(variants: Sequence[Variant], best: Sequence[Variant]) -> str:
    """All hyperparameters tried, where several were; empty if none."""
    common = _averaged_by_task(best)
    rows = []
    for one in variants:
        rivals = [v for v in variants if place(v) == place(one)]
        if len(rivals) > 1:
            mark = " *" if [v for v in best if place(v) == place(one)] == [one] else ""
            scores = [one.over_seeds(selected), one.over_seeds(average, common[one.table])]
            cells = [_cell(scores[0]) + mark, _cell(scores[1])]
            rows.append([one.table, one.label, one.hyperparameters, *cells])
    header = ["task", "model", "hyper-parameters", "development", "average"]
    return _table(header, rows, left=3) if rows else ""


def scores_csv(variants: Sequence[Variant]) -> str:
    """A line for each variant, language and metric; scores between 0 and 1."""
    lines: list[list[object]] = []
    for one in variants:
        for language in one.languages:
            for metric in one.runs[0].scores[language]:
                if metric in TASKS[one.task].metrics:
                    found = one.over_seeds(average, {language}, metric)
                    lines.append([*_identity(one), language, metric, *_numbers(found)])
    return _csv(["language", "metric"], lines)


def averages_csv(variants: Sequence[Variant], published: Published) -> str:
    """A line for each variant and average: all languages, each group, the transfer gap.

    Averages are over the languages of the tables' averages, those of them that a variant has.
    """
    common = _averaged_by_task(chosen(variants))
    lines: list[list[object]] = []
    for one in variants:
        shared = [language for language in common[one.table] if language in one.languages]
        members = {"all": shared, **groups(shared, published)}
        for name, languages in members.items():
            found = one.over_seeds(average, languages)
            lines.append([*_identity(one), name, len(languages), *_numbers(found)])
        gap = one.over_seeds(transfer_gap, shared)
        if gap:
            lines.append([*_identity(one), _GAP, len(shared), *_numbers(gap)])
    return _csv(["average", "languages"], lines)


_IDENTITY = [
    "task", "model", "setting", "hyperparameters", "split", "selection", "selected_on_test",
]  # fmt: skip


def _identity(one: Variant) -> list[object]:
    run = one.runs[0]
    chosen_on = "+".join(dict.fromkeys(x for run in one.runs for x in run.selected_on_test))
    return [one.table, one.model, one.setting, one.hyperparameters, run.split, run.rule, chosen_on]


def _numbers(found: Statistic | None) -> list[object]:
    if found is None:
        return ["", "", 0]
    spread = "" if found.spread is None else f"{found.spread:.6f}"
    return [f"{found.center:.6f}", spread, found.count]


def _csv(columns: Sequence[str], lines: Iterable[Sequence[object]]) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([*_IDENTITY, *columns, "score", "standard_deviation", "seeds"])
    writer.writerows(lines)
    return text.getvalue()


def _plot(task: str) -> str:
    """File of the plot of a task."""
    return re.sub(r"[^\w.-]+", "_", task) + ".png"


def _by_task(variants: Iterable[Variant]) -> dict[str, list[Variant]]:
    found: dict[str, list[Variant]] = {}
    for one in variants:
        found.setdefault(one.table, []).append(one)
    return found


def _averaged_by_task(best: Sequence[Variant]) -> dict[str, list[str]]:
    """The languages that averages are over, by task."""
    return {task: averaged_languages(of_task) for task, of_task in _by_task(best).items()}


def _by_label(variants: Sequence[Variant]) -> dict[str, list[Variant]]:
    """Group by model and setting, cross-lingual transfer first; tell variants of a task apart."""
    found: dict[str, list[Variant]] = {}
    for of_task in _by_task(variants).values():
        for one, name in zip(of_task, names(of_task, seeds=False), strict=True):
            found.setdefault(name, []).append(one)
    return dict(sorted(found.items(), key=lambda item: item[1][0].setting != "zero_shot"))


def _cell(found: Statistic | None) -> str:
    if found is None:
        return ""
    spread = "" if found.spread is None else f" ± {100 * found.spread:.1f}"
    return f"{100 * found.center:.1f}{spread}"


def _table(header: Sequence[str], rows: Iterable[Sequence[str]], left: int = 1) -> str:
    """A Markdown table; its first columns are left-aligned, the others right-aligned."""
    lines = [header, ["---"] * left + ["---:"] * (len(header) - left), *rows]
    return "\n".join(f"| {' | '.join(map(markdown.without_html, line))} |" for line in lines)
