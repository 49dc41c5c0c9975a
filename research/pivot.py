"""Tables of results in Markdown: a line per run or group of runs, means over seeds.

A `Line` has the results of a run by seed. A `Column` has a measure of a result and its format over
seeds. `table` joins both, with the least detectable difference of two lines below each column.
"""

import dataclasses
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence

from research import stats
from research.results import BySeed, Result

RANGE = "least to largest"
Measure = Callable[[Result], float | None]


@dataclasses.dataclass(frozen=True)
class Line:
    """Line of a table.

    Attributes:
      cells: first cells, such as the label.
      reference: results to compare with, seed by seed.
      is_settled: whether its spread counts for the detectable difference.
    """

    cells: tuple[str, ...]
    by_seed: BySeed
    reference: BySeed = dataclasses.field(default_factory=dict)
    is_settled: bool = True


@dataclasses.dataclass(frozen=True)
class Column:
    """One or two columns of a table.

    Attributes:
      of: measure of a result; returns a number or None.
      form: number format.
      show: "mean"; "range", also minimum to maximum; "cell", both in one cell, with the number of
        seeds if some lack a value; "change", the difference from the reference seed by seed, and
        minimum to maximum; "deviation", with the standard deviation and the number of seeds.
      sign: 1 if more is better, -1 if less is; for plots and for the best.
      has_least: whether to show the detectable difference.
    """

    title: str
    of: Measure
    form: str = "{:.1f}"
    show: str = "mean"
    sign: int = 1
    has_least: bool = True

    @property
    def titles(self) -> list[str]:
        return [self.title, RANGE] if self.show in ("range", "change") else [self.title]


def values(of: Measure, by_seed: BySeed) -> dict[int, float]:
    """Return the values of a measure by seed, without missing ones."""
    found = {seed: of(result) for seed, result in by_seed.items()}
    return {seed: one for seed, one in found.items() if one is not None}


def cells(column: Column, line: Line) -> list[str]:
    """Return the cells of a column in a line, one per title."""
    found = values(column.of, line.by_seed)
    if column.show == "change":
        base = values(column.of, line.reference)
        changes = [found[seed] - base[seed] for seed in found if seed in base]
        return stats.spread(changes, column.form.replace(":", ":+"))
    mean, extremes = stats.spread(found.values(), column.form)
    if column.show == "range":
        return [mean, extremes]
    if column.show == "deviation" and found:
        some = list(found.values())
        spread = f" ± {column.form.format(statistics.stdev(some))}" if len(some) > 1 else ""
        return [f"{mean}{spread} ({len(found)})"]
    if column.show == "cell" and found:
        notes = [extremes] if len(found) > 1 else []
        if len(found) < len(line.by_seed):
            notes.append("1 seed" if len(found) == 1 else f"{len(found)} seeds")
        return [f"{mean} ({'; '.join(notes)})" if notes else mean]
    return [mean]


def least(column: Column, lines: Iterable[Line]) -> list[str]:
    """Return the least detectable difference of two lines, as the cells of a column."""
    empty = [""] * (len(column.titles) - 1)
    if column.show == "change" or not column.has_least:
        return ["", *empty]
    groups = [list(values(column.of, one.by_seed).values()) for one in lines if one.is_settled]
    return [stats.detectable(groups, column.form.replace(":+", ":")), *empty]


def table(
    header: Sequence[str],
    lines: Sequence[Line],
    columns: Sequence[Column],
    *,
    detectable: str = "detectable",
    among: Sequence[Line] | None = None,
    more: Iterable[Sequence[str]] = (),
) -> str:
    """Return a Markdown table; results may lack some measures.

    Args:
      header: titles of the first cells.
      detectable: label of the line of detectable differences; "" for no such line.
      among: lines whose spread counts for it, by default those of the table.
      more: cells of further lines, after it.
    """
    titles = [*header, *(title for column in columns for title in column.titles)]
    rows = [
        [*line.cells, *(cell for column in columns for cell in cells(column, line))]
        for line in lines
    ]
    if detectable:
        own = [cell for column in columns for cell in least(column, among or lines)]
        rows.append([detectable, *[""] * (len(header) - 1), *own])
    return markdown(titles, [*rows, *map(list, more)], texts=1)


def markdown(titles: Sequence[str], rows: Iterable[Sequence[str]], texts: int = 1) -> str:
    """Return a Markdown table of cells, with the first `texts` columns flush left."""
    bar = "|---" * texts + "|---:" * (len(titles) - texts) + "|"
    return "\n".join([f"| {' | '.join(titles)} |", bar, *(f"| {' | '.join(r)} |" for r in rows)])


def matrix(
    title: str, runs: Mapping[str, BySeed], columns: Sequence[Column], detectable: str = ""
) -> str:
    """Return a table with a line for each run with all measures."""
    lines = [
        Line((name,), by_seed)
        for name, by_seed in runs.items()
        if all(values(column.of, by_seed) for column in columns)
    ]
    return table([title], lines, columns, detectable=detectable)


def highest(of: Callable[[Result], Mapping[str, float]], by_seed: BySeed, form: str) -> str:
    """Return the item with the highest mean over seeds, and that mean; `of` has values by item."""
    some = [of(result) for result in by_seed.values()]
    means = {name: statistics.fmean(one[name] for one in some) for name in some[0]}
    name = max(means, key=lambda one: means[one])
    return f"{name} {form.format(means[name])}"


def difference(metric: str, less: str) -> Callable[[Result], dict[str, float]]:
    """Return a function: a metric minus another, by item."""
    return lambda result: {name: one - result[less][name] for name, one in result[metric].items()}
