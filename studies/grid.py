"""A grid of named runs: a figure of a paper, at the size that a machine allows.

    python -m studies.grid --config=configs/xlm_r.py:small,DATA --grid=languages --workdir=DIR

Pre-trains every run of a grid (`configs/grids`) under each of --seeds, by the ordinary stages,
evaluates its exact loss in each language, fine-tunes it on English and tests it in the languages
that it was pre-trained on: small encoders as `studies.downstream` has it, others as the config of
the task (`configs/finetune`). Runs of equal text, vocabulary and row length
share these. A run is in DIR under its own name, whichever grid it is in: several grids in one DIR
share runs. The first seed of all runs comes first, and what a run gives under a seed is whole
before the next one begins.

Tables and plots, with the paper's values beside ours, go to DIR/report/GRID.md, of vocabularies
also what their ALP says of scores (`studies.grid_vocabularies`). They are of all that DIR has of
the grid, whichever command it is of; --runs, --seeds and --tasks choose what is done. Where the
runs and seeds chosen are not all that there are, they have a page of their own beside it, so that
new seeds can be read alone. If it is run again after a stop, it completes missing runs, and
pre-trains only where a result is missing, see `studies.records`; --report_only runs nothing.

On a cluster the launchers start the same runs in the same folders: `--grid=GRID --seeds=3
--stages=build_vocab,prepare_data` and then `--stages=train,evaluate` (docs/xlm_r.md); this command
with the same config and --workdir goes on from there.

Hardware: one core and some minutes a run of a small config, two runs at a time on two cores;
--workers=1 --nopin on an accelerator.
"""

import dataclasses
import functools
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

from absl import flags, logging
from ml_collections import ConfigDict, config_flags

from common import artifacts, entry_point
from configs import grids
from configs.grids import Grid
from studies import grid_report, grid_runs, grid_vocabularies, runs
from studies.downstream import TASKS, retrieval_keys, tuning_keys
from studies.runs import Job
from training.metrics import read_metrics

# Learning rates of fine-tuning of small encoders, the same for all runs.
RATES = {"udpos": "1e-3", "wikiann": "1e-3", "xnli": "1e-3"}


@dataclasses.dataclass(frozen=True)
class Study(runs.Stages):
    """Settings of a study of one grid.

    Attributes:
      argument: value of --config.
      overrides: values of the flags --config.KEY, by key, which stages have from the command line.
      grid: the grid.
      names: runs to do.
      workdir: folder of the results.
      seeds: of pre-training and fine-tuning.
      tasks: tasks to fine-tune on, see `downstream.TASKS`.
      workers: number of parallel runs.
      pin: whether each run is pinned to one core and one thread.
    """

    argument: str
    overrides: Mapping[str, Any]
    grid: Grid
    names: Sequence[str]
    workdir: pathlib.Path
    seeds: Sequence[int]
    tasks: Sequence[str]
    workers: int
    pin: bool

    def config_of(self, name: str) -> ConfigDict:
        """Return the config of a run, as its stages have it: flags prevail over the grid."""
        config = self._without_flags(name)
        config.update_from_flattened_dict(self.overrides)
        return config

    def _without_flags(self, name: str) -> ConfigDict:
        return grids.load(grids.config_of(self.argument, name))

    def encoder(self, name: str, seed: int) -> pathlib.Path:
        """Return the working directory of a pre-training."""
        return self.workdir / grids.run_folder(name, seed)

    def record(self, name: str, seed: int) -> pathlib.Path:
        """Return the file with the results of a pre-training."""
        return self.encoder(name, seed) / "record.json"

    def data(self, name: str) -> pathlib.Path:
        """Return the folder with the vocabulary and the packed rows of a run."""
        # By the config without flags, as the launchers do; the stages in it refuse other flags.
        return self.workdir / grids.data_folder(self._without_flags(name))

    def task_folder(self, task: str, name: str, seed: int) -> pathlib.Path:
        """Return the working directory of a fine-tuning."""
        return self.workdir / "tasks" / task / name / f"seed{seed}"

    def task_results(self, task: str, name: str, seed: int) -> pathlib.Path:
        """Return the file with the results of a fine-tuning."""
        return self.task_folder(task, name, seed) / "results.json"

    def flags_of(self, name: str) -> list[str]:
        """Return the flags that define the config of a run: those of this command, for its run."""
        own = runs.own_config()
        return [
            f"--config={grids.config_of(self.argument, name)}"
            if one.startswith("--config=")
            else one
            for one in own
        ]


def prepare(study: Study, name: str) -> bool:
    """Build the vocabulary and the packed rows of a run, without finished stages; return True."""
    for script in ("build_vocab.py", "prepare_data.py"):
        study.call(script, study.data(name), {}, study.flags_of(name))
    return True


def is_needed(study: Study, name: str, seed: int) -> bool:
    """Whether something that takes the encoder of a run has no results yet."""
    wanted = [study.task_results(task, name, seed) for task in study.tasks]
    return not all(path.exists() for path in [study.record(name, seed), *wanted])


def train(study: Study, name: str, seed: int) -> None:
    """Train and evaluate a run, without finished stages."""
    folder = study.encoder(name, seed)
    report = folder / "report" / "results.json"
    if not (folder / "train" / "DONE").exists():
        runs.share_data(study.data(name), folder)
        study.call("train.py", folder, {"train.seed": seed}, study.flags_of(name))
    if not study.record(name, seed).exists():
        if not report.exists():
            study.call("evaluate.py", folder, {"train.seed": seed}, study.flags_of(name))
        artifacts.write_json(study.record(name, seed), record(folder))


def record(folder: pathlib.Path) -> dict[str, Any]:
    """Return the results of a pre-training.

    Losses, and what is known of the vocabulary on held-out text, by language; number of pieces;
    minutes of training.
    """
    losses = artifacts.read_json(folder / "report" / "results.json")["losses"]
    minutes, last = 0.0, 0.0
    for one in read_metrics(folder / "train" / "speed.jsonl"):
        minutes += (one["step"] - last) / one["steps_per_second"] / 60
        last = one["step"]
    return {
        "losses": {
            language: {key: one[key] for key in ("loss", "unigram", "bits_per_character")}
            for language, one in losses.items()
        },
        "vocab_size": artifacts.read_json(folder / "rows" / "meta.json")["vocab_size"],
        "vocabulary": _of_vocabulary(folder / "vocab" / "allocation.json"),
        "minutes": minutes,
    }


def _of_vocabulary(path: pathlib.Path) -> dict[str, dict[str, Any]]:
    """Return the scores of a vocabulary's own method by language; none of a given tokenizer."""
    if not path.exists():
        return {}
    allocation = artifacts.read_json(path)
    found = allocation["scores"].get(allocation["settings"]["method"], {})
    return {
        language: {
            "alp": one["alp"],
            "tokens_per_sentence": one["tokens_per_sentence"],
            "resource": allocation["languages"][language]["resource"],
        }
        for language, one in found.items()
    }


def change_of(study: Study, task: str, name: str, seed: int) -> dict[str, Any]:
    """Return the keys of a fine-tuning that differ from its task's config.

    Raises:
      ValueError: there is no test data in any language of the run.
    """
    config, one = study.config_of(name), TASKS[task]
    remedy = f"add them, or leave {task} out of --tasks"
    trained = list(artifacts.read_json(study.record(name, seed))["losses"])
    shared = {
        "init_from": study.encoder(name, seed).absolute(),
        "model_name": name,
        "train.seed": seed,
        "task.test_languages": runs.tested_languages(config, one.test, remedy, trained),
    }
    if study.grid.is_small:
        shared["task.max_length"] = config.store.length
    if not one.epochs:
        return {**shared, **retrieval_keys(config.model.num_layers)}
    return {**shared, **(tuning_keys(one, RATES[task]) if study.grid.is_small else one.change)}


def fine_tune(study: Study, task: str, name: str, seed: int) -> bool:
    """Fine-tune or run retrieval, unless finished; return whether there was anything to do."""
    if study.task_results(task, name, seed).exists():
        return False
    root = pathlib.Path(study.config_of(name).corpus.root).absolute()
    study.call(
        "finetune.py",
        study.task_folder(task, name, seed),
        change_of(study, task, name, seed),
        [f"--config=configs/finetune/{task}.py:{root}"],
    )
    return True


def do_run(study: Study, name: str, seed: int) -> bool:
    """Train, evaluate and fine-tune a run; return whether there was anything to do."""
    if not is_needed(study, name, seed):
        return False
    train(study, name, seed)
    runs.do_each(functools.partial(fine_tune, study, task, name, seed) for task in study.tasks)
    return True


def do_study(study: Study) -> None:
    """Execute all runs, seed by seed.

    Raises:
      ValueError: runs failed; all others have been executed.
    """
    needed = [
        name for name in study.names if any(is_needed(study, name, seed) for seed in study.seeds)
    ]
    first_of_data: dict[pathlib.Path, str] = {}
    for name in needed:
        first_of_data.setdefault(study.data(name), name)
    errors = study.do(
        Job(f"data of {name}", functools.partial(prepare, study, name))
        for name in first_of_data.values()
    )
    for seed in study.seeds:
        errors += study.do(
            Job(f"{name}, seed {seed}", functools.partial(do_run, study, name, seed))
            for name in study.names
        )
    if errors:
        raise ValueError(f"{len(errors)} runs failed: {errors[0]}")


def read_runs(study: Study) -> grid_runs.Runs:
    """Read all finished pre-trainings of the grid with their scores, by run and seed."""
    found: dict[str, dict[int, grid_runs.Run]] = {}
    for name in study.grid.runs:
        for seed in kept_seeds(study, name):
            results: Mapping[str, dict[str, Any]] = {
                task: artifacts.read_json(study.task_results(task, name, seed))
                for task in TASKS
                if study.task_results(task, name, seed).exists()
            }
            found.setdefault(name, {})[seed] = grid_runs.read_run(
                artifacts.read_json(study.record(name, seed)), results
            )
    return found


def kept_seeds(study: Study, name: str) -> list[int]:
    """Return the seeds that a run is finished under, whether or not they were asked for."""
    record = study.record(name, 0)
    paths = record.parent.parent.glob(f"seed*/{record.name}")
    seeds = (path.parent.name.removeprefix("seed") for path in paths)
    return sorted(int(seed) for seed in seeds if seed.isdecimal())


def asked_for(study: Study, found: grid_runs.Runs) -> grid_runs.Runs:
    """Return those of the finished pre-trainings that were asked for."""
    some = {
        name: {seed: run for seed, run in by_seed.items() if seed in study.seeds}
        for name, by_seed in found.items()
        if name in study.names
    }
    return {name: by_seed for name, by_seed in some.items() if by_seed}


def missing(study: Study, names: Sequence[str], found: grid_runs.Runs) -> str:
    """Describe what a page has no results of: pre-trainings, and scores of those that it has.

    Args:
      study: the study.
      names: runs of the page. Of one that was not asked for, seeds without results are missing only
        where it has none at all.
      found: finished runs of the page.
    """
    parts = []
    wanted = {
        name: [seed for seed in study.seeds if seed not in found.get(name, ())]
        for name in names
        if name in study.names or name not in found
    }
    if absent := _with_seeds(wanted):
        parts.append(absent)
    for task in TASKS:
        asked = study.names if task in study.tasks else ()
        several = found if task in grid_runs.compared_tasks(found) else ()
        unscored = {
            name: [seed for seed, run in by_seed.items() if task not in run.scores]
            for name, by_seed in found.items()
            if name in asked or name in several
        }
        if absent := _with_seeds(unscored):
            parts.append(f"of {TASKS[task].title}: {absent}")
    if not parts:
        return f"All {len(grid_runs.every_run(found))} runs are done."
    return f"**Missing** (seeds): {'; '.join(parts)}."


def _with_seeds(seeds: Mapping[str, Sequence[int]]) -> str:
    """Format runs with their seeds, without those that have none."""
    return ", ".join(
        f"{name} ({', '.join(map(str, some))})" for name, some in seeds.items() if some
    )


def write_reports(study: Study, name: str) -> tuple[str, list[pathlib.Path]]:
    """Write the page of a grid, and one of what was asked for where that is less.

    Args:
      study: the study.
      name: of the grid.

    Returns:
      The text of the grid's page, and the paths.

    Raises:
      ValueError: there are no finished runs.
    """
    found = read_runs(study)
    pages: dict[str, tuple[Sequence[str], grid_runs.Runs]] = {name: (study.grid.runs, found)}
    if (some := asked_for(study, found)) and some != found:
        chosen = () if set(study.names) == set(study.grid.runs) else study.names
        own_name = "_".join([name, *chosen, "seeds", *map(str, study.seeds)])
        pages[own_name] = (study.names, some)
    texts, paths = [], []
    for page, (names, runs_of_page) in pages.items():
        paths.append(study.workdir / "report" / f"{page}.md")
        state = missing(study, names, runs_of_page)
        more = grid_vocabularies.parts(study.grid, runs_of_page)
        texts.append(grid_report.write_report(study.grid, runs_of_page, paths[-1], state, more))
    return texts[0], [path.absolute() for path in paths]


def settings() -> Study:
    """Read the settings from the flags of this command.

    Raises:
      ValueError: there is no such grid, run or task.
    """
    given = flags.FLAGS
    argument = config_flags.get_config_filename(given["config"])
    grid = grids.choose(argument, given.grid)
    return Study(
        argument,
        config_flags.get_override_values(given["config"]),
        grid,
        runs.chosen("runs", given.runs, grid.runs) or grid.runs,
        pathlib.Path(given.workdir),
        [int(seed) for seed in given.seeds],
        runs.chosen("tasks", given.tasks, (*RATES, "tatoeba")),
        given.workers,
        given.pin,
    )


def main(_) -> None:
    study = settings()
    if not flags.FLAGS.report_only:
        runs.claim(study.workdir, flags.FLAGS.config)
        hours = study.grid.minutes * len(study.names) * len(study.seeds) / study.workers / 60
        if hours:
            logging.info("at most some %.1f hours, if nothing is done yet", hours)
        do_study(study)
    text, (page, *own) = write_reports(study, flags.FLAGS.grid)
    alone = "".join(f"; of what was asked for alone: {path}" for path in own)
    print(f"{text}\nreport: {page}{alone}")


if __name__ == "__main__":
    runs.define_flags("Of the grid, configs/X.py:WORD,DATA.", "Of pre-training and fine-tuning.")
    flags.DEFINE_string("grid", None, "Name of the grid, see configs/grids.")
    flags.DEFINE_list("runs", [], "Runs to do; all of the grid by default.")
    flags.DEFINE_list(
        "tasks", ["udpos"], f"Of {', '.join(RATES)} and tatoeba, tasks to test on; none if empty."
    )
    entry_point.run(main, required=("config", "grid", "workdir"))
