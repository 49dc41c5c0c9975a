"""What the entry points share: how they start, and how they tell an error."""

import sys
from collections.abc import Callable, Sequence

from absl import app, flags, logging


def define_distributed_flags() -> Callable[[], None]:
    """Defines the flags of a command that runs on several hosts.

    Returns:
      A function that joins the hosts if the flags say so; to be called before anything else of jax.
    """
    distributed = flags.DEFINE_bool("distributed", False, "This is one of several hosts.")
    coordinator = flags.DEFINE_string("coordinator", None, "host:port of process 0.")
    num_processes = flags.DEFINE_integer("num_processes", None, "Processes of the run.")
    process_id = flags.DEFINE_integer("process_id", None, "Number of this one.")

    def join() -> None:
        import jax

        if distributed.value:
            jax.distributed.initialize(coordinator.value, num_processes.value, process_id.value)
        logging.info("process %d of %d", jax.process_index() + 1, jax.process_count())
        logging.info("devices: %s", jax.devices())

    return join


def run(main: Callable[[list[str]], None], required: Sequence[str] = ("config", "workdir")) -> None:
    """Parses the flags, of which those in `required` must be given, and runs `main`.

    Every room reports wrong input as a ValueError that says what to do, a full disk as an OSError,
    a loss that is not finite as a FloatingPointError. The program then ends with that message and
    status 1; the traceback is shown with -v 1 only.
    """

    def plain_main(argv: list[str]) -> None:
        try:
            main(argv)
        except (ValueError, OSError, FloatingPointError) as error:
            if logging.level_debug():
                raise
            sys.exit(f"error (-v 1 for the traceback): {error}")

    flags.mark_flags_as_required(required)
    app.run(plain_main)
