"""Startup and error reporting of the entry points."""

import errno
import functools
import os
import re
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NoReturn

from absl import app, flags, logging

# Exit status where what the user gave is at fault: flags, config, files, disk. Any other error is
# one of the program, which ends with its traceback and status 1.
EXIT_USER_ERROR = 2

# How ml_collections begins the message of an error in a config file, before its traceback.
_OF_FILE = "Error whilst parsing config file"
_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")
_REMEDIES = {
    errno.ENOSPC: "make room on the disk, or choose a folder on another one",
    errno.EDQUOT: "make room in the quota, or choose a folder on another disk",
    errno.EFBIG: "raise the limit on the size of files (ulimit -f), or choose another disk",
    errno.EACCES: "change its permissions, or choose another path",
    errno.EPERM: "change its permissions, or choose another path",
    errno.EROFS: "choose a folder that can be written to",
    errno.ENOENT: "correct the path",
    errno.ENOTDIR: "a file is where a folder must be: move it, or choose another path",
    errno.EEXIST: "a file is where a folder must be: move it, or choose another path",
    errno.EISDIR: "a folder is where a file must be: move it, or choose another path",
    errno.ENAMETOOLONG: "choose a shorter path",
}
_OTHER_REMEDY = "check the disk and the path, and run the same command again"


def run(
    main: Callable[[list[str]], None],
    required: Sequence[str] = ("config", "workdir"),
    *,
    may_be_remote: bool = False,
) -> None:
    """Parse the flags, of which those in `required` must be given, and run `main`.

    Every package reports invalid input as a ValueError with a remedy, a full disk as an OSError,
    a non-finite loss as a FloatingPointError. The program then ends with that message and status
    `EXIT_USER_ERROR`; the traceback is shown with -v 1 only.

    Args:
      main: the command; it takes the arguments that are no flags.
      required: names of flags.
      may_be_remote: whether paths may be those of other machines, such as gs://BUCKET/run.
    """
    flags.mark_flags_as_required(required)
    parser = functools.partial(parse, may_be_remote=may_be_remote)
    app.run(functools.partial(call, main), flags_parser=parser)


def call(main: Callable[[list[str]], None], arguments: list[str]) -> None:
    """Run a command whose flags are parsed; see `run`."""
    try:
        main(arguments)
    except (ValueError, OSError, FloatingPointError) as error:
        if logging.level_debug():
            traceback.print_exc()
        fail(describe(error))


def parse(arguments: Sequence[str], *, may_be_remote: bool = False) -> list[str]:
    """Parse the flags and the config that they name; see `run`.

    Returns:
      The arguments that are no flags, after the name of the program.
    """
    try:
        rest = flags.FLAGS(arguments)
        if not may_be_remote:
            _check_local()
        return rest
    except Exception as error:  # a config file is a program of the user's, and may raise anything
        if isinstance(error, flags.Error) and _OF_FILE not in str(error):
            fail(f"{str(error).rstrip('.')}; --help lists the flags")
        if "-v=1" in arguments or logging.level_debug():
            traceback.print_exc()
        fail(_of_config(error, [one for one in arguments if re.match("--?config[=.]", one)]))


def describe(error: BaseException) -> str:
    """Message of an error; that of the system with its file and a remedy."""
    if not isinstance(error, OSError) or error.errno is None:
        return str(error)
    # Packages give some their own message, with a remedy.
    if error.strerror != os.strerror(error.errno):
        return str(error)
    names = [str(name) for name in (error.filename, error.filename2) if name is not None]
    where = f"{' and '.join(names)}: " if names else ""
    return f"{where}{error.strerror}; {_REMEDIES.get(error.errno, _OTHER_REMEDY)}"


def fail(message: str) -> NoReturn:
    """Print an error message and end the program."""
    print(f"error (-v 1 for the traceback): {message}", file=sys.stderr, flush=True)
    sys.exit(EXIT_USER_ERROR)


def _of_config(error: Exception, given: Sequence[str]) -> str:
    """Message of an error of reading a config or setting its keys by the flags `given`."""
    of_file = [one for one in given if "." not in one.partition("=")[0]]
    if isinstance(error, OSError) and "Failed loading config" in str(error):
        return f"{' '.join(of_file)}: no such config file, or it cannot be read; correct the path"
    is_of_file = _OF_FILE in str(error)
    if isinstance(error, AttributeError | KeyError) and not is_of_file:
        name = str(error).strip("'\"")
        flag = next((one for one in given if name in one.partition("=")[0].split(".")), name)
        return f"{flag}: the config has no key {name!r}; configs/base.py lists those of train.py"
    if not is_of_file:
        kind = "" if isinstance(error, ValueError) else f"{type(error).__name__}: "
        return f"{' '.join(given)}: {kind}{error}; correct the key or its value"
    # The package puts the whole traceback into the message of an error of the file itself.
    lines = [line.strip() for line in str(error).rstrip().splitlines()]
    places = [line for line in lines if line.startswith("File ")]
    where = f" ({', '.join(places[-1].split(', ')[:2])})" if places else ""
    return f"{' '.join(of_file)}: {lines[-1]}{where}; correct the config file"


def _check_local() -> None:
    """End the program if a flag or a key of the config is a URL, not a path of this machine."""
    for name in flags.FLAGS:
        if flags.FLAGS.find_module_defining_flag(name, "").startswith("absl"):
            continue
        for key, value in _strings(f"--{name}", flags.FLAGS[name].value):
            if _URL.match(value):
                fail(
                    f"{key} is {value}, which is no path; files are read and written on disks "
                    "only: mount the bucket (for example with gcsfuse) and give its folder"
                )


def _strings(name: str, value: Any) -> Iterator[tuple[str, str]]:
    """Yield the strings in the value of a flag, with their names.

    Raises:
      OSError: the config file that it names could not be read.
    """
    if isinstance(value, str):
        yield name, value
    elif isinstance(value, list | tuple):
        for one in value:
            yield from _strings(name, one)
    elif isinstance(value, Mapping) or hasattr(value, "items"):
        for key, one in value.items():
            yield from _strings(f"{name}.{key}", one)
