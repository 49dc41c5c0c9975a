"""Finished fine-tuning runs: reading, grouping over seeds, and averages as in the papers."""

import collections
import dataclasses
import glob
import operator
import pathlib
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from input_pipeline.tasks.tasks import TASKS
from xlm.common import artifacts
from xlm.evaluation.task_results import averaged_metrics, read_results, reported_split
from xlm.training.run_report import settings_of

RESULTS = "results.json"
# The tasks of XTREME's average, in its order. The last two are retrieval, which VoCap leaves out.
XTREME = tuple(name for name, task in TASKS.items() if task.xtreme_name)
SETTINGS = {"zero_shot": "cross-lingual transfer", "translate_train_all": "translate-train-all"}
# Prefixes of settings with languages, such as "trained_on:de+fr".
_NAMED_SETTINGS = {"transfer_from": "cross-lingual transfer from", "trained_on": "trained on"}
_NAMED = 5  # most languages in a label; for more it has their number
_SHOWN = 20  # characters of a setting in a name, unless different runs need more
# Keys of a run's settings that change no score: places, names, the seed.
_WITHOUT_EFFECT = (
    "init_from", "model_name", "task.dataset", "train.seed", "evaluation.batch_size",
)  # fmt: skip
# Settings that identify a user's own data without a name.
_DATA = ("root", "test", "validation", "text_column", "pair_column", "label_column")
# Settings that the score on development data chooses.
_TUNED = ("optimizer.learning_rate", "train.batch_size", "train.epochs")
_PIVOT = "en"

Scores = Mapping[str, Mapping[str, float]]  # by language and metric
selected = operator.attrgetter("selected")  # of a run


@dataclasses.dataclass(frozen=True)
class Run:
    """One finished run.

    Attributes:
      selected: score on the development data that chose the checkpoint; None without one.
      split: "test", or "validation" for data without test labels.
      scores: by language and metric, between 0 and 1 (correlations between -1 and 1).
      rule: the rule that chose the checkpoint, see `xlm.experiment.task_settings`; "" without one.
      selected_on_test: languages with reported scores on data that chose something.
      settings: settings with an effect on scores, except the seed, by dotted key. They include the
        digests of starting parameters and tokenizer; empty if settings.json is missing.
      table: task, and name of a user's own data. Only scores of one table compare.
      data: identity of a user's own data: their place or name, and their labels.
      scored: digest of a user's own scored data, by language.
      majority: scores of the most frequent training label, as `scores`; {} without classes.
    """

    folder: pathlib.Path
    task: str
    model: str
    setting: str
    seed: int
    hyperparameters: Mapping[str, Any]
    selected: float | None
    split: str
    scores: Scores
    examples: Mapping[str, int]
    rule: str = ""
    selected_on_test: tuple[str, ...] = ()
    settings: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    table: str = ""
    data: tuple[str, ...] = ()
    scored: Mapping[str, str] = dataclasses.field(default_factory=dict)
    majority: Scores = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class Statistic:
    """A score over seeds: mean or median, standard deviation (None for one seed), and number."""

    center: float
    spread: float | None
    count: int


@dataclasses.dataclass(frozen=True)
class Variant:
    """Runs that differ only in the seed; all have scores in the same languages."""

    runs: tuple[Run, ...]
    center: str

    # Alike in all runs.
    task = property(lambda self: self.runs[0].task)
    table = property(lambda self: self.runs[0].table)
    model = property(lambda self: self.runs[0].model)
    setting = property(lambda self: self.runs[0].setting)

    @property
    def languages(self) -> list[str]:
        """Languages with scores; English first."""
        return all_languages(self.runs)

    @property
    def label(self) -> str:
        """The model, and the setting unless it is cross-lingual transfer."""
        return label(self.model, self.setting)

    @property
    def hyperparameters(self) -> str:
        return ", ".join(
            f"{name} {value:g}" if isinstance(value, float) else f"{name} {value}"
            for name, value in sorted(self.runs[0].hyperparameters.items())
        )

    def over_seeds(
        self, score: Callable[..., float | None], *arguments: object
    ) -> Statistic | None:
        """Combine `score(run, *arguments)` of each run; None without any."""
        values = [v for run in self.runs if (v := score(run, *arguments)) is not None]
        if not values:
            return None
        center = np.median(values) if self.center == "median" else np.mean(values)
        spread = float(np.std(values, ddof=1)) if len(values) > 1 else None
        return Statistic(float(center), spread, len(values))


def label(model: str, setting: str) -> str:
    if setting == "zero_shot":
        return model
    kind, _, languages = setting.partition(":")
    name = SETTINGS.get(setting, setting)
    if kind in _NAMED_SETTINGS:
        named = languages.split("+")
        listed = ", ".join(named) if len(named) <= _NAMED else f"{len(named)} languages"
        name = f"{_NAMED_SETTINGS[kind]} {listed}"
    return f"{model} ({name})"


def average(
    run: Run, languages: Collection[str] | None = None, metric: str | None = None
) -> float | None:
    """Return the mean over languages, all or those of `languages` that the run has.

    The mean is of `metric`, by default `averaged_metrics`. None without languages, or if one lacks
    the metric.
    """
    metrics = averaged_metrics(run.task) if metric is None else (metric,)
    members = [one for one in run.scores if languages is None or one in languages]
    values = [run.scores[one].get(name) for one in members for name in metrics]
    return None if None in values or not values else float(np.mean(values))  # type: ignore[arg-type]


def names(of_task: Sequence[Variant], *, seeds: bool = True) -> list[str]:
    """Name each variant of a task by its model and by its differences from the others."""
    found = []
    for one in of_task:
        rivals = [v for v in of_task if v.label == one.label]
        name = one.label + (f" [{_differences(one, rivals)}]" if len(rivals) > 1 else "")
        found.append(name + (f", n = {len(one.runs)}" if seeds and len(one.runs) > 1 else ""))
    return found


def _differences(one: Variant, rivals: Sequence[Variant]) -> str:
    """Describe the hyperparameters and settings by which a variant differs from its rivals."""
    parts = [one.hyperparameters] if len({v.hyperparameters for v in rivals}) > 1 else []
    keys = sorted({key for v in rivals for key in v.runs[0].settings} - {*_TUNED})
    for key in keys:
        values = [str(v.runs[0].settings.get(key, "absent")) for v in rivals]
        if len(set(values)) > 1:
            shown = _told_apart(values)[rivals.index(one)]
            parts.append(f"{key.removeprefix('task.')} {shown}")
    return ", ".join(parts) or one.hyperparameters


def _told_apart(values: Sequence[str]) -> list[str]:
    """Shorten long values, but keep different ones different: tables group rows by them."""
    is_long = any(len(value) > _SHOWN for value in values)
    start, width = 0, _SHOWN
    while is_long and (end := values[0].find("/", start) + 1):
        if not all(value.startswith(values[0][:end]) for value in values):
            break
        start = end  # skips a folder that all share
    while len({value[start : start + width] for value in values}) < len(set(values)):
        width += 1
    return ["…" * (start > 0) + value[start : start + width] for value in values]


def averaged_languages(of_task: Sequence[Variant]) -> list[str]:
    """Return a task's languages for averages: those of all variants that the authors report.

    If the authors report none of them, the result is all languages that the variants share.
    """
    shared = [
        language
        for language in all_languages(run for one in of_task for run in one.runs)
        if all(language in one.languages for one in of_task)
    ]
    reported = [one for one in shared if one in TASKS[of_task[0].task].languages]
    return reported or shared


def all_languages(runs: Iterable[Run]) -> list[str]:
    """Return the languages with scores of any run; English first, the others sorted."""
    found = {language for run in runs for language in run.scores}
    return sorted(found, key=lambda language: (language != _PIVOT, language))


def transfer_gap(run: Run, languages: Collection[str] | None = None) -> float | None:
    """Return the English score minus the mean of others (XY-LENT Table 4: exact match for QA).

    It is over all languages of the run, or those of `languages`. None without English or other
    languages, or if training was not only on English.
    """
    known = run.scores if languages is None else languages
    others = [language for language in run.scores if language != _PIVOT and language in known]
    if run.setting != "zero_shot" or _PIVOT not in run.scores or not others:
        return None
    metric = averaged_metrics(run.task)[-1]
    return run.scores[_PIVOT][metric] - float(np.mean([run.scores[one][metric] for one in others]))


def find_runs(patterns: Sequence[str]) -> list[Run]:
    """Read the runs in the folders that the patterns (as in a shell) name.

    Raises ValueError for a pattern without folder, a folder with missing or wrong results, or two
    equal runs.
    """
    folders: list[pathlib.Path] = []
    for pattern in patterns:
        # `--seeds` writes a file beside the folders of its seeds.
        found = [one for one in map(pathlib.Path, sorted(glob.glob(pattern))) if one.is_dir()]
        if not found:
            raise ValueError(f"{pattern}: no such run folder; correct --runs")
        folders += found
    runs = _with_tables([read_run(folder) for folder in dict.fromkeys(folders)])
    seen: dict[str, Run] = {}
    for run in runs:
        other = seen.setdefault(f"{_key(run)} seed {run.seed}", run)
        if other is not run:
            raise ValueError(
                f"{other.folder} and {run.folder} have the same task, model, setting, "
                "hyperparameters and seed; leave one of them out of --runs"
            )
    return runs


def _with_tables(runs: Sequence[Run]) -> list[Run]:
    """Give tables of different data with one name different names."""
    groups: dict[str, list[list[Run]]] = collections.defaultdict(list)
    for run in sorted(runs, key=lambda run: run.data):
        rivals = groups[run.table]
        alike = [group for group in rivals if all(_is_of_same(run, one) for one in group)]
        if not alike:
            rivals.append([])
        (*alike, rivals[-1])[0].append(run)
    names: dict[pathlib.Path, str] = {}
    for table, rivals in groups.items():
        files = [f"files {artifacts.fingerprint(dict(one[0].scored))}" for one in rivals]
        found = zip(*(one[0].data for one in rivals), strict=True)
        differing = [_told_apart(some) for some in (*found, files) if len(set(some)) > 1]
        for group, *shown in zip(rivals, *differing, strict=True):
            name = f"{table} [{', '.join(shown)}]" if shown else table
            names |= dict.fromkeys((run.folder for run in group), name)
    return [dataclasses.replace(run, table=names[run.folder]) for run in runs]


def _is_of_same(one: Run, two: Run) -> bool:
    shared = one.scored.keys() & two.scored.keys()
    return one.data == two.data and all(one.scored[key] == two.scored[key] for key in shared)


def read_run(folder: pathlib.Path) -> Run:
    """Read a run's results; ValueError if it is unfinished or `finetune.py` did not write them."""
    path = folder / RESULTS
    if not path.is_file():
        raise ValueError(
            f"{folder}: no {RESULTS}; the run has not finished (rerun its command to resume) or "
            "this is no folder of a run"
        )
    found = read_results(path)
    split = reported_split(found)
    choice = found.get("selected") or {}
    settings = settings_of(folder)
    table, data = found["task"], tuple[str, ...]()
    if TASKS[table].is_own:
        keys = _DATA if found["test"] else (*_DATA, "train")
        name = found.get("dataset") or pathlib.PurePath(str(settings.get("task.root", ""))).name
        table = f"{table}: {name}"
        # Identity of the data, unless the user named them.
        where = " ".join(str(settings.get(f"task.{key}", "")) for key in keys)
        labels = f"labels {', '.join(map(str, settings.get('task.labels', ())))}"
        data = (settings.get("task.dataset") or where, labels)
    recorded = ("task", "model", "setting", "seed", "hyperparameters")
    return Run(
        folder,
        **{key: found[key] for key in recorded},
        selected=choice.get("value"), rule=choice.get("rule", ""),
        split=split, scores=found[split], examples=found.get("examples", {}).get(split, {}),
        selected_on_test=tuple(found.get("selected_on_test", ())),
        settings={key: one for key, one in settings.items() if key not in _WITHOUT_EFFECT},
        table=table, data=data, scored=found.get("scored", {}),
        majority=found.get("baselines", {}).get("majority", {}),
    )  # fmt: skip


def _key(run: Run) -> str:
    """Return a fingerprint of all settings but the seed, and of the starting parameters."""
    settings = (dict(run.hyperparameters), dict(run.settings))
    return artifacts.fingerprint(run.table, run.model, run.setting, *settings)


def place(one: Variant) -> tuple[str, str, str, str]:
    """Return the key of variants that differ only in tuned hyperparameters."""
    fixed = {key: v for key, v in one.runs[0].settings.items() if key not in _TUNED}
    return one.table, one.model, one.setting, artifacts.fingerprint(fixed)


def variants(runs: Iterable[Run], center: str) -> list[Variant]:
    """Group runs over seeds, with their "mean" or "median"; by task, cross-lingual transfer first.

    Raises ValueError if seeds of one variant differ in languages, split or examples.
    """
    groups: dict[str, list[Run]] = collections.defaultdict(list)
    for run in runs:
        groups[_key(run)].append(run)
    for first, *others in groups.values():
        for run in others:
            for what, here, there in (
                ("split", first.split, run.split),
                ("examples", first.examples, run.examples),
                ("languages", set(first.scores), set(run.scores)),
            ):
                if here != there:
                    raise ValueError(
                        f"{first.folder} and {run.folder} have the same settings but the seed, and "
                        f"their {what} differ: {here} and {there}; run both on the same data"
                    )
    order = list(TASKS)
    made = [Variant(tuple(sorted(g, key=lambda r: r.seed)), center) for g in groups.values()]
    return sorted(made, key=lambda one: (order.index(one.task), one.setting != "zero_shot"))


def chosen(found: Iterable[Variant]) -> list[Variant]:
    """Choose the best of each `place` on the development data, or all if one lacks such a score."""
    groups: dict[tuple[str, str, str, str], list[Variant]] = collections.defaultdict(list)
    for one in found:
        groups[place(one)].append(one)
    kept: list[Variant] = []
    for group in groups.values():
        known = [score.center for one in group if (score := one.over_seeds(selected)) is not None]
        kept += [group[int(np.argmax(known))]] if len(known) == len(group) else group
    return kept
