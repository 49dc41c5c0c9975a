"""Settings of the C library's allocator with which the CPU backend reuses memory."""

import ctypes
import importlib.metadata
import importlib.util
import os

import jax

# Parameters of mallopt (glibc's malloc.h) and their values: one heap that grows by 64 MB, maps no
# allocation separately and returns nothing to the kernel.
_ARENA_MAX, _MMAP_MAX, _TOP_PAD, _TRIM_THRESHOLD = -8, -4, -2, -1
_VALUES = {_ARENA_MAX: 1, _MMAP_MAX: 0, _TOP_PAD: 64 << 20, _TRIM_THRESHOLD: 2**31 - 1}
VARIABLES = (
    "MALLOC_ARENA_MAX", "MALLOC_MMAP_MAX_", "MALLOC_TOP_PAD_", "MALLOC_TRIM_THRESHOLD_",
    "GLIBC_TUNABLES",
)  # fmt: skip


def keep_freed() -> bool:
    """Keep freed memory in this process for its next allocations; return whether that was done.

    XLA allocates intermediate results anew at each step. glibc gets large ones from the kernel and
    gives them back, so a step writes to new pages, and page faults take a third of its time
    (docs/performance.md). Call this before JAX starts its backend, whose threads would otherwise
    get heaps of their own. Nothing is done with another C library, or if the user has set its
    parameters in the environment.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None or any(name in os.environ for name in VARIABLES):
        return False
    are_set = [mallopt(name, value) for name, value in _VALUES.items()]
    return all(are_set)


def is_of_cpu() -> bool:
    """Return whether JAX will start its CPU backend: set to it, or no plugin of another device."""
    if platforms := jax.config.jax_platforms:  # type: ignore[attr-defined]  # made at run time
        return platforms.split(",")[0] == "cpu"
    plugins = importlib.metadata.entry_points(group="jax_plugins")
    return not plugins and importlib.util.find_spec("libtpu") is None
