"""Settings of the study of supervision: encoders, training data, runs and their folders."""

import dataclasses
import pathlib
from collections.abc import Sequence
from typing import Any

from configs.xlm_r import LOW
from studies import grid, runs, splits

# Runs of configs/xlm_r.py, of the same seven languages: text in the proportions of CommonCrawl and
# of Wikipedia.
ONE, ONE_WIKIPEDIA = "languages_7", "wikipedia_7"
# Keys of fine-tuning that differ from the config of each task.
TASKS: dict[str, dict[str, Any]] = {
    "udpos": {"optimizer.learning_rate": 1e-3, "train.epochs": 6.0},
    "wikiann": {"optimizer.learning_rate": 2e-3, "train.epochs": 10.0},
    "xnli": {"optimizer.learning_rate": 1e-3, "train.epochs": 6.0},
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

    def of(self, names: Sequence[str]) -> list[str]:
        """Return those of a task's languages that the setting is of."""
        return [name for name in names if name in (self.languages or names)]


SETTINGS = {
    "en": Setting("one encoder, trained on English", "en", "en"),
    "en_one": Setting("the same, selected on all languages (#M = 1)", "en", "all"),
    "en_each": Setting(
        "the same, selected for each language (#M = N)", "en", "all", "each_language"
    ),
    "each": Setting("one encoder, trained on each language", "own", "own"),
    "all": Setting("one encoder, trained on all languages", "all", "all"),
    "all_wikipedia": Setting(
        "one encoder of Wikipedia's amounts, trained on all languages",
        *("all", "all"),
        encoder=ONE_WIKIPEDIA,
    ),
    "all_random": Setting(
        "random parameters, trained on all languages", "all", "all", is_random=True
    ),
    "alone": Setting(
        "an encoder for each language, trained on it", "own", "own", encoder="only_{}"
    ),
    "random": Setting(
        "random parameters, its pieces",
        *("own", "own"),
        encoder="only_{}",
        is_random=True,
        languages=LOW,
    ),
    "wikipedia": Setting(
        "an encoder of as much text as Wikipedia has",
        *("own", "own"),
        encoder="only_wikipedia_{}",
        languages=LOW,
    ),
    "wikipedia_random": Setting(
        "random parameters, its pieces of that text",
        *("own", "own"),
        encoder="only_wikipedia_{}",
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
                for language in runs_of(setting, names)
            ]
    return found


def runs_of(setting: str, names: Sequence[str]) -> Sequence[str]:
    """Return the languages that each have a run of a setting; "" for one run of all."""
    return SETTINGS[setting].of(names) if SETTINGS[setting].train == "own" else ("",)
