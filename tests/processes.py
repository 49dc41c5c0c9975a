"""Processes that tests start, and limits of this one."""

import contextlib
import os
import resource
from collections.abc import Iterator


def environment(num_devices: int = 1) -> dict[str, str]:
    """That of this process, with so many CPU devices."""
    flags = (
        os.environ.get("XLA_FLAGS", ""),
        f"--xla_force_host_platform_device_count={num_devices}",  # the last one counts
    )
    return {**os.environ, "XLA_FLAGS": " ".join(flags)}


@contextlib.contextmanager
def few_open_files(most: int = 128) -> Iterator[None]:
    """So many files can be open at once, unless the limit is raised."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
