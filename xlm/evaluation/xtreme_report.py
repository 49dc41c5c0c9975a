"""Report of many fine-tuning runs: tables per task and language, averages, comparisons."""

import pathlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from input_pipeline.tasks.tasks import TASKS
from xlm.common import artifacts, html_report, tables
from xlm.evaluation import xtreme_runs
from xlm.evaluation.published import GROUPS, UNLISTED, Published
from xlm.evaluation.xtreme_runs import Variant, average, averaged_languages, names, transfer_gap

_GAP = "transfer gap"
_ON_TEST = "†"  # marks scores on data that chose something
_ABSENT = "–"
_RULES = {
    "english": "the English development data (as XTREME)",
    "all_languages": "the mean over all development data (as VoCap and VECO)",
    "each_language": "each language's own development data (XLM-R's models by language)",
}


def write_report(
    folder: pathlib.Path, variants: Sequence[Variant], published: Published
) -> pathlib.Path:
    """Write report.md and .html and two tables as CSV; return the first's path."""
    for name, rows in (("scores", scores(variants)), ("averages", averages(variants, published))):
        artifacts.write_text(folder / f"{name}.csv", tables.comma_separated(rows))
    return html_report.write(folder, page(variants, published))


def page(variants: Sequence[Variant], published: Published) -> str:
    """Return the report as Markdown."""
    best = xtreme_runs.chosen(variants)
    sections = ["# Fine-tuning", _how(best), "## Averages", averages_table(best)]
    if gaps := gap_table(best, published):
        sections += ["## Cross-lingual transfer gap", _GAP_NOTE, gaps]
    for task, of_task in _by_task(best).items():
        title, table = tables.escaped(task), task_table(of_task, published)
        sections += [f"## {title}", table]
        if comparison := comparison_table(of_task, published):
            sections += ["Beside the papers, scores averaged over languages:", comparison]
    if sweeps := sweep_table(variants, best):
        sections += ["## Hyper-parameters", _SWEEP_NOTE, sweeps]
    return tables.page(*sections)


_GAP_NOTE = """\
English score minus the mean of the other languages, in points: less is better. For questions it is
the gap of exact match (XY-LENT, Table 4). The papers' gaps are over all languages of a dataset."""

_SWEEP_NOTE = """\
For each task, model and setting, the score on the development data chose the row marked *. Only
that row is in the tables above."""


def _how(best: Sequence[Variant]) -> str:
    limits = ", ".join(f"*{name}* from {least:g}" for name, least in GROUPS.items())
    lines = [
        f"Per cent. Several seeds: the {best[0].center} ± standard deviation, with their number n.",
        "The score of a task is the mean of F1 and exact match for questions, and the first metric "
        "of others, averaged over the languages that all runs of the task have.",
        f"Resource groups by gigabytes of CommonCrawl text (VoCap, Table 7): {limits}.",
    ]
    if any(run.selected_on_test for one in best for run in one.runs):
        lines.append(
            f"{_ON_TEST} marks scores on data that chose a checkpoint, a threshold or "
            "hyperparameters, and averages with such scores: they are too high."
        )
    validated = sorted({one.table for one in best if one.runs[0].split == "validation"})
    if validated:
        lines.append(f"Scores on validation data, for lack of test data: {', '.join(validated)}.")
    return "\n".join(lines)


def averages_table(best: Sequence[Variant]) -> str:
    """Return a row per model and setting: average of each task, and of tasks, as in XTREME."""
    common = _averaged_by_task(best)
    is_xtreme = any(task in xtreme_runs.XTREME for task in common)  # not a user's own
    rows, notes = [], []
    for name, group in _by_label(best).items():
        row = {"model": name, **dict.fromkeys(common, "")}
        row |= {one.table: _marked(one, average, common[one.table]) for one in group}
        if is_xtreme:
            found = {one.table: one.over_seeds(average, common[one.table]) for one in group}
            row["XTREME (9 tasks)"] = _mean_cell(found, xtreme_runs.XTREME)
            row["without retrieval (7)"] = _mean_cell(found, xtreme_runs.XTREME[:-2])
            there = {one.task for one in group}
            if missing := [task for task in xtreme_runs.XTREME if task not in there]:
                notes.append(f"- {tables.without_html(name)}: no runs of {', '.join(missing)}.")
        rows.append(row)
    rule = "Compare a mean over some tasks, in brackets, only with one over the same tasks."
    return "\n\n".join([tables.markdown(rows), *(["\n".join([rule, *notes])] if is_xtreme else [])])


def _mean_cell(found: Mapping[str, xtreme_runs.Statistic | None], tasks: Sequence[str]) -> str:
    """Return the mean of the tasks' scores; in brackets, with their number, if some are missing."""
    centers = [one.center for task in tasks if (one := found.get(task)) is not None]
    if not centers:
        return ""
    mean = f"{100 * tables.mean_of(centers):.1f}"
    return mean if len(centers) == len(tasks) else f"({mean}, {len(centers)} tasks)"


def gap_table(best: Sequence[Variant], published: Published) -> str:
    """Return the transfer gap of each task, a row per model; empty if there is none."""
    common = _averaged_by_task(best)
    rows: list[tables.Row] = []
    for name, group in _by_label(best).items():
        cells = {one.table: _cell(one, transfer_gap, common[one.table]) for one in group}
        if any(cells.values()):
            rows.append({"model": name, **cells})
    tasks = [task for task in common if any(row.get(task) for row in rows)]
    rows = [{column: row.get(column) for column in ("model", *tasks)} for row in rows]
    for one in published.rows if rows else ():
        gaps = {task: f"{one.gap[task]:.1f}" for task in tasks if task in one.gap}
        if gaps:
            rows.append({"model": f"{one.model} ({one.source})", **gaps})
    return tables.markdown(rows)


def task_table(of_task: Sequence[Variant], published: Published) -> str:
    """Return a row per language, a column per variant; then averages, groups, transfer gap."""
    languages = xtreme_runs.all_languages(run for one in of_task for run in one.runs)
    common = averaged_languages(of_task)
    metrics = xtreme_runs.averaged_metrics(of_task[0].task)

    def of_language(one: Variant, language: str) -> str:
        if language not in one.languages:
            return _ABSENT
        cells = (_cell(one, average, {language}, metric) for metric in metrics)
        return " / ".join(cells) + _mark(one, [language])

    def of_average(one: Variant, members: Sequence[str]) -> str:
        mean = _marked(one, average, members)
        parts = [_cell(one, average, members, metric) for metric in metrics]
        return f"{mean} ({' / '.join(parts)})" if mean and len(metrics) > 1 else mean

    cells = {language: [of_language(one, language) for one in of_task] for language in languages}
    for name, members in {"average": common, **groups(common, published)}.items():
        cells[f"**{name}** ({len(members)})"] = [of_average(one, members) for one in of_task]
    gaps = [_cell(one, transfer_gap, common) for one in of_task]
    if any(gaps):
        cells[f"**{_GAP}**"] = gaps
    columns = ("language", *names(of_task))
    rows = [dict(zip(columns, (name, *row), strict=True)) for name, row in cells.items()]
    majority = [one for variant in of_task for one in variant.runs if one.majority][:1]
    for row in rows if majority else ():
        found = majority[0].majority.get(row["language"], {}).get(metrics[0])
        row["majority"] = tables.shown(found and 100 * found, ".1f")
    caption = " / ".join(metrics) + _selection(of_task)
    notes = _left_out(of_task, languages, common)
    return "\n\n".join([caption, tables.markdown(rows), *notes])


def _selection(of_task: Sequence[Variant]) -> str:
    """Return the rule that selected the checkpoints, with the runs if rules differ."""
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
    return tables.without_html(f". Checkpoints selected on {'; '.join(found)}.")


def _left_out(
    of_task: Sequence[Variant], languages: Sequence[str], common: Sequence[str]
) -> list[str]:
    absent = [one for one in languages if not all(one in variant.languages for variant in of_task)]
    others = [one for one in languages if one not in {*common, *absent}]
    notes = []
    if absent:
        notes.append(
            f"Not every run has {', '.join(absent)} ({_ABSENT}): averages and the gap are over the "
            f"{len(common)} common languages. Compare them only with averages over the same."
        )
    if others:
        task = of_task[0].task
        notes.append(f"In no average, since published {task} lacks them: {', '.join(others)}.")
    return notes


def groups(languages: Iterable[str], published: Published) -> dict[str, list[str]]:
    found = {name: [one for one in languages if published.group(one) == name]
             for name in (*GROUPS, UNLISTED)}  # fmt: skip
    return {name: members for name, members in found.items() if members}


def comparison_table(of_task: Sequence[Variant], published: Published) -> str:
    """Return runs and published rows of the same setting; empty if no paper prints the task.

    Papers average over all of the dataset's languages. If they print single languages, the table
    also has the average over the languages of the runs: the one to compare with.
    """
    languages = averaged_languages(of_task)
    task, settings = of_task[0].task, {one.setting for one in of_task}
    where = ", ".join(languages) if len(languages) <= 6 else f"these {len(languages)} languages"
    rows: list[dict[str, Any]] = [
        {"model": name, "source": "", where: _marked(one, average, languages)}
        for name, one in zip(names(of_task), of_task, strict=True)
    ]
    for row in published.rows:
        of_all, of_same = row.printed(task), row.average(task, languages)
        if (of_all, of_same) != (None, None) and row.setting in settings:
            name = xtreme_runs.label(row.model, row.setting)
            rows.append({"model": name, "source": row.source, where: of_same,
                         "all of the paper's": of_all})  # fmt: skip
    return tables.markdown(rows, ".1f", left=2) if len(rows) > len(of_task) else ""


def sweep_table(variants: Sequence[Variant], best: Sequence[Variant]) -> str:
    """Return all trials of hyperparameters; empty if there is only one choice."""
    common = _averaged_by_task(best)
    rows = []
    for one in variants:
        place = xtreme_runs.place(one)
        if sum(xtreme_runs.place(other) == place for other in variants) > 1:
            is_chosen = [other for other in best if xtreme_runs.place(other) == place] == [one]
            rows.append(
                {
                    "task": one.table,
                    "model": one.label,
                    "hyper-parameters": one.hyperparameters,
                    "development": _cell(one, xtreme_runs.selected) + " *" * is_chosen,
                    "average": _cell(one, average, common[one.table]),
                }
            )
    return tables.markdown(rows, left=3)


def scores(variants: Sequence[Variant]) -> Iterator[tables.Row]:
    """Yield a row for each variant, language and metric; scores between 0 and 1."""
    for one in variants:
        for language in one.languages:
            for metric in one.runs[0].scores[language]:
                if metric in TASKS[one.task].metrics:
                    found = one.over_seeds(average, {language}, metric)
                    yield _record(one, found, language=language, metric=metric)


def averages(variants: Sequence[Variant], published: Published) -> Iterator[tables.Row]:
    """Yield a row for each variant and average: over all languages, groups, transfer gap."""
    common = _averaged_by_task(xtreme_runs.chosen(variants))
    for one in variants:
        shared = [language for language in common[one.table] if language in one.languages]
        for name, languages in {"all": shared, **groups(shared, published)}.items():
            found = one.over_seeds(average, languages)
            yield _record(one, found, average=name, languages=len(languages))
        if gap := one.over_seeds(transfer_gap, shared):
            yield _record(one, gap, average=_GAP, languages=len(shared))


def _record(one: Variant, found: xtreme_runs.Statistic | None, **of: object) -> tables.Row:
    run = one.runs[0]
    chosen_on = dict.fromkeys(language for run in one.runs for language in run.selected_on_test)
    return {
        "task": one.table, "model": one.model, "setting": one.setting,
        "hyperparameters": one.hyperparameters, "split": run.split, "selection": run.rule,
        "selected_on_test": "+".join(chosen_on), **of,
        "score": tables.shown(found and found.center, ".6f"),
        "standard_deviation": tables.shown(found and found.spread, ".6f"),
        "seeds": found.count if found else 0,
    }  # fmt: skip


def _by_task(variants: Iterable[Variant]) -> dict[str, list[Variant]]:
    found: dict[str, list[Variant]] = {}
    for one in variants:
        found.setdefault(one.table, []).append(one)
    return found


def _averaged_by_task(best: Sequence[Variant]) -> dict[str, list[str]]:
    return {task: averaged_languages(of_task) for task, of_task in _by_task(best).items()}


def _by_label(variants: Sequence[Variant]) -> dict[str, list[Variant]]:
    """Group by the names of variants, cross-lingual transfer first."""
    found: dict[str, list[Variant]] = {}
    for of_task in _by_task(variants).values():
        for one, name in zip(of_task, names(of_task, seeds=False), strict=True):
            found.setdefault(name, []).append(one)
    return dict(sorted(found.items(), key=lambda item: item[1][0].setting != "zero_shot"))


def _cell(one: Variant, score, *arguments: object) -> str:
    """Return a score over seeds, with its spread, in per cent; "" without one."""
    found = one.over_seeds(score, *arguments)
    if found is None:
        return ""
    spread = "" if found.spread is None else f" ± {100 * found.spread:.1f}"
    return f"{100 * found.center:.1f}{spread}"


def _mark(one: Variant, languages: Iterable[str]) -> str:
    """Return the mark of scores over languages if data of one chose something."""
    chosen_on = {language for run in one.runs for language in run.selected_on_test}
    return _ON_TEST if chosen_on & set(languages) else ""


def _marked(one: Variant, score, languages: Sequence[str]) -> str:
    return _cell(one, score, languages) + _mark(one, languages)
