"""Start the stages, and sweeps of them: on this machine, on Slurm, on a TPU slice.

    python -m xlm.launch.start --config=configs/finetune/xnli.py:DATA --workdir=runs/xnli \\
        --stages=finetune --config.init_from=CHECKPOINT --grid=vocap --seeds=5 --dry_run

Jobs start one after the other. Run the same command again to resume: finished stages do nothing.
--on=slurm submits slurm.sh as the batch script of each job, with options after --:

    python -m xlm.launch.start --on=slurm --config=configs/X.py --workdir=/shared/X -- --nodes=4

--on=tpu_pod runs each job by tpu_pod.sh on one TPU slice, with the variables of the environment. To
change a script, edit a copy and give it by --script.
"""

import pathlib
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence

from absl import flags, logging

from xlm.common import entry_point, places
from xlm.launch import jobs

# Exit status of a training run that saved its state, to be restarted. It equals
# xlm.training.signals.EXIT_STOPPED, whose import needs jax.
EXIT_STOPPED = 75


def commands(
    job: jobs.Job, where: str, script: str, *, python: str, name: str, options: Sequence[str] = ()
) -> list[list[str]]:
    """Return the commands that start a job, in sequence; the TPU slice is called `name`."""
    given = [f"--{flag}={value}" for flag, value in job.flags().items()]
    called = [script, ",".join(job.stages), *given]
    if where == "tpu_pod":  # its hosts link the shared folders
        folders = [f"WORKDIR={job.workdir}", f"SHARED={job.shared}"] if job.shared else []
        return [["env", f"NAME={name}", *folders, "bash", *called]]
    is_url = places.is_url(job.workdir)
    prepare = (
        [["mkdir", "-p", job.workdir]] if (job.shared or where == "slurm") and not is_url else []
    )
    if job.shared:
        folders = [f"{job.shared}/vocab", f"{job.shared}/rows"]
        prepare.append(["ln", "-sf", *folders, f"{job.workdir}/"])
    if where == "slurm":
        folder = "" if is_url else job.workdir.replace("%", "%%") + "/"
        output = f"--output={folder}{job.name}-%j.out"
        named = [f"--job-name={job.name}", output, *options]
        return [*prepare, ["env", f"PYTHON={python}", "sbatch", *named, *called]]
    return [*prepare, *([python, f"{stage}.py", *given] for stage in job.stages)]


def run(
    planned: Mapping[str, list[list[str]]], execute: Callable[[list[str]], int], *, keep_going: bool
) -> None:
    """Run the commands of all jobs; ValueError if one fails, SystemExit if one is stopped."""
    failed = []
    for number, (workdir, of_job) in enumerate(planned.items(), start=1):
        logging.info("job %d of %d: %s", number, len(planned), workdir)
        status = next(filter(None, map(execute, of_job)), 0)
        if status == EXIT_STOPPED:
            sys.exit(status)
        if status:
            failed.append(f"{workdir} (status {status})")
        if failed and not keep_going:
            break
    if failed:
        raise ValueError(f"failed: {', '.join(failed)}; see above, run the same command to resume")


def _execute(command: list[str]) -> int:
    """Run a command in the repository; exit after a stop without a saved state."""
    asked: list[int] = []
    with subprocess.Popen(command, cwd=jobs.ROOT) as process:

        def stop(number: int, _) -> None:
            asked.append(number)
            if number == signal.SIGTERM:  # Ctrl-C reaches the command by itself
                process.send_signal(number)

        before = {one: signal.signal(one, stop) for one in (signal.SIGTERM, signal.SIGINT)}
        try:
            status = process.wait()
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
    if asked and status != EXIT_STOPPED:
        sys.exit(128 + asked[0])  # as a shell does
    return status


def main(arguments: list[str]) -> None:
    values, options = flags.FLAGS, arguments[1:]
    if options and values.on != "slurm":
        raise ValueError(f"{options[0]!r} is for sbatch; leave it out, or give --on=slurm")
    if values.on == "local" and not places.is_url(values.workdir):
        values.workdir = str(pathlib.Path(values.workdir).absolute())
    jobs.check_line("python", values.python)
    script = values.script or pathlib.Path(__file__).with_name(f"{values.on}.sh")
    found = jobs.jobs_from_flags()
    settings = {"python": values.python, "name": jobs.title(found), "options": options}
    script = str(pathlib.Path(script).absolute())
    planned = {job.workdir: commands(job, values.on, script, **settings) for job in found}
    if values.dry_run:
        for of_job in planned.values():
            print(*map(shlex.join, of_job), sep="\n")
        return
    run(planned, _execute, keep_going=values.keep_going)


if __name__ == "__main__":
    jobs.define_flags()
    flags.DEFINE_enum("on", "local", ("local", "slurm", "tpu_pod"), "Where the jobs run.")
    flags.DEFINE_string("script", "", "Edited copy of slurm.sh or tpu_pod.sh to use instead.")
    flags.DEFINE_string("python", sys.executable, "Interpreter here and on the nodes of Slurm.")
    flags.DEFINE_bool("keep_going", False, "Start the next job after a failure.")
    entry_point.run(main, may_be_remote=True)
