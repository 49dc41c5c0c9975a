"""Run the stages on a Cloud TPU slice, of one host or of hundreds.

    python -m xlm.launch.tpu_pod --config=configs/X.py --workdir=/mnt/bucket/X \
        --zone=us-east5-b --accelerator=v6e-256 --runtime=v2-alpha-tpuv6e --dry_run

Requests a queued resource, copies the code to all hosts of the slice, installs the requirements,
and starts training, evaluation or fine-tuning on all hosts, joined by jax.distributed; the other
stages run on the first host. What was asked to stop and has saved is restarted; if the slice was
preempted, a new one is requested first. Jobs of a sweep run one after the other, each on a slice of
its own, of which one at a time is held. Requires an authenticated gcloud and a git checkout.
"""

import dataclasses
import pathlib
import shlex
import subprocess
import tarfile
import tempfile
import time
from collections.abc import Callable, Sequence

from absl import flags, logging

from xlm.common import entry_point
from xlm.launch import jobs

_POLL_SECONDS = 30.0
# A query may fail once, while the request waits and is paid for.
_UNANSWERED = 5
_ENDED = ("FAILED", "SUSPENDING", "SUSPENDED", "DELETING")


@dataclasses.dataclass(frozen=True)
class Pod:
    """TPU slice and its setup.

    Attributes:
      name: of the slice and of the queued resource.
      zone: such as "us-east5-b".
      accelerator: type and size of the slice, such as "v6e-256".
      runtime: the image of its hosts, such as "v2-alpha-tpuv6e".
      project: Cloud project; "" for gcloud's default.
      spot: whether to use spot capacity, cheaper but preemptible.
      python: interpreter on the hosts, 3.11 or later; installed by apt where it is missing.
      setup: shell command run first on every host, such as one that mounts a bucket.
    """

    name: str
    zone: str
    accelerator: str
    runtime: str
    project: str = ""
    spot: bool = False
    python: str = "python3.11"
    setup: str = ""

    def __post_init__(self):
        jobs.check_name(self.name)
        for field in ("zone", "accelerator", "runtime", "python"):
            jobs.check_word(field, getattr(self, field))
        if self.project:
            jobs.check_word("project", self.project)

    def create(self) -> list[str]:
        """Request the slice as a queued resource."""
        return self._queue(
            "create",
            f"--node-id={self.name}",
            f"--accelerator-type={self.accelerator}",
            f"--runtime-version={self.runtime}",
            *(["--spot"] if self.spot else []),
        )

    def describe(self) -> list[str]:
        """Print the state of the queued resource, such as ACTIVE."""
        return self._queue("describe", "--format=value(state.state)")

    def delete(self) -> list[str]:
        """Release the slice, or cancel the request."""
        return self._queue("delete", "--force", "--quiet")

    def copy(self, archive: str) -> list[str]:
        """Copy the archive of the code to all hosts."""
        return self._vm("scp", archive, f"{self.name}:code.tar.gz", "--worker=all")

    def install(self) -> list[str]:
        """Unpack the code and create the environment on all hosts."""
        jax = shlex.quote(jobs.jax_requirement("tpu"))
        version = shlex.quote(f"{self.python}-venv")
        steps = [
            *([self.setup] if self.setup else []),
            "rm -rf code && mkdir code && tar -xzf code.tar.gz -C code",
            f"if ! {self.python} -m venv .venv; then sudo apt-get update && "
            f"sudo apt-get install -y {version} && {self.python} -m venv .venv; fi",
            f".venv/bin/pip install --quiet -r code/requirements.txt {jax}",
        ]
        return self._ssh("all", steps)

    def stage(self, job: jobs.Job, stage: str) -> list[str]:
        """Run a stage on all hosts, or on the first where it is one process."""
        enter, python = "cd code", "../.venv/bin/python"
        if stage in jobs.DISTRIBUTED:
            return self._ssh("all", [enter, job.command(stage, python, "--distributed")])
        # On its TPU cores jax would wait for the other hosts.
        return self._ssh("0", [enter, f"JAX_PLATFORMS=cpu {job.command(stage, python)}"])

    def link(self, job: jobs.Job) -> list[str]:
        """Link the shared vocabulary and packed dataset of a sweep."""
        return self._ssh("0", job.link_commands())

    def _ssh(self, worker: str, steps: Sequence[str]) -> list[str]:
        command = " && ".join(steps)
        return self._vm("ssh", self.name, f"--worker={worker}", f"--command={command}")

    def _vm(self, *arguments: str) -> list[str]:
        return ["gcloud", "compute", "tpus", "tpu-vm", *arguments, *self._where()]

    def _queue(self, verb: str, *arguments: str) -> list[str]:
        group = ["gcloud", "compute", "tpus", "queued-resources", verb, self.name]
        return [*group, *arguments, *self._where()]

    def _where(self) -> list[str]:
        project = [f"--project={self.project}"] if self.project else []
        return [f"--zone={self.zone}", *project]


# Function of a command that returns its exit status and output.
Execute = Callable[[list[str]], tuple[int, str]]


def commands(pod: Pod, job: jobs.Job, *, is_last: bool = True) -> list[list[str]]:
    """All commands of a run without failures, for the dry run."""
    return [
        pod.create(),
        pod.describe(),
        pod.copy("code.tar.gz"),
        pod.install(),
        *([pod.link(job)] if job.shared else []),
        *(pod.stage(job, stage) for stage in job.stages),
        *([] if is_last else [pod.delete()]),
    ]


def run_all(
    found: Sequence[tuple[Pod, jobs.Job]],
    archive: str,
    execute: Execute,
    *,
    restarts: int,
    sleep: Callable[[float], None] = time.sleep,
) -> None:
    """Run jobs one after the other, each on its slice.

    The slice of a job is deleted before the next one is requested, which a quota of one slice would
    let wait for ever. That of the last job is kept, as is that of a job that failed. Jobs with a
    slice are taken first: the others would wait for it.

    Args:
      found: the jobs, each with its slice.
      restarts: most restarts of a stage that was stopped or preempted.
      sleep: function that waits for a number of seconds.

    Raises:
      ValueError: a job failed; the following ones are not started.
    """
    is_held = {pod.name: bool(_state(pod, execute)) for pod, _ in found} if found[1:] else {}
    found = sorted(found, key=lambda one: not is_held.get(one[0].name))
    for number, (pod, job) in enumerate(found, start=1):
        try:
            run(pod, job, archive, execute, restarts=restarts, sleep=sleep)
            if number < len(found):
                _must(execute, pod.delete())
        except ValueError as error:
            held = _held([one for one, _ in found], execute)
            raise ValueError(f"{pod.name}: {error}; {held}") from error


def delete_all(pods: Sequence[Pod], execute: Execute) -> None:
    """Delete slices; of several, some may be deleted already.

    Raises:
      ValueError: none could be deleted, or one is still there.
    """
    failed = [pod for pod in pods if execute(pod.delete())[0]]
    if failed and (failed == list(pods) or any(_state(pod, execute) for pod in failed)):
        names = ", ".join(pod.name for pod in failed)
        raise ValueError(f"gcloud did not delete {names}, see above; {_held(failed, execute)}")
    for pod in failed:
        logging.warning("%s: gcloud finds no such slice, see above", pod.name)


def _held(pods: Sequence[Pod], execute: Execute) -> str:
    """End of an error message: the slices that there are, and the commands that delete them."""
    states = {pod: state for pod in pods if (state := _state(pod, execute))}
    if not states:
        return "gcloud finds no slice still held; if it does not answer, try --delete later"
    by_name = (f"{pod.name}, {state}: {shlex.join(pod.delete())}" for pod, state in states.items())
    return f"still held, and paid for until deleted: {'; '.join(by_name)}"


def run(
    pod: Pod,
    job: jobs.Job,
    archive: str,
    execute: Execute,
    *,
    restarts: int,
    sleep: Callable[[float], None] = time.sleep,
) -> None:
    """Run the stages of a job to completion.

    Args:
      restarts: most restarts of a stage that was stopped or preempted.
      sleep: function that waits for a number of seconds.

    Raises:
      ValueError: a command failed for another reason, or exceeded the restarts.
    """
    is_ready = False
    for stage in job.stages:
        for left in range(restarts, -1, -1):
            if not is_ready:
                _make_ready(pod, job, archive, execute, sleep)
                is_ready = True
            status, _ = execute(pod.stage(job, stage))
            if status == 0:
                break
            is_ready = _state(pod, execute) == "ACTIVE"
            if is_ready and status != jobs.EXIT_STOPPED:
                raise ValueError(
                    f"{stage}.py ended with status {status}, see above; the same command goes on"
                )
            if left == 0:
                raise ValueError(
                    f"{stage}.py was stopped, or lost its slice, {restarts + 1} times; the same "
                    "command goes on, --restarts allows for more"
                )
            logging.warning("%s was interrupted (status %d); starting again", stage, status)


def _make_ready(
    pod: Pod, job: jobs.Job, archive: str, execute: Execute, sleep: Callable[[float], None]
) -> None:
    """Ensure an active slice on which the code is installed."""
    state = _state(pod, execute)
    if state in _ENDED:
        _must(execute, pod.delete())
        state = ""
    if not state:
        _must(execute, pod.create())
    unanswered = 0  # in a row
    while (state := _state(pod, execute)) != "ACTIVE":
        unanswered = 0 if state else unanswered + 1
        if state in _ENDED or unanswered > _UNANSWERED:
            raise ValueError(
                f"the queue gave {pod.name} no slice: {state or 'gcloud does not find it'}; if it "
                "is still queued, the same command goes on, --delete gives it back"
            )
        logging.info("%s: %s", pod.name, state or "no answer")
        sleep(_POLL_SECONDS)
    _must(execute, pod.copy(archive))
    _must(execute, pod.install())
    if job.shared:
        _must(execute, pod.link(job))


def _state(pod: Pod, execute: Execute) -> str:
    """State of the queued resource; "" if it does not exist, or gcloud could not be asked."""
    status, output = execute(pod.describe())
    return output.strip() if status == 0 else ""


def _must(execute: Execute, command: list[str]) -> None:
    status, _ = execute(command)
    if status:
        raise ValueError(f"status {status} of: {shlex.join(command)}")


def _execute(command: list[str]) -> tuple[int, str]:
    """Run a command; capture the output of a query, and show that of all others."""
    logging.info("$ %s", shlex.join(command))
    stdout = subprocess.PIPE if "describe" in command else None
    done = subprocess.run(command, stdout=stdout, text=True)
    return done.returncode, done.stdout or ""


def _pack(archive: pathlib.Path) -> None:
    with tarfile.open(archive, "w:gz") as tar:
        for name in jobs.code_files():
            tar.add(jobs.ROOT / name, name)


def main(_) -> None:
    values = flags.FLAGS
    fields = [field.name for field in dataclasses.fields(Pod) if field.name != "name"]
    settings = {field: values[field].value for field in fields}
    found = [(Pod(job.name, **settings), job) for job in jobs.jobs_from_flags()]
    if values.dry_run:
        for pod, job in found:
            is_last = job is found[-1][1]
            planned = [pod.delete()] if values.delete else commands(pod, job, is_last=is_last)
            print(*map(shlex.join, planned), sep="\n", end="\n\n")
    elif values.delete:
        delete_all([pod for pod, _ in found], _execute)
    else:
        with tempfile.TemporaryDirectory() as folder:
            archive = pathlib.Path(folder) / "code.tar.gz"
            _pack(archive)
            run_all(found, str(archive), _execute, restarts=values.restarts)


if __name__ == "__main__":
    jobs.define_flags(stages="train")
    flags.DEFINE_string("zone", None, "Such as us-east5-b.")
    flags.DEFINE_string("accelerator", None, "Type and size, such as v6e-256.")
    flags.DEFINE_string("runtime", None, "Image of the hosts, such as v2-alpha-tpuv6e.")
    flags.DEFINE_string("project", "", "Cloud project; by default gcloud's.")
    flags.DEFINE_bool("spot", False, "Cheaper, and taken away at any time.")
    flags.DEFINE_string("python", "python3.11", "Interpreter on the hosts, 3.11 or later.")
    flags.DEFINE_string("setup", "", "Run on every host first, e.g. to mount a bucket.")
    flags.DEFINE_integer(
        "restarts", 20, "How often an interrupted stage is started again.", lower_bound=0
    )
    flags.DEFINE_bool("delete", False, "Give the slices back, and do nothing else.")
    required = ("config", "workdir", "zone", "accelerator", "runtime")
    entry_point.run(main, required, may_be_remote=True)
