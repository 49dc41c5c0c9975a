"""Tables of `studies.grid`: our values by x, with their error, and the paper's."""

import math
import pathlib
import statistics
from collections.abc import Callable, Mapping, Sequence

from common import artifacts
from configs.grids import Grid, Point
from configs.xlm_r import HIGH, LOW
from studies import grid_plot
from studies.downstream import TASKS, least_detectable, spread
from studies.grid_runs import (
    Measure,
    Run,
    Runs,
    bits,
    compared_tasks,
    every_run,
    least_difference,
    measures,
    shared_names,
    values,
)

NOTE = f"""\
*loss - unigram*: exact held-out loss less that of the language's unigram distribution, nats a
token, and the language where it is highest; below zero an encoder has learned from context.
*bits/char*: the same loss in bits a character, which compares vocabularies: of all languages that
every run has, of high-resource ones ({", ".join(HIGH)}) and of low-resource ones
({", ".join(LOW)}), as in the paper; less is better. Tasks: trained on English, mean of the other
languages that every run has, per cent; *examples* is the number of test examples behind it. Cells
are means over seeds, and least to largest, with the number of seeds where not all of the run have
the score. *detectable*: the least difference of two runs that is significant at 5 % (two-sided t
test, the spread of seeds pooled over the runs, the harmonic mean of their numbers of seeds), beside
a mean of several differences that of the mean; it knows nothing of the choice of text, languages
and test examples."""


def table(grid: Grid, found: Runs) -> str:
    """Return a Markdown table: a line per point that has results, by series and x."""
    chosen = measures(found)
    columns = [grid.axis, "series", "run", "seeds", "vocabulary", "loss - unigram", "highest"]
    columns += [one.title for one in chosen] + ["minutes"]
    lines = [f"| {' | '.join(columns)} |", "|---:|---|---|" + "---:|" * (len(columns) - 3)]
    for point in grid.ordered():
        if by_seed := found.get(point.run):
            some = list(by_seed.values())
            below = {
                name: statistics.fmean(one.losses[name]["loss"] for one in some)
                - statistics.fmean(one.losses[name]["unigram"] for one in some)
                for name in some[0].losses
            }
            highest = max(below, key=lambda name: below[name])
            cells = [
                grid.tick(point.x),
                point.series,
                point.run,
                str(len(some)),
                f"{some[0].vocab_size:,}",
                f"{statistics.fmean(below.values()):+.3f}",
                f"{highest} {below[highest]:+.2f}",
                *(_cell(values(one, by_seed), one.form, len(some)) for one in chosen),
                f"{statistics.fmean(one.minutes for one in some):.1f}",
            ]
            lines.append(f"| {' | '.join(cells)} |")
    cells = [least_difference(one, found) for one in chosen]
    lines.append(f"| detectable | | | | | | | {' | '.join(cells)} | |")
    counts = [_examples(task, found) for task in compared_tasks(found)]
    cells = [""] * (len(chosen) - sum(map(bool, counts))) + [f"{one:,}" for one in counts if one]
    lines.append(f"| examples | | | | | | | {' | '.join(cells)} | |")
    return "\n".join(lines)


def _examples(task: str, found: Runs) -> int:
    """Return the number of test examples of a task outside English, in the common languages."""
    every = [run for run in every_run(found) if task in run.scores]
    languages = set(shared_names(run.scores[task] for run in every)) - {"en"}
    return sum(every[0].examples[task][name] for name in languages) if every else 0


def _cell(some: Sequence[float], form: str, seeds: int) -> str:
    """Format mean and extremes, and the number of values where it is not that of the seeds."""
    mean, extremes = spread(some, form)
    notes = [extremes] if len(some) > 1 else []
    if 0 < len(some) < seeds:
        notes.append("1 seed" if len(some) == 1 else f"{len(some)} seeds")
    return f"{mean} ({'; '.join(notes)})" if notes else mean


def effects(grid: Grid, found: Runs) -> str:
    """Return a Markdown table: from the first point of a series to its last and to its best."""
    chosen = measures(found)
    lines = [
        "| series | measure | from | to the last | to the best | detectable |",
        "|---|---|---:|---:|---:|---:|",
    ]
    for series in dict.fromkeys(point.series for point in grid.points):
        points = [p for p in grid.ordered() if p.series == series and p.run in found]
        for measure in chosen:
            means = [
                (point.x, statistics.fmean(some))
                for point in points
                if (some := values(measure, found[point.run]))
            ]
            if len(means) < 2:
                continue
            (x, first), (end, last) = means[0], means[-1]
            peak, best = max(means, key=lambda one: measure.sign * one[1])
            form = measure.form.replace(":", ":+")
            cells = [
                series,
                measure.title,
                f"{measure.form.format(first)} at {grid.tick(x)}",
                f"{form.format(last - first)} at {grid.tick(end)}",
                f"{form.format(best - first)} at {grid.tick(peak)}",
                least_difference(measure, found),
            ]
            lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def contrasts(grid: Grid, found: Runs) -> str:
    """Return a Markdown table: differences on an axis of names to the first place of each series.

    The mean over several series, of differences of the same two places, has a detectable difference
    of its own.
    """
    chosen = {
        one: least_detectable(values(one, by_seed) for by_seed in found.values())
        for one in measures(found)
    }
    several = list(dict.fromkeys(p.series for p in grid.ordered() if p.run in found))
    columns = [*several, *(["mean"] if len(several) > 1 else []), "detectable"]
    lines = [
        f"| difference | measure | {' | '.join(columns)} |",
        "|---|---|" + "---:|" * len(columns),
    ]
    for (first, x), by_series in sorted(_pairs(grid).items()):
        for measure, least in chosen.items():
            of_series = {
                series: [values(measure, found.get(run, {})) for run in pair]
                for series, pair in by_series.items()
            }
            differences = {
                series: statistics.fmean(own) - statistics.fmean(reference)
                for series, (reference, own) in of_series.items()
                if own and reference
            }
            if not differences:
                continue
            form = measure.form.replace(":", ":+")
            cells = [form.format(differences[one]) if one in differences else "" for one in several]
            if len(several) > 1:
                cells.append(form.format(statistics.fmean(differences.values())))
            shown = (
                "" if least is None else measure.form.format(least / math.sqrt(len(differences)))
            )
            places = f"{grid.tick(x)} less {grid.tick(first)}"
            lines.append(f"| {places} | {measure.title} | {' | '.join(cells)} | {shown} |")
    return "\n".join(lines)


def _pairs(grid: Grid) -> dict[tuple[float, float], dict[str, tuple[str, str]]]:
    """Return the runs at two places of a series, its first and another, by places and series."""
    firsts: dict[str, Point] = {}
    pairs: dict[tuple[float, float], dict[str, tuple[str, str]]] = {}
    for point in grid.ordered():
        first = firsts.setdefault(point.series, point)
        if point is not first:
            pairs.setdefault((first.x, point.x), {})[point.series] = (first.run, point.run)
    return pairs


def language_tables(grid: Grid, found: Runs) -> list[str]:
    """Return Markdown tables: bits a character, and scores, of each language that all runs have."""
    every = every_run(found)
    names = shared_names(run.losses for run in every)
    tables = [by_columns(grid, found, "bits/char", {name: bits("", [name]) for name in names})]
    for task in compared_tasks(found):
        title = TASKS[task].title
        names = shared_names(run.scores[task] for run in every if task in run.scores)
        chosen = {name: Measure(title, _score(task, name), "{:.1f}", 1) for name in names}
        tables.append(by_columns(grid, found, title, chosen))
    return tables


def _score(task: str, language: str) -> Callable[[Run], float | None]:
    return lambda run: run.scores[task][language] if task in run.scores else None


def by_columns(grid: Grid, found: Runs, title: str, chosen: Mapping[str, Measure]) -> str:
    """Return a Markdown table: a line per run, means over seeds, and the detectable differences.

    Args:
      grid: the grid.
      found: its finished runs; of those without a value there is no line.
      title: of the measures.
      chosen: measure of each column.
    """
    lines = [f"| {title} | {' | '.join(chosen)} |", "|---|" + "---:|" * len(chosen)]
    for name in grid.runs:
        some = {language: values(one, found.get(name, {})) for language, one in chosen.items()}
        if all(some.values()):
            cells = [chosen[of].form.format(statistics.fmean(one)) for of, one in some.items()]
            lines.append(f"| {name} | {' | '.join(cells)} |")
    cells = [least_difference(one, found) for one in chosen.values()]
    return "\n".join([*lines, f"| detectable | {' | '.join(cells)} |"])


def paper_table(grid: Grid) -> str:
    """Return a Markdown table of the paper's values; a sentence if it states none."""
    if not grid.paper:
        return "The text of the paper has no number for a point of this axis."
    lines = [f"| {grid.axis} | series | {grid.measure} |", "|---:|---|---:|"]
    for series, by_x in grid.paper.items():
        lines += [f"| {grid.tick(x)} | {series} | {value} |" for x, value in by_x.items()]
    return "\n".join(lines)


def write_report(
    grid: Grid, found: Runs, path: pathlib.Path, state: str, more: Sequence[str] = ()
) -> str:
    """Write the tables and the plot of a grid; return the text.

    Args:
      grid: the grid.
      found: its finished runs.
      path: of the page; the plot is beside it.
      state: sentence on missing runs.
      more: sections to add.

    Raises:
      ValueError: there are no finished runs.
    """
    if not found:
        raise ValueError(f"{path.parent.parent} has no finished runs of this grid to report")
    grid_plot.plot(grid, found, path.with_suffix(".png"))
    parts = [
        f"# {grid.title}",
        f"{grid.place}. {grid.note}",
        state,
        NOTE,
        table(grid, found),
        contrasts(grid, found) if grid.ticks else effects(grid, found),
        "## The paper",
        paper_table(grid),
        f"![by {grid.axis}]({path.stem}.png)",
        "## Languages",
        *language_tables(grid, found),
        *more,
    ]
    text = "\n\n".join(parts) + "\n"
    artifacts.write_text(path, text)
    return text
