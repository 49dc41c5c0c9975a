"""Compilation of programs: their persistent cache, and bitwise reproducible operations."""

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
    logging.info("compiled programs are kept in %s (%s)", folder, VARIABLE)


def use_deterministic_operations() -> None:
    """Have GPUs compute the same bits whenever a program runs again, at some cost in speed.

    XLA reads its flags when a backend starts, so call this before anything asks for devices. A flag
    of the same name in XLA_FLAGS has precedence. Other backends are not affected.
    """
    flags = os.environ.get("XLA_FLAGS", "")
    if _DETERMINISTIC.partition("=")[0] not in flags:
        os.environ["XLA_FLAGS"] = f"{flags} {_DETERMINISTIC}".strip()
    logging.info("XLA_FLAGS: %s", os.environ["XLA_FLAGS"])
