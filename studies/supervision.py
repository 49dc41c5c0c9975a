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

and an encoder of each language alone, `only_LANGUAGE`, with half the pieces or less and equal
steps, on that language (*alone*). Section 5.4 compares two more in Swahili and Urdu: one of as much
text as Wikipedia has (*wikipedia*), and random parameters (*random*).

Training data are parts of the development data (`studies.splits`), some 600 sentences of a
language, 1,494 pairs of XNLI's, since the full sets are not at hand. All runs are fine-tuned at the
rates and for the epochs of `TASKS`; embeddings are frozen where English alone is trained on, so
that tokens of other languages keep their neighbours.

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
from configs.xlm_r import LOW
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
    "task.text_pooling": "mean",
    "task.buckets": (32,),
    "model.attention_dropout_rate": 0.0,
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
      encoder: name of the pre-training, with {} for the language that it is trained on.
      is_random: whether its parameters are random instead.
      languages: that it is of; () for all.
    """

    label: str
    train: str
    select: str
    rule: str = "all_languages"
    encoder: str = ONE
    is_random: bool = False
    languages: tuple[str, ...] = ()


SETTINGS = {
    "en": Setting("one encoder, trained on English", "en", "en"),
    "en_one": Setting("the same, selected on all languages (#M = 1)", "en", "all"),
    "en_each": Setting(
        "the same, selected for each language (#M = N)", "en", "all", "each_language"
    ),
    "each": Setting("one encoder, trained on each language", "own", "own"),
    "all": Setting("one encoder, trained on all languages", "all", "all"),
    "alone": Setting(
        "an encoder for each language, trained on it", "own", "own", encoder="only_{}"
    ),
    "wikipedia": Setting(
        "the same of as much text as Wikipedia has",
        *("own", "own"),
        encoder="only_wikipedia_{}",
        languages=LOW,
    ),
    "random": Setting(
        "the same from random parameters",
        *("own", "own"),
        encoder="only_{}",
        is_random=True,
        languages=LOW,
    ),
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
        return SETTINGS[self.setting].encoder.format(self.language)

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
    if SETTINGS[setting].train != "own":
        return ("",)
    return [name for name in names if name in (SETTINGS[setting].languages or names)]


def change_of(study: grid.Study, run: Run) -> dict[str, Any]:
    """Return the keys of a fine-tuning that differ from its task's config."""
    names = languages_of(study, run.task)
    languages = {"en": ("en",), "all": names, "own": (run.language,)}
    setting = SETTINGS[run.setting]
    return {
        **_SHARED,
        **TASKS[run.task],
        "optimizer.frozen": ("embeddings",) if setting.train == "en" else (),
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
        "random_init": setting.is_random,
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
    found = [downstream.scores(one) for one in _finished(study, task, setting, seed)]
    return {name: value for one in found for name, value in one.items()}


def _finished(study: grid.Study, task: str, setting: str, seed: int) -> list[dict[str, Any]]:
    names = _runs_of(setting, languages_of(study, task))
    paths = [Run(task, setting, name, seed).results(study.workdir) for name in names]
    return [artifacts.read_json(path) for path in paths if path.exists()]


def complete(study: grid.Study, task: str) -> dict[str, list[dict[str, float]]]:
    """Return the scores by language of each seed, of the settings that have runs of all."""
    names = languages_of(study, task)
    made = {}
    for setting, one in SETTINGS.items():
        wanted = {name for name in names if name in (one.languages or names)}
        by_seed = [scores(study, task, setting, seed) for seed in study.seeds]
        if wanted and (whole := [found for found in by_seed if set(found) == wanted]):
            made[setting] = whole
    return made


def score_table(study: grid.Study, task: str) -> str:
    """Return a Markdown table in per cent: means over seeds, a line per complete setting.

    Settings of some of the languages have no mean.
    """
    names, found = languages_of(study, task), complete(study, task)
    columns = [downstream.TASKS[task].title, "seeds", *names, "mean", "least to largest"]
    lines = [f"| {' | '.join(columns)} |", "|---|" + "---:|" * (len(columns) - 1)]
    means = {
        setting: [statistics.fmean(one.values()) for one in by_seed if len(one) == len(names)]
        for setting, by_seed in found.items()
    }
    of_languages = [
        {setting: [one[name] for one in some if name in one] for setting, some in found.items()}
        for name in names
    ]
    for setting, by_seed in found.items():
        cells = [
            SETTINGS[setting].label,
            str(len(by_seed)),
            *(spread(some[setting], "{:.1f}")[0] for some in of_languages),
            *spread(means[setting], "{:.1f}"),
        ]
        lines.append(f"| {' | '.join(cells)} |")
    cells = [downstream.detectable(some.values(), "{:.1f}") for some in (*of_languages, means)]
    lines.append(f"| detectable | | {' | '.join(cells)} | |")
    counts = _examples(study, task)
    lines.append(f"| examples | | {' | '.join(f'{counts.get(name, 0):,}' for name in names)} | | |")
    return "\n".join(lines)


def _examples(study: grid.Study, task: str) -> dict[str, int]:
    """Return the number of test examples by language, the same in all settings."""
    return {
        name: count
        for setting in SETTINGS
        for seed in study.seeds
        for one in _finished(study, task, setting, seed)
        for name, count in one["examples"]["test"].items()
    }


def loss_table(study: grid.Study) -> str:
    """Return a Markdown table: bits a character of one encoder, and of each language's own."""
    names = study.config_of(ONE).corpus.languages
    lines = [f"| bits/char | {' | '.join(names)} |", "|---|" + "---:|" * len(names)]
    for label, run_of in (
        ("one encoder", dict.fromkeys(names, ONE)),
        ("an encoder for each language", {name: f"only_{name}" for name in names}),
        ("the same of as much text as Wikipedia has", {n: f"only_wikipedia_{n}" for n in LOW}),
    ):
        cells = []
        for name in names:
            run = run_of.get(name)
            paths = [study.record(run, seed) for seed in study.seeds] if run else []
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
        "parts of the development data (NER, XNLI) and of the test data (POS), means over seeds. "
        "*detectable*: the least difference of two settings that the spread of seeds, pooled over "
        "the settings, tells at 5 %; it knows nothing of the choice of test examples.",
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
        config_flags.get_override_values(given["config"]),
        grids.choose(argument, "languages"),
        [ONE, *(f"only_{name}" for name in names), *(f"only_wikipedia_{name}" for name in LOW)],
        pathlib.Path(given.workdir),
        [int(seed) for seed in given.seeds],
        tasks,
        given.workers,
        given.pin,
    )
    if not given.report_only:
        runs.claim(study.workdir, given.config)
        do_study(study)
    print(write_report(study))
    print(f"report: {(study.workdir / 'report' / 'supervision.md').absolute()}")


if __name__ == "__main__":
    runs.define_flags(
        "Of the runs, configs/xlm_r.py:small,DATA.", "Of pre-training and fine-tuning."
    )
    flags.DEFINE_list("tasks", list(TASKS), "Tasks to fine-tune on.")
    entry_point.run(main)
