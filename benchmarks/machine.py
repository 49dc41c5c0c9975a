"""Machine description and timing for benchmarks."""

import os
import pathlib
import platform
import statistics
import time
from collections.abc import Callable, Mapping

import jax

from xlm.training import host_memory


def set_up(cores: int = 0) -> None:
    """Set this process up as the commands are; call it before using jax.

    Args:
      cores: the process, and XLA in it, is pinned to so many; 0 for all.
    """
    host_memory.keep_freed()
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
    """Median seconds of each run, interleaved so that machine noise affects all alike.

    Each is called once before, for compilation.
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
