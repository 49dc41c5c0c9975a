"""Report of figures: our values by x, with their error, and the paper's."""

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from research import figure_vocabularies, pivot, plots, stats
from research.configs.xlm_r import HIGH, LOW
from research.figure import Figure, read
from research.pivot import Column, Line, values
from research.results import BySeed, mean, shared_items
from research.study import Plan
from research.tasks import TASKS

NOTE = f"""\
*loss - unigram*: exact held-out loss minus that of the language's unigram distribution, in nats per
token, and the language with the highest value. Below zero an encoder has learned from context.
*bits/char*: the same loss in bits per character, which compares vocabularies; less is better. It
favours short pieces: while one piece of a word is masked, the model sees the others.
Means are over all languages that every run has, and as in the paper over high-resource
({", ".join(HIGH)}) and low-resource ones ({", ".join(LOW)}). Tasks: trained on English, mean of the
other languages that every run has, per cent; *examples* is their number of test examples. Cells are
means over seeds, with minimum and maximum, and the number of seeds if some lack the score.
*detectable*: the least difference of two runs that is significant at 5 %. The t test is two-sided,
the deviation of seeds is pooled over runs, and n is the harmonic mean of their numbers of seeds.
For a mean of several differences it is that of the mean. It ignores the choice of text, languages
and test examples."""

Found = Mapping[str, BySeed]  # results by run


def parts(plan: Plan, figures: Mapping[str, Figure]) -> list[str]:
    """Return the parts of a report on those chosen figures that have results."""
    made = []
    for name in plan.chosen["figures"]:
        figure = figures[name]
        wanted = [run for run in figure.runs if run in (plan.chosen["runs"] or figure.runs)]
        found = {run: read(plan.results, run, plan.seeds) for run in wanted}
        found = {run: by_seed for run, by_seed in found.items() if by_seed}
        if found:
            made += _parts(figure, found, missing(wanted, plan.seeds, found))
            if path := plan.plot(name):
                _plot(figure, found, path)
                made.append(f"![by {figure.axis}]({path.name})")
    return [NOTE, *made] if made else []


def _parts(figure: Figure, found: Found, state: str) -> list[str]:
    return [
        f"## {figure.title}",
        f"{figure.place}. {figure.note}",
        state,
        point_table(figure, found),
        contrasts(figure, found) if figure.ticks else effects(figure, found),
        "The paper:",
        paper_table(figure),
        *language_tables(found),
        *figure_vocabularies.parts(figure, found),
    ]


def missing(wanted: Sequence[str], seeds: Sequence[int] | None, found: Found) -> str:
    """Describe the runs that lack results, for some seeds or all."""
    absent = {
        run: [seed for seed in seeds or () if seed not in found.get(run, {})] for run in wanted
    }
    named = [
        f"{run} ({', '.join(map(str, some))})" if some else run
        for run, some in absent.items()
        if some or run not in found
    ]
    if not named:
        return f"All {sum(map(len, found.values()))} runs are done."
    return f"**Missing** (seeds): {', '.join(named)}."


def compared_tasks(found: Found) -> list[str]:
    """Return the tasks that several runs score, or the only run.

    Figures share runs, so a run may also have scores for the tasks of other figures.
    """
    number = {
        task: sum(any(scored(task, one) for one in by_seed.values()) for by_seed in found.values())
        for task in TASKS
    }
    return [task for task in TASKS if number[task] >= min(2, len(found))]


def scored(task: str, result) -> bool:
    return metric(task) in result


def metric(task: str) -> str:
    """Return the name of a task's metric among those of a pre-training."""
    return f"{task}:{TASKS[task].metric}"


def every(found: Found) -> list:
    return [one for by_seed in found.values() for one in by_seed.values()]


def bits(title: str, languages: Sequence[str] | None, **more) -> Column:
    """Return the mean loss over some languages, in bits per character."""
    of = mean("losses/bits_per_character", languages)
    return Column(title, of, "{:.3f}", sign=-1, **more)


def transfer(task: str, languages: Sequence[str], **more) -> Column:
    """Return the mean score of a task over the languages without training data."""
    others = [name for name in languages if name != "en"]
    return Column(TASKS[task].title, mean(metric(task), others, scale=100), **more)


def columns(found: Found) -> list[Column]:
    """Return the measures of runs over their common languages."""
    common = shared_items(every(found), "losses/loss")
    made = [bits("bits/char", common, show="cell")]
    for name, group in (("high", HIGH), ("low", LOW)):
        if languages := [language for language in common if language in group]:
            made.append(bits(f"{name}-resource", languages, show="cell"))
    for task in compared_tasks(found):
        languages = shared_items(every(found), metric(task))
        if set(languages) - {"en"}:
            made.append(transfer(task, languages, show="cell"))
    return made


def point_table(figure: Figure, found: Found) -> str:
    """Return a table with a line for each point that has results, by series and x."""
    chosen, below = columns(found), pivot.difference("losses/loss", "losses/unigram")
    loss = mean("losses/loss", less="losses/unigram")
    lines = [
        Line(
            (
                figure.tick(point.x),
                point.series,
                point.run,
                str(len(by_seed)),
                f"{next(iter(by_seed.values())).one('vocab_size'):,}",
                stats.spread(values(loss, by_seed).values(), "{:+.3f}")[0],
                pivot.highest(below, by_seed, "{:+.2f}"),
            ),
            by_seed,
        )
        for point in figure.ordered()
        if (by_seed := found.get(point.run))
    ]
    header = [figure.axis, "series", "run", "seeds", "vocabulary", "loss - unigram", "highest"]
    minutes = Column("minutes", mean("minutes"), has_least=False)
    counts = [f"{count:,}" for task in compared_tasks(found) if (count := _examples(task, found))]
    cells = [*[""] * (len(chosen) - len(counts)), *counts, ""]
    return pivot.table(
        header, lines, [*chosen, minutes], among=_distinct(found),
        more=[["examples", *[""] * (len(header) - 1), *cells]],
    )  # fmt: skip


def _distinct(found: Found) -> list[Line]:
    return [Line((), by_seed) for by_seed in found.values()]


def _examples(task: str, found: Found) -> int:
    """Return a task's number of test examples in the common languages, without English."""
    some = [one for one in every(found) if scored(task, one)]
    languages = set(shared_items(some, metric(task))) - {"en"}
    return sum(some[0][f"{task}:examples/test"][name] for name in languages) if some else 0


def _means(column: Column, found: Found) -> dict[str, float]:
    """Return the mean over seeds of each run that has the measure."""
    some = {run: values(column.of, by_seed).values() for run, by_seed in found.items()}
    return {run: statistics.fmean(one) for run, one in some.items() if one}


def _least(column: Column, found: Found) -> str:
    return pivot.least(column, _distinct(found))[0]


def effects(figure: Figure, found: Found) -> str:
    """Return a table of the changes from the first point of a series to its last and its best."""
    rows = []
    for series in figure.series:
        points = [p for p in figure.ordered() if p.series == series]
        for column in columns(found):
            means = _means(column, found)
            drawn = [(point.x, means[point.run]) for point in points if point.run in means]
            if len(drawn) < 2:
                continue
            (x, first), (end, last) = drawn[0], drawn[-1]
            peak, best = max(drawn, key=lambda one: column.sign * one[1])
            form = column.form.replace(":", ":+")
            rows.append([
                series,
                column.title,
                f"{column.form.format(first)} at {figure.tick(x)}",
                f"{form.format(last - first)} at {figure.tick(end)}",
                f"{form.format(best - first)} at {figure.tick(peak)}",
                _least(column, found),
            ])  # fmt: skip
    titles = ["series", "measure", "from", "to the last", "to the best", "detectable"]
    return pivot.markdown(titles, rows, texts=2)


def contrasts(figure: Figure, found: Found) -> str:
    """Return a table of differences from the first place of each series, on an axis of names.

    A mean over several series, of differences between the same two places, has its own detectable
    difference.
    """
    several = list(dict.fromkeys(p.series for p in figure.ordered() if p.run in found))
    titles = [*several, *(["mean"] if len(several) > 1 else []), "detectable"]
    firsts = {series: next(p for p in figure.ordered() if p.series == series) for series in several}
    pairs: dict[tuple[float, float], dict[str, tuple[str, str]]] = {}
    for point in figure.ordered():
        first = firsts.get(point.series, point)
        if point is not first:
            pairs.setdefault((first.x, point.x), {})[point.series] = (first.run, point.run)
    rows = []
    for (start, x), by_series in sorted(pairs.items()):
        for column in columns(found):
            means = _means(column, found)
            changes = {
                series: means[own] - means[base]
                for series, (base, own) in by_series.items()
                if own in means and base in means
            }
            if not changes:
                continue
            form = column.form.replace(":", ":+")
            cells = [form.format(changes[one]) if one in changes else "" for one in several]
            if len(several) > 1:
                cells.append(form.format(statistics.fmean(changes.values())))
            groups = [list(values(column.of, by_seed).values()) for by_seed in found.values()]
            least = stats.least_detectable(groups)
            shown = "" if least is None else column.form.format(least / math.sqrt(len(changes)))
            title = f"{figure.tick(x)} less {figure.tick(start)}"
            rows.append([title, column.title, *cells, shown])
    return pivot.markdown(["difference", "measure", *titles], rows, texts=2)


def language_tables(found: Found) -> list[str]:
    """Return tables of bits per character and scores in the common languages."""
    common = shared_items(every(found), "losses/loss")
    made = [pivot.matrix("bits/char", found, [bits(one, [one]) for one in common], "detectable")]
    for task in compared_tasks(found):
        names = shared_items(every(found), metric(task))
        chosen = [Column(name, mean(metric(task), [name], scale=100)) for name in names]
        made.append(pivot.matrix(TASKS[task].title, found, chosen, "detectable"))
    return made


def paper_table(figure: Figure) -> str:
    """Return a table of the paper's values, or a sentence if it states none."""
    if not figure.paper:
        return "The paper's text has no number for any point of this axis."
    rows = [
        [figure.tick(x), series, str(value)]
        for series, by_x in figure.paper.items()
        for x, value in by_x.items()
    ]
    return pivot.markdown([figure.axis, "series", figure.measure], rows)


def _plot(figure: Figure, found: Found, path) -> None:
    """Plot each measure by x, with a line per series, and the paper's values."""
    ticks = {x: figure.tick(x) for x in sorted({point.x for point in figure.points})}
    style: dict[str, Any] = {
        "x": figure.axis,
        "is_log": figure.is_log,
        "has_names": bool(figure.ticks),
    }
    panels = []
    for column in columns(found):
        series: dict[str, dict[float, list[float]]] = {}
        for point in figure.ordered():
            own = values(column.of, found.get(point.run, {})).values()
            series.setdefault(point.series, {})[point.x] = list(own)
        title = f"{column.title} ({'more' if column.sign > 0 else 'less'} is better)"
        panels.append(plots.Panel(title, series, ticks=ticks, **style))
    if figure.paper:
        paper = {name: {x: [one] for x, one in by_x.items()} for name, by_x in figure.paper.items()}
        of_paper = {x: figure.tick(x) for x in sorted({x for one in paper.values() for x in one})}
        panels.append(plots.Panel(f"paper: {figure.measure}", paper, ticks=of_paper, **style))
    plots.lines(panels, path)
