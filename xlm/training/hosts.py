"""Runs on several hosts: flags to join them, the first host that writes files, barriers."""

import contextlib
import os
from collections.abc import Callable, Iterator

import jax
import numpy as np
from absl import flags, logging
from jax.experimental import multihost_utils

from xlm.common.artifacts import Stage
from xlm.training import compilation


def define_flags() -> Callable[[], None]:
    """Define the flags of a command on several hosts; return a function that joins the hosts.

    Call that function before any other use of jax, also on one host: it also sets the allocator of
    CPU hosts.
    """
    flags.disclaim_key_flags()  # they count as the command's flags, not this module's
    distributed = flags.DEFINE_bool("distributed", False, "Whether this is one of several hosts.")
    coordinator = flags.DEFINE_string("coordinator", None, "host:port of process 0.")
    num_processes = flags.DEFINE_integer("num_processes", None, "Number of processes of the run.")
    process_id = flags.DEFINE_integer("process_id", None, "Number of this process, from 0.")
    heartbeat = flags.DEFINE_integer(
        "heartbeat_seconds",
        100,  # jax's own
        "Seconds of silence after which a process counts as dead and all others abort (SIGABRT).",
        lower_bound=1,
    )

    def join() -> None:
        if compilation.is_of_cpu():
            compilation.keep_freed()
        if distributed.value:
            jax.distributed.initialize(
                coordinator.value, num_processes.value, process_id.value,
                heartbeat_timeout_seconds=heartbeat.value,
            )  # fmt: skip
        try:
            devices = jax.devices()
        except (AssertionError, RuntimeError) as error:
            raise ValueError(
                f"JAX_PLATFORMS is {os.environ.get('JAX_PLATFORMS', '')!r}, but jax finds no such "
                f"device ({str(error) or 'not installed'}); unset it, or install its plugin"
            ) from error
        shown = len(devices), devices[0].platform, jax.process_count()
        logging.info("devices: %d %s, processes: %d", *shown)
        if jax.process_index() and not logging.level_debug():
            logging.set_verbosity(logging.WARNING)  # the first host logs the progress

    return join


def is_first() -> bool:
    """Return whether this host writes the files that all hosts share."""
    return jax.process_index() == 0


@contextlib.contextmanager
def locked(stage: Stage, *, claims: bool = True) -> Iterator[None]:
    """Hold (and claim) a stage's folder on the first host for all; ValueError on all if taken."""
    with contextlib.ExitStack() as stack:
        fault: Exception | None = None
        try:
            if is_first():
                stack.enter_context(stage.locked(claims=claims))
        except (ValueError, OSError) as error:
            fault = error
        if not as_on_first([fault is None])[0]:
            raise fault or ValueError(f"the first host cannot hold {stage.folder}; see its log")
        yield


def wait_for_all(what: str) -> None:
    """Wait until every host calls this with the same name `what`."""
    if jax.process_count() > 1:
        multihost_utils.sync_global_devices(what)


def as_on_first(flags_here: list[bool]) -> list[bool]:
    """Return the first host's `flags_here`, such as which files exist; all have the same length."""
    if jax.process_count() == 1 or not flags_here:
        return flags_here
    return np.asarray(multihost_utils.broadcast_one_to_all(np.array(flags_here))).tolist()
