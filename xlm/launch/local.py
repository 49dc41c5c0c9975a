"""Run the stages, and sweeps of them, on this machine, one job at a time.

    python -m xlm.launch.local --config=configs/finetune/xnli.py:DATA --workdir=runs/xnli \\
        --stages=finetune --config.init_from=CHECKPOINT --grid=vocap --seeds=5 --dry_run

If it is run again after a stop, it resumes: finished stages do nothing. A failed job ends the
command; with --keep_going it continues with the next job and reports the failures at the end.
"""

import pathlib
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence

from absl import flags, logging

from xlm.common import entry_point
from xlm.launch import jobs


def commands(job: jobs.Job, python: str) -> list[str]:
    """Shell commands of a job, in order."""
    return [*job.link_commands(), *(job.command(stage, python) for stage in job.stages)]


def run(
    found: Sequence[jobs.Job], python: str, execute: Callable[[str], int], *, keep_going: bool
) -> None:
    """Run all commands of all jobs in sequence.

    Args:
      python: the interpreter.
      execute: function that runs a shell command and returns its exit status.
      keep_going: whether to continue after a failed job.

    Raises:
      ValueError: jobs failed.
      SystemExit: a job was asked to stop.
    """
    failed = []
    for number, job in enumerate(found, start=1):
        logging.info("job %d of %d: %s", number, len(found), job.workdir)
        for command in commands(job, python):
            status = execute(command)
            if status == jobs.EXIT_STOPPED:
                sys.exit(status)
            if status:
                failed.append(f"{job.workdir} (status {status})")
                break
        if failed and not keep_going:
            break
    if failed:
        raise ValueError(f"failed: {', '.join(failed)}; see above, the same command goes on")


def _execute(command: str) -> int:
    """Run a command in the repository, and wait for it when it is stopped.

    Raises:
      SystemExit: SIGTERM or Ctrl-C has stopped it without a saved state, as of most stages.
    """
    asked: list[int] = []
    with subprocess.Popen(["bash", "-c", f"exec {command}"], cwd=jobs.ROOT) as process:

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
    if asked and status != jobs.EXIT_STOPPED:
        sys.exit(128 + asked[0])  # as of a shell
    return status


def main(_) -> None:
    values = flags.FLAGS
    values.workdir = str(pathlib.Path(values.workdir).absolute())
    found = jobs.jobs_from_flags()
    if values.dry_run:
        for job in found:
            print(*commands(job, values.python), sep="\n")
        return
    run(found, values.python, _execute, keep_going=values.keep_going)


if __name__ == "__main__":
    jobs.define_flags(stages="train")
    flags.DEFINE_string("python", sys.executable, "Interpreter with the project's requirements.")
    flags.DEFINE_bool("keep_going", False, "Take the next job after one that failed.")
    entry_point.run(main, may_be_remote=True)
