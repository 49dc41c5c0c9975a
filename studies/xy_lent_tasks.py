"""Fine-tuning of the encoders of `studies.xy_lent` on English, and tests in other languages.

The tasks are those of `studies.downstream`. The learning rate of a task and an arm is the one of
--rates with the best English development score under the first seed; other seeds use that rate
only.
"""

import dataclasses
import functools
import pathlib
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from ml_collections import ConfigDict

from common import artifacts
from input_pipeline.tasks import files
from studies import runs
from studies.downstream import (
    TASKS,
    detectable,
    retrieval_keys,
    scores,
    spread,
    transfer_gap,
    tuning_keys,
    zero_shot,
)
from studies.xy_lent_settings import LABELS, REFERENCE, Study


@dataclasses.dataclass(frozen=True)
class TaskRun:
    """Run of a task from one encoder under one seed.

    Attributes:
      task: of `TASKS`.
      arm: of the encoder.
      choice: learning rate; "" for retrieval.
      seed: of the pre-training and of the run.
    """

    task: str
    arm: str
    choice: str
    seed: int

    def folder(self, workdir: pathlib.Path) -> pathlib.Path:
        """Return the working directory of the run, below that of the study."""
        return workdir / "tasks" / self.task / self.arm / self.choice / f"seed{self.seed}"

    def results(self, study: Study) -> dict[str, Any] | None:
        """Return the results of the run; None if it has not finished."""
        path = self.folder(study.workdir) / "results.json"
        return artifacts.read_json(path) if path.exists() else None


def chosen_rate(study: Study, task: str, arm: str) -> str | None:
    """Return the rate with the best development score; None while a score is missing."""
    if not TASKS[task].epochs:
        return ""
    found = {rate: TaskRun(task, arm, rate, study.seeds[0]).results(study) for rate in study.rates}
    scores = {rate: one["selected"]["value"] for rate, one in found.items() if one is not None}
    return max(scores, key=lambda rate: scores[rate]) if len(scores) == len(study.rates) else None


def change_of(study: Study, run: TaskRun) -> dict[str, Any]:
    """Return the keys of a run that differ from its task's config.

    Raises:
      ValueError: there is no test data in any language of the study.
    """
    task, config = TASKS[run.task], study.config_of(run.arm)
    remedy = f"add them, or leave {run.task} out of --tasks"
    languages = runs.tested_languages(config, task.test, remedy)
    change = {
        "init_from": study.encoder(run.arm, run.seed).absolute(),
        "model_name": run.arm,
        "train.seed": run.seed,
        "task.test_languages": languages,
    }
    if task.unseen and (unseen := unseen_languages(config, task.unseen[1])):
        patterns = (task.test, task.unseen[1])
        change["task.test"] = tuple(one.format(files.PLACEHOLDER) for one in patterns)
        change["task.test_languages"] = (*languages, *unseen)
    if not task.epochs:
        return {**change, **retrieval_keys(config.model.num_layers)}
    return {**change, **tuning_keys(task, run.choice)}


def unseen_languages(config: ConfigDict, pattern: str) -> list[str]:
    """Return the languages of test files, {} for the language, that the corpus does not have."""
    root = pathlib.Path(config.corpus.root)
    found = files.languages_of_names(root, pattern.format(files.PLACEHOLDER))
    return sorted(found - set(config.corpus.languages))


def do_run(study: Study, run: TaskRun) -> bool:
    """Fine-tune or run retrieval, unless finished; return whether there was anything to do."""
    if run.results(study) is not None:
        return False
    root = pathlib.Path(study.config.corpus.root).absolute()
    config = [f"--config=configs/finetune/{run.task}.py:{root}"]
    study.call("finetune.py", run.folder(study.workdir), change_of(study, run), config)
    return True


def are_finished(study: Study, arm: str, seed: int) -> bool:
    """Whether all runs from the encoder of an arm have results."""
    if arm not in study.tuned_arms():
        return True
    wanted = []
    for task in study.tasks:
        rate = chosen_rate(study, task, arm)
        if rate is None:
            return False
        wanted.append(TaskRun(task, arm, rate, seed))
    return all(run.results(study) is not None for run in wanted)


def do_tasks(study: Study, arm: str, seed: int) -> bool:
    """Execute the runs of an encoder that has been trained; return whether there were any to do.

    Raises:
      ValueError: runs failed; all others have been executed.
    """
    if arm not in study.tuned_arms():
        return False
    return runs.do_each(
        functools.partial(do_run, study, TaskRun(task, arm, rate, seed))
        for task in study.tasks
        for rate in _rates(study, task, arm, seed)
    )


def _rates(study: Study, task: str, arm: str, seed: int) -> Sequence[str]:
    """Return the rates to fine-tune at: all under the first seed, then the best, if it is known."""
    if seed == study.seeds[0] and TASKS[task].epochs:
        return study.rates
    rate = chosen_rate(study, task, arm)
    return [] if rate is None else [rate]


# Report.


def tables(study: Study, arms: Sequence[str]) -> list[str]:
    """Return the tables of each task with finished runs of several of the arms.

    Languages that no encoder has seen have a table of their own.
    """
    parts = []
    for name, task in TASKS.items():
        found = {arm: read_scores(study, name, arm) for arm in arms}
        titles = {False: task.title} | ({True: task.unseen[0]} if task.unseen else {})
        for is_unseen, title in titles.items():
            known = {
                arm: {seed: _of_languages(study, one, is_unseen) for seed, one in by_seed.items()}
                for arm, by_seed in found.items()
            }
            finished = {arm: some for arm, some in known.items() if any(some.values())}
            if len(finished) > 1:
                parts.append(score_table(study, name, finished, title))
    return parts


def _of_languages(study: Study, found: Mapping[str, float], is_unseen: bool) -> dict[str, float]:
    """Return the scores in languages of the corpus, or in all others."""
    of_corpus = set(study.config.corpus.languages)
    return {name: score for name, score in found.items() if (name in of_corpus) != is_unseen}


def read_scores(study: Study, task: str, arm: str) -> dict[int, dict[str, float]]:
    """Read the reported metric by language of each finished run, in per cent, by seed."""
    return {seed: scores(one) for seed, one in _finished(study, task, arm).items()}


def _finished(study: Study, task: str, arm: str) -> dict[int, dict[str, Any]]:
    """Return the results of the finished runs at the chosen rate, by seed."""
    rate = chosen_rate(study, task, arm)
    if rate is None:
        return {}
    found = {seed: TaskRun(task, arm, rate, seed).results(study) for seed in study.seeds}
    return {seed: one for seed, one in found.items() if one is not None}


def score_table(
    study: Study, task: str, found: Mapping[str, Mapping[int, Mapping[str, float]]], title: str
) -> str:
    """Return a Markdown table in per cent: means over seeds, a line per arm."""
    first = next(iter(found))
    languages = list(next(iter(found[first].values())))
    columns = [
        title, "rate", "seeds", *languages, "mean but en", "least to largest",
        "against the first", "least to largest", "transfer gap", "least to largest",
    ]  # fmt: skip
    counts = next(iter(_finished(study, task, first).values()))["examples"]["test"]
    examples = [f"{counts[language]:,}" for language in languages]
    lines = [
        f"| {' | '.join(columns)} |",
        "|---|" + "---:|" * (len(columns) - 1),
        f"| test examples | | | {' | '.join(examples)} |" + " |" * 6,
    ]
    means = {
        arm: {seed: zero_shot(scores) for seed, scores in by_seed.items()}
        for arm, by_seed in found.items()
    }
    gaps = {
        arm: [gap for one in by_seed.values() if (gap := transfer_gap(one)) is not None]
        for arm, by_seed in found.items()
    }
    for arm, by_seed in found.items():
        shared = [means[arm][seed] - means[first][seed] for seed in by_seed if seed in found[first]]
        cells = [
            LABELS[arm],
            chosen_rate(study, task, arm) or "",
            str(len(by_seed)),
            *(f"{statistics.fmean(one[name] for one in by_seed.values()):.1f}"
              for name in languages),
            *spread(means[arm].values(), "{:.1f}"),
            *spread([] if arm == first else shared, "{:+.1f}"),
            *spread(gaps[arm], "{:.1f}"),
        ]  # fmt: skip
        lines.append(f"| {' | '.join(cells)} |")
    of_languages = [
        [[one[name] for one in by_seed.values()] for by_seed in found.values()]
        for name in languages
    ]
    of_means = [list(one.values()) for one in means.values()]
    *least, of_gaps = (
        detectable(some, "{:.1f}") for some in (*of_languages, of_means, gaps.values())
    )
    cells = ["detectable", "", "", *least, "", "", "", of_gaps, ""]
    return "\n".join([*lines, f"| {' | '.join(cells)} |"])


def notes(study: Study) -> list[str]:
    """Return the explanation of the tables and the scores that the rates were chosen by."""
    tried = [name for name, task in TASKS.items() if task.epochs]
    lines = []
    for task in tried:
        for arm in study.tuned_arms():
            found = [
                TaskRun(task, arm, rate, study.seeds[0]).results(study) for rate in study.rates
            ]
            if any(found):
                values = [f"{100 * one['selected']['value']:.1f}" if one else "" for one in found]
                title = f"{TASKS[task].title}: {LABELS[arm]}"
                lines.append(f"| {title} | {' | '.join(values)} |")
    if not lines:
        return []
    layer = round(study.config.model.num_layers * 2 / 3)
    header = [
        f"| English development data | {' | '.join(study.rates)} |",
        "|---|" + "---:|" * len(study.rates),
    ]
    return ["## Fine-tuning", _NOTE.format(layer=layer), "\n".join([*header, *lines])]


_NOTE = f"""\
Trained on English with frozen embeddings, selected on English development data, at the rate that is
best under the first seed; per cent, means over seeds. *mean but en*: zero-shot, over languages
without training data. *against the first*: its difference from {LABELS[REFERENCE]}, seed by seed.
*transfer gap*: English minus the mean of the others (Table 4): less is better. WikiANN's English
score is on the data used for selection, which its gap overstates. Models of XNLI answer AmericasNLI
too (Table 5), which has no English; chance is 33.3 in both. Tatoeba: states of layer {{layer}},
fixed beforehand. *detectable*: the least difference of two arms that the spread of seeds, pooled
over the arms, tells at 5 %; it knows nothing of the choice of test examples."""
