"""Section of a grid's report on its vocabularies: what ALP says of losses and of scores.

VoCap (arXiv 2109.07306) correlates scores with ALP over monolingual vocabularies (Table 5), see
`studies.monolingual`, and compares its gains by amount of text (Figure 6). This does both with the
shared vocabularies of a grid, language by language.
"""

import dataclasses
import functools
import itertools
import math
import statistics
from collections.abc import Callable, Mapping, Sequence

from configs.grids import Grid
from studies.downstream import TASKS, significant_correlation
from studies.grid_report import by_columns
from studies.grid_runs import (
    Measure,
    Run,
    Runs,
    bits,
    compared_tasks,
    every_run,
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
tokens and bits in relation to it; *all, equal size*: less the mean of its runs of equal numbers of
pieces. There runs count once for each language, which are not independent."""
_MIN_RUNS = 4


@dataclasses.dataclass(frozen=True)
class _Predictor:
    """Quantity that scores are correlated with.

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
    note = NOTE.format(n=len(scored), least=significant_correlation(len(scored)))
    return ["## Vocabularies", note, *group_tables(grid, scored), correlation_table(scored)]


def group_tables(grid: Grid, found: Runs) -> list[str]:
    """Return Markdown tables of ALP, bits a character and scores by amount of text.

    Args:
      grid: the grid.
      found: runs whose records have their vocabularies.
    """
    every = every_run(found)
    languages = shared_names(run.vocabulary for run in every)
    groups = {
        one: [name for name in languages if every[0].vocabulary[name]["resource"] == one]
        for one in RESOURCES
    }
    # Seeds share a vocabulary, so that its ALP has no spread.
    first = {name: dict([next(iter(by_seed.items()))]) for name, by_seed in found.items()}
    tables = [
        _by_group(grid, first, "ALP", groups, _alp),
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
    every = every_run(found)
    for task in compared_tasks(found):
        scored = {
            name: by_seed
            for name, some in found.items()
            if (by_seed := {seed: run for seed, run in some.items() if task in run.scores})
        }
        sizes = {next(iter(by_seed.values())).vocab_size for by_seed in scored.values()}
        tested = _tested(task, every)
        chosen = {name: ([name], False) for name in tested} | {"all": (tested, False)}
        if len(sizes) > 1:
            chosen["all, equal size"] = (tested, True)
        for label, (languages, equal) in chosen.items():
            cells = [_correlation(scored, task, languages, one, equal) for one in _PREDICTORS]
            row = (TASKS[task].title, label, str(len(scored)), *cells)
            lines.append(f"| {' | '.join(row)} |")
    return "\n".join(lines)


def _correlation(
    found: Runs, task: str, languages: Sequence[str], predictor: _Predictor, equal: bool
) -> str:
    """Format the correlation over the runs, and its range over the seeds that all runs have."""
    seeds = set.intersection(*(set(by_seed) for by_seed in found.values()))
    mean = _rho(found, task, languages, predictor, equal)
    if len(seeds) < 2:
        return f"{mean:.2f}"
    of_seeds = [{name: {one: by_seed[one]} for name, by_seed in found.items()} for one in seeds]
    each = [_rho(some, task, languages, predictor, equal) for some in of_seeds]
    return f"{mean:.2f} ({min(each):.2f} to {max(each):.2f})"


def _rho(
    found: Runs, task: str, languages: Sequence[str], predictor: _Predictor, equal: bool
) -> float:
    """Compute Pearson's correlation of means over seeds, each less the mean of its language.

    Args:
      found: runs with scores of the task.
      task: name of the task.
      languages: of the scores.
      predictor: what they are correlated with.
      equal: whether the mean is that of runs of an equal number of pieces.
    """
    by_size: dict[int, list[Sequence[Run]]] = {}
    for by_seed in found.values():
        runs = list(by_seed.values())
        by_size.setdefault(runs[0].vocab_size if equal else 0, []).append(runs)
    xs: list[float] = []
    ys: list[float] = []
    for some, language in itertools.product(by_size.values(), languages):
        x = [statistics.fmean(predictor.of(run, language) for run in runs) for runs in some]
        y = [statistics.fmean(run.scores[task][language] for run in runs) for runs in some]
        level = statistics.fmean(x)
        xs += [(one - level) / abs(level) for one in x]
        ys += [one - statistics.fmean(y) for one in y]
    if len(set(xs)) == 1 or len(set(ys)) == 1:  # e.g. a tagger that finds nothing
        return math.nan
    return statistics.correlation(xs, ys)
