"""Cross-lingual transfer with and without pre-training, with frozen and trained embeddings.

    python -m studies.crosslingual --config=configs/crosslingual.py:DATA --workdir=runs/cells

Pre-trains an encoder for every seed, by the ordinary stages, on one vocabulary and one packed
dataset. Each is fine-tuned on English, for POS and NER, in four cells: from its parameters or from
random ones of the same shapes, with frozen embeddings or with all parameters trained. The
learning rate of a cell is the one of --rates with the best English development score under the
first seed; other seeds use that rate only. All cells of a task have the same epochs. Tatoeba is
evaluated after every layer, embeddings (layer 0) included.

WikiANN's development data serve as its test data, so the English scores of NER are on the data used
for selection; means exclude English. No test sentence is in the text or the pairs of the
pre-training (`corpus.exclude`).

Tables go to WORKDIR/report/report.md. If it is run again after a stop, it completes missing runs,
and pre-trains only where one is missing, see `studies.records`; --report_only prints the tables of
finished runs.

Hardware: 2 CPU cores, some two hours; --workers=1 --nopin on an accelerator.
`configs/crosslingual.py:runlocal` has no data to fine-tune on.
"""

import dataclasses
import functools
import pathlib
import statistics
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from absl import flags
from ml_collections import ConfigDict

from common import artifacts, entry_point
from evaluation.task_results import reported_scores
from studies import downstream, runs
from studies.runs import Job

ENCODERS = {"pretrained": "pre-trained", "random": "random parameters"}
TRAINED = {"frozen": "embeddings frozen", "all": "everything trained"}
TASKS = {name: downstream.TASKS[name] for name in ("udpos", "wikiann")}
_REMEDY = "add them"


@dataclasses.dataclass(frozen=True)
class Study(runs.Stages):
    """Settings of the study.

    Attributes:
      config: config of the pre-training.
      workdir: folder of the results.
      seeds: of pre-training and fine-tuning; the first selects the rates.
      rates: learning rates of fine-tuning.
      workers: number of parallel runs.
      pin: whether each run is pinned to one core and one thread.
    """

    config: ConfigDict
    workdir: pathlib.Path
    seeds: Sequence[int]
    rates: Sequence[str]
    workers: int
    pin: bool

    def encoder(self, seed: int) -> pathlib.Path:
        """Return the working directory of a pre-training."""
        return self.workdir / "encoders" / f"seed{seed}"


@dataclasses.dataclass(frozen=True)
class Run:
    """Fine-tuning run, or retrieval with the task "tatoeba".

    Attributes:
      task: "udpos", "wikiann" or "tatoeba".
      encoder: a key of `ENCODERS`.
      trained: a key of `TRAINED`; "" for retrieval.
      choice: learning rate, or layer.
      seed: of the pre-training and of the run.
    """

    task: str
    encoder: str
    trained: str
    choice: str
    seed: int

    def folder(self, workdir: pathlib.Path) -> pathlib.Path:
        """Return the run's working directory below the study's."""
        cell = "-".join(part for part in (self.encoder, self.trained) if part)
        return workdir / "tasks" / self.task / cell / self.choice / f"seed{self.seed}"

    def results(self, workdir: pathlib.Path) -> dict[str, Any] | None:
        """Return the results of the run; None if it has not finished."""
        path = self.folder(workdir) / "results.json"
        return artifacts.read_json(path) if path.exists() else None


def cells(task: str) -> list[tuple[str, str, str]]:
    """Return task, encoder and trained parameters of each of the four cells."""
    return [(task, encoder, trained) for encoder in ENCODERS for trained in TRAINED]


def chosen_rate(study: Study, cell: tuple[str, str, str]) -> str | None:
    """Return the rate with the best development score; None while a score is missing."""
    found = {rate: Run(*cell, rate, study.seeds[0]).results(study.workdir) for rate in study.rates}
    scores = {rate: one["selected"]["value"] for rate, one in found.items() if one is not None}
    return max(scores, key=lambda rate: scores[rate]) if len(scores) == len(study.rates) else None


# 1. Runs.


def pretrain(study: Study, seed: int) -> bool:
    """Train and evaluate an encoder that a run needs; return whether there was anything to do."""
    if not is_needed(study, seed):
        return False
    folder = study.encoder(seed)
    runs.share_data(study.workdir, folder)
    done = {
        "train.py": folder / "train" / "DONE",
        "evaluate.py": folder / "report" / "results.json",
    }
    for script, result in done.items():
        if not result.exists():
            study.call(script, folder, {"train.seed": seed})
    return True


def change_of(study: Study, run: Run) -> dict[str, Any]:
    """Return the keys of a run that differ from its task's config."""
    shared = {
        "init_from": study.encoder(run.seed).absolute(),
        "random_init": run.encoder == "random",
        "model_name": run.encoder,
        "train.seed": run.seed,
    }
    if run.task == "tatoeba":
        own = runs.tested_languages(study.config, downstream.TASKS["tatoeba"].test, _REMEDY)
        return {**shared, "task.layer": int(run.choice), "task.test_languages": own}
    task = TASKS[run.task]
    return {
        **shared,
        **downstream.tuning_keys(task, run.choice),
        "task.test_languages": runs.tested_languages(study.config, task.test, _REMEDY),
        "optimizer.frozen": ("embeddings",) if run.trained == "frozen" else (),
        # Of a large vocabulary, whose dense update would take most of a step.
        "optimizer.embedding_update": "rows",
    }


def do_run(study: Study, run: Run) -> bool:
    """Fine-tune or run retrieval, unless finished; return whether there was anything to do."""
    if run.results(study.workdir) is not None:
        return False
    root = pathlib.Path(study.config.corpus.root).absolute()
    study.call(
        "finetune.py",
        run.folder(study.workdir),
        change_of(study, run),
        [f"--config=configs/finetune/{run.task}.py:{root}"],
    )
    return True


def is_needed(study: Study, seed: int) -> bool:
    """Whether a run from the encoder of a seed has no results yet."""
    wanted = [run for run in searches(study) if run.seed == seed]
    for cell in (cell for task in TASKS for cell in cells(task)):
        rates = study.rates if seed == study.seeds[0] else [chosen_rate(study, cell)]
        if None in rates:
            return True
        wanted += [Run(*cell, rate, seed) for rate in rates if rate is not None]
    return any(run.results(study.workdir) is None for run in wanted)


def searches(study: Study) -> list[Run]:
    """Return the Tatoeba runs: every layer of both encoders, by seed."""
    return [
        Run("tatoeba", encoder, "", str(layer), seed)
        for seed in study.seeds
        for encoder in ENCODERS
        for layer in range(study.config.model.num_layers + 1)
    ]


def do_study(study: Study) -> None:
    """Execute all runs.

    Raises:
      ValueError: runs failed; all others have been executed.
    """

    def jobs(some: Iterable[Run]) -> list[Job]:
        return [Job(str(run), functools.partial(do_run, study, run)) for run in some]

    for script in ("build_vocab.py", "prepare_data.py"):
        study.call(script, study.workdir, {})
    errors = study.do(
        Job(f"encoder, seed {seed}", functools.partial(pretrain, study, seed))
        for seed in study.seeds
    )
    everything = [cell for task in TASKS for cell in cells(task)]
    first, *others = study.seeds
    errors += study.do(jobs(Run(*cell, rate, first) for cell in everything for rate in study.rates))
    chosen = [(cell, chosen_rate(study, cell)) for cell in everything]
    errors += study.do(
        jobs(Run(*cell, rate, seed) for seed in others for cell, rate in chosen if rate is not None)
    )
    errors += study.do(jobs(searches(study)))
    if errors:
        raise ValueError(f"{len(errors)} runs failed: {errors[0]}")


# 2. Report.


def score_table(
    title: str, lines: Sequence[tuple[str, Sequence[dict[str, float]]]], *, choice: str
) -> str:
    """Return a Markdown table: a line per cell, in per cent, means over seeds.

    Args:
      title: of the first column.
      lines: the label of each line with its scores by language, of each seed.
      choice: header of the last part of the labels.
    """
    names = list(lines[0][1][0])
    header = (
        f"| {title} | {choice} | seeds | {' | '.join(names)} | mean but en | least to largest |"
    )
    text = [header, "|---|---|" + "---:|" * (len(names) + 3)]
    for label, seeds in lines:
        by_language = [statistics.fmean(100 * one[name] for one in seeds) for name in names]
        means = [100 * downstream.zero_shot(one) for one in seeds]
        numbers = " | ".join(f"{one:.1f}" for one in (*by_language, statistics.fmean(means)))
        spread = f"{min(means):.1f} to {max(means):.1f}"
        text.append(f"| {label} | {len(seeds)} | {numbers} | {spread} |")
    return "\n".join(text)


def rate_table(study: Study) -> str:
    """Return a Markdown table: development scores in per cent, for the choice of rates."""
    header = " | ".join(study.rates)
    text = [f"| English development data | {header} |", "|---|" + "---:|" * len(study.rates)]
    for name, task in TASKS.items():
        for cell in cells(name):
            found = [Run(*cell, one, study.seeds[0]).results(study.workdir) for one in study.rates]
            values = [f"{100 * one['selected']['value']:.1f}" if one else "" for one in found]
            text.append(f"| {task.title}: {_label(cell)} | {' | '.join(values)} |")
    return "\n".join(text)


def _label(cell: tuple[str, str, str]) -> str:
    _, encoder, trained = cell
    return f"{ENCODERS[encoder]}, {TRAINED[trained]}"


def _of_seeds(study: Study, make: Callable[[int], Run]) -> list[dict[str, float]]:
    """Return the reported metric by language of each finished run."""
    found = (make(seed).results(study.workdir) for seed in study.seeds)
    return [reported_scores(one) for one in found if one is not None]


def tables(study: Study) -> list[str]:
    """Return the tables of scores of finished runs."""
    parts = []
    for name, task in TASKS.items():
        lines = []
        for cell in cells(name):
            rate = chosen_rate(study, cell)
            if rate is not None:
                found = _of_seeds(study, functools.partial(Run, *cell, rate))
                lines.append((f"{_label(cell)} | {rate}", found))
        if lines:
            parts.append(score_table(task.title, lines, choice="rate"))
    lines = []
    for encoder, label in ENCODERS.items():
        for layer in range(study.config.model.num_layers + 1):
            search = functools.partial(Run, "tatoeba", encoder, "", str(layer))
            if found := _of_seeds(study, search):
                lines.append((f"{label} | {layer}", found))
    if lines:
        parts.append(score_table("Tatoeba, accuracy", lines, choice="layer"))
    return parts


def write_report(study: Study) -> str:
    """Write the tables of finished runs; return the text.

    Raises:
      ValueError: no run has finished.
    """
    found = tables(study)
    if not found:
        raise ValueError(f"{study.workdir} has no finished runs to report")
    parts = [
        "# What pre-training gives other languages",
        f"Fine-tuned on English; seeds {', '.join(map(str, study.seeds))} of pre-training and "
        "fine-tuning. Means leave English out; least and largest are of the seeds.",
        *found,
        rate_table(study),
    ]
    text = "\n\n".join(parts) + "\n"
    artifacts.write_text(study.workdir / "report" / "report.md", text)
    return text


def main(_) -> None:
    given = flags.FLAGS
    study = Study(
        given.config,
        pathlib.Path(given.workdir),
        [int(seed) for seed in given.seeds],
        given.rates,
        given.workers,
        given.pin,
    )
    if not given.report_only:
        runs.claim(study.workdir, given.config)
        do_study(study)
    print(write_report(study))
    print(f"report: {(study.workdir / 'report' / 'report.md').absolute()}")


if __name__ == "__main__":
    runs.define_flags("Of the pre-training.", "Of pre-training and fine-tuning.")
    flags.DEFINE_list("rates", ["3e-4", "1e-3", "3e-3"], "Learning rates of fine-tuning.")
    entry_point.run(main)
