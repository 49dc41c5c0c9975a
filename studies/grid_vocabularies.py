"""Section of a grid's report on its vocabularies: what ALP says of losses and of scores.

VoCap (arXiv 2109.07306) correlates scores with ALP over monolingual vocabularies (Table 5), see
`studies.monolingual`, and compares its gains by amount of text (Figure 6). This does both with the
shared vocabularies of a grid, language by language.
"""

import dataclasses
import functools
import math
import statistics
from collections.abc import Callable, Mapping, Sequence

from scipy import stats

from configs.grids import Grid
from studies.downstream import TASKS
from studies.grid_report import (
    Measure,
    Run,
    Runs,
    bits,
    by_columns,
    compared_tasks,
    shared_names,
    transfer,
)
from vocap.record import RESOURCES

NOTE = """\
*ALP*: nats a sentence of held-out text, of the pieces of the run's own vocabulary; higher is
better. *high*, *mid* and *low* are thirds of the languages by amount of text. Scores are of the
languages without training data of their own. Pearson's correlation is over the runs of the grid,
of their means over seeds, in brackets that of the seeds; positive where what should be good goes
with scores: high ALP, few tokens a sentence, a low loss in bits a character. A correlation of {n}
runs is significant at 5 % from {least:.2f} on. *all*: values less their language's mean, ALP,
tokens and bits in relation to it; runs count once for each language, which are not independent, so
that less than that is no proof there either."""
_MIN_RUNS = 4


@dataclasses.dataclass(frozen=True)
class _Predictor:
    """What scores are correlated with.

    Attributes:
      title: of its column.
      of: its value in a language of a run; higher should be better.
    """

    title: str
    of: Callable[[Run, str], float]


_PREDICTORS = (
    _Predictor("ALP", lambda run, name: run.vocabulary[name]["alp"]),
    _Predictor("few tokens", lambda run, name: -run.vocabulary[name]["tokens_per_sentence"]),
    _Predictor("low bits/char", lambda run, name: -run.losses[name]["bits_per_character"]),
)


def parts(grid: Grid, found: Runs) -> list[str]:
    """Return the section, as parts of a page; none if the grid is not of vocabularies.

    Args:
      grid: the grid.
      found: its finished runs; those whose record has nothing of the vocabulary do not count.
    """
    if not any(key.startswith("vocab.") for key in grid.keys):
        return []
    scored = {
        name: by_seed
        for name, by_seed in found.items()
        if all(run.vocabulary for run in by_seed.values())
    }
    if len(scored) < _MIN_RUNS:
        return []
    note = NOTE.format(n=len(scored), least=significant(len(scored)))
    return [
        "## Vocabularies",
        note,
        *group_tables(grid, scored),
        correlation_table(scored),
    ]


def significant(count: int) -> float:
    """Return the least correlation of `count` points that is significant at 5 %, two-sided."""
    t = stats.t.ppf(0.975, count - 2)
    return t / math.sqrt(t**2 + count - 2)


def group_tables(grid: Grid, found: Runs) -> list[str]:
    """Return Markdown tables of ALP, bits a character and scores by amount of text.

    Args:
      grid: the grid.
      found: runs whose records have their vocabularies.
    """
    every = [run for by_seed in found.values() for run in by_seed.values()]
    languages = shared_names(run.vocabulary for run in every)
    groups = {
        one: [name for name in languages if every[0].vocabulary[name]["resource"] == one]
        for one in RESOURCES
    }
    tables = [
        _by_group(grid, found, "ALP", groups, _alp),
        _by_group(grid, found, "bits/char", groups, lambda some: bits("", some)),
    ]
    for task in compared_tasks(found):
        tested = _tested(task, every)
        of_task = {one: [name for name in some if name in tested] for one, some in groups.items()}
        measure = functools.partial(transfer, task)
        tables.append(_by_group(grid, found, TASKS[task].title, of_task, measure))
    return tables


def _by_group(
    grid: Grid,
    found: Runs,
    title: str,
    groups: Mapping[str, Sequence[str]],
    measure: Callable[[Sequence[str]], Measure],
) -> str:
    chosen = {f"{one} ({len(some)})": measure(some) for one, some in groups.items() if some}
    return by_columns(grid, found, title, chosen)


def _alp(languages: Sequence[str]) -> Measure:
    def of(run: Run) -> float:
        return statistics.fmean(run.vocabulary[name]["alp"] for name in languages)

    return Measure("ALP", of, "{:.1f}", 1)


def _tested(task: str, every: Sequence[Run]) -> list[str]:
    """Return the languages without training data that all runs with scores of a task have."""
    some = [run for run in every if task in run.scores]
    names = set(shared_names(run.scores[task] for run in some)) - {"en"}
    return sorted(names.intersection(*(run.vocabulary for run in some)))


def correlation_table(found: Runs) -> str:
    """Return a Markdown table: correlation of scores with what may predict them, by language.

    Args:
      found: runs whose records have their vocabularies.
    """
    lines = [
        f"| task | language | runs | {' | '.join(one.title for one in _PREDICTORS)} |",
        "|---|---|---:|" + "---:|" * len(_PREDICTORS),
    ]
    every = [run for by_seed in found.values() for run in by_seed.values()]
    for task in compared_tasks(found):
        scored = {
            name: {seed: run for seed, run in by_seed.items() if task in run.scores}
            for name, by_seed in found.items()
        }
        scored = {name: by_seed for name, by_seed in scored.items() if by_seed}
        tested = _tested(task, every)
        for languages in (*([name] for name in tested), tested):
            label = languages[0] if len(languages) == 1 else "all"
            cells = [_correlation(scored, task, languages, one) for one in _PREDICTORS]
            row = (TASKS[task].title, label, str(len(scored)), *cells)
            lines.append(f"| {' | '.join(row)} |")
    return "\n".join(lines)


def _correlation(found: Runs, task: str, languages: Sequence[str], predictor: _Predictor) -> str:
    """Format the correlation over the runs, and its range over seeds."""
    seeds = sorted(set.intersection(*(set(by_seed) for by_seed in found.values())))
    every = sorted({seed for by_seed in found.values() for seed in by_seed})
    mean = _rho(found, task, languages, predictor, every)
    if len(seeds) < 2:
        return f"{mean:.2f}"
    each = [_rho(found, task, languages, predictor, [seed]) for seed in seeds]
    return f"{mean:.2f} ({min(each):.2f} to {max(each):.2f})"


def _rho(
    found: Runs, task: str, languages: Sequence[str], predictor: _Predictor, seeds: Sequence[int]
) -> float:
    xs: list[float] = []
    ys: list[float] = []
    for language in languages:
        of_runs = [
            [by_seed[seed] for seed in seeds if seed in by_seed] for by_seed in found.values()
        ]
        x = [statistics.fmean(predictor.of(run, language) for run in some) for some in of_runs]
        y = [statistics.fmean(run.scores[task][language] for run in some) for some in of_runs]
        level = statistics.fmean(x)
        xs += [(one - level) / abs(level) for one in x]
        ys += [one - statistics.fmean(y) for one in y]
    if len(set(xs)) == 1 or len(set(ys)) == 1:  # e.g. a tagger that finds nothing
        return math.nan
    return statistics.correlation(xs, ys)
