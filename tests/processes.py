"""Processes that tests start, and limits of this one."""

import contextlib
import itertools
import os
import pathlib
import resource
import subprocess
import sys
from collections.abc import Iterator

from input_pipeline import array_files


def environment(num_devices: int = 1) -> dict[str, str]:
    """That of this process, with so many CPU devices."""
    flags = (
        os.environ.get("XLA_FLAGS", ""),
        f"--xla_force_host_platform_device_count={num_devices}",  # the last one counts
    )
    return {**os.environ, "XLA_FLAGS": " ".join(flags)}


def run_python(
    *arguments: str, cwd: pathlib.Path | None = None, **variables: str
) -> subprocess.CompletedProcess[str]:
    """Run Python on one device, with more environment variables, and capture what it prints."""
    environ = {**environment(), **variables}
    command = [sys.executable, *arguments]
    return subprocess.run(command, cwd=cwd, env=environ, capture_output=True, text=True)


@contextlib.contextmanager
def few_open_files(more: int) -> Iterator[None]:
    """So many files can be opened at once besides those that are, unless the limit is raised."""
    array_files._opened.cache_clear()  # or those of before would not count
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    # A limit is on the numbers of files, of which each takes the least that is free.
    taken = set(map(int, os.listdir("/dev/fd")))
    *_, last = itertools.islice((n for n in itertools.count() if n not in taken), more)
    resource.setrlimit(resource.RLIMIT_NOFILE, (last + 1, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
