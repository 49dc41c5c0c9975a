"""Run the stages on a Slurm cluster.

    python -m xlm.launch.slurm --config=configs/X.py --workdir=/shared/X --nodes=4 --gpus=8
    --dry_run

Each job of the sweep is one batch job. Training, evaluation and fine-tuning run in one process per
GPU, joined by jax.distributed, which reads the job from Slurm's variables; the other stages run in
one process on the first node. Five minutes before the time limit, and on preemption, a run is
signalled to save and stop; the job is then requeued and resumes.
"""

import dataclasses
import pathlib
import re
import shlex
import subprocess
import sys

from absl import flags

from xlm.common import entry_point
from xlm.launch import jobs

# What can stand in a line #SBATCH --OPTION, a comment that no shell evaluates. There sbatch splits
# at blanks, and gives a meaning to quotes, backslashes and "#".
_OPTION = re.compile(r"""(?!-)[^\s"'#\\\x00-\x1f\x7f-\x9f]+""")


@dataclasses.dataclass(frozen=True)
class Cluster:
    """Resources and settings of a Slurm job.

    Attributes:
      nodes: number of machines.
      gpus: GPUs per machine; 0 to train on CPUs with one process per machine.
      cpus: CPU cores per process.
      time: time limit in Slurm's format; "" for the partition's.
      grace: seconds before the limit at which training is signalled to stop.
      options: further options of sbatch, such as "partition=long".
      python: interpreter on the nodes.
      code: path of the repository on the nodes.
    """

    nodes: int
    gpus: int
    cpus: int
    time: str = ""
    grace: int = 300
    options: tuple[str, ...] = ()
    python: str = "python"
    code: str = str(jobs.ROOT)

    def __post_init__(self):
        for name, least in (("nodes", 1), ("gpus", 0), ("cpus", 1), ("grace", 1)):
            if getattr(self, name) < least:
                raise ValueError(f"--{name} is {getattr(self, name)}, must be at least {least}")
        for option in self.options:
            if not _OPTION.fullmatch(option):
                raise ValueError(
                    f"--options is {option!r}, must be one option of sbatch without its hyphens, "
                    "such as partition=long, and without blanks, controls, quotes, # and \\"
                )
        jobs.check_line("code", self.code)
        if self.time:
            jobs.check_word("time", self.time)


def batch_script(job: jobs.Job, cluster: Cluster) -> str:
    """Batch script for sbatch."""
    options = [
        f"job-name={job.name}",
        # Not where the command is given, which is a checkout; % would begin a name of Slurm's.
        f"output={shlex.quote(job.workdir.replace('%', '%%'))}/{job.name}-%j.out",
        "open-mode=append",  # a requeued job appends to its output
        f"nodes={cluster.nodes}",
        # jax.distributed assigns to each process the GPU of its local rank, so all GPUs must be
        # visible to all processes: gpus-per-node, not gpus-per-task.
        f"ntasks-per-node={max(cluster.gpus, 1)}",
        *([f"gpus-per-node={cluster.gpus}"] if cluster.gpus else []),
        f"cpus-per-task={cluster.cpus}",
        *([f"time={cluster.time}"] if cluster.time else []),
        f"signal=TERM@{cluster.grace}",  # to the processes of a step, not to this script
        "requeue",
        *cluster.options,
    ]
    lines = [
        "#!/usr/bin/env bash",
        *(f"#SBATCH --{option}" for option in options),
        "set -euo pipefail",
        f"cd {shlex.quote(cluster.code)}",
        # srun does not inherit this from sbatch.
        f"export SRUN_CPUS_PER_TASK={cluster.cpus}",
        *job.link_commands(),
    ]
    for stage in job.stages:
        command = _command(job, cluster, stage)
        lines += _resumed(command) if stage in ("train", "finetune") else [command]
    return "\n".join(lines) + "\n"


def _command(job: jobs.Job, cluster: Cluster, stage: str) -> str:
    if stage not in jobs.DISTRIBUTED:
        options = "--nodes=1 --ntasks=1 --ntasks-per-node=1"
        return f"srun {options} {job.command(stage, cluster.python)}"
    is_one_process = cluster.nodes * max(cluster.gpus, 1) == 1
    command = job.command(stage, cluster.python, *(() if is_one_process else ("--distributed",)))
    # Processes that stop first must not end the others, which may still be saving.
    return f"srun --kill-on-bad-exit=0 --wait={cluster.grace} {command}"


def _resumed(command: str) -> list[str]:
    """Wrap a command to requeue the job if it ends with the status of a graceful stop."""
    return [
        "status=0",
        f"{command} || status=$?",
        f'if [ "$status" -eq {jobs.EXIT_STOPPED} ]; then',
        '  echo "stopped and saved; queueing again"',
        '  scontrol requeue "$SLURM_JOB_ID"',
        "fi",
        '[ "$status" -eq 0 ] || exit "$status"',
    ]


def submit(script: str) -> str:
    """Submit a script to sbatch; return its output."""
    try:
        done = subprocess.run(["sbatch"], input=script, capture_output=True, text=True)
    except FileNotFoundError:
        raise ValueError(
            "there is no sbatch here; run this on the cluster's login node, or with --dry_run to "
            "see the script"
        ) from None
    if done.returncode:
        raise ValueError(f"sbatch refused the job: {done.stderr.strip()}")
    return done.stdout.strip()


def main(_) -> None:
    values = flags.FLAGS
    cluster = Cluster(
        nodes=values.nodes,
        gpus=values.gpus,
        cpus=values.cpus,
        time=values.time,
        grace=values.grace,
        options=tuple(values.options),
        python=values.python,
    )
    for job in jobs.jobs_from_flags():
        script = batch_script(job, cluster)
        if values.dry_run:
            print(script)
        else:
            pathlib.Path(job.workdir).mkdir(parents=True, exist_ok=True)
            print(f"{job.name}: {submit(script)}")


if __name__ == "__main__":
    jobs.define_flags(stages="train")
    flags.DEFINE_integer("nodes", 1, "Machines.")
    flags.DEFINE_integer("gpus", 8, "GPUs of each machine; 0 for CPUs.")
    flags.DEFINE_integer("cpus", 8, "CPU cores of each process.")
    flags.DEFINE_string("time", "", "Time limit, e.g. 24:00:00; by default the partition's.")
    flags.DEFINE_integer("grace", 300, "Seconds before the limit at which training stops.")
    flags.DEFINE_multi_string("options", [], "Further option of sbatch, e.g. partition=long.")
    flags.DEFINE_string("python", sys.executable, "The interpreter on the nodes.")
    entry_point.run(main, may_be_remote=True)
