"""English, own or everyone's training data; one encoder of all languages or one for each.

    python -m studies.supervision --config=configs/xlm_r.py:small,DATA --workdir=DIR

XLM-R's settings of NER (Section 5.2), on NER, POS and XNLI, and its comparison with monolingual
encoders (Section 5.3). An encoder of seven languages, `languages_7`, is fine-tuned

- *en*: on English, and tested in all languages of the task; the checkpoint is selected on English
  development data, or on the mean over all languages (*en_one*), or for each language on its own
  (*en_each*), so that there are as many models as languages (Section 5.2, column #M);
- *each*: on the data of a language, and tested in it;
- *all*: on the data of all languages, selected on the mean of their development scores; of XNLI,
  whose data are translations, translate-train-all;

and an encoder of each language alone, `only_LANGUAGE`, with half the pieces and equal steps, on
that language: as pre-trained (*alone*), and with random parameters instead (*random*), to which
Section 5.4 compares Swahili and Urdu. Training data are parts of the development data
(`studies.splits`), some 600 sentences of a language, 1,494 pairs of XNLI's, since the full sets are
not at hand. Pre-trained embeddings are frozen, random ones are trained; all runs are fine-tuned at
the rates and for the epochs of `TASKS`.

Tables go to DIR/report/supervision.md. Runs of the config are in DIR as those of `studies.grid`
are, which may have the same DIR. If it is run again after a stop, it completes missing runs;
--report_only prints the tables of finished runs.

Hardware: 2 CPU cores, two hours for three seeds (an estimate).
"""

import dataclasses
import functools
import pathlib
import statistics
from collections.abc import Sequence
from typing import Any

from absl import flags
from ml_collections import config_flags

from common import artifacts, entry_point
from configs import grids
from studies import downstream, grid, runs, splits
from studies.downstream import spread
from studies.runs import Job

ONE = "languages_7"
# Keys of fine-tuning that differ from the config of each task.
TASKS: dict[str, dict[str, Any]] = {
    "udpos": {"optimizer.learning_rate": 1e-3, "train.epochs": 6.0},
    "wikiann": {"optimizer.learning_rate": 2e-3, "train.epochs": 10.0},
    "xnli": {"optimizer.learning_rate": 1e-3, "train.epochs": 6.0},
}
_SHARED = {
    "task.buckets": (32,),
    "model.attention_dropout_rate": 0.0,
    "optimizer.frozen": ("embeddings",),
    "train.batch_size": 16,
    "train.evaluations": 4,
}


@dataclasses.dataclass(frozen=True)
class Setting:
    """Data that an encoder is trained and selected on.

    Attributes:
      label: in tables.
      train, select: languages of the training data, and of the development data that select: "en",
        "all", or "own", which is a run for each language.
      rule: of `task.selection`.
      encoder: "" for that of all languages, "own" for that of the language, "random" for its shape.
    """

    label: str
    train: str
    select: str
    rule: str = "all_languages"
    encoder: str = ""


SETTINGS = {
    "en": Setting("one encoder, trained on English", "en", "en"),
    "en_one": Setting("the same, selected on all languages (#M = 1)", "en", "all"),
    "en_each": Setting(
        "the same, selected for each language (#M = N)", "en", "all", "each_language"
    ),
    "each": Setting("one encoder, trained on each language", "own", "own"),
    "all": Setting("one encoder, trained on all languages", "all", "all"),
    "alone": Setting("an encoder for each language, trained on it", "own", "own", encoder="own"),
    "random": Setting("the same from random parameters", "own", "own", encoder="random"),
}


@dataclasses.dataclass(frozen=True)
class Run:
    """Fine-tuning.

    Attributes:
      task: of `TASKS`.
      setting: of `SETTINGS`.
      language: that it is trained on and tested in; "" for several.
      seed: of the pre-training and of the run.
    """

    task: str
    setting: str
    language: str
    seed: int

    @property
    def encoder(self) -> str:
        """Name of the pre-training."""
        return f"only_{self.language}" if SETTINGS[self.setting].encoder else ONE

    def folder(self, workdir: pathlib.Path) -> pathlib.Path:
        """Return the working directory of the run."""
        name = "-".join(filter(None, (self.setting, self.language)))
        return workdir / "supervision" / self.task / name / f"seed{self.seed}"

    def results(self, workdir: pathlib.Path) -> pathlib.Path:
        """Return the file with the results of the run."""
        return self.folder(workdir) / "results.json"


def languages_of(study: grid.Study, task: str) -> tuple[str, ...]:
    """Return the languages of the encoders that a task has data in."""
    pattern = splits.SPLITS[task]["test"].source.replace("{language}", "{}")
    return runs.tested_languages(study.config_of(ONE), pattern, f"add them to test {task}")


def all_runs(study: grid.Study) -> list[Run]:
    """Return all fine-tunings, seed by seed."""
    found = []
    for seed in study.seeds:
        for task in study.tasks:
            names = languages_of(study, task)
            found += [
                Run(task, setting, language, seed)
                for setting in SETTINGS
                for language in _runs_of(setting, names)
            ]
    return found


def _runs_of(setting: str, names: Sequence[str]) -> Sequence[str]:
    """Return the languages that each have a run of a setting; "" for one run of all."""
    return names if SETTINGS[setting].train == "own" else ("",)


def change_of(study: grid.Study, run: Run) -> dict[str, Any]:
    """Return the keys of a fine-tuning that differ from its task's config."""
    names = languages_of(study, run.task)
    languages = {"en": ("en",), "all": names, "own": (run.language,)}
    setting = SETTINGS[run.setting]
    random = {"random_init": True, "optimizer.frozen": ()} if setting.encoder == "random" else {}
    return {
        **_SHARED,
        **TASKS[run.task],
        **random,
        "task.root": splits.split_folder(study.workdir / "supervision"),
        **{
            f"task.{name}": (f"{run.task}/{name}/{{language}}.tsv",)
            for name in splits.SPLITS[run.task]
        },
        "task.max_length": study.config_of(run.encoder).store.length,
        "task.train_languages": languages[setting.train],
        "task.validation_languages": languages[setting.select],
        "task.test_languages": (run.language,) if run.language else names,
        "task.selection": setting.rule,
        "init_from": study.encoder(run.encoder, run.seed).absolute(),
        "model_name": run.setting,
        "train.seed": run.seed,
    }


def pretrain(study: grid.Study, name: str, seed: int) -> bool:
    """Train an encoder that something needs; return whether there was anything to do."""
    wanted = [run for run in all_runs(study) if (run.encoder, run.seed) == (name, seed)]
    paths = [study.record(name, seed), *(run.results(study.workdir) for run in wanted)]
    if all(path.exists() for path in paths):
        return False
    grid.train(study, name, seed)
    return True


def fine_tune(study: grid.Study, run: Run) -> bool:
    """Fine-tune, unless finished; return whether there was anything to do."""
    if run.results(study.workdir).exists():
        return False
    root = pathlib.Path(study.config_of(ONE).corpus.root).absolute()
    config = [f"--config=configs/finetune/{run.task}.py:{root}"]
    study.call("finetune.py", run.folder(study.workdir), change_of(study, run), config)
    return True


def do_study(study: grid.Study) -> None:
    """Execute all runs.

    Raises:
      ValueError: runs failed; all others have been executed.
    """
    root = pathlib.Path(study.config_of(ONE).corpus.root)
    of_tasks = {task: languages_of(study, task) for task in study.tasks}
    splits.write_splits(root, study.workdir / "supervision", of_tasks)
    errors = study.do(
        Job(f"data of {name}", functools.partial(grid.prepare, study, name)) for name in study.names
    )
    for seed in study.seeds:
        errors += study.do(
            Job(f"{name}, seed {seed}", functools.partial(pretrain, study, name, seed))
            for name in study.names
        )
        errors += study.do(
            Job(str(run), functools.partial(fine_tune, study, run))
            for run in all_runs(study)
            if run.seed == seed
        )
    if errors:
        raise ValueError(f"{len(errors)} runs failed: {errors[0]}")


# Report.


def scores(study: grid.Study, task: str, setting: str, seed: int) -> dict[str, float]:
    """Return the scores by language of a setting under a seed, in per cent, as far as there are."""
    names = _runs_of(setting, languages_of(study, task))
    paths = [Run(task, setting, name, seed).results(study.workdir) for name in names]
    found = [downstream.scores(artifacts.read_json(path)) for path in paths if path.exists()]
    return {name: value for one in found for name, value in one.items()}


def score_table(study: grid.Study, task: str) -> str:
    """Return a Markdown table in per cent: means over seeds, a line per complete setting."""
    names = languages_of(study, task)
    columns = [downstream.TASKS[task].title, "seeds", *names, "mean", "least to largest"]
    lines = [f"| {' | '.join(columns)} |", "|---|" + "---:|" * (len(columns) - 1)]
    for name, setting in SETTINGS.items():
        found = [scores(study, task, name, seed) for seed in study.seeds]
        found = [one for one in found if set(one) == set(names)]
        if found:
            cells = [
                setting.label,
                str(len(found)),
                *(f"{statistics.fmean(one[of] for one in found):.1f}" for of in names),
                *spread([statistics.fmean(one.values()) for one in found], "{:.1f}"),
            ]
            lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def loss_table(study: grid.Study) -> str:
    """Return a Markdown table: bits a character of one encoder, and of each language's own."""
    names = study.config_of(ONE).corpus.languages
    lines = [f"| bits/char | {' | '.join(names)} |", "|---|" + "---:|" * len(names)]
    for label, run_of in (
        ("one encoder", dict.fromkeys(names, ONE)),
        ("an encoder for each language", {name: f"only_{name}" for name in names}),
    ):
        cells = []
        for name in names:
            paths = [study.record(run_of[name], seed) for seed in study.seeds]
            bits = [
                artifacts.read_json(path)["losses"][name]["bits_per_character"]
                for path in paths
                if path.exists()
            ]
            cells.append(spread(bits, "{:.3f}")[0])
        lines.append(f"| {label} | {' | '.join(cells)} |")
    return "\n".join(lines)


def write_report(study: grid.Study) -> str:
    """Write the tables of finished runs; return the text."""
    parts = [
        "# Training data in English, in each language, in all",
        f"Seeds {', '.join(map(str, study.seeds))} of pre-training and fine-tuning; scores of "
        "parts of the development data (NER, XNLI) and of the test data (POS).",
        *(score_table(study, task) for task in study.tasks),
        loss_table(study),
    ]
    text = "\n\n".join(parts) + "\n"
    artifacts.write_text(study.workdir / "report" / "supervision.md", text)
    return text


def main(_) -> None:
    given = flags.FLAGS
    argument = config_flags.get_config_filename(given["config"])
    tasks = runs.chosen("tasks", given.tasks, TASKS)
    names = grids.load(grids.config_of(argument, ONE)).corpus.languages
    study = grid.Study(
        argument,
        grids.choose(argument, "languages"),
        [ONE, *(f"only_{name}" for name in names)],
        pathlib.Path(given.workdir),
        [int(seed) for seed in given.seeds],
        tasks,
        given.workers,
        given.pin,
    )
    if not given.report_only:
        do_study(study)
    print(write_report(study))
    print(f"report: {(study.workdir / 'report' / 'supervision.md').absolute()}")


if __name__ == "__main__":
    runs.define_flags(
        "Of the runs, configs/xlm_r.py:small,DATA.", "Of pre-training and fine-tuning."
    )
    flags.DEFINE_list("tasks", list(TASKS), "Tasks to fine-tune on.")
    entry_point.run(main)
