"""What the entry points share: how they start, and how they tell an error."""

import sys
from collections.abc import Callable, Sequence

from absl import app, flags, logging


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
