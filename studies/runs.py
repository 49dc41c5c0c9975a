"""Execution of a study's runs: stages as parallel processes, one core each."""

import concurrent.futures
import os
import pathlib
import queue
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from absl import flags, logging
from ml_collections import ConfigDict, config_flags

from builders import data
from common import artifacts, entry_point
from configs import grids
from input_pipeline import sources
from studies import processes

ROOT = pathlib.Path(__file__).resolve().parent.parent
_RESULTS = ("record.json", "results.json")  # of a finished run, which is not done again
_ONE_THREAD = "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"


def own_config() -> list[str]:
    """Return the flags of this command that define its config."""
    return [flag for flag in sys.argv if flag.startswith(("--config=", "--config."))]


def call(
    script: Sequence[str],
    config: Sequence[str],
    change: Mapping[str, Any],
    workdir: pathlib.Path,
    *,
    log: pathlib.Path,
    compiled: pathlib.Path | None = None,
    one_thread: bool = False,
) -> None:
    """Run a command under a modified config.

    Args:
      script: the command, and its flags.
      config: flags that define the config.
      change: values of the changed keys.
      workdir: working directory of the command.
      log: file that its output is appended to.
      compiled: folder of the compilation cache, shared by the runs of a study; None for that of the
        environment.
      one_thread: whether XLA uses a single thread.

    Raises:
      ValueError: the command failed.
      SystemExit: the command, or this process, was asked to stop.
    """
    changed = [f"--config.{key}={value}" for key, value in change.items()]
    execute(
        [*script, *config, *changed, f"--workdir={workdir.absolute()}"],
        name=" ".join(script),
        log=log,
        compiled=compiled,
        one_thread=one_thread,
    )


def execute(
    arguments: Sequence[str],
    *,
    name: str,
    log: pathlib.Path,
    compiled: pathlib.Path | None = None,
    one_thread: bool = False,
) -> None:
    """Run a command of this repository; see `call`, which adds what stages want.

    Args:
      arguments: of the Python interpreter.
      name: of the command, for messages.
      log, compiled, one_thread: see `call`.

    Raises:
      ValueError: the command failed.
      SystemExit: the command, or this process, was asked to stop.
    """
    environment = {"JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0", **os.environ}
    if compiled is not None:
        environment.setdefault("JAX_COMPILATION_CACHE_DIR", str(compiled.absolute()))
    if one_thread:
        environment["XLA_FLAGS"] = f"{environment.get('XLA_FLAGS', '')} {_ONE_THREAD}".strip()
    log.parent.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, *arguments]
    with open(log, "a", encoding="utf-8") as file:
        options = {"cwd": ROOT, "env": environment, "stdout": file, "stderr": file}
        with processes.started(command, **options) as process:
            pass
    if process.returncode:
        last = log.read_text(encoding="utf-8").rstrip().rpartition("\n")[2]
        raise ValueError(f"{name} failed; {log} ends with: {last}")


def text_of(config: ConfigDict) -> dict[str, Any]:
    """Return what identifies the text of a config, wherever it lies.

    Names and sizes of its files below `corpus.root`, without reading them: a study asks each time
    it is started. The stages record a digest of the text itself.

    Raises:
      ValueError: there is no such text, or some is missing, see `sources`.
    """
    spec = data.corpus_spec(config)
    paths = {one.path for one in sources.find_text(spec)}
    paths.update(path for one in sources.find_parallel(spec) for path in one.files)
    paths.update(sources.find_excluded(spec))
    sizes = sorted((os.path.relpath(path, spec.root), path.stat().st_size) for path in paths)
    return {
        "num_files": len(sizes),
        "num_bytes": sum(size for _, size in sizes),
        "names_and_sizes": artifacts.fingerprint(sizes),
    }


def claim(
    workdir: pathlib.Path, config: ConfigDict, reads: ConfigDict | None = None, **own: Any
) -> None:
    """Refuse a study's working directory whose runs are of other settings or other text.

    A finished run is not done again, and would pass for one of the settings of now. A folder
    without a record of them, new or restored by `studies.records`, takes those of now, and so does
    one without results. Text that was moved is the same, see `text_of`.

    Args:
      workdir: of the study.
      config: that the runs share, or change.
      reads: a config of the text that they read, if it is not that of `config`.
      own: settings of the study that change results, not those that choose what is run.

    Raises:
      ValueError: the folder has other settings; the message names each that differs.
    """
    # Of the evaluation all: also the size of a batch, by which samples of a generator are drawn.
    newer = {"evaluation": config.evaluation.to_dict(), "text": text_of(reads or config)}
    settings = {**data.training_settings(config), **grids.data_settings(config), **newer, **own}
    stage = artifacts.open_stage(
        workdir,
        settings,
        # An older folder has no record of these, and takes those of now.
        defaults={**data.recorded_defaults(), **newer},
        replace=lambda: not any(any(workdir.glob(f"*/**/{name}")) for name in _RESULTS),
    )
    # Also where the folder is claimed already: its record may be without the newer settings.
    artifacts.write_json(workdir / "settings.json", stage.settings)


def share_data(workdir: pathlib.Path, folder: pathlib.Path) -> None:
    """Link the vocabulary and the packed dataset of a study into the folder of a run."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in ("vocab", "rows"):
        if not (folder / name).is_symlink():
            (folder / name).symlink_to(os.path.relpath(workdir / name, folder))


def tested_languages(
    config: ConfigDict, pattern: str, remedy: str, languages: Sequence[str] = ()
) -> tuple[str, ...]:
    """Return the languages of a pre-training that a task has test data in.

    Args:
      config: of the pre-training; files are below its `corpus.root`.
      pattern: of the test file of a language, with {} for it.
      remedy: for the error message.
      languages: that it was trained in, where `corpus.languages` is empty, for all of the corpus.

    Raises:
      ValueError: there are none.
    """
    root = pathlib.Path(config.corpus.root)
    known = config.corpus.languages or languages
    found = tuple(name for name in known if (root / pattern.format(name)).exists())
    if not found:
        raise ValueError(
            f"{root} has no {pattern.format('LANGUAGE')} in a language of the pre-training, "
            f"corpus.languages; {remedy}"
        )
    return found


def chosen(flag: str, values: Sequence[str], known: Iterable[str]) -> list[str]:
    """Return the values of a flag that names some of a study's parts.

    Raises:
      ValueError: one is unknown.
    """
    names = list(known)
    if unknown := sorted(set(values) - set(names)):
        raise ValueError(f"--{flag}: no {', '.join(unknown)}; there are {', '.join(names)}")
    return list(values)


def define_flags(config: str, seeds: str) -> None:
    """Define the flags that studies share, given the help of --config and --seeds.

    Called by the command alone, since tests import several commands.
    """
    config_flags.DEFINE_config_file("config", None, config)
    flags.DEFINE_string("workdir", None, "Where results go.")
    flags.DEFINE_list("seeds", ["0", "1", "2"], seeds)
    flags.DEFINE_integer("workers", 2, "Runs at a time.", lower_bound=1)
    flags.DEFINE_bool("pin", True, "Give each run one core and one thread.")
    flags.DEFINE_bool("report_only", False, "Run nothing, report what is there.")


class Job(NamedTuple):
    """Job: a name, and a function that returns whether there was anything to do."""

    name: str
    work: Callable[[], bool]


def message_of(error: Exception) -> str:
    """Return the message of an error of a job, which stops no other one.

    A ValueError is of what the user gave and says it all; the traceback of another is logged.
    """
    if isinstance(error, ValueError):
        return str(error)
    logging.error("a job has failed", exc_info=error)
    return f"{type(error).__name__}: {entry_point.describe(error)}"


def do_all(jobs: Sequence[Job], *, workers: int, pin: bool) -> list[str]:
    """Run jobs in parallel.

    Args:
      jobs: jobs in the order of their start.
      workers: number of parallel jobs.
      pin: whether each worker is pinned to its own core.

    Returns:
      The errors of failed jobs.

    Raises:
      SystemExit: a job, or this process, was asked to stop; no other job was begun.
    """
    available = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
    cores: queue.SimpleQueue[int] = queue.SimpleQueue()
    for worker in range(workers):
        cores.put(available[worker % len(available)] if available else 0)

    def keep_to_a_core() -> None:
        if pin and available:
            # Affects only the calling thread, and the processes that it starts.
            os.sched_setaffinity(0, {cores.get()})

    def do(job: Job) -> str:
        begin = time.monotonic()
        try:
            done = job.work()
        except Exception as error:
            logging.error("%s: %s", job.name, message := message_of(error))
            return message
        took = f"{time.monotonic() - begin:.0f} s" if done else "done before"
        logging.info("%s: %s", job.name, took)
        return ""

    pool = concurrent.futures.ThreadPoolExecutor(workers, initializer=keep_to_a_core)
    with processes.stopped_together(), pool:
        return [error for error in pool.map(do, jobs) if error]


def do_each(works: Iterable[Callable[[], bool]]) -> bool:
    """Do works one after another; return whether there was anything to do.

    Raises:
      ValueError: some failed; all others have been done.
    """
    done, errors = False, []
    for work in works:
        try:
            done |= work()
        except Exception as error:
            errors.append(message_of(error))
    if errors:
        raise ValueError("; ".join(errors))
    return done


class Stages:
    """Stages of a study's runs, by its settings; a base of their dataclass.

    Attributes:
      workdir: folder of the results.
      workers: number of parallel runs.
      pin: whether each run is pinned to one core and one thread.
    """

    workdir: pathlib.Path
    workers: int
    pin: bool

    def call(
        self,
        script: str,
        workdir: pathlib.Path,
        change: Mapping[str, Any],
        config: Sequence[str] = (),
    ) -> None:
        """Run a stage, by default under the config of this command."""
        call(
            [script],
            config or own_config(),
            change,
            workdir,
            log=workdir / "log.txt",
            compiled=self.workdir / "compiled",
            one_thread=self.pin,
        )

    def do(self, jobs: Iterable[Job]) -> list[str]:
        """Run jobs; return the errors."""
        return do_all(list(jobs), workers=self.workers, pin=self.pin)
