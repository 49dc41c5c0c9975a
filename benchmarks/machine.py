"""Harness of the benchmarks: flags, description of the machine, interleaved timing, tables."""

import os
import pathlib
import platform
import statistics
import time
from collections.abc import Callable, Mapping
from typing import Any

import jax
from absl import flags

from xlm.common import artifacts
from xlm.training import compilation


def define_flags(*, cores: int, repetitions: int) -> None:
    """Define the flags of a timing benchmark; the arguments are their defaults."""
    flags.DEFINE_integer("cores", cores, "CPU cores to use; 0 for all.")
    flags.DEFINE_integer("repetitions", repetitions, "Timings per measurement.", lower_bound=1)
    flags.DEFINE_string("out", None, "JSON file for the tables.")


def set_up(cores: int = 0) -> None:
    """Set up this process like the commands, pinned to some cores (0: all), before it uses jax."""
    compilation.keep_freed()
    if cores and hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:cores])
    if cores == 1:
        flags = "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"
        os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {flags}"


def describe_machine() -> str:
    """Describe device, cores and versions in one line."""
    device = jax.devices()[0]
    if device.platform == "cpu":
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
        model = f"CPU {cpu_model()}, {cores} of its cores"
    else:
        model = f"{jax.device_count()} x {device.device_kind}"
    return f"{model}; jax {jax.__version__}, Python {platform.python_version()}"


def cpu_model() -> str:
    """Name of the processor, or its architecture if the name is unavailable."""
    cpus = pathlib.Path("/proc/cpuinfo")
    lines = cpus.read_text(encoding="utf-8").splitlines() if cpus.exists() else []
    names = [line.split(":")[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def interleaved_medians(
    runs: Mapping[str, Callable[[], object]], repetitions: int
) -> dict[str, float]:
    """Return the median seconds of each run, interleaved so that noise affects all alike.

    A first call of each compiles.
    """
    for run in runs.values():
        jax.block_until_ready(run())
    times: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(repetitions):
        for name, run in runs.items():
            start = time.perf_counter()
            jax.block_until_ready(run())
            times[name].append(time.perf_counter() - start)
    return {name: statistics.median(values) for name, values in times.items()}


class Report:
    """Tables in Markdown, printed row by row and written to the JSON file of --out."""

    def __init__(self, path: str | None = None):
        self._path = path
        self._found: dict[str, Any] = {"machine": describe_machine(), "tables": []}
        print(self._found["machine"], flush=True)

    def table(self, title: str, columns: Mapping[str, str]) -> None:
        """Begin a table; `columns` has number formats by name, such as ",.1f", or "" for text."""
        self._columns = columns
        self._found["tables"].append({"title": title, "rows": []})
        rule = "|".join("---:" if one else "---" for one in columns.values())
        print(f"\n{title}\n\n| {' | '.join(columns)} |\n|{rule}|", flush=True)

    def row(self, *values: Any) -> None:
        """Add a row; None is an empty cell."""
        cells = [
            "" if value is None else format(value, style)
            for value, style in zip(values, self._columns.values(), strict=True)
        ]
        print(f"| {' | '.join(cells)} |", flush=True)
        row = dict(zip(self._columns, values, strict=True))
        self._found["tables"][-1]["rows"].append(row)
        if self._path:
            artifacts.write_json(self._path, self._found)


def start() -> Report:
    """Set up this process by the flags of `define_flags`; begin the report."""
    set_up(flags.FLAGS.cores)
    return Report(flags.FLAGS.out)
