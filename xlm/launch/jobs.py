"""Cluster-independent definition of jobs: stages, flags, sweeps, names."""

import ast
import dataclasses
import itertools
import pathlib
import re
import shlex
import subprocess
from collections.abc import Mapping, Sequence

from absl import flags
from ml_collections import ConfigDict, config_flags

from configs import grids
from configs.finetune.sweeps import GRIDS

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
STAGES = ("build_vocab", "prepare_data", "train", "evaluate", "finetune")
# Exit status of a training run that saved its state and should be restarted. It equals
# xlm.training.signals.EXIT_STOPPED, which cannot be imported without jax.
EXIT_STOPPED = 75
# Stages that all processes of a job run together, joined by --distributed. The others are one
# process, which needs no accelerator.
DISTRIBUTED = ("train", "evaluate", "finetune")

_NAME = re.compile(r"[a-z]([-a-z0-9]{0,38}[a-z0-9])?")
_KEY = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*")
_SWEPT_VALUE = re.compile(r"[\w.+-]+")
# Nothing that ends a line of a script, quoted or not, or that a terminal would act on.
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")


@dataclasses.dataclass(frozen=True)
class Job:
    """Job: stages of the pipeline, run in sequence in one working directory.

    Attributes:
      name: of the job, for the cluster.
      config: config file as passed to the stages, "configs/X.py" or "configs/X.py:ARG".
      workdir: the working directory.
      stages: names of the stages, in order.
      overrides: key of the config -> value, as on a command line.
      shared: working directory with the vocabulary and packed dataset to use; "" for its own.
    """

    name: str
    config: str
    workdir: str
    stages: tuple[str, ...]
    overrides: Mapping[str, str] = dataclasses.field(default_factory=dict)
    shared: str = ""

    def __post_init__(self):
        check_name(self.name)
        for flag, value in self.flags().items():
            check_line(flag, value)
        for workdir in filter(None, (self.workdir, self.shared)):
            if not workdir.startswith("/") or "://" in workdir:
                raise ValueError(
                    f"--workdir is {workdir!r}, must be an absolute path that all machines see; "
                    "mount a bucket and give the path it is mounted at"
                )
        if not self.stages or list(self.stages) != [s for s in STAGES if s in self.stages]:
            raise ValueError(
                f"--stages are {','.join(self.stages)!r}, must be some of {','.join(STAGES)}, each "
                "once and in this order"
            )
        if "finetune" in self.stages and len(self.stages) > 1:
            raise ValueError("--stages: finetune has configs of its own; start it by itself")
        if any(not _KEY.fullmatch(key) for key in self.overrides):
            raise ValueError(f"keys of a config are words joined by dots; got {self.overrides}")

    def flags(self) -> dict[str, str]:
        """Flags common to all stages, in order."""
        overrides = {f"config.{key}": value for key, value in self.overrides.items()}
        return {"config": self.config, "workdir": self.workdir, **overrides}

    def command(self, stage: str, python: str = "python", *arguments: str) -> str:
        """Quoted shell command of a stage."""
        check_line("python", python)
        given = [f"--{name}={value}" for name, value in self.flags().items()]
        return shlex.join([python, f"{stage}.py", *given, *arguments])

    def link_commands(self) -> list[str]:
        """Shell commands that link the shared vocabulary and packed dataset, if any."""
        if not self.shared:
            return []
        wanted = [f"{self.shared}/vocab", f"{self.shared}/rows"]
        return [
            shlex.join(["mkdir", "-p", self.workdir]),
            shlex.join(["ln", "-sf", *wanted, f"{self.workdir}/"]),
        ]


def check_name(name: str) -> None:
    """Raise ValueError for a name that is invalid on some cluster."""
    if not _NAME.fullmatch(name):
        raise ValueError(
            f"--name is {name!r}, must be at most 40 lower-case letters, digits and hyphens, the "
            "first a letter, the last no hyphen"
        )


def check_line(flag: str, value: str) -> None:
    """Raise ValueError for a value, such as a path, that cannot stand in a line of a script."""
    if found := _CONTROL.search(value):
        raise ValueError(
            f"--{flag} is {value!r}, must be one line of UTF-8 without {found[0]!r}; rename it"
        )


def check_word(flag: str, value: str) -> None:
    """Raise ValueError for a value, such as a zone or a partition, that is not a plain word."""
    if not re.fullmatch(r"\w[\w.:/@,=-]*", value):
        raise ValueError(
            f"--{flag} is {value!r}, must be one word of letters, digits "
            "and . : / @ , = _ -, and begin with a letter or digit"
        )


def parse_sweep(sweeps: Sequence[str], seeds: int = 0) -> dict[str, tuple[str, ...]]:
    """Parse sweeps `key=value,value` to the values of each swept key.

    Args:
      sweeps: one key each; the prefix "config." is optional.
      seeds: number of values of `train.seed`, counted from 0; 0 for no sweep of the seed.

    Raises:
      ValueError: a sweep cannot be parsed, or a key or value is repeated.
    """
    found: dict[str, tuple[str, ...]] = {}
    for sweep in [*sweeps, *(["train.seed=" + ",".join(map(str, range(seeds)))] if seeds else [])]:
        key, equals, text = sweep.partition("=")
        key = key.removeprefix("config.")
        values = tuple(text.split(","))
        if not equals or not _KEY.fullmatch(key) or not all(map(_SWEPT_VALUE.fullmatch, values)):
            raise ValueError(
                f"--sweep is {sweep!r}, must be key=value,value, with values of letters, digits "
                "and . + - _, since they name folders; others go into a config file"
            )
        if key in found:
            raise ValueError(f"{key} is swept twice; give all its values in one --sweep")
        if len(set(values)) < len(values):
            raise ValueError(f"--sweep={sweep} has a value twice; leave one out")
        found[key] = values
    return found


def check_sweep(sweep: Mapping[str, Sequence[str]], config: ConfigDict) -> None:
    """Raise ValueError for an unknown key of the config, or a value of another type."""
    for key, values in sweep.items():
        try:
            current = config
            for part in key.split("."):
                current = current[part]
        except (KeyError, TypeError):
            raise ValueError(f"--sweep: the config has no key {key}") from None
        if type(current) not in (bool, int, float, str):
            raise ValueError(f"--sweep: {key} is {current!r}; only single values can be swept")
        wrong = [value for value in values if not _fits(value, type(current))]
        if wrong:
            raise ValueError(f"--sweep: {key} is {current!r}, so {wrong[0]!r} cannot be its value")


def _fits(text: str, kind: type) -> bool:
    """Whether a flag of type `kind` accepts `text`."""
    if kind is str:
        return True
    try:
        value = ast.literal_eval(text.capitalize() if kind is bool else text)
    except (SyntaxError, ValueError):
        return False
    return type(value) is kind or (kind is float and type(value) is int)


def expand(job: Job, sweep: Mapping[str, Sequence[str]]) -> list[Job]:
    """Expand a sweep to jobs: the Cartesian product of all values, the last key fastest.

    Each job has its own folder below the working directory, named after its values. If the stages
    start after prepare_data, all jobs share the vocabulary and packed dataset of the working
    directory itself.

    Raises:
      ValueError: a swept key is already overridden.
    """
    if not sweep:
        return [job]
    if fixed := sorted(set(sweep) & set(job.overrides)):
        raise ValueError(f"{fixed[0]} is both set and swept; leave one out")
    uses_rows = not {"build_vocab", "prepare_data", "finetune"} & set(job.stages)
    jobs = []
    for number, values in enumerate(itertools.product(*sweep.values())):
        differs = dict(zip(sweep, values, strict=True))
        folder = ",".join(f"{key}={value}" for key, value in differs.items())
        jobs.append(
            dataclasses.replace(
                job,
                name=f"{job.name}-{number}",
                workdir=f"{job.workdir}/sweep/{folder}",
                overrides={**job.overrides, **differs},
                shared=job.workdir if uses_rows else "",
            )
        )
    return jobs


def define_flags(stages: str) -> None:
    """Define the flags common to all launchers; `stages` is the default of --stages."""
    config_flags.DEFINE_config_file(
        "config", None, "What to do, e.g. configs/quickstart.py; --config.KEY=VALUE sets its keys."
    )
    flags.DEFINE_string("workdir", None, "Where results go: an absolute path on the machines.")
    flags.DEFINE_string("name", None, "Name of the job; by default the config's.")
    flags.DEFINE_list("stages", stages, f"Some of {','.join(STAGES)}.")
    flags.DEFINE_multi_string("sweep", [], "key=value,value: a job for each; may be given again.")
    flags.DEFINE_string(
        "grid",
        None,
        f"Of finetune, that of a paper: {', '.join(GRIDS)}; of others, configs/grids.py.",
    )
    flags.DEFINE_integer("seeds", 0, "So many jobs that differ in train.seed.", lower_bound=0)
    flags.DEFINE_bool("dry_run", False, "Print what would be done, and do nothing.")


def jobs_from_flags(values: flags.FlagValues = flags.FLAGS) -> list[Job]:
    """Build the jobs from the flags of `define_flags`.

    Raises:
      ValueError: the config is outside the repository, or another value is invalid.
    """
    flag = values["config"]
    config = config_flags.get_config_filename(flag)
    file = pathlib.PurePath(config.partition(":")[0])
    if file.is_absolute() or ".." in file.parts:
        raise ValueError(f"--config is {config!r}, must be a file of this repository (configs/)")
    job = Job(
        name=values.name or re.sub("[^a-z0-9]+", "-", file.stem.lower()).strip("-"),
        config=config,
        workdir=values.workdir,
        stages=tuple(values.stages),
        overrides={k: str(v) for k, v in config_flags.get_override_values(flag).items()},
    )
    if values.grid is not None and "task" not in values.config:
        if values.sweep:
            raise ValueError("--sweep and a --grid of named runs exclude each other; leave one out")
        return jobs_of_grid(job, values.grid, values.seeds)
    sweep = parse_sweep([*grid(values.grid, values.config), *values.sweep], values.seeds)
    check_sweep(sweep, values.config)
    return expand(job, sweep)


def jobs_of_grid(job: Job, name: str, seeds: int) -> list[Job]:
    """Build the jobs of a grid of named runs (`configs.grids`), in the folders that it lays out.

    They are those of the text, build_vocab and prepare_data, one for all runs with equal text and
    vocabulary; or those of the encoders, one for each run and seed, which share the former.

    Args:
      job: with the config of the grid and the folder of all its runs.
      seeds: number of seeds, counted from 0; 0 for the first alone.

    Raises:
      ValueError: there is no such grid, or the stages are of both kinds.
    """
    found = {run: grids.config_of(job.config, run) for run in grids.choose(job.config, name)}
    folders = {
        run: f"{job.workdir}/{grids.data_folder(grids.load(config))}"
        for run, config in found.items()
    }
    of_text = set(job.stages) & {"build_vocab", "prepare_data"}
    if of_text and of_text != set(job.stages):
        raise ValueError(
            f"--stages are {','.join(job.stages)}: runs of a grid share their text; start "
            "--stages=build_vocab,prepare_data first, and --stages=train,evaluate when it is done"
        )
    made: dict[str, Job] = {}  # by working directory
    for seed in range(1 if of_text else max(seeds, 1)):
        for run, config in found.items():
            workdir = folders[run] if of_text else f"{job.workdir}/{grids.run_folder(run, seed)}"
            made.setdefault(
                workdir,
                dataclasses.replace(
                    job,
                    name=f"{job.name}-{len(made)}",
                    config=config,
                    workdir=workdir,
                    overrides=job.overrides
                    if of_text
                    else {**job.overrides, "train.seed": str(seed)},
                    shared="" if of_text else folders[run],
                ),
            )
    return list(made.values())


def grid(name: str | None, config: ConfigDict) -> tuple[str, ...]:
    """Sweeps of a paper's grid for the task of a config; empty without a name.

    Raises:
      ValueError: there is no such grid, or none for the task.
    """
    if name is None:
        return ()
    task = config.task.name if "task" in config else ""
    if task not in GRIDS.get(name, {}):
        tasks = {known: ", ".join(of_task) for known, of_task in GRIDS.items()}
        raise ValueError(
            f"--grid is {name!r}, and the task of the config {task!r}; grids, with their tasks: "
            + "; ".join(f"{known} ({names})" for known, names in tasks.items())
        )
    return GRIDS[name][task]


def code_files(root: pathlib.Path = ROOT) -> list[str]:
    """List the files of the repository, tracked or new, without ignored ones.

    Raises:
      ValueError: `root` is not in a git repository.
    """
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    try:
        listed = subprocess.run(command, cwd=root, check=True, capture_output=True, text=True)
    except (OSError, subprocess.CalledProcessError) as error:
        raise ValueError(f"{root} must be a git checkout to copy code from: {error}") from None
    return sorted(name for name in set(listed.stdout.split("\0")) if (root / name).is_file())


def jax_requirement(extra: str, root: pathlib.Path = ROOT) -> str:
    """Pip requirement of jax for an accelerator, e.g. "jax[tpu]>=0.10.2,<0.12"."""
    lines = (root / "requirements.txt").read_text(encoding="utf-8").splitlines()
    (found,) = (line for line in lines if re.match(r"jax\W", line))
    return found.replace("jax", f"jax[{extra}]", 1)
