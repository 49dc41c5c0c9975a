"""Packages that only some uses need: what installs one that is missing."""

import contextlib
from collections.abc import Iterator


@contextlib.contextmanager
def needed(by: str, requirements: str = "requirements.txt") -> Iterator[None]:
    """Import packages in the block; an error names the command that installs what is missing.

    Args:
      requirements: file with the packages; others than requirements.txt have older releases of
        some, for an environment of their own.

    Raises:
      ValueError: one cannot be imported.
    """
    try:
        yield
    except ImportError as error:
        own = "" if requirements == "requirements.txt" else ", best in an environment of its own"
        fault = " ".join(str(error).split())
        raise ValueError(f"{by}: {fault}; pip install -r {requirements}{own}") from error
