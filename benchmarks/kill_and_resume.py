"""Kill the commands of a small job repeatedly, and compare results with an uninterrupted run.

    python -m benchmarks.kill_and_resume --kills=45
    python -m benchmarks.kill_and_resume --kills=12 --kill=main
    python -m benchmarks.kill_and_resume --kills=12 --kill=worker
    python -m benchmarks.kill_and_resume --stages=train --config=configs/xy_lent.py:runlocal

Every stage, from a vocabulary to translations, runs once without interruption. Then SIGKILL ends
its command at random moments after its first write, and the command starts again, until its share
of --kills has landed. Then all files and the arrays of the last checkpoint must be equal to the
bit. Otherwise the exit status is 1. --kill selects the processes to kill:

- group: all processes, as when a machine stops.
- main: only the main process. After --grace seconds its workers must be gone, and no file may
  change any more.
- worker: one worker. The command must end with a plain error and status 2 or 3.

For main and worker, the default --stages are those with workers, found in /proc. --stops adds
SIGTERMs: training must save and end with status 75, other commands with 143. --config and
--config.KEY=VALUE are for pre-training. By default it updates the embedding table by rows, the mode
with the most state. Moments are counted in file changes, so they often hit saves.

Hardware: 2 CPU cores; 45 kills take 10 minutes.
"""

import collections
import contextlib
import os
import pathlib
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from typing import Any

from absl import app, flags
from ml_collections import config_flags

from benchmarks import small_job

_CONFIG = config_flags.DEFINE_config_file("config", small_job.CONFIG, "Config of pre-training.")
_KILLS = flags.DEFINE_integer("kills", 45, "Kills by SIGKILL, over all stages.", lower_bound=0)
_STOPS = flags.DEFINE_integer("stops", 0, "Additional stops by SIGTERM.", lower_bound=0)
_KILL = flags.DEFINE_enum("kill", "group", ["group", "main", "worker"], "Processes to kill.")
_STAGES = flags.DEFINE_list("stages", None, "Stages to interrupt; earlier ones run once.")
_STEPS = flags.DEFINE_integer("steps", 60, "Steps of pre-training.")
_SEED = flags.DEFINE_integer("seed", 0, "Random seed of the moments.")
_MEGABYTES = flags.DEFINE_float("megabytes", 9.0, "Megabytes of text; below 4 no worker starts.")
_GRACE = flags.DEFINE_float("grace", 5.0, "Seconds that workers may outlive the main process.")

_POLL = 0.001  # seconds; a save takes tens of milliseconds
_HAVE_WORKERS = ("count", "build_vocab", "prepare_data")
_TRAINING = ("train", "finetune", "translation")
_EXIT_STOPPED = 75
# Counts text as a stream in workers, as commands do from 256 MB on.
_COUNT = (
    "-c",
    "import runpy, sys; from xlm.experiment import counted_text; counted_text.STREAMED_FROM = 1; "
    "sys.argv = sys.argv[1:]; runpy.run_path(sys.argv[0], run_name='__main__')",
)


def children(process: int) -> list[int]:
    """Return the workers of a process: children that multiprocessing spawned for tasks."""
    found = []
    for path in pathlib.Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError, ValueError):
            parent = int(path.read_text().rpartition(")")[2].split()[1])
            command = (path.parent / "cmdline").read_bytes()
            if parent == process and b"multiprocessing.spawn" in command:
                found.append(int(path.parent.name))
    return found


def wait_for_changes(
    run: small_job.Run, process: subprocess.Popen, count: int, needs_worker: bool
) -> int | None:
    """Wait for `count` file changes, and for a worker if needed.

    Return the worker, 0 if none is needed, or None if the command ended.
    """
    before, seen = run.signature(), 0
    while process.poll() is None:
        now = run.signature()
        seen += now != before
        before = now
        if seen >= count:
            if not needs_worker:
                return 0
            if workers := children(process.pid):
                return workers[-1]
        time.sleep(_POLL)
    return None


def count_changes(run: small_job.Run) -> int:
    """Run a stage to its end; return the number of observed file changes."""
    before, seen = run.signature(), 0
    with run.started() as process:
        while process.poll() is None:
            now = run.signature()
            seen += now != before
            before = now
            time.sleep(_POLL)
        if process.returncode:
            raise RuntimeError(f"ended with {process.returncode}: {run.last_line()}")
    return max(seen, 1)


def interrupt(run: small_job.Run, who: str, changes: int, delay: float) -> tuple[bool, str]:
    """Start a stage and interrupt it; return whether it was interrupted, and any fault.

    It kills the "group", "main" or "worker" (`who`), or sends SIGTERM for "stop", `delay` seconds
    after some file changes.
    """
    with run.started() as process:
        found = wait_for_changes(run, process, changes, needs_worker=who == "worker")
        if found is None:
            status = process.wait()
            return False, f"ended with {status}: {run.last_line()}" if status else ""
        time.sleep(delay)
        workers = children(process.pid)
        if who == "stop":
            process.send_signal(signal.SIGTERM)
            return True, _fault_of_stop(run, process.wait(small_job.TIMEOUT))
        if who == "worker":
            with contextlib.suppress(ProcessLookupError):
                os.kill(found, signal.SIGKILL)
            return True, _fault_of_lost_worker(run, process)
        if who == "group":
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            return True, ""
        process.kill()
        process.wait()
        return True, _fault_of_orphans(run, workers)


def _fault_of_orphans(run: small_job.Run, workers: list[int]) -> str:
    time.sleep(_GRACE.value)
    left = [one for one in workers if pathlib.Path(f"/proc/{one}").exists()]
    before = run.signature()
    time.sleep(1)
    written = " and write" if run.signature() != before else ""
    return f"{len(left)} workers outlive the main process{written}" if left or written else ""


def _fault_of_lost_worker(run: small_job.Run, process: subprocess.Popen) -> str:
    try:
        status = process.wait(small_job.TIMEOUT)
    except subprocess.TimeoutExpired:
        return "hangs without its worker"
    if status == 0:  # the worker had nothing left to do
        return ""
    if status not in (2, 3):
        return f"without a worker status {status}: {run.last_line()}"
    return f"a traceback: {run.last_line()}" if run.has_traceback() else ""


def _fault_of_stop(run: small_job.Run, status: int) -> str:
    allowed = (0, _EXIT_STOPPED, -signal.SIGTERM, 128 + signal.SIGTERM)
    if status not in allowed:
        return f"asked to stop, status {status}: {run.last_line()}"
    return f"a traceback: {run.last_line()}" if run.has_traceback() else ""


def torment(
    run: small_job.Run,
    before: pathlib.Path,
    expected: dict[str, str],
    changes: int,
    kinds: list[str],
    rng: random.Random,
) -> collections.Counter[str]:
    """Interrupt a stage once for each of `kinds`, and resume; return counts, with faults as text.

    It replaces the job of `run`. `before` is the job before the stage, `expected` has digests of
    its results, and `changes` is the number of file changes of an uninterrupted run.
    """
    counts: collections.Counter[str] = collections.Counter()
    shutil.copytree(before, run.job)
    missed = 0
    while kinds:
        landed, fault = interrupt(run, kinds[-1], rng.randint(1, changes), rng.uniform(0, 0.03))
        if fault:
            counts[f"fault: {fault}"] += 1
        if landed:
            counts[kinds.pop()] += 1
            continue
        # It ended before the kill. Its results count, and the next kill is in a new run.
        missed += 1
        if fault or missed > 20 + 5 * counts.total():
            counts["fault: not interrupted"] += len(kinds)
            break
        counts += _compared(run, expected)
        shutil.rmtree(run.job)
        shutil.copytree(before, run.job)
    try:
        run.finish()
    except RuntimeError as error:
        counts[f"fault: resumed, it {error}"] += 1
        return counts
    return counts + _compared(run, expected)


def _compared(run: small_job.Run, expected: dict[str, str]) -> collections.Counter[str]:
    found = small_job.differences(expected, run.digests())
    if not found:
        return collections.Counter({"ends equal to the bit": 1})
    return collections.Counter({f"fault: {len(found)} results differ, such as {found[0]}": 1})


def overrides_of(steps: int) -> dict[str, Any]:
    """Return overridden keys of pre-training; flags --config.KEY take precedence."""
    given = config_flags.get_override_values(flags.FLAGS["config"])
    if "train.num_steps" in given:
        number = given["train.num_steps"]
        raise app.UsageError(f"--config.train.num_steps is {number}; give --steps={number} instead")
    return {
        "train.num_steps": steps,
        "train.checkpoint_every": max(steps // 6, 1),
        "train.evaluate_every": max(steps // 3, 1),
        "optimizer.embedding_update": "rows",
        **given,
    }


def wanted_stages() -> tuple[dict[str, small_job.Stage], list[str]]:
    """Return all stages, and the names of those to interrupt."""
    config = config_flags.get_config_filename(flags.FLAGS["config"])
    known = small_job.stages(config, overrides_of(_STEPS.value))
    build = known["build_vocab"]
    # Text as a stream; other stages need a vocabulary of text in memory.
    counted = {"count": small_job.Stage((*_COUNT, *build.arguments), build.results)}
    known = {**counted, **known}
    names = _STAGES.value or (list(known) if _KILL.value == "group" else _HAVE_WORKERS)
    if unknown := [name for name in names if name not in known]:
        raise app.UsageError(f"--stages: no {unknown[0]!r}, only {', '.join(known)}")
    return known, [name for name in known if name in names]


def main(_) -> None:
    known, names = wanted_stages()
    rng, total = random.Random(_SEED.value), collections.Counter[str]()
    kills = [
        _KILLS.value // len(names) + (n < _KILLS.value % len(names)) for n in range(len(names))
    ]
    stops = [
        _STOPS.value // len(names) + (n < _STOPS.value % len(names)) for n in range(len(names))
    ]
    print("| stage | |\n|---|---|")
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        environment = small_job.environment(folder / "compiled")
        job = folder / "job"
        small_job.write_inputs(job, _MEGABYTES.value, lines=20_000)
        for stage, one in known.items():
            if not set(names) & set(list(known)[list(known).index(stage) :]):
                break
            before, own = folder / "before", folder / stage
            shutil.copytree(job, before)
            whole = small_job.Run(one, job, environment)
            changes = count_changes(whole)
            if stage in names:
                number = names.index(stage)
                kinds = [_KILL.value] * kills[number] + ["stop"] * stops[number]
                rng.shuffle(kinds)
                counts = torment(
                    small_job.Run(one, own, environment),
                    before,
                    whole.digests(),
                    changes,
                    kinds,
                    rng,
                )
                total += counts
                said = "; ".join(f"{count} x {what}" for what, count in sorted(counts.items()))
                print(f"| {stage} | {changes} changes; {said} |", flush=True)
                shutil.rmtree(own)
            if stage == "count":
                shutil.rmtree(job)
                shutil.copytree(before, job)
            shutil.rmtree(before)
    sys.exit(report(total))


def report(total: collections.Counter[str]) -> int:
    """Print totals; return the exit status."""
    from benchmarks.machine import describe_machine

    faults = sum(count for what, count in total.items() if what.startswith("fault"))
    landed = ", ".join(f"{total[kind]} x {kind}" for kind in ("group", "main", "worker", "stop"))
    print(f"\n{describe_machine()}; seed {_SEED.value}: {landed}; {faults} faults")
    return int(faults > 0)


if __name__ == "__main__":
    app.run(main)
