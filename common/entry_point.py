"""Startup and error reporting of the entry points."""

import sys
from collections.abc import Callable, Sequence

from absl import app, flags, logging


def run(main: Callable[[list[str]], None], required: Sequence[str] = ("config", "workdir")) -> None:
    """Parse the flags, of which those in `required` must be given, and run `main`."""
    flags.mark_flags_as_required(required)
    app.run(with_plain_errors(main))


def with_plain_errors(main: Callable[[list[str]], None]) -> Callable[[list[str]], None]:
    """End with a message, and without a traceback, where the input of `main` is invalid.

    Every package reports invalid input as a ValueError with a remedy, a full disk as an OSError,
    a non-finite loss as a FloatingPointError. The program then ends with that message and status 1;
    the traceback is shown with -v 1 only.
    """

    def plain_main(argv: list[str]) -> None:
        try:
            main(argv)
        except (ValueError, OSError, FloatingPointError) as error:
            if logging.level_debug():
                raise
            sys.exit(f"error (-v 1 for the traceback): {error}")

    return plain_main
