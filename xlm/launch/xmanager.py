"""Run the stages, and sweeps of them, with XManager: one machine for each job.

    python -m xlm.launch.xmanager --config=configs/X.py --workdir=/gcs/BUCKET/X --platform=vertex \\
        --gpus=a100=8 --sweep=optimizer.learning_rate=1e-3,3e-3 --seeds=3 --dry_run

--dry_run prints the experiment as plain data and needs no xmanager (the extra [launch]). For jobs
on several machines use `xlm.launch.start`: XManager starts each container by itself.
"""

import json
import os
import pathlib
import re
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from typing import Any

from absl import flags
from ml_collections import ConfigDict

from xlm.common import entry_point, packages, places
from xlm.launch import jobs

# GPU types with a machine on Vertex AI in XManager.
_VERTEX_GPUS = ("a100", "l4_24th", "p100", "t4", "v100")
# On Kubernetes it selects nodes labelled nvidia-tesla-X. Only these types have such labels.
_TESLA_LABELS = ("a100", "p100", "p4", "t4", "v100")
_CODE = "vocap"  # folder of the code in a container
# jax for GPUs, in the release of requirements.txt.
_FOR_GPUS = r"RUN sed -i 's/^jax\([<>=]\)/jax[cuda13]\1/' requirements.txt"


def parse_gpus(text: str) -> tuple[str, int]:
    """Parse kind and number of GPUs, such as "h100=8"; ("", 0) for ""."""
    if not text:
        return "", 0
    kind, _, count = text.partition("=")
    if not kind.isidentifier() or not count.isdecimal() or int(count) < 1:
        raise ValueError(f"--gpus is {text!r}, must be KIND=NUMBER, such as a100=8")
    if kind.startswith("tpu"):
        raise ValueError(f"--gpus is {text!r}; xlm.launch.start --on=tpu_pod is for TPUs")
    return kind.lower(), int(count)


def parse_volumes(paths: Sequence[str]) -> list[str]:
    """Check and normalize the paths to mount into containers."""
    for path in paths:
        jobs.check_line("volume", path)
        if not path.startswith("/") or ":" in path or not path.strip("/"):
            raise ValueError(
                f"--volume is {path!r}, must be an absolute path without colons, such as "
                "/data/text; containers mount it at the same path"
            )
        if not os.path.exists(path):  # Docker would make an empty folder of it
            raise ValueError(f"--volume is {path!r}, which does not exist; correct the path")
    return [os.path.normpath(path) for path in paths]


def check_mounted(config: ConfigDict, mounted: Sequence[str]) -> None:
    """Raise ValueError if the config names a path of this machine that is not mounted."""
    missing = [
        (key, path)
        for key, path in entry_point.strings("--config", config)
        # "/" by itself is probably a separator, not a folder to read.
        if path.startswith("/") and path.strip("/") and os.path.exists(path)
        if not any(pathlib.PurePath(os.path.normpath(path)).is_relative_to(v) for v in mounted)
    ]
    if missing:
        found = ", ".join(f"{key} is {path!r}" for key, path in missing)
        volumes = dict.fromkeys(f"--volume={shlex.quote(path)}" for _, path in missing)
        raise ValueError(
            f"{found}, but the containers see only {', '.join(mounted) or 'none'} of this "
            f"machine's files; add {' '.join(volumes)}"
        )


def make_plan(found: Sequence[jobs.Job], values: Any) -> dict[str, Any]:
    """Plan the XManager experiment of jobs with equal stages; ValueError for invalid flags."""
    platform, (kind, count) = values.platform, parse_gpus(values.gpus)
    volumes = parse_volumes(values.volume)
    jobs.check_line("python", values.python)
    if not re.fullmatch(r"\w[\w.:/@-]*", values.base_image):
        raise ValueError(f"--base_image is {values.base_image!r}, must be the name of an image")
    if platform == "local" and (count or values.cpus or values.memory_gib):
        raise ValueError(
            "--gpus, --cpus and --memory_gib have no effect with --platform=local, whose jobs use "
            "the whole machine; leave them out, or use --platform=docker"
        )
    is_url = places.is_url(values.workdir)
    if platform == "vertex" and not is_url and not values.workdir.startswith("/gcs/"):
        raise ValueError(
            f"--workdir is {values.workdir!r}; on Vertex AI, machines share buckets only: give "
            "gs://BUCKET/FOLDER, or /gcs/BUCKET/FOLDER, its mount"
        )
    if platform == "vertex" and count and kind not in _VERTEX_GPUS:
        raise ValueError(
            f"--gpus is {kind}={count}, but XManager finds machines on Vertex AI for "
            f"{', '.join(_VERTEX_GPUS)} only; use --platform=kubernetes, or xlm.launch.start"
        )
    if platform != "docker" and volumes:
        raise ValueError(
            f"--volume is {volumes[0]!r}, which --platform={platform} does not mount; leave it "
            "out, or use --platform=docker"
        )
    mounted = [*([] if is_url else [values.workdir]), *volumes] if platform == "docker" else []
    if platform == "docker":
        # One check for all jobs: values of a sweep have no slashes, runs of a grid share data.
        check_mounted(values.config, mounted)
    gpu = "local_gpu" if platform == "docker" else kind
    asked = {gpu: count, "cpu": values.cpus, "memory": values.memory_gib * 2**30}
    is_unlabelled = platform == "kubernetes" and count and kind not in _TESLA_LABELS
    executor = {
        "platform": platform,
        "requirements": {name: amount for name, amount in asked.items() if amount},
        "volumes": {path: path for path in mounted},
        "cloud_provider": "OTHER" if is_unlabelled else "",  # "" for XManager's default
    }
    planned = [
        {
            "name": job.name,
            "args": job.flags(),
            "env_vars": {"WORKDIR": job.workdir, "SHARED": job.shared} if job.shared else {},
        }
        for job in found
    ]
    package = _package(found[0], values, is_on_gpus=count > 0)
    return {
        "title": jobs.title(found), "package": package, "executor": executor, "jobs": planned,
    }  # fmt: skip


def _package(job: jobs.Job, values: Any, *, is_on_gpus: bool) -> dict[str, Any]:
    """Return the shell commands, with a job's flags as "$@", and the container that runs them."""
    is_local, is_url = values.platform == "local", places.is_url(job.workdir)
    python = shlex.quote(values.python) if is_local else "python"
    enter = [f"cd {shlex.quote(str(jobs.ROOT))}"] if is_local else []
    link = ['mkdir -p "$WORKDIR"', 'ln -sf "$SHARED/vocab" "$SHARED/rows" "$WORKDIR/"']
    stages = [f'{python} {stage}.py "$@"' for stage in job.stages]
    commands = [*enter, "set -e", *(link if job.shared else []), *stages]
    if is_local:
        return {"kind": "binary", "commands": commands}
    instructions = [
        "ENV LANG=C.UTF-8",
        f"WORKDIR /{_CODE}",
        # Before the code, so that a change of the code reinstalls no requirements.
        f"COPY {_CODE}/requirements.txt requirements.txt",
        *([_FOR_GPUS] if is_on_gpus else []),
        "RUN python -m pip install --no-cache-dir -r requirements.txt",
        f"COPY {_CODE}/ /{_CODE}",
        *([f"RUN python -m pip install --no-cache-dir '/{_CODE}[remote]'"] if is_url else []),
    ]
    return {
        "kind": "python_container", "commands": commands, "base_image": values.base_image,
        "docker_instructions": instructions,
    }  # fmt: skip


def launch(plan: Mapping[str, Any], xm: Any, xm_local: Any) -> None:
    """Package and start a plan's jobs with xmanager 0.8; ValueError if a local one fails."""
    try:
        with (
            tempfile.TemporaryDirectory() as folder,
            xm_local.create_experiment(plan["title"]) as experiment,
        ):
            executor = xm_executor(plan["executor"], xm, xm_local)
            package, args = xm_package(plan["package"], folder, xm)
            [executable] = experiment.package([xm.Packageable(package, executor.Spec(), args=args)])
            for job in plan["jobs"]:
                experiment.add(xm.Job(executable, executor, **job))
    except RuntimeError as error:  # "Process <...> returned non-zero code: 2"
        raise ValueError(
            f"a job failed: {error}; see above, run the same command to resume all jobs"
        ) from error


def xm_executor(executor: Mapping[str, Any], xm: Any, xm_local: Any) -> Any:
    requirements = xm.JobRequirements(executor["requirements"])
    if executor["platform"] == "vertex":
        return xm_local.Vertex(requirements=requirements)
    if executor["platform"] == "kubernetes":
        provider = executor["cloud_provider"]
        asked = {"cloud_provider": provider} if provider else {}
        return xm_local.Kubernetes(requirements=requirements, **asked)
    options = xm_local.DockerOptions(volumes=executor["volumes"])
    return xm_local.Local(requirements=requirements, docker_options=options)


def xm_package(package: Mapping[str, Any], folder: str, xm: Any) -> tuple[Any, list[str]]:
    """Return XManager's package, of code copied to `folder`, and arguments before a job's flags."""
    if package["kind"] == "binary":
        commands = "\n".join(package["commands"])
        return xm.Binary(path=shutil.which("bash")), ["-c", commands, "stages"]  # "stages" is $0
    archive, code = f"{folder}/code.tar.gz", f"{folder}/{_CODE}"
    subprocess.run(["bash", "xlm/launch/code.sh", archive], cwd=jobs.ROOT, check=True)
    shutil.unpack_archive(archive, code)
    container = xm.PythonContainer(
        entrypoint=xm.CommandList(package["commands"]),
        path=code,
        base_image=package["base_image"],
        docker_instructions=package["docker_instructions"],
    )
    return container, []


def main(_) -> None:
    plan = make_plan(jobs.jobs_from_flags(), flags.FLAGS)
    if flags.FLAGS.dry_run:
        print(json.dumps(plan, indent=2))
        return
    with packages.needed("starting without --dry_run", "launch"):
        from xmanager import xm, xm_local  # type: ignore[import-not-found,unused-ignore]
    launch(plan, xm, xm_local)


if __name__ == "__main__":
    jobs.define_flags()
    platforms = ("local", "docker", "vertex", "kubernetes")
    flags.DEFINE_enum("platform", "local", platforms, "Where the jobs run.")
    flags.DEFINE_string("gpus", "", "For each job, KIND=NUMBER, e.g. a100=8.")
    flags.DEFINE_integer("cpus", 0, "CPU cores for each job; 0 for the platform's default.")
    flags.DEFINE_integer("memory_gib", 0, "Memory for each job; 0 for the platform's default.")
    flags.DEFINE_string("python", "python", "For --platform=local, the interpreter to use.")
    flags.DEFINE_string("base_image", "python:3.12-slim", "Container image to build on.")
    flags.DEFINE_multi_string(
        "volume", [], "For --platform=docker, a path to mount for jobs; repeatable."
    )
    entry_point.run(main, may_be_remote=True)
