"""Tables and plots of `studies.grid`: our values by x, with their error, and the paper's."""

import dataclasses
import math
import pathlib
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt

from common import artifacts
from configs.grids import Grid
from configs.xlm_r import HIGH, LOW
from studies.downstream import TASKS, detectable, least_detectable, scores, spread, zero_shot

NOTE = f"""\
*loss - unigram*: exact held-out loss less that of the language's unigram distribution, nats a
token, and the language where it is highest; below zero an encoder has learned from context.
*bits/char*: the same loss in bits a character, which compares vocabularies: of all languages that
every run has, of high-resource ones ({", ".join(HIGH)}) and of low-resource ones
({", ".join(LOW)}), as in the paper; less is better. Tasks: trained on English, mean of the other
languages that every run has, per cent; *examples* is the number of test examples behind it. Cells
are means over seeds, and least to largest. *detectable*: the least difference of two runs that is
significant at 5 % (two-sided t test, the spread of seeds pooled over the runs), beside a mean of
several differences that of the mean; it knows nothing of the choice of text, languages and test
examples."""


@dataclasses.dataclass(frozen=True)
class Run:
    """Results of a pre-training under a seed.

    Attributes:
      losses: `loss`, `unigram` (nats a token) and `bits_per_character` of each language.
      vocab_size: number of pieces.
      minutes: of training.
      scores: per cent, by task and language.
      examples: number of test examples, by task and language.
      vocabulary: `alp` (nats a sentence of held-out text), `tokens_per_sentence` and `resource`
        (third by amount of text) of each language; empty if the record has nothing of it.
    """

    losses: Mapping[str, Mapping[str, float]]
    vocab_size: int
    minutes: float
    scores: Mapping[str, Mapping[str, float]]
    examples: Mapping[str, Mapping[str, int]]
    vocabulary: Mapping[str, Mapping[str, Any]] = dataclasses.field(default_factory=dict)


# Results by run and seed.
Runs = Mapping[str, Mapping[int, Run]]


@dataclasses.dataclass(frozen=True)
class Measure:
    """Column of the table and panel of the plot.

    Attributes:
      title: with the unit.
      of: its value in a run; None where the run has none.
      form: of a number.
      sign: 1 where more is better, -1 where less is.
    """

    title: str
    of: Callable[[Run], float | None]
    form: str
    sign: int


def read_run(record: Mapping[str, Any], results: Mapping[str, Mapping[str, Any]]) -> Run:
    """Make a run of its record and of the results of its tasks."""
    return Run(
        **record,
        scores={task: scores(one) for task, one in results.items()},
        examples={task: one["examples"]["test"] for task, one in results.items()},
    )


def measures(found: Runs) -> list[Measure]:
    """Return the measures that runs have, over the languages that all of them have."""
    every = [run for by_seed in found.values() for run in by_seed.values()]
    common = shared_names(run.losses for run in every)
    made = [bits("bits/char", common)]
    for name, group in (("high", HIGH), ("low", LOW)):
        if languages := [language for language in common if language in group]:
            made.append(bits(f"{name}-resource", languages))
    for task in compared_tasks(found):
        languages = shared_names(run.scores[task] for run in every if task in run.scores)
        if set(languages) - {"en"}:
            made.append(transfer(task, languages))
    return made


def compared_tasks(found: Runs) -> list[str]:
    """Return the tasks that several runs have scores of, or the only run.

    Grids share runs, so that one run may have scores of tasks that this grid does not ask for.
    """
    number = {
        task: sum(any(task in run.scores for run in some.values()) for some in found.values())
        for task in TASKS
    }
    return [task for task in TASKS if number[task] >= min(2, len(found))]


def shared_names(some: Iterable[Iterable[str]]) -> list[str]:
    """Return the names that are in all of some collections, in order."""
    sets = [set(one) for one in some]
    return sorted(set.intersection(*sets)) if sets else []


def bits(title: str, languages: Sequence[str]) -> Measure:
    """Return the mean loss over some languages, in bits a character."""

    def of(run: Run) -> float:
        return statistics.fmean(run.losses[name]["bits_per_character"] for name in languages)

    return Measure(title, of, "{:.3f}", -1)


def transfer(task: str, languages: Sequence[str]) -> Measure:
    """Return the mean score of a task over those of some languages without training data."""

    def of(run: Run) -> float | None:
        found = run.scores.get(task)
        return zero_shot({name: found[name] for name in languages}) if found else None

    return Measure(TASKS[task].title, of, "{:.1f}", 1)


def values(measure: Measure, by_seed: Mapping[int, Run]) -> list[float]:
    """Return the values of a measure by seed, of the seeds that have one."""
    found = (measure.of(run) for run in by_seed.values())
    return [one for one in found if one is not None]


def least_difference(measure: Measure, found: Runs) -> str:
    """Format the least difference of two runs in a measure that is significant at 5 %."""
    return detectable((values(measure, by_seed) for by_seed in found.values()), measure.form)


def table(grid: Grid, found: Runs) -> str:
    """Return a Markdown table: a line per point that has results, by series and x."""
    chosen = measures(found)
    columns = [grid.axis, "series", "run", "seeds", "vocabulary", "loss - unigram", "highest"]
    columns += [one.title for one in chosen] + ["minutes"]
    lines = [f"| {' | '.join(columns)} |", "|---:|---|---|" + "---:|" * (len(columns) - 3)]
    for point in _ordered(grid):
        if by_seed := found.get(point.run):
            some = list(by_seed.values())
            below = {
                name: statistics.fmean(one.losses[name]["loss"] for one in some)
                - statistics.fmean(one.losses[name]["unigram"] for one in some)
                for name in some[0].losses
            }
            highest = max(below, key=lambda name: below[name])
            cells = [
                _tick(grid, point.x),
                point.series,
                point.run,
                str(len(some)),
                f"{some[0].vocab_size:,}",
                f"{statistics.fmean(below.values()):+.3f}",
                f"{highest} {below[highest]:+.2f}",
                *(_cell(values(one, by_seed), one.form) for one in chosen),
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
    every = [run for by_seed in found.values() for run in by_seed.values() if task in run.scores]
    languages = set(shared_names(run.scores[task] for run in every)) - {"en"}
    return sum(every[0].examples[task][name] for name in languages) if every else 0


def _cell(some: Sequence[float], form: str) -> str:
    mean, extremes = spread(some, form)
    return f"{mean} ({extremes})" if len(some) > 1 else mean


def _tick(grid: Grid, x: float) -> str:
    return grid.ticks.get(x, f"{x:,g}" if x < 1000 else f"{x:,.0f}")


def _ordered(grid: Grid) -> list:
    """Return the points by series, in the order of their first points, and x."""
    series = list(dict.fromkeys(point.series for point in grid.points))
    return sorted(grid.points, key=lambda point: (series.index(point.series), point.x))


def effects(grid: Grid, found: Runs) -> str:
    """Return a Markdown table: from the first point of a series to its last and to its best."""
    chosen = measures(found)
    lines = [
        "| series | measure | from | to the last | to the best | detectable |",
        "|---|---|---:|---:|---:|---:|",
    ]
    for series in dict.fromkeys(point.series for point in grid.points):
        points = [p for p in _ordered(grid) if p.series == series and p.run in found]
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
                f"{measure.form.format(first)} at {_tick(grid, x)}",
                f"{form.format(last - first)} at {_tick(grid, end)}",
                f"{form.format(best - first)} at {_tick(grid, peak)}",
                least_difference(measure, found),
            ]
            lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def contrasts(grid: Grid, found: Runs) -> str:
    """Return a Markdown table: differences to the first place of an axis of names, by series.

    The mean over several series has a detectable difference of its own.
    """
    chosen = {
        one: least_detectable(values(one, by_seed) for by_seed in found.values())
        for one in measures(found)
    }
    runs = {(point.series, point.x): point.run for point in grid.points if point.run in found}
    several = list(dict.fromkeys(series for series, _ in runs))
    columns = [*several, *(["mean"] if len(several) > 1 else []), "detectable"]
    first, *others = sorted({point.x for point in grid.points})
    lines = [
        f"| less {_tick(grid, first)} | measure | {' | '.join(columns)} |",
        "|---|---|" + "---:|" * len(columns),
    ]
    for x in others:
        for measure, least in chosen.items():
            of_series = {
                series: [values(measure, found[runs[series, at]]) for at in (x, first)]
                for series in several
                if {(series, x), (series, first)} <= set(runs)
            }
            differences = {
                series: statistics.fmean(own) - statistics.fmean(reference)
                for series, (own, reference) in of_series.items()
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
            lines.append(f"| {_tick(grid, x)} | {measure.title} | {' | '.join(cells)} | {shown} |")
    return "\n".join(lines)


def language_tables(grid: Grid, found: Runs) -> list[str]:
    """Return Markdown tables: bits a character, and scores, of each language that all runs have."""
    every = [run for by_seed in found.values() for run in by_seed.values()]
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


def plot(grid: Grid, found: Runs, path: pathlib.Path) -> None:
    """Plot each measure by x, seeds and their mean, a line per series, and the paper's values."""
    chosen = measures(found)
    count = len(chosen) + bool(grid.paper)
    rows = math.ceil(count / 3)
    figure, panels = plt.subplots(
        rows, 3, figsize=(13, 3.6 * rows), layout="constrained", squeeze=False
    )
    flat = list(panels.flat)
    for axes, measure in zip(flat, chosen, strict=False):
        for number, series in enumerate(dict.fromkeys(point.series for point in grid.points)):
            points = [p for p in _ordered(grid) if p.series == series and p.run in found]
            of_points = [(p.x, values(measure, found[p.run])) for p in points]
            drawn = [(x, some) for x, some in of_points if some]
            color = f"C{number}"
            for x, some in drawn:
                axes.plot([x] * len(some), some, "o", color=color, alpha=0.4, ms=4)
            means = [statistics.fmean(some) for _, some in drawn]
            axes.plot([x for x, _ in drawn], means, color=color, label=series, **_line(grid))
        better = "more" if measure.sign > 0 else "less"
        axes.set_title(f"{measure.title} ({better} is better)", fontsize=10)
        _set_axis(grid, axes, [point.x for point in grid.points])
    if grid.paper:
        _plot_paper(grid, flat[len(chosen)])
    for axes in flat[count:]:
        axes.axis("off")
    if len({point.series for point in grid.points}) > 1:
        flat[0].legend(fontsize=8)
    with artifacts.atomic_path(path) as aside:
        figure.savefig(aside, dpi=110)
    plt.close(figure)


def _line(grid: Grid, marker: str = "") -> dict[str, Any]:
    """Return the style of a line of means; of an axis of names, which have no order, no line."""
    if grid.ticks:
        return {"marker": "_", "linestyle": "", "markersize": 24, "markeredgewidth": 2}
    return {"marker": marker, "linestyle": "-"}


def _plot_paper(grid: Grid, axes) -> None:
    axes.set_title(f"paper: {grid.measure}", fontsize=10)
    for number, (series, by_x) in enumerate(grid.paper.items()):
        style = _line(grid, "s")
        axes.plot(list(by_x), list(by_x.values()), color=f"C{number}", label=series, **style)
    axes.legend(fontsize=8)
    _set_axis(grid, axes, sorted({x for by_x in grid.paper.values() for x in by_x}))


def _set_axis(grid: Grid, axes, xs: Sequence[float]) -> None:
    if grid.is_log:
        axes.set_xscale("log")
    ticks = sorted(set(xs))
    axes.set_xticks(ticks, [_tick(grid, x) for x in ticks], fontsize=8)
    axes.minorticks_off()
    axes.set_xlabel(grid.axis)
    axes.grid(alpha=0.3)


def paper_table(grid: Grid) -> str:
    """Return a Markdown table of the paper's values; a sentence if it states none."""
    if not grid.paper:
        return "The text of the paper has no number for a point of this axis."
    lines = [f"| {grid.axis} | series | {grid.measure} |", "|---:|---|---:|"]
    for series, by_x in grid.paper.items():
        lines += [f"| {_tick(grid, x)} | {series} | {value} |" for x, value in by_x.items()]
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
    plot(grid, found, path.with_suffix(".png"))
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
