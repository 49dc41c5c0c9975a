"""Results of the runs of a grid, and the measures that compare them."""

import dataclasses
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from configs.xlm_r import HIGH, LOW
from studies.downstream import TASKS, detectable, scores, zero_shot


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


def every_run(found: Runs) -> list[Run]:
    """Return all runs of all seeds."""
    return [run for by_seed in found.values() for run in by_seed.values()]


def measures(found: Runs) -> list[Measure]:
    """Return the measures that runs have, over the languages that all of them have."""
    every = every_run(found)
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
