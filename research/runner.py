"""Execution of a study's runs: commands as parallel processes, one core each, with resume.

A run is done when its folder has `measured.jsonl`, its last file. The runner plans the runs of a
study, and starts those without results whose needs are done. After each run it plans again. So a
second call with the same WORKDIR starts only missing runs. It rebuilds the needs of a result, such
as an encoder, only if the result is missing. Commands keep their own state as well: a stopped
training resumes at its last checkpoint.
"""

import concurrent.futures
import contextlib
import os
import pathlib
import queue
import re
import shlex
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from types import FrameType
from typing import Any

from absl import logging
from ml_collections import ConfigDict

from input_pipeline import sources
from research import results, study
from research.results import ROOT, Results, Row
from research.study import Plan, Run, Step
from xlm.common import artifacts, entry_point
from xlm.experiment import data
from xlm.training.signals import EXIT_STOPPED

_ONE_THREAD = "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"
_SIGNALS = (signal.SIGTERM, signal.SIGINT)
# One per process, like signals. A handler may change these sets and lists at any time.
_running: set[subprocess.Popen] = set()
_asked: list[int] = []
_before: dict[int, Any] = {}

# 1. Processes, which stop when this one stops.


@contextlib.contextmanager
def stopped_together() -> Iterator[None]:
    """On SIGTERM or Ctrl-C, stop the running processes, and exit at the end of the block.

    A stage saves its state on SIGTERM (`xlm.training.signals`). If only the runner ended, the stage
    would continue and keep its folder locked. Inner blocks and blocks of other threads do nothing.
    After a signal, raise SystemExit with `EXIT_STOPPED`.
    """
    if _before or threading.current_thread() is not threading.main_thread():
        yield
        return
    _asked.clear()
    _before.update({number: signal.signal(number, _stop) for number in _SIGNALS})
    try:
        yield
    finally:
        for number, handler in _before.items():
            signal.signal(number, handler)
        _before.clear()
    if _asked:
        sys.exit(EXIT_STOPPED)


def _stop(number: int, frame: FrameType | None) -> None:
    del frame
    logging.warning("%s: stopping the running processes", signal.Signals(number).name)
    _asked.append(number)
    for process in tuple(_running):
        # SIGTERM for Ctrl-C as well. The terminal has sent them SIGINT, and a second SIGINT would
        # end them before they save.
        process.terminate()
    if number == signal.SIGINT:
        signal.signal(number, signal.default_int_handler)


def execute(
    command: Sequence[str], log: pathlib.Path, environment: Mapping[str, str] | None = None
) -> None:
    """Run a command of this repository, and append its output to a log.

    Raise ValueError if it fails, and SystemExit if it or this process got a signal to stop.
    """
    log.parent.mkdir(parents=True, exist_ok=True)
    with stopped_together(), open(log, "a", encoding="utf-8") as file:
        if _asked:
            sys.exit(EXIT_STOPPED)
        options: dict[str, Any] = {"cwd": ROOT, "env": environment, "stdout": file, "stderr": file}
        with subprocess.Popen(command, **options) as process:
            _running.add(process)
            try:
                if _asked:  # before `_running` had it
                    process.terminate()
                process.wait()
            finally:
                _running.discard(process)
        # Most stages exit with another status: they save no state, and start again.
        if process.returncode == EXIT_STOPPED or (_asked and process.returncode):
            sys.exit(EXIT_STOPPED)
    if process.returncode:
        last = log.read_text(encoding="utf-8").rstrip().rpartition("\n")[2]
        raise ValueError(f"{shlex.join(command[1:4])} failed; {log} ends with: {last}")


# 2. A run.


def resolved(word: str, data: pathlib.Path, workdir: pathlib.Path) -> str:
    """Return a word of a command with folders for DATA and WORKDIR."""
    folders = {"DATA": str(data.absolute()), "WORKDIR": str(workdir.absolute())}
    return re.sub(r"\b(DATA|WORKDIR)(?=/|,|'|\"|$)", lambda found: folders[found[1]], word)


def words_of(run: Run, step: Step) -> list[str]:
    """Return the words of a step after the interpreter, with DATA and WORKDIR still in them."""
    words = list(step.words)
    if step.has_config:
        overrides = {**run.overrides, **step.overrides}
        words += [f"--config={run.config}", f"--workdir={run.path}"]
        words += [f"--config.{key}={value}" for key, value in overrides.items()]
    return words


def do(run: Run, plan: Plan, workdir: pathlib.Path, command: str, *, one_thread: bool) -> None:
    """Execute a run; write its results last."""
    assert plan.data
    folder = workdir / run.folder
    folder.mkdir(parents=True, exist_ok=True)
    for name, target in run.links.items():
        if not (folder / name).is_symlink():
            (folder / name).symlink_to(os.path.relpath(workdir / target, folder))
    environment = {
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "JAX_COMPILATION_CACHE_DIR": str((workdir / "compiled").absolute()),
        **os.environ,
    }
    if one_thread:
        environment["XLA_FLAGS"] = f"{environment.get('XLA_FLAGS', '')} {_ONE_THREAD}".strip()
    for step in run.steps:
        words = [resolved(word, plan.data, workdir) for word in words_of(run, step)]
        execute([sys.executable, *words], folder / "log.txt", environment)
    content = run.measure(folder) if run.measure else {}
    origin = (dict(run.overrides), results.commit(), command, results.now())
    rows = [
        Row(plan.name, run.name, run.seed, metric, item, value, *origin)
        for metric, item, value in results.flat(content)
    ]
    results.write(folder / results.MEASURED, rows)


# 3. All runs.


def claim(workdir: pathlib.Path, config: ConfigDict) -> artifacts.Stage:
    """Refuse a working directory with runs of another config or other text.

    Its finished runs would count as runs of the present settings. Text may move: this compares only
    names and sizes of files, and the stages record a digest.
    """
    spec = data.corpus_spec(config)
    paths = {one.path for one in sources.find_text(spec)}
    paths.update(path for one in sources.find_parallel(spec) for path in one.files)
    sizes = sorted((os.path.relpath(path, spec.root), path.stat().st_size) for path in paths)
    settings = config.to_dict()
    for section, key in (("corpus", "root"), ("vocab", "num_workers"), ("store", "num_workers")):
        del settings[section][key]  # they change no result
    return artifacts.open_stage(workdir, {**settings, "text": artifacts.fingerprint(sizes)})


class _Pool:
    """Workers, each on its own core with `pin`."""

    def __init__(self, workers: int, pin: bool):
        available = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
        cores: queue.SimpleQueue[int] = queue.SimpleQueue()
        for worker in range(workers if pin and available else 0):
            cores.put(available[worker % len(available)])

        def keep_to_a_core() -> None:
            if pin and available:
                # Affects only the calling thread and the processes that it starts.
                os.sched_setaffinity(0, {cores.get()})

        self.size = workers
        self.threads = concurrent.futures.ThreadPoolExecutor(workers, initializer=keep_to_a_core)


def run(
    name: str,
    arguments: Sequence[str],
    *,
    data: pathlib.Path,
    workdir: pathlib.Path,
    with_records: bool = False,
    workers: int = 2,
    pin: bool = True,
) -> None:
    """Execute the missing runs of a study, `workers` at a time; `arguments` as in `study.plan`.

    Args:
      with_records: whether runs in the records count as done.
      pin: whether each run has one core and one thread.

    Raises:
      ValueError: runs failed, after the end of all others.
      SystemExit: this process, or a run, got a signal to stop.
    """
    recorded = list(results.read(results.RECORDS / f"{name}.jsonl", name)) if with_records else []
    known = Results([*recorded, *results.in_folder(workdir)])
    plan = study.plan(name, arguments, results=known, data=data)
    stage = claim(workdir, plan.config(plan.study.config))
    command = shlex.join(["python", "-m", "research", "run", name, *arguments])
    with stage.locked():
        failed = _execute_all(plan, workdir, command, _Pool(workers, pin), pin)
        results.write(workdir / results.RESULTS, [*recorded, *results.in_folder(workdir)])
    if failed:
        first = next(iter(failed.values()))
        raise ValueError(f"{len(failed)} runs of {name} failed, all others are done: {first}")


def _execute_all(
    plan: Plan, workdir: pathlib.Path, command: str, pool: _Pool, pin: bool
) -> dict[tuple[str, int | None], str]:
    """Start runs whose needs are done, until none is left; return the errors of failed runs."""
    failed: dict[tuple[str, int | None], str] = {}
    begun: dict[concurrent.futures.Future, Run] = {}
    with stopped_together(), pool.threads:
        while True:
            wanted = needed(plan, workdir)
            busy = {*failed, *(one.key for one in begun.values())}
            ready = [
                one
                for one in wanted
                if one.key not in busy and all(is_made(each, workdir) for each in one.needs)
            ]
            for one in ready[: pool.size - len(begun)] if not _asked else []:
                logging.info("%s: started, %d left", one.folder, len(wanted))
                task = pool.threads.submit(_timed, one, plan, workdir, command, pin)
                begun[task] = one
            if not begun:
                return failed
            done, _ = concurrent.futures.wait(begun, return_when=concurrent.futures.FIRST_COMPLETED)
            for task in done:
                one = begun.pop(task)
                if error := task.result():
                    failed[one.key] = error
                    logging.error("%s: %s", one.folder, error)
                plan.results.update(results.read(workdir / one.folder / results.MEASURED))


def _timed(run: Run, plan: Plan, workdir: pathlib.Path, command: str, pin: bool) -> str:
    """Execute a run; return its error message. Other runs continue."""
    begin = time.monotonic()
    try:
        do(run, plan, workdir, command, one_thread=pin)
    except ValueError as error:  # user input, so no traceback
        return str(error)
    except Exception as error:
        logging.error("a run has failed", exc_info=error)
        return f"{type(error).__name__}: {entry_point.describe(error)}"
    logging.info("%s: %.0f s", run.folder, time.monotonic() - begin)
    return ""


def is_made(run: Run, workdir: pathlib.Path) -> bool:
    """Return whether a run's folder is complete."""
    return (workdir / run.folder / results.MEASURED).exists()


def needed(plan: Plan, workdir: pathlib.Path) -> list[Run]:
    """Return the runs without results, each after its missing needs."""
    found: dict[tuple[str, int | None], Run] = {}

    def add(run: Run) -> None:
        if run.key not in found and not is_made(run, workdir):
            for one in run.needs:
                add(one)
            found[run.key] = run

    for run in plan.study.runs(plan):
        if run.measure and run.key not in plan.results:
            add(run)
    return list(found.values())
