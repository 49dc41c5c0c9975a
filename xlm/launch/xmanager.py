"""Run the stages, and sweeps of them, with XManager: one machine for each job.

    python -m xlm.launch.xmanager --config=configs/X.py --workdir=/gcs/BUCKET/X --platform=vertex \
        --gpus=a100=8 --sweep=optimizer.learning_rate=1e-3,3e-3 --seeds=3 --dry_run

The experiment is a `Plan`, plain data from a pure function; --dry_run prints it without xmanager
(the extra [launch]), which only `launch` imports. For jobs on several machines use `slurm` or
`tpu_pod`: XManager's executors start each container independently.
"""

import dataclasses
import json
import os
import pathlib
import shlex
import shutil
import tempfile
from collections.abc import Sequence
from typing import Any

from absl import flags
from ml_collections import ConfigDict

from xlm.common import entry_point, packages
from xlm.launch import jobs

PLATFORMS = ("local", "docker", "vertex", "kubernetes")
# GPU types for which XManager finds a machine on Vertex AI.
_VERTEX_GPUS = ("a100", "l4_24th", "p100", "t4", "v100")
# On Kubernetes it selects nodes labelled nvidia-tesla-X, which exist for these types only.
_TESLA_LABELS = ("a100", "p100", "p4", "t4", "v100")
_CODE = "vocap"  # folder of the code in a container


@dataclasses.dataclass(frozen=True)
class Package:
    """Package of an experiment.

    Attributes:
      kind: "binary" for a program on this machine, or "python_container".
      commands: shell commands in sequence; "$@" are a job's flags.
      base_image, docker_instructions: of a container.
    """

    kind: str
    commands: tuple[str, ...]
    base_image: str = ""
    docker_instructions: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True)
class Executor:
    """Executor of an experiment.

    Attributes:
      platform: one of `PLATFORMS`.
      requirements: XManager's resource name -> amount; memory in bytes.
      volumes: path on this machine -> path in a container.
      cloud_provider: of Kubernetes; "" for XManager's default.
    """

    platform: str
    requirements: dict[str, float]
    volumes: dict[str, str] = dataclasses.field(default_factory=dict)
    cloud_provider: str = ""


@dataclasses.dataclass(frozen=True)
class PlannedJob:
    """Job of a plan: a name, and the flags and environment of the commands."""

    name: str
    args: dict[str, str]
    env_vars: dict[str, str]


@dataclasses.dataclass(frozen=True)
class Plan:
    """XManager experiment."""

    title: str
    package: Package
    executor: Executor
    jobs: tuple[PlannedJob, ...]


def parse_gpus(text: str) -> tuple[str, int]:
    """Parse kind and number of GPUs, such as "h100=8"; ("", 0) for "".

    Raises:
      ValueError: the format is invalid.
    """
    if not text:
        return "", 0
    kind, _, count = text.partition("=")
    if not kind.isidentifier() or not count.isdecimal() or int(count) < 1:
        raise ValueError(f"--gpus is {text!r}, must be KIND=NUMBER, such as a100=8")
    if kind.startswith("tpu"):
        raise ValueError(f"--gpus is {text!r}; python -m xlm.launch.tpu_pod is for TPUs")
    return kind.lower(), int(count)


def parse_volumes(paths: Sequence[str]) -> tuple[str, ...]:
    """Normalize the paths to be mounted into containers.

    Raises:
      ValueError: a path is not absolute, cannot be mounted, or does not exist on this machine,
        where Docker would make an empty folder of it.
    """
    for path in paths:
        if not path.startswith("/") or ":" in path or not path.strip("/"):
            raise ValueError(
                f"--volume is {path!r}, must be an absolute path without colons, such as "
                "/data/text, which is mounted at the same path"
            )
        if not os.path.exists(path):
            raise ValueError(f"--volume is {path!r}, which does not exist; correct the path")
    return tuple(os.path.normpath(path) for path in paths)


def paths_of(config: ConfigDict) -> list[tuple[str, str]]:
    """Return keys and values of a config that are absolute paths which exist on this machine."""
    return [
        (key, value)
        for key, value in entry_point.strings("--config", config)
        # "/" by itself is rather a separator than a folder to read.
        if value.startswith("/") and value.strip("/") and os.path.exists(value)
    ]


def make_plan(
    found: list[jobs.Job],
    title: str,
    *,
    platform: str,
    workdir: str,
    gpus: tuple[str, int] = ("", 0),
    cpus: int = 0,
    memory_gib: int = 0,
    python: str = "python",
    base_image: str = "python:3.12-slim",
    volumes: Sequence[str] = (),
    paths: Sequence[tuple[str, str]] = (),
) -> Plan:
    """Plan the XManager experiment.

    Args:
      found: the jobs, all with the same stages.
      platform: one of `PLATFORMS`.
      workdir: folder that holds the working directories of all jobs.
      gpus: kind and number for each job; the kind is used in the cloud only.
      cpus, memory_gib: for each job; 0 for the platform's default.
      python: interpreter on this machine with the project's requirements, for "local".
      volumes: paths that Docker mounts into the containers besides `workdir` (`parse_volumes`).
      paths: keys of the config with the paths that the jobs read (`paths_of`).

    Raises:
      ValueError: settings are incompatible.
    """
    jobs.check_name(title)
    if platform not in PLATFORMS:
        raise ValueError(f"--platform is {platform!r}, must be one of {', '.join(PLATFORMS)}")
    jobs.check_word("base_image", base_image)
    for flag, value in (("python", python), *(("volume", path) for path in volumes)):
        jobs.check_line(flag, value)
    if platform == "vertex" and not workdir.startswith("/gcs/"):
        raise ValueError(
            f"--workdir is {workdir!r}; on Vertex AI, machines share their buckets only, mounted "
            "as /gcs/BUCKET: give a folder there"
        )
    if platform != "docker" and volumes:
        raise ValueError(
            f"--volume is {volumes[0]!r}, which --platform={platform} does not mount; leave it "
            "out, or use --platform=docker"
        )
    mounted = (workdir, *volumes) if platform == "docker" else ()
    if mounted:
        _check_mounted(paths, mounted)
    planned = tuple(
        PlannedJob(
            job.name,
            job.flags(),
            {"WORKDIR": job.workdir, "SHARED": job.shared} if job.shared else {},
        )
        for job in found
    )
    if platform == "local":
        package = Package(
            "binary", (f"cd {shlex.quote(str(jobs.ROOT))}", *_commands(found[0], python))
        )
    else:
        package = _container(found[0], has_gpus=bool(gpus[1]), base_image=base_image)
    executor = _executor(platform, mounted, gpus, cpus, memory_gib)
    return Plan(title, package, executor, planned)


def _check_mounted(paths: Sequence[tuple[str, str]], mounted: Sequence[str]) -> None:
    """Raise ValueError for paths, given with their keys, that lie in no mounted volume."""
    missing = [(key, path) for key, path in paths if not any(_lies_in(path, v) for v in mounted)]
    if missing:
        found = ", ".join(f"{key} is {path!r}" for key, path in missing)
        volumes = dict.fromkeys(f"--volume={shlex.quote(path)}" for _, path in missing)
        raise ValueError(
            f"{found}, but of this machine's files the containers see {', '.join(mounted)} alone; "
            f"add {' '.join(volumes)}"
        )


def _lies_in(path: str, folder: str) -> bool:
    """Whether an absolute path is `folder` or below it, by their names."""
    return pathlib.PurePath(os.path.normpath(path)).is_relative_to(os.path.normpath(folder))


def _commands(job: jobs.Job, python: str) -> tuple[str, ...]:
    """Shell commands of a job, with its flags as "$@"."""
    link = ['mkdir -p "$WORKDIR"', 'ln -sf "$SHARED/vocab" "$SHARED/rows" "$WORKDIR/"']
    return (
        "set -e",
        *(link if job.shared else []),
        *(f'{shlex.quote(python)} {stage}.py "$@"' for stage in job.stages),
    )


def _container(job: jobs.Job, *, has_gpus: bool, base_image: str) -> Package:
    accelerated = f" {shlex.quote(jobs.jax_requirement('cuda13'))}" if has_gpus else ""
    instructions = (
        "ENV LANG=C.UTF-8",
        f"WORKDIR /{_CODE}",
        # Before the code, so that a change of the code does not reinstall the requirements.
        f"COPY {_CODE}/requirements.txt requirements.txt",
        f"RUN python -m pip install --no-cache-dir -r requirements.txt{accelerated}",
        f"COPY {_CODE}/ /{_CODE}",
    )
    return Package("python_container", _commands(job, "python"), base_image, instructions)


def _executor(
    platform: str, mounted: Sequence[str], gpus: tuple[str, int], cpus: int, memory_gib: int
) -> Executor:
    kind, count = gpus
    requirements: dict[str, float] = {}
    if count:
        requirements["local_gpu" if platform in ("local", "docker") else kind] = count
    if cpus:
        requirements["cpu"] = cpus
    if memory_gib:
        requirements["memory"] = memory_gib * 2**30
    if platform == "local" and requirements:
        raise ValueError(
            "--gpus, --cpus and --memory_gib mean nothing to --platform=local, where jobs take "
            "what the machine has; leave them out, or use --platform=docker"
        )
    if platform == "vertex" and count and kind not in _VERTEX_GPUS:
        raise ValueError(
            f"--gpus is {kind}={count}, but XManager finds machines on Vertex AI for "
            f"{', '.join(_VERTEX_GPUS)} only; use --platform=kubernetes or xlm.launch.slurm"
        )
    without_label = platform == "kubernetes" and count and kind not in _TESLA_LABELS
    return Executor(
        platform,
        requirements,
        volumes={path: path for path in mounted},
        cloud_provider="OTHER" if without_label else "",
    )


def launch(plan: Plan, xm: Any, xm_local: Any) -> None:
    """Package and start the jobs of a plan; for local ones, wait for their end.

    Args:
      xm, xm_local: modules of xmanager 0.8 with these names.

    Raises:
      ValueError: a local job failed; XManager then stops the others.
    """
    try:
        _run(plan, xm, xm_local)
    except RuntimeError as error:  # "Process <...> returned non-zero code: 2"
        raise ValueError(
            f"a job failed: {error}; its lines are above, the same command goes on with all jobs"
        ) from error


def _run(plan: Plan, xm: Any, xm_local: Any) -> None:
    with (
        tempfile.TemporaryDirectory() as folder,
        xm_local.create_experiment(plan.title) as experiment,
    ):
        executor = _xm_executor(plan.executor, xm, xm_local)
        package = _xm_package(plan.package, pathlib.Path(folder), xm)
        args = _shell_args(plan.package)
        [executable] = experiment.package([xm.Packageable(package, executor.Spec(), args=args)])
        for job in plan.jobs:
            experiment.add(
                xm.Job(executable, executor, name=job.name, args=job.args, env_vars=job.env_vars)
            )


def _shell_args(package: Package) -> list[str]:
    """Arguments before a job's flags; a container has its commands in the entry point."""
    if package.kind == "python_container":
        return []
    return ["-c", "\n".join(package.commands), "stages"]  # "stages" is $0


def _xm_executor(executor: Executor, xm: Any, xm_local: Any) -> Any:
    requirements = xm.JobRequirements(executor.requirements)
    if executor.platform == "vertex":
        return xm_local.Vertex(requirements=requirements)
    if executor.platform == "kubernetes":
        provider = {"cloud_provider": executor.cloud_provider} if executor.cloud_provider else {}
        return xm_local.Kubernetes(requirements=requirements, **provider)
    options = xm_local.DockerOptions(volumes=executor.volumes)
    return xm_local.Local(requirements=requirements, docker_options=options)


def _xm_package(package: Package, folder: pathlib.Path, xm: Any) -> Any:
    if package.kind == "binary":
        return xm.Binary(path=shutil.which("bash"))
    for name in jobs.code_files():
        (folder / _CODE / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(jobs.ROOT / name, folder / _CODE / name)
    return xm.PythonContainer(
        entrypoint=xm.CommandList(list(package.commands)),
        path=str(folder / _CODE),
        base_image=package.base_image,
        docker_instructions=list(package.docker_instructions),
    )


def main(_) -> None:
    values = flags.FLAGS
    found = jobs.jobs_from_flags()
    plan = make_plan(
        found,
        title=found[0].name if len(found) == 1 else found[0].name.removesuffix("-0"),
        platform=values.platform,
        workdir=values.workdir,
        gpus=parse_gpus(values.gpus),
        cpus=values.cpus,
        memory_gib=values.memory_gib,
        python=values.python,
        base_image=values.base_image,
        volumes=parse_volumes(values.volume),
        # Those of all jobs: values of a sweep have no slashes, and runs of a grid share their data.
        paths=paths_of(values.config),
    )
    if values.dry_run:
        print(json.dumps(dataclasses.asdict(plan), indent=2))
        return
    with packages.needed("starting without --dry_run", "launch"):
        from xmanager import xm, xm_local  # type: ignore[import-not-found,unused-ignore]
    launch(plan, xm, xm_local)


if __name__ == "__main__":
    jobs.define_flags(stages="train")
    flags.DEFINE_string("platform", "local", f"One of {', '.join(PLATFORMS)}.")
    flags.DEFINE_string("gpus", "", "For each job, KIND=NUMBER, e.g. a100=8.")
    flags.DEFINE_integer("cpus", 0, "CPU cores for each job; 0 for the platform's default.")
    flags.DEFINE_integer("memory_gib", 0, "Memory for each job; 0 for the platform's default.")
    flags.DEFINE_string(
        "python", "python", "For --platform=local, the interpreter with the project's requirements."
    )
    flags.DEFINE_string("base_image", "python:3.12-slim", "Container image to build on.")
    flags.DEFINE_multi_string(
        "volume", [], "For --platform=docker, a path that jobs read, mounted; may be given again."
    )
    entry_point.run(main, may_be_remote=True)
