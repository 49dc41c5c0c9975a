"""Processes that tests start."""

import os


def environment(num_devices: int = 1) -> dict[str, str]:
    """That of this process, with so many CPU devices."""
    flags = (
        os.environ.get("XLA_FLAGS", ""),
        f"--xla_force_host_platform_device_count={num_devices}",  # the last one counts
    )
    return {**os.environ, "XLA_FLAGS": " ".join(flags)}
