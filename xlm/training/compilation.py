"""Settings before a backend starts: cache of programs, reproducible operations, allocator."""

import ctypes
import importlib.metadata
import importlib.util
import os
import pathlib

import jax
from absl import logging

# JAX's own variable; an empty value turns the cache off.
VARIABLE = "JAX_COMPILATION_CACHE_DIR"

# Excludes GPU operations with varying results, such as scatters by atomic additions, and the choice
# of kernels by timing, which may differ in the next process.
_DETERMINISTIC = "--xla_gpu_deterministic_ops=true"


def default_folder() -> pathlib.Path:
    """Return the cache's folder: `vocap/compiled` below $XDG_CACHE_HOME, or below ~/.cache."""
    parent = os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache"
    return pathlib.Path(parent) / "vocap" / "compiled"


def use_cache() -> None:
    """Keep compiled programs in `default_folder`, unless `VARIABLE` names a folder or is empty.

    A resumed run then reads its programs. JAX keeps no programs that compile within a second. If
    this cannot make the folder, it warns and runs without a cache.
    """
    if VARIABLE in os.environ:
        return
    try:
        folder = default_folder()
        folder.mkdir(parents=True, exist_ok=True)
    except (OSError, RuntimeError) as error:  # no home folder, or it is not writable
        logging.warning(
            "no cache of compiled programs: %s; set %s to a folder, or to an empty value",
            error, VARIABLE,
        )  # fmt: skip
        return
    jax.config.update("jax_compilation_cache_dir", str(folder))
    logging.debug("cache of compiled programs: %s (%s)", folder, VARIABLE)


def use_deterministic_operations() -> None:
    """Make GPUs compute the same bits whenever a program runs again, at some cost in speed.

    XLA reads its flags when a backend starts, so call this before anything asks for devices. A flag
    of the same name in XLA_FLAGS has precedence. Other backends ignore the flag.
    """
    flags = os.environ.get("XLA_FLAGS", "")
    if _DETERMINISTIC.partition("=")[0] not in flags:
        os.environ["XLA_FLAGS"] = f"{flags} {_DETERMINISTIC}".strip()
    logging.debug("XLA_FLAGS: %s", os.environ["XLA_FLAGS"])


# Parameters of mallopt (glibc's malloc.h) and their values: one heap that grows by 64 MB, maps no
# allocation separately and returns nothing to the kernel.
_ARENA_MAX, _MMAP_MAX, _TOP_PAD, _TRIM_THRESHOLD = -8, -4, -2, -1
_VALUES = {_ARENA_MAX: 1, _MMAP_MAX: 0, _TOP_PAD: 64 << 20, _TRIM_THRESHOLD: 2**31 - 1}
MALLOC_VARIABLES = (
    "MALLOC_ARENA_MAX", "MALLOC_MMAP_MAX_", "MALLOC_TOP_PAD_", "MALLOC_TRIM_THRESHOLD_",
    "GLIBC_TUNABLES",
)  # fmt: skip


def keep_freed() -> bool:
    """Keep freed memory in this process for its next allocations; return whether it worked.

    XLA allocates intermediate results at each step. glibc gets large ones from the kernel and gives
    them back, so a step writes to new pages, and page faults take a third of its time
    (docs/performance.md). Call this before JAX starts its backend, whose threads would otherwise
    get their own heaps. It does nothing with another C library, or if the environment sets one of
    `MALLOC_VARIABLES`.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None or any(name in os.environ for name in MALLOC_VARIABLES):
        return False
    are_set = [mallopt(name, value) for name, value in _VALUES.items()]
    return all(are_set)


def is_of_cpu() -> bool:
    """Return whether JAX will start its CPU backend, by its setting or for lack of plugins."""
    if platforms := jax.config.jax_platforms:  # type: ignore[attr-defined]  # made at run time
        return platforms.split(",")[0] == "cpu"
    plugins = importlib.metadata.entry_points(group="jax_plugins")
    return not plugins and importlib.util.find_spec("libtpu") is None
