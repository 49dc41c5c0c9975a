"""Reasons why a checkpoint is unusable: damage, a failing system, or other code."""

import errno
import os
import pathlib
import re
from typing import Any

import jax
import numpy as np
from jax.experimental import multihost_utils

from xlm.common import interruption
from xlm.common.entry_point import chain, out_of_memory
from xlm.training import digests

# System errors that damage may also cause.
_OF_DAMAGE = (errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.EINVAL)
_CODE = re.compile(r"os_error_code='(\d+)'")  # in messages of tensorstore


class DamagedError(ValueError):
    """Unreadable checkpoint, or one that differs from the saved state."""


class UnreadableError(OSError):
    """Checkpoint that the system does not let us read now; it may be intact."""


class OtherStateError(ValueError):
    """Checkpoint of a state with other arrays, made by other code or settings."""


_KINDS = (MemoryError, DamagedError, UnreadableError, OtherStateError)


def fault_of(path: pathlib.Path, error: Exception) -> Exception:
    """Return one of `_KINDS` for an error of Orbax while reading a checkpoint.

    Raises KeyboardInterrupt after a signal, which looks like damage.
    """
    if interruption.received():
        raise KeyboardInterrupt from error
    if asked := out_of_memory(error):
        return MemoryError(asked)
    if isinstance(error, OtherStateError):
        return error
    if reason := _system_fault(path, error):
        return UnreadableError(
            f"checkpoint {path} cannot be read now ({reason}), and may be intact; nothing was "
            "changed: make it readable, and rerun the command"
        )
    return DamagedError(f"it cannot be read ({type(error).__name__}: {cause(error)})")


def _system_fault(path: pathlib.Path, error: Exception) -> str:
    """Return the system's reason for a failed read, "" if the content is at fault."""
    if (code := _system_code(error)) and code not in _OF_DAMAGE:
        return os.strerror(code)
    # Orbax reports files without read permission as missing, and some as empty.
    try:
        for folder, _, names in os.walk(path, onerror=_raise):
            for name in names:
                with open(os.path.join(folder, name), "rb") as file:
                    while file.read(2**24):
                        pass
    except OSError as fault:
        if fault.errno not in _OF_DAMAGE or not os.path.lexists(path):
            return f"{fault.strerror}: {fault.filename}"
    return ""


def _raise(error: OSError) -> None:
    raise error


def _system_code(error: Exception) -> int | None:
    """Return the number of the system error behind an error, if any."""
    for one in chain(error):
        if found := _CODE.search(str(one)):
            return int(found[1])
        if isinstance(one, OSError) and one.errno:
            return one.errno
    return None


def cause(error: Exception) -> str:
    """Return the system's reason for an error, or the first message of its chain, as one line."""
    if code := _system_code(error):
        return os.strerror(code)
    *_, first = chain(error)
    return " ".join(str(first).split())[:300]


def described(state: Any) -> dict[str, str]:
    """Return type and shape of each array by its name, such as "float32 [300, 8]"."""
    return {name: f"{array.dtype} {list(array.shape)}" for name, array in digests.named(state)}


def check_arrays(path: pathlib.Path, there: Any, wanted: Any) -> None:
    """Raise OtherStateError unless the checkpoint at `path` has the wanted arrays."""
    found = described(there)
    for name, here in described(wanted).items():
        if found.get(name) != here:
            raise OtherStateError(
                f"checkpoint {path} is of other code or settings: {name} is "
                f"{found.get(name, 'absent')}, and {here} in this run; use the code and settings "
                "of the checkpoint, or choose another --workdir"
            )


def raise_worst(fault: Exception | None) -> None:
    """Raise the worst fault of any host on all of them."""
    mine = worst = 0 if fault is None else 1 + _KINDS.index(type(fault))
    if jax.process_count() > 1:
        worst = int(np.max(multihost_utils.process_allgather(np.array(mine))))
    if worst > mine:
        raise _KINDS[worst - 1]("another host cannot read it")
    if fault is not None:
        raise fault
