"""Persistent cache of compiled programs, on by default."""

import os
import pathlib

import jax
from absl import logging

# JAX's own variable; an empty value turns the cache off.
VARIABLE = "JAX_COMPILATION_CACHE_DIR"


def default_folder() -> pathlib.Path:
    """Folder of the cache: `vocap/compiled` below $XDG_CACHE_HOME, or below ~/.cache."""
    parent = os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache"
    return pathlib.Path(parent) / "vocap" / "compiled"


def use_cache() -> None:
    """Keep compiled programs in `default_folder`, unless `VARIABLE` names a folder or is empty.

    A program that is compiled again, as by a run that resumes, is read instead. JAX leaves out
    those that compile within a second. Where the folder cannot be made, a warning says that there
    is no cache.
    """
    if VARIABLE in os.environ:
        return
    try:
        folder = default_folder()
        folder.mkdir(parents=True, exist_ok=True)
    except (OSError, RuntimeError) as error:  # no home, or none that can be written to
        logging.warning(
            "compiled programs are not kept: %s; set %s to a folder, or to an empty value",
            error, VARIABLE,
        )  # fmt: skip
        return
    jax.config.update("jax_compilation_cache_dir", str(folder))
    logging.info("compiled programs are kept in %s (%s)", folder, VARIABLE)
