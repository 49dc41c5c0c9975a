"""Jobs of the launchers: their stages and flags, from sweeps and grids, for any cluster."""

import dataclasses
import itertools
import pathlib
import re
from collections.abc import Mapping, Sequence

from absl import flags
from ml_collections import ConfigDict, config_flags

from configs.finetune.sweeps import GRIDS
from xlm.common import places
from xlm.launch import grids

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
STAGES = ("build_vocab", "prepare_data", "train", "evaluate")  # or "finetune" by itself
_TEXT_STAGES = {"build_vocab", "prepare_data"}

_NAME = re.compile(r"[a-z]([-a-z0-9]{0,38}[a-z0-9])?")
# A key of a config, and values that can name a folder.
_SWEEP = re.compile(r"(?:config\.)?(\w+(?:\.\w+)*)=([\w.+-]+(?:,[\w.+-]+)*)")
# Characters that end a line of a script, even in quotes, or control a terminal.
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")


@dataclasses.dataclass(frozen=True)
class Job:
    """Stages of the pipeline, run in sequence in one working directory.

    `overrides` are values by key of the config, as on a command line. `shared` is a working
    directory with vocabulary and packed dataset for the job; "" if it has its own.
    """

    name: str
    config: str
    workdir: str
    stages: tuple[str, ...]
    overrides: Mapping[str, str] = dataclasses.field(default_factory=dict)
    shared: str = ""

    def __post_init__(self):
        if not _NAME.fullmatch(self.name):
            raise ValueError(
                f"--name is {self.name!r}, must be at most 40 lower-case letters, digits and "
                "hyphens, the first a letter, the last no hyphen"
            )
        for flag, value in self.flags().items():
            check_line(flag, value)
        for workdir in filter(None, (self.workdir, self.shared)):
            if not workdir.startswith("/") and not places.is_url(workdir):
                raise ValueError(
                    f"--workdir is {workdir!r}, must be an absolute path that all machines see, or "
                    "the URL of a folder in a bucket"
                )
        if places.is_url(self.shared):
            raise ValueError(
                f"--workdir is {self.shared}: jobs of a sweep link its vocabulary and rows, and a "
                "bucket has no links; give the path of its mount"
            )
        in_order = tuple(stage for stage in STAGES if stage in self.stages)
        if self.stages not in (("finetune",), in_order) or not self.stages:
            raise ValueError(
                f"--stages are {','.join(self.stages)!r}, must be finetune, or some of "
                f"{','.join(STAGES)}, each once and in this order"
            )

    def flags(self) -> dict[str, str]:
        overrides = {f"config.{key}": value for key, value in self.overrides.items()}
        return {"config": self.config, "workdir": self.workdir, **overrides}


def title(found: Sequence[Job]) -> str:
    return found[0].name if len(found) == 1 else found[0].name.removesuffix("-0")


def check_line(flag: str, value: str) -> None:
    """Raise ValueError if a value, such as a path, cannot stand in a line of a script."""
    if found := _CONTROL.search(value):
        raise ValueError(
            f"--{flag} is {value!r}, must be one line of UTF-8 without {found[0]!r}; rename it"
        )


def parse_sweep(sweeps: Sequence[str], config: ConfigDict) -> dict[str, tuple[str, ...]]:
    """Parse sweeps `key=value,value` by key; ValueError if malformed, repeated or not allowed."""
    found: dict[str, tuple[str, ...]] = {}
    for sweep in sweeps:
        if not (match := _SWEEP.fullmatch(sweep)):
            raise ValueError(
                f"--sweep is {sweep!r}, must be key=value,value, with values of letters, digits "
                "and . + - _, since they name folders; put others into a config file"
            )
        key, values = match[1], tuple(match[2].split(","))
        if key in found:
            raise ValueError(f"{key} is swept twice; give all its values in one --sweep")
        if len(set(values)) < len(values):
            raise ValueError(f"--sweep={sweep} has a value twice; leave one out")
        for value in values:
            _check_key(key, value, config)
        found[key] = values
    return found


def _check_key(key: str, value: str, config: ConfigDict) -> None:
    """Raise ValueError for a key or value of the config that the stages would refuse."""
    parsed, arguments = flags.FlagValues(), ["", f"--config.{key}={value}"]
    copy = config.copy_and_resolve_references()
    try:
        config_flags.DEFINE_config_dict("config", copy, flag_values=parsed, sys_argv=arguments)
        parsed(arguments)
    except flags.Error as error:
        raise ValueError(f"--sweep: {error}") from error
    except (AttributeError, KeyError, TypeError):
        raise ValueError(f"--sweep: the config has no key {key}") from None
    if isinstance(parsed[f"config.{key}"].value, tuple | list):
        raise ValueError(f"--sweep: {key} is a tuple; only single values can be swept")


def expand(job: Job, sweep: Mapping[str, Sequence[str]]) -> list[Job]:
    """Expand a sweep to jobs: the Cartesian product of all values, the last key fastest.

    Each job has its own folder below the working directory, named after its values. Jobs that start
    after prepare_data share the vocabulary and packed dataset of the working directory itself.
    """
    if not sweep:
        return [job]
    if fixed := sorted(set(sweep) & set(job.overrides)):
        raise ValueError(f"{fixed[0]} is both set and swept; leave one out")
    uses_rows = not {*_TEXT_STAGES, "finetune"} & set(job.stages)
    found = []
    for number, values in enumerate(itertools.product(*sweep.values())):
        differs = dict(zip(sweep, values, strict=True))
        folder = ",".join(f"{key}={value}" for key, value in differs.items())
        found.append(
            dataclasses.replace(
                job,
                name=f"{job.name}-{number}",
                workdir=f"{job.workdir}/sweep/{folder}",
                overrides={**job.overrides, **differs},
                shared=job.workdir if uses_rows else "",
            )
        )
    return found


def define_flags() -> None:
    """Define the flags common to all launchers."""
    config_flags.DEFINE_config_file(
        "config", None, "What to do, e.g. configs/quickstart.py; --config.KEY=VALUE sets its keys."
    )
    flags.DEFINE_string("workdir", None, "Folder of the results: an absolute path, or a URL.")
    flags.DEFINE_string("name", None, "Name of the job; by default the config's.")
    flags.DEFINE_list("stages", "train", f"Some of {','.join(STAGES)}, or finetune.")
    flags.DEFINE_multi_string("sweep", [], "key=value,value: a job for each value; repeatable.")
    flags.DEFINE_string(
        "grid", None, f"For finetune {', '.join(GRIDS)}; else one of GRIDS in the config's file."
    )
    flags.DEFINE_integer("seeds", 0, "Number of jobs that differ in train.seed.", lower_bound=0)
    flags.DEFINE_bool("dry_run", False, "Print the plan, and start nothing.")


def jobs_from_flags() -> list[Job]:
    """Build the jobs from the flags of `define_flags`; raise ValueError for invalid ones."""
    values = flags.FLAGS
    config = config_flags.get_config_filename(values["config"])
    file = pathlib.PurePath(config.partition(":")[0])
    if file.is_absolute() or ".." in file.parts:
        raise ValueError(f"--config is {config!r}, must be a file of this repository (configs/)")
    overrides = config_flags.get_override_values(values["config"])
    job = Job(
        name=values.name or re.sub("[^a-z0-9]+", "-", file.stem.lower()).strip("-"),
        config=config,
        workdir=values.workdir,
        stages=tuple(values.stages),
        overrides={key: str(value) for key, value in overrides.items()},
    )
    if values.grid is not None and "task" not in values.config:
        if values.sweep:
            raise ValueError("--sweep and a --grid of named runs exclude each other; leave one out")
        return jobs_of_grid(job, values.grid, values.seeds)
    sweeps = [*task_grid(values.grid, values.config), *values.sweep]
    if values.seeds:
        sweeps.append("train.seed=" + ",".join(map(str, range(values.seeds))))
    return expand(job, parse_sweep(sweeps, values.config))


def jobs_of_grid(job: Job, name: str, seeds: int) -> list[Job]:
    """Build the jobs of a grid of named runs (`grids`), in its folders.

    Runs with equal text and vocabulary share one job of build_vocab and prepare_data. Later stages
    have a job for each run and seed.
    """
    of_text = bool(_TEXT_STAGES & set(job.stages))
    if of_text and not set(job.stages) <= _TEXT_STAGES:
        raise ValueError(
            f"--stages are {','.join(job.stages)}: runs of a grid share their text; start "
            "--stages=build_vocab,prepare_data first, and --stages=train,evaluate after it"
        )
    made: dict[str, Job] = {}  # by working directory
    for seed in range(1 if of_text else max(seeds, 1)):
        for run in grids.choose(job.config, name):
            config = grids.config_of(job.config, run)
            text = f"{job.workdir}/{grids.data_folder(grids.load(config))}"
            workdir = text if of_text else f"{job.workdir}/{grids.run_folder(run, seed)}"
            seeded = {} if of_text else {"train.seed": str(seed)}
            new = dataclasses.replace(
                job, name=f"{job.name}-{len(made)}", config=config, workdir=workdir,
                overrides={**job.overrides, **seeded}, shared="" if of_text else text,
            )  # fmt: skip
            made.setdefault(workdir, new)
    return list(made.values())


def task_grid(name: str | None, config: ConfigDict) -> tuple[str, ...]:
    """Return the sweeps of a paper's grid for the task of a config; none without a name."""
    if name is None:
        return ()
    task = config.task.name if "task" in config else ""
    if task not in GRIDS.get(name, {}):
        known = "; ".join(f"{grid} ({', '.join(tasks)})" for grid, tasks in GRIDS.items())
        raise ValueError(
            f"--grid is {name!r}, and the task of the config {task!r}; grids, with their tasks: "
            + known
        )
    return GRIDS[name][task]
