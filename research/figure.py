"""Figures of papers: named runs of a config, by a number or a name.

WORKDIR/runs has a folder for each run, by its own name. So figures in one WORKDIR share runs, with
each other and with the launchers (`xlm.launch.grids`). Encoders with equal text, vocabulary and row
length share one vocabulary and one packed dataset.
"""

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from research import measures, tasks
from research.results import Result, Results
from research.study import TEXT_OF_RECORDS, Plan, Run, Study, encoder
from research.tasks import TASKS
from xlm.launch import grids

# Learning rates for fine-tuning small encoders, the same in all runs.
RATES = {"udpos": "1e-3", "wikiann": "1e-3", "xnli": "1e-3"}


class Point(NamedTuple):
    """Point of a plot: name of the run, place on the axis, and series."""

    run: str
    x: float
    series: str = "all"


@dataclasses.dataclass(frozen=True)
class Figure:
    """Runs that reproduce one figure or table of a paper.

    Attributes:
      title: question that the figure answers.
      place: figure, table or section of the paper.
      axis: label of x, with its unit.
      keys: keys or sections of the config in which the runs may differ.
      is_log: whether x is logarithmic.
      ticks: labels of x if it is no number.
      paper: values of the paper by series and x.
      measure: metric of the paper's values.
      note: origin of these values, and settings that the paper omits.
    """

    title: str
    place: str
    axis: str
    points: tuple[Point, ...]
    keys: tuple[str, ...]
    is_log: bool = False
    ticks: Mapping[float, str] = dataclasses.field(default_factory=dict)
    paper: Mapping[str, Mapping[float, float]] = dataclasses.field(default_factory=dict)
    measure: str = "XNLI, mean accuracy"
    note: str = ""

    @property
    def runs(self) -> tuple[str, ...]:
        """Distinct names of the runs, in the order of the points."""
        return tuple(dict.fromkeys(point.run for point in self.points))

    @property
    def series(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(point.series for point in self.points))

    def ordered(self) -> list[Point]:
        """Return the points by series and x; series have the order of their first points."""
        return sorted(self.points, key=lambda one: (self.series.index(one.series), one.x))

    def tick(self, x: float) -> str:
        """Return the label of `x` on the axis."""
        return self.ticks.get(x, f"{x:,g}" if x < 1000 else f"{x:,.0f}")


def places(lines: Sequence[tuple[Any, ...]]) -> dict[str, Any]:
    """Return points, ticks and the paper's values of a figure with one point per line.

    A line has run, label, value of the paper, and its series if there are several.
    """
    named = [(run, label, value, *(series or ["all"])) for run, label, value, *series in lines]
    paper: dict[str, dict[float, float]] = {}
    for x, (_, _, value, series) in enumerate(named):
        paper.setdefault(series, {})[x] = value
    return {
        "points": tuple(Point(run, x, series) for x, (run, _, _, series) in enumerate(named)),
        "ticks": {x: label for x, (_, label, _, _) in enumerate(named)},
        "paper": paper,
    }


def study(title: str, config: str, figures: Mapping[str, Figure], *, is_small: bool) -> Study:
    """Return the study of some figures, by name.

    Small encoders (`is_small`, two layers) have their own settings of fine-tuning.
    """
    from research import figure_report  # imports matplotlib, which runs do not need

    names = tuple(dict.fromkeys(run for one in figures.values() for run in one.runs))
    return Study(
        title,
        config,
        lambda plan: _runs(plan, figures, is_small),
        lambda plan: figure_report.parts(plan, figures),
        {"figures": tuple(figures), "runs": (), "tasks": ("udpos",)},
        {"figures": tuple(figures), "runs": names, "tasks": tuple(TASKS)},
        overrides=TEXT_OF_RECORDS if is_small else {},
    )


def _runs(plan: Plan, figures: Mapping[str, Figure], is_small: bool) -> Iterator[Run]:
    chosen = dict.fromkeys(run for one in plan.chosen["figures"] for run in figures[one].runs)
    for seed in plan.seeds or ():
        for name in chosen:
            if name in (plan.chosen["runs"] or chosen):
                run = encoder_run(plan, name, seed)
                yield run
                for task in plan.chosen["tasks"]:
                    yield from _task(plan, task, run, is_small)


def encoder_run(plan: Plan, name: str, seed: int) -> Run:
    """Return the run that pre-trains the named run of the config."""
    config = grids.config_of(plan.study.config, name)
    return encoder(plan, f"runs/{name}", seed, {}, measures.encoder, config=config)


def _task(plan: Plan, task: str, run: Run, is_small: bool) -> Iterator[Run]:
    """Plan a task of an encoder; nothing until its languages are known."""
    name, config, one = run.name.partition("/")[2], plan.config(run.config), TASKS[task]
    known = plan.results.of(run.name).get(run.seed or 0, Result())
    languages = config.corpus.languages or tuple(known.get("losses/loss", ()))
    if not languages:
        return
    change = {"task.max_length": config.store.length} if is_small else {}
    if not one.epochs:
        change |= tasks.retrieval_keys(config.model.num_layers)
    else:
        change |= tasks.tuning_keys(one, RATES[task]) if is_small else one.change
    yield tasks.task_run(plan, f"tasks/{task}/{name}", task, run, change, languages)


def read(results: Results, name: str, seeds: Sequence[int] | None) -> Mapping[int, Result]:
    """Return the results of a run and its tasks; the metrics of a task begin with "TASK:"."""
    own = {f"{task}:": f"tasks/{task}/{name}" for task in TASKS}
    return results.joined({"": f"runs/{name}", **own}, seeds)
