"""Section of a figure's report: whether ALP of its vocabularies predicts losses and scores.

VoCap (arXiv 2109.07306) correlates scores with ALP over monolingual vocabularies (Table 5; see
`research.studies.monolingual`). It compares gains by amount of text (Figure 6). This section does
both for the multilingual vocabularies of a figure, language by language.
"""

import itertools
import statistics
from collections.abc import Callable, Mapping, Sequence

from research import figure_report, pivot, stats
from research.figure import Figure
from research.pivot import Column
from research.results import BySeed, Result, mean, shared_items
from research.tasks import TASKS
from vocap.record import RESOURCES

NOTE = """\
*ALP*: nats per sentence of held-out text, for the run's own vocabulary; higher is better. *high*,
*mid* and *low* are thirds of the languages by amount of text. Scores are of the languages without
training data of their own. Pearson's correlation is over the runs of the figure, of their means
over seeds. In brackets: the range of single seeds. It is positive if a good value goes with good
scores: high ALP, few tokens per sentence, or few bits per character. A correlation of {n} runs is
significant at 5 % from {least:.2f} on. *all*: scores minus their language's mean; ALP, tokens and
bits relative to it. *all, equal size*: the same with the mean of runs with equally many pieces.
Both count a run once per language, and languages are not independent."""
_MIN_RUNS = 4
# Predictors of scores, by title; more should be better.
_PREDICTORS: dict[str, Callable[[Result, str], float]] = {
    "ALP": lambda run, name: run["vocabulary/alp"][name],
    "few tokens": lambda run, name: -run["vocabulary/tokens_per_sentence"][name],
    "low bits/char": lambda run, name: -run["losses/bits_per_character"][name],
}


def parts(figure: Figure, found: Mapping[str, BySeed]) -> list[str]:
    """Return the section; [] for a figure of one vocabulary, or too few records of them."""
    if not any(key.startswith("vocab.") for key in figure.keys):
        return []
    scored = {
        name: by_seed
        for name, by_seed in found.items()
        if all("vocabulary/alp" in one for one in by_seed.values())
    }
    if len(scored) < _MIN_RUNS:
        return []
    note = NOTE.format(n=len(scored), least=stats.significant_correlation(len(scored)))
    return ["### Vocabularies", note, *group_tables(scored), correlation_table(scored)]


def group_tables(found: Mapping[str, BySeed]) -> list[str]:
    """Return tables of ALP, bits per character and scores by amount of text."""
    every = figure_report.every(found)
    languages = shared_items(every, "vocabulary/alp")
    groups = {
        one: [name for name in languages if every[0]["vocabulary/resource"][name] == one]
        for one in RESOURCES
    }
    # Seeds share a vocabulary, so its ALP has no spread.
    first = {name: dict([next(iter(by_seed.items()))]) for name, by_seed in found.items()}

    def by_group(title: str, runs: Mapping[str, BySeed], some: Mapping, column: Callable) -> str:
        chosen = [column(f"{one} ({len(names)})", names) for one, names in some.items() if names]
        return pivot.matrix(title, runs, chosen, "detectable")

    tables = [
        by_group(
            "ALP", first, groups, lambda one, names: Column(one, mean("vocabulary/alp", names))
        ),
        by_group("bits/char", found, groups, figure_report.bits),
    ]
    for task in figure_report.compared_tasks(found):
        tested = _tested(task, found)
        own = {one: [name for name in names if name in tested] for one, names in groups.items()}
        of = figure_report.metric(task)
        tables.append(
            by_group(
                TASKS[task].title, found, own,
                lambda one, names, of=of: Column(one, mean(of, names, scale=100)),
            )
        )  # fmt: skip
    return tables


def _tested(task: str, found: Mapping[str, BySeed]) -> list[str]:
    """Return the languages without training data that all runs score on a task."""
    some = [one for one in figure_report.every(found) if figure_report.scored(task, one)]
    names = set(shared_items(some, figure_report.metric(task))) - {"en"}
    return sorted(names.intersection(*(one["vocabulary/alp"] for one in some)))


def correlation_table(found: Mapping[str, BySeed]) -> str:
    """Return a table of the correlations of scores with their predictors, by language."""
    rows = []
    for task in figure_report.compared_tasks(found):
        scored = {
            name: some
            for name, by_seed in found.items()
            if (some := {s: one for s, one in by_seed.items() if figure_report.scored(task, one)})
        }
        sizes = {next(iter(by_seed.values())).one("vocab_size") for by_seed in scored.values()}
        tested = _tested(task, found)
        chosen: dict[str, tuple[list[str], bool]] = {name: ([name], False) for name in tested}
        chosen["all"] = (tested, False)
        if len(sizes) > 1:
            chosen["all, equal size"] = (tested, True)
        for label, (languages, equal) in chosen.items():
            cells = [_cell(scored, task, languages, of, equal) for of in _PREDICTORS.values()]
            rows.append([TASKS[task].title, label, str(len(scored)), *cells])
    return pivot.markdown(["task", "language", "runs", *_PREDICTORS], rows, texts=2)


def _cell(
    found: Mapping[str, BySeed], task: str, languages: Sequence[str], of: Callable, equal: bool
) -> str:
    """Format the correlation over the runs, and its range over their common seeds."""
    seeds = set.intersection(*(set(by_seed) for by_seed in found.values()))
    whole = _rho(found, task, languages, of, equal)
    if len(seeds) < 2:
        return f"{whole:.2f}"
    of_seeds = [{name: {one: by_seed[one]} for name, by_seed in found.items()} for one in seeds]
    each = [_rho(some, task, languages, of, equal) for some in of_seeds]
    return f"{whole:.2f} ({min(each):.2f} to {max(each):.2f})"


def _rho(
    found: Mapping[str, BySeed], task: str, languages: Sequence[str], of: Callable, equal: bool
) -> float:
    """Compute Pearson's correlation of means over seeds, each minus the mean of its language.

    Args:
      found: runs with scores on the task.
      of: predictor of the scores, from a result and a language.
      equal: whether to subtract the mean of runs with equally many pieces.
    """
    by_size: dict[int, list[Sequence[Result]]] = {}
    for by_seed in found.values():
        some = list(by_seed.values())
        by_size.setdefault(some[0].one("vocab_size") if equal else 0, []).append(some)
    xs: list[float] = []
    ys: list[float] = []
    metric = figure_report.metric(task)
    for runs, language in itertools.product(by_size.values(), languages):
        x = [statistics.fmean(of(run, language) for run in some) for some in runs]
        y = [statistics.fmean(100 * run[metric][language] for run in some) for some in runs]
        level = statistics.fmean(x)
        xs += [(one - level) / abs(level) for one in x]
        ys += [one - statistics.fmean(y) for one in y]
    return stats.correlation(xs, ys)
