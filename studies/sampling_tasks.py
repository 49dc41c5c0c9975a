"""Fine-tuning of the study's encoders: POS and NER in other languages than English, retrieval.

An encoder is trained on English and tested in the study's languages that a task has, with the
parameters of the best English development score. Retrieval needs no training. The English scores of
NER are on the data used for selection, since WikiANN's development data serve as test data: means
exclude English.
"""

import dataclasses
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from ml_collections import ConfigDict

from common import artifacts
from studies import downstream, runs
from studies.downstream import Task, spread
from studies.sampling_settings import FULL, RANDOM, RANDOM_LABEL, Setting

_RATES = {"udpos": "3e-4", "wikiann": "1e-3"}
# Those of `studies.downstream` at one learning rate, with all keys that they change.
TASKS: dict[str, Task] = {
    **{
        name: dataclasses.replace(
            downstream.TASKS[name], change=downstream.tuning_keys(downstream.TASKS[name], rate)
        )
        for name, rate in _RATES.items()
    },
    "tatoeba": dataclasses.replace(
        downstream.TASKS["tatoeba"], change=downstream.retrieval_keys(2)
    ),
}


@dataclasses.dataclass(frozen=True)
class TaskRun:
    """Run of one task from one encoder under one seed.

    Attributes:
      task: of `TASKS`.
      encoder: setting of the pre-training.
      seed: of the pre-training and of the fine-tuning.
      is_random: whether random parameters replace the encoder's.
    """

    task: str
    encoder: Setting
    seed: int
    is_random: bool = False

    @property
    def column(self) -> str:
        return RANDOM if self.is_random else self.encoder.name

    @property
    def name(self) -> str:
        return f"{self.task} of {self.column}, seed {self.seed}"

    def folder(self, workdir: pathlib.Path) -> pathlib.Path:
        """Working directory of the run, below the study's."""
        return workdir / "fine_tuning" / self.column / f"seed{self.seed}" / self.task

    def result(self, workdir: pathlib.Path) -> pathlib.Path:
        """Path of the results of the run."""
        return self.folder(workdir) / "results.json"


def task_runs(
    settings: Sequence[Setting], seeds: Sequence[int], tasks: Sequence[str]
) -> list[TaskRun]:
    """Runs of the chosen settings that are fine-tuned, seed by seed.

    Raises:
      ValueError: there is no such task.
    """
    tasks = runs.chosen("tasks", tasks, TASKS)
    encoders = [(one, False) for one in settings if one.is_fine_tuned]
    encoders += [(one, True) for one in settings if one.name == FULL]
    return [
        TaskRun(task, encoder, seed, is_random)
        for seed in seeds
        for encoder, is_random in encoders
        for task in tasks
    ]


class Arguments(NamedTuple):
    """Arguments of finetune.py: the flag of its config, and changed keys."""

    config: str
    change: dict[str, Any]


def arguments(config: ConfigDict, run: TaskRun, encoder: pathlib.Path) -> Arguments:
    """Arguments of finetune.py for a run.

    Args:
      config: config of the study, with data and languages.
      run: the run.
      encoder: working directory of the pre-training.

    Raises:
      ValueError: there is no test data in any language of the study.
    """
    task, root = TASKS[run.task], pathlib.Path(config.corpus.root)
    remedy = f"add them, or leave {run.task} out of --tasks"
    languages = runs.tested_languages(config, task.test, remedy)
    return Arguments(
        f"--config=configs/finetune/{run.task}.py:{root.absolute()}",
        {
            **task.change,
            "init_from": encoder,
            "random_init": run.is_random,
            "model_name": run.column,
            "task.max_length": config.store.length,
            "task.test_languages": languages,
            "train.seed": run.seed,
        },
    )


# Scores of an encoder by seed and language, in per cent; and these by task and encoder.
BySeed = dict[int, dict[str, float]]
Scores = dict[str, dict[str, BySeed]]


def read_scores(workdir: pathlib.Path) -> Scores:
    """Read the scores of each finished run, in per cent."""
    scores: Scores = {}
    for path in sorted(workdir.glob("fine_tuning/*/*/*/results.json")):
        column, seed, task = path.parts[-4:-1]
        of_task = scores.setdefault(task, {}).setdefault(column, {})
        of_task[int(seed.removeprefix("seed"))] = downstream.scores(artifacts.read_json(path))
    return scores


def table(by_encoder: Mapping[str, BySeed], settings: Sequence[Setting]) -> str:
    """Markdown table of a task: languages, mean without English, and difference from a reference.

    Differences are means of those of each seed. The last line has the least difference of two rows
    that the spread of seeds, pooled over the settings, lets tell at 5 %.

    Args:
      by_encoder: scores of the task by encoder and seed, see `read_scores`.
      settings: rows of the table, after random parameters; those without scores are left out.

    Returns:
      The table; "" without scores.
    """
    rows = {RANDOM: (RANDOM_LABEL, "")}
    rows |= {one.name: (one.label, one.tuned_reference) for one in settings}
    rows = {name: row for name, row in rows.items() if by_encoder.get(name)}
    if not rows:
        return ""
    languages = list(next(iter(by_encoder[next(iter(rows))].values())))
    lines = [
        f"| | seeds | {' | '.join(languages)} | mean but en | least to largest | difference "
        "| least to largest |",
        "|---|" + "---:|" * (len(languages) + 5),
    ]
    columns = {
        name: [[one[language] for one in by_encoder[name].values()] for language in languages]
        for name in rows
    }
    means = {
        name: {seed: downstream.zero_shot(one) for seed, one in by_encoder[name].items()}
        for name in rows
    }
    for name, (label, reference) in rows.items():
        other = means.get(reference, {}) if reference != name else {}
        shared = [mean - other[seed] for seed, mean in means[name].items() if seed in other]
        cells = [str(len(means[name])), *(f"{np.mean(one):.1f}" for one in columns[name])]
        cells += [*spread(means[name].values(), "{:.1f}"), *spread(shared, "{:+.1f}")]
        lines.append(f"| {label} | " + " | ".join(cells) + " |")
    settled = [name for name in rows if name != RANDOM]
    samples = [*zip(*(columns[name] for name in settled), strict=True)]
    samples.append(tuple(list(means[name].values()) for name in settled))
    least = [downstream.detectable(one, "{:.1f}") for one in samples]
    return "\n".join([*lines, f"| *detectable* | | {' | '.join(least)} | | | |"])
