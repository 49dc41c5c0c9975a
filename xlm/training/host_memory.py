"""Memory of the C library that programs of the CPU backend use again."""

import ctypes
import importlib.metadata
import importlib.util
import os

import jax

# Parameters of mallopt (glibc's malloc.h) and their values: one heap, of which nothing is mapped
# by itself and nothing is given back, and which grows by 64 MB.
_ARENA_MAX, _MMAP_MAX, _TOP_PAD, _TRIM_THRESHOLD = -8, -4, -2, -1
_VALUES = {_ARENA_MAX: 1, _MMAP_MAX: 0, _TOP_PAD: 64 << 20, _TRIM_THRESHOLD: 2**31 - 1}
VARIABLES = (
    "MALLOC_ARENA_MAX", "MALLOC_MMAP_MAX_", "MALLOC_TOP_PAD_", "MALLOC_TRIM_THRESHOLD_",
    "GLIBC_TUNABLES",
)  # fmt: skip


def keep_freed() -> bool:
    """Have freed memory stay in this process, for its next allocations.

    XLA allocates the intermediate results of a program anew at each step. glibc gets large ones
    from the kernel and gives them back, so that each step writes to new pages, every one of which
    costs a page fault: a third of a step's time (docs/performance.md). Call it before JAX starts
    its backend, whose threads would otherwise get heaps of their own, of 64 MB at most.

    Returns:
      Whether it was done; not where the C library is another one, nor where the user has set its
      parameters by the environment.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None or any(name in os.environ for name in VARIABLES):
        return False
    are_set = [mallopt(name, value) for name, value in _VALUES.items()]
    return all(are_set)


def is_of_cpu() -> bool:
    """Whether JAX will start its CPU backend: asked for it, or without that of another device."""
    if platforms := jax.config.jax_platforms:  # type: ignore[attr-defined]  # made at run time
        return platforms.split(",")[0] == "cpu"
    plugins = importlib.metadata.entry_points(group="jax_plugins")
    return not plugins and importlib.util.find_spec("libtpu") is None
