"""What a backend reads before it starts: cache of programs, reproducible operations, allocator."""

import ctypes
import importlib.metadata
import importlib.util
import os
import pathlib

import jax
from absl import logging

# JAX's own variable; an empty value turns the cache off.
VARIABLE = "JAX_COMPILATION_CACHE_DIR"

# Excludes GPU operations whose result varies, such as scatters by atomic additions. Also excludes
# the choice of kernels by timing, which may choose another kernel in the next process.
_DETERMINISTIC = "--xla_gpu_deterministic_ops=true"


def default_folder() -> pathlib.Path:
    """Return the cache's folder: `vocap/compiled` below $XDG_CACHE_HOME, or below ~/.cache."""
    parent = os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache"
    return pathlib.Path(parent) / "vocap" / "compiled"


def use_cache() -> None:
    """Keep compiled programs in `default_folder`, unless `VARIABLE` names a folder or is empty.

    A resumed run then reads its programs. JAX leaves out those that compile within a second. If the
    folder cannot be made, a warning says that there is no cache.
    """
    if VARIABLE in os.environ:
        return
    try:
        folder = default_folder()
        folder.mkdir(parents=True, exist_ok=True)
    except (OSError, RuntimeError) as error:  # no home folder, or it is not writable
        logging.warning(
            "compiled programs are not kept: %s; set %s to a folder, or to an empty value",
            error, VARIABLE,
        )  # fmt: skip
        return
    jax.config.update("jax_compilation_cache_dir", str(folder))
    logging.debug("compiled programs are kept in %s (%s)", folder, VARIABLE)


def use_deterministic_operations() -> None:
    """Have GPUs compute the same bits whenever a program runs again, at some cost in speed.

    XLA reads its flags when a backend starts, so call this before anything asks for devices. A flag
    of the same name in XLA_FLAGS has precedence. Other backends are not affected.
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
    """Keep freed memory in this process for its next allocations; return whether that was done.

    XLA allocates intermediate results anew at each step. glibc gets large ones from the kernel and
    gives them back, so a step writes to new pages, and page faults take a third of its time
    (docs/performance.md). Call this before JAX starts its backend, whose threads would otherwise
    get heaps of their own. Nothing is done with another C library, or if the user has set its
    parameters in the environment.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None or any(name in os.environ for name in MALLOC_VARIABLES):
        return False
    are_set = [mallopt(name, value) for name, value in _VALUES.items()]
    return all(are_set)


def is_of_cpu() -> bool:
    """Return whether JAX will start its CPU backend: set to it, or no plugin of another device."""
    if platforms := jax.config.jax_platforms:  # type: ignore[attr-defined]  # made at run time
        return platforms.split(",")[0] == "cpu"
    plugins = importlib.metadata.entry_points(group="jax_plugins")
    return not plugins and importlib.util.find_spec("libtpu") is None
