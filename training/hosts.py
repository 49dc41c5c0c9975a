"""Multi-host initialisation by flags."""

from collections.abc import Callable

import jax
from absl import flags, logging


def define_flags() -> Callable[[], None]:
    """Define the flags of a command that runs on several hosts.

    Returns:
      A function that joins the hosts if the flags ask for it; call it before any other use of jax.
    """
    distributed = flags.DEFINE_bool("distributed", False, "This is one of several hosts.")
    coordinator = flags.DEFINE_string("coordinator", None, "host:port of process 0.")
    num_processes = flags.DEFINE_integer("num_processes", None, "Processes of the run.")
    process_id = flags.DEFINE_integer("process_id", None, "Number of this one.")

    def join() -> None:
        if distributed.value:
            jax.distributed.initialize(coordinator.value, num_processes.value, process_id.value)
        logging.info("process %d of %d", jax.process_index() + 1, jax.process_count())
        logging.info("devices: %s", jax.devices())

    return join
