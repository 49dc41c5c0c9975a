"""A study: named runs, their needs, measures and report.

A study is a module of `research/studies` with a `STUDY`. It plans its `runs` from the results so
far, and the runner asks it again after each run (`research.runner`). So a run may depend on
results, such as a learning rate chosen by other runs. The words DATA and WORKDIR stand for folders,
which the runner fills in.
"""

import dataclasses
import importlib
import pathlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from ml_collections import ConfigDict

from research.results import Results
from xlm.launch import grids

STUDIES = pathlib.Path(__file__).resolve().parent / "studies"
_OF_DATA = ("corpus.", "vocab.", "store.")
# Split of the text in research/records.
TEXT_OF_RECORDS = {
    "corpus.heldout_by": "position", "corpus.deduplicate": False, "corpus.block_bytes": 0,
}  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Step:
    """Command of a run.

    Attributes:
      words: script or module, and flags.
      overrides: config keys for this command only.
      has_config: whether it takes --config, the run's overrides and --workdir.
    """

    words: tuple[str, ...]
    overrides: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    has_config: bool = True


@dataclasses.dataclass(frozen=True)
class Run:
    """Commands with a folder of their own, WORKDIR/NAME or WORKDIR/NAME/seedN.

    Attributes:
      seed: seed of parameters, masks and data order; None for a run without seeds.
      config: value of --config.
      overrides: changed config keys.
      links: links in the run's folder, by name, to paths below WORKDIR.
      needs: runs that must end first.
      measure: returns the results, given the run's folder; None for a run without results, which
        other runs need.
    """

    name: str
    seed: int | None
    steps: tuple[Step, ...]
    config: str = ""
    overrides: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    links: Mapping[str, str] = dataclasses.field(default_factory=dict)
    needs: tuple["Run", ...] = ()
    measure: Callable[[pathlib.Path], Any] | None = None

    @property
    def key(self) -> tuple[str, int | None]:
        return self.name, self.seed

    @property
    def folder(self) -> str:
        """Folder, relative to the working directory."""
        return self.name if self.seed is None else f"{self.name}/seed{self.seed}"

    @property
    def path(self) -> str:
        """Folder, as a word of a command."""
        return f"WORKDIR/{self.folder}"


@dataclasses.dataclass(frozen=True)
class Plan:
    """Request to a study.

    Attributes:
      chosen: values of the study's options.
      seeds: seeds to run or to report; None to report all.
      results: results so far.
      data: data folder; None for a report.
      overrides: config keys of all pre-trainings.
      folder: folder for the plots of a report; None for tables only.
    """

    name: str
    study: "Study"
    chosen: Mapping[str, tuple[str, ...]]
    seeds: Sequence[int] | None
    results: Results
    data: pathlib.Path | None = None
    overrides: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    folder: pathlib.Path | None = None

    @property
    def first_seed(self) -> int:
        """First seed, which chooses learning rates and the like for all others."""
        return (self.seeds or self.study.seeds)[0]

    def config(self, config: str, overrides: Mapping[str, Any] | None = None) -> ConfigDict:
        """Return the config of a run, from the value of --config and the changed keys."""
        found = load(config, str(self.data or "DATA"))
        found.update_from_flattened_dict({**(overrides or {}), **self.overrides})
        return found

    def tested(self, pattern: str, languages: Iterable[str], remedy: str) -> tuple[str, ...]:
        """Return the languages of the pre-training in which a task has test data.

        `pattern` matches test files below DATA; {} stands for the language. Raise ValueError with
        `remedy` if no language has any.
        """
        assert self.data, "reports have no data"
        found = tuple(name for name in languages if (self.data / pattern.format(name)).exists())
        if not found:
            raise ValueError(
                f"{self.data} has no {pattern.format('LANGUAGE')} in a language of the "
                f"pre-training, corpus.languages; {remedy}"
            )
        return found

    def best(self, names: Mapping[str, str], metric: str) -> str | None:
        """Return the choice whose run has the highest metric under the first seed.

        `names` has runs by choice. Return None while a result is missing.
        """
        found = {
            choice: self.results.of(name).get(self.first_seed) for choice, name in names.items()
        }
        scores = {choice: one.one(metric) for choice, one in found.items() if one}
        return max(scores, key=scores.__getitem__) if len(scores) == len(names) else None

    def choices(self, names: Mapping[str, str], metric: str, seed: int) -> list[str]:
        """Return the choices to run: all under the first seed, the best for others, if known."""
        if seed == self.first_seed:
            return list(names)
        best = self.best(names, metric)
        return [] if best is None else [best]

    def plot(self, name: str) -> pathlib.Path | None:
        return self.folder and self.folder / f"{name}.png"


@dataclasses.dataclass(frozen=True)
class Study:
    """A study.

    Attributes:
      title: title of its report.
      config: value of --config of its pre-trainings, with DATA.
      runs: plans its runs, in the order of their start; see `Plan`.
      report: returns the parts of its report.
      options: default values by option.
      known: allowed values, of options with a fixed list of them.
      seeds: default seeds.
      overrides: config keys of all pre-trainings.
    """

    title: str
    config: str
    runs: Callable[[Plan], Iterable[Run]]
    report: Callable[[Plan], list[str]]
    options: Mapping[str, tuple[str, ...]] = dataclasses.field(default_factory=dict)
    known: Mapping[str, Sequence[str]] = dataclasses.field(default_factory=dict)
    seeds: tuple[int, ...] = (0, 1, 2)
    overrides: Mapping[str, Any] = dataclasses.field(default_factory=lambda: TEXT_OF_RECORDS)


def names() -> list[str]:
    """Return the names of all studies."""
    return sorted(path.stem for path in STUDIES.glob("[a-z]*.py"))


def find(name: str) -> Study:
    """Return a study; ValueError if it does not exist."""
    if name not in names():
        raise ValueError(f"there is no study {name!r}; there are {', '.join(names())}")
    return importlib.import_module(f"research.studies.{name}").STUDY


def plan(name: str, arguments: Sequence[str], **more: Any) -> Plan:
    """Return the plan of a study from arguments such as `figures=alpha` and `seeds=0,1`.

    `config.train.num_steps=20` changes a key. Raise ValueError for an unknown option or value.
    """
    study = find(name)
    chosen, seeds, overrides = dict(study.options), more.pop("seeds", study.seeds), {}
    for argument in arguments:
        key, equals, text = argument.partition("=")
        values = tuple(filter(None, text.split(",")))
        if equals and key.startswith("config."):
            overrides[key.removeprefix("config.")] = _typed(study.config, key[7:], text)
        elif equals and key == "seeds":
            seeds = tuple(map(int, values))
        elif not equals or key not in study.options:
            options = ", ".join([*study.options, "seeds", "config.KEY"])
            raise ValueError(
                f"{argument!r} is not an option of {name}; give {options} as KEY=VALUE"
            )
        elif unknown := sorted(set(values) - set(study.known.get(key, values))):
            raise ValueError(
                f"{key}: no {', '.join(unknown)}; there are {', '.join(study.known[key])}"
            )
        else:
            chosen[key] = values
    return Plan(name, study, chosen, seeds, overrides={**study.overrides, **overrides}, **more)


def _typed(config: str, key: str, text: str) -> Any:
    """Parse a value by the type of its key; ValueError for an unknown key or another type."""
    found: Any = load(config, "DATA")
    for part in key.split("."):
        if part not in found:
            raise ValueError(f"config.{key}={text}: {config} has no such key")
        found = found[part]
    kind = type(found)
    if kind not in (bool, int, float, str):
        raise ValueError(
            f"config.{key}={text}: only single values can be set, and this key is {found!r}"
        )
    return text == "True" if kind is bool else kind(text)


def load(config: str, data: str) -> ConfigDict:
    """Return the config of a value of --config, with `data` for DATA."""
    return grids.load(config.replace("DATA", data))


# 1. Runs that studies share.


def data_run(config: ConfigDict, argument: str, overrides: Mapping[str, Any]) -> Run:
    """Return the run of a vocabulary and a packed dataset; equal settings share a run."""
    own = {key: value for key, value in overrides.items() if key.startswith(_OF_DATA)}
    steps = (Step(("build_vocab.py",)), Step(("prepare_data.py",)))
    return Run(grids.data_folder(config), None, steps, argument, own)


def encoder(
    plan: Plan,
    name: str,
    seed: int,
    overrides: Mapping[str, Any],
    measure: Callable[[pathlib.Path], Any],
    *,
    config: str = "",
    data: Run | None = None,
    steps: tuple[Step, ...] = (Step(("train.py",)), Step(("evaluate.py",))),
    needs: tuple[Run, ...] = (),
) -> Run:
    """Return the run of a pre-training, on the vocabulary and rows of `data` or its own config."""
    argument = config or plan.study.config
    own = {**overrides, **plan.overrides}
    data = data or data_run(plan.config(argument, overrides), argument, own)
    links = {"vocab": f"{data.folder}/vocab", "rows": f"{data.folder}/rows"}
    if plan.config(argument, own).phases:  # which have their own rows
        del links["rows"]
        steps = (Step(("prepare_data.py",)), *steps)
    own["train.seed"] = seed
    return Run(name, seed, steps, argument, own, links, (data, *needs), measure)
