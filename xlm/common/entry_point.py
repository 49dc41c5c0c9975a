"""Startup and error reporting of the entry points."""

import contextlib
import errno
import functools
import gc
import io
import os
import pathlib
import re
import resource
import signal
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NoReturn

from absl import app, flags, logging

from xlm.common import artifacts, console, interruption, packages, places

# Exit status for faults of the user's input: flags, config, files, disk. After any other error the
# program ends with its traceback and status 1.
EXIT_USER_ERROR = 2
EXIT_OUT_OF_MEMORY = 3
# Ends by a signal without anything to save, as shells report them.
EXIT_INTERRUPTED, EXIT_TERMINATED = 130, 143
_ADDRESS_SPACE = 3 << 29  # bytes

# How ml_collections begins the message of an error in a config file, before its traceback.
_OF_FILE = "Error whilst parsing config file"
# Flags and keys whose value may lie in a bucket.
_MAY_BE_URL = re.compile(
    r"--(workdir|output|heldout_output|input|merge|model|config\.(corpus\..*|init_from|train\.init_from|task\.root|"
    r"vocab\.(tokenizer|tables|amounts|allocation|parallel)|evaluation\.frozen_generator))"
)
_OF_STORES = ("botocore", "aiobotocore", "aiohttp", "gcsfs", "google")
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
    errno.EMFILE: "raise the limit on open files (ulimit -n)",
}
_VERBOSITY = {"--quiet": "--verbosity=-1", "--verbose": "--verbosity=1"}
_OTHER_REMEDY = "check the disk and the path, and run the same command again"


def run(
    main: Callable[[list[str]], None], required: Sequence[str] = ("config", "workdir"), *,
    may_be_remote: bool = False, on_out_of_memory: Callable[[], str] = lambda: "",
    help_on: Callable[[str], str] | None = None,
) -> None:  # fmt: skip
    """Parse the flags, among them all of `required`, and run `main` with positional arguments.

    Packages report invalid input as a ValueError with a remedy, a full disk as an OSError, a
    non-finite loss as a FloatingPointError. The program then ends with that message and status
    `EXIT_USER_ERROR`, or `EXIT_OUT_OF_MEMORY` if memory runs out. --verbose shows the traceback.

    Args:
      may_be_remote: whether paths may be those of other machines, such as gs://BUCKET/run.
      on_out_of_memory: describes the memory that the command needs, and keys that reduce it.
      help_on: help on the keys of a section of the config, or on all sections for "".
    """
    collect_seldom()
    raise_file_limit()
    console.set_up()
    flags.mark_flags_as_required(required)
    if asked := [one for one in sys.argv[1:] if re.fullmatch(r"-h|--?help(=.*)?", one)]:
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # the reader may stop early
        section = asked[0].partition("=")[2]
        try:
            print(help_on(section) if help_on and section else _help(main))
            print(f"\n{help_on('')}" if help_on and not section else "", end="\n")
        except ValueError as error:
            fail(str(error))
        return
    parser = functools.partial(parse, may_be_remote=may_be_remote)
    call_main = functools.partial(call, main, on_out_of_memory=on_out_of_memory)
    app.run(call_main, flags_parser=parser)


def _help(main: Callable[[list[str]], None]) -> str:
    module = main.__globals__
    lines = [module["__doc__"], "Flags:"]
    for one in flags.FLAGS.get_key_flags_for_module(module["__name__"]):
        lines.append(f"  --{one.name}: {one.help}")
        if one.default not in (None, "", [], False):
            lines.append(f"    (default: {one.default_as_str})")
    lines.append("  --quiet: Show warnings, errors and the last lines only.")
    lines.append("  --verbose: Show everything, also libraries' lines and tracebacks.")
    return "\n".join(lines)


def collect_seldom() -> None:
    """Exclude imported objects from garbage collection, and collect after more allocations.

    Tracing makes many lasting objects. Visiting them again and again takes a tenth of a short run.
    """
    gc.freeze()
    gc.set_threshold(50_000, 20, 100)


def raise_file_limit() -> None:
    """Raise the limit on open files to the system's maximum.

    A parallel text of 210 languages needs five files of each, more than the usual 1,024.
    """
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(ValueError, OSError):  # macOS has a lower limit than it says
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


class _Shown(io.FileIO):
    """Stream whose failure does not end the command, since results are files."""

    fault: OSError | None = None  # of any of them

    def write(self, content: Any) -> Any:
        try:
            return super().write(content)
        except OSError as error:
            _Shown.fault = error
            return len(content)


def _shown(stream: Any) -> Any:
    """Return an output stream that escapes characters that the terminal cannot show."""
    if type(stream) is not io.TextIOWrapper:  # of a test, or closed
        return stream or open(os.devnull, "w", encoding="utf-8")
    buffer = io.BufferedWriter(_Shown(stream.fileno(), "w", closefd=False))
    lines = stream.line_buffering
    return io.TextIOWrapper(buffer, stream.encoding, "backslashreplace", line_buffering=lines)


def call(
    main: Callable[[list[str]], None],
    arguments: list[str],
    on_out_of_memory: Callable[[], str] = lambda: "",
) -> None:
    """Run a command whose flags are parsed; see `run`."""
    out, err = map(_shown, (sys.stdout, sys.stderr))
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        _call(main, arguments, on_out_of_memory)


def _call(
    main: Callable[[list[str]], None], arguments: list[str], on_out_of_memory: Callable[[], str]
) -> None:
    interruption.listen()
    _check_address_space()
    try:
        main(arguments)
        sys.stdout.flush()
        fault = _Shown.fault
        if fault and fault.errno != errno.EPIPE:  # the reader of a pipe has ended
            fault.filename = "standard output"
            if not {"output", "workdir"} & set(flags.FLAGS):  # there are no files either
                raise fault
            logging.warning("%s; all files are written", describe(fault))
    except SystemExit:
        raise
    except BaseException as error:
        # Compiled code may replace the error of a signal by its own.
        came = interruption.received()
        if came == signal.SIGTERM:
            fail("terminated; the same command resumes what it has saved", EXIT_TERMINATED)
        if came or isinstance(error, KeyboardInterrupt):
            fail("interrupted; the same command resumes what it has saved", EXIT_INTERRUPTED)
        if logging.level_debug():
            traceback.print_exc()
        if asked := out_of_memory(error):
            try:
                advice = on_out_of_memory() or "stop other programs, or take a larger machine"
            except Exception as other:  # such as a further lack of memory
                advice = f"no estimate ({type(other).__name__})"
            fail(f"out of memory: {asked}; {advice}", EXIT_OUT_OF_MEMORY)
        if isinstance(error, ValueError | OSError | FloatingPointError | app.UsageError):
            fail(describe(error))
        if type(error).__module__.partition(".")[0] in _OF_STORES:
            fail(
                f"{type(error).__name__}: {error}; check the bucket, the network and the "
                "credentials, which the store's package finds (docs/buckets.md)"
            )
        place = traceback.extract_tb(error.__traceback__)[-1].filename
        if place.endswith("xla_bridge.py"):  # an AssertionError, if jax has no kind of device left
            named = os.environ.get("JAX_PLATFORMS", "")
            fail(
                f"JAX_PLATFORMS is {named!r}, but JAX finds no such device; unset it, or "
                "install JAX for that device (README.md)"
            )
        raise


def _check_address_space() -> None:
    """End the program if XLA is imported and would abort."""
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    if "jax" in sys.modules and limit != resource.RLIM_INFINITY and limit < _ADDRESS_SPACE:
        fail(
            f"out of memory: the limit on address space is {limit / 1e6:,.0f} MB, less than the "
            f"{_ADDRESS_SPACE / 1e6:,.0f} MB that JAX starts with; raise it (ulimit -v)",
            EXIT_OUT_OF_MEMORY,
        )


def parse(arguments: Sequence[str], *, may_be_remote: bool = False) -> list[str]:
    """Parse the flags and their config, as `run`; return the program's name and other arguments."""
    try:
        rest = flags.FLAGS([_found(one) for one in arguments])
        if not may_be_remote:
            _check_local()
        return rest
    except SystemExit as ended:  # of --helpfull, which absl ends as an error
        sys.exit(0 if ended.code == 1 else ended.code)
    except Exception as error:  # a config file is a program of the user's, and may raise anything
        given = [one for one in arguments if re.match("--?config[=.]", one)]
        if isinstance(error, flags.Error) and _OF_FILE not in str(error):
            if given and "--config=None" in str(error):
                fail(f"{given[0]}: its get_config() returns nothing, must return a ConfigDict")
            fail(f"{str(error).rstrip('.')}; --help lists the flags")
        if {"-v=1", "--verbose"} & set(arguments) or logging.level_debug():
            traceback.print_exc()
        fail(_of_config(error, given))


def _found(argument: str) -> str:
    """Return a flag, with a missing config file looked up in this package."""
    argument = _VERBOSITY.get(argument, argument)
    name, _, value = argument.partition("=")
    return f"{name}={packages.recipe(value)}" if name.lstrip("-") == "config" else argument


def describe(error: BaseException) -> str:
    """Return an error's message; an error of the system gets its file and a remedy."""
    if not isinstance(error, OSError) or error.errno is None:
        return str(error)
    # Packages give some errors their own message, with a remedy.
    if error.strerror != os.strerror(error.errno):
        return str(error)
    names = [str(name) for name in (error.filename, error.filename2) if name is not None]
    where = f"{' and '.join(names)}: " if names else ""
    return f"{where}{error.strerror}; {_REMEDIES.get(error.errno, _OTHER_REMEDY)}"


def chain(error: BaseException | None) -> Iterator[BaseException]:
    """Yield an error and its causes, the root cause last."""
    seen: set[int] = set()  # an error may be its own cause
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        error = error.__cause__ or error.__context__


def out_of_memory(error: BaseException) -> str:
    """Return the message if memory ran out, on the machine or a device, and "" otherwise."""
    for one in chain(error):
        text = str(one)
        # Tensorstore reports a full disk, and too many files, by the same word.
        is_of_device = "RESOURCE_EXHAUSTED" in text and "os_error_code" not in text
        is_of_device |= "Out of memory allocating" in text
        is_of_library = "os_error_code='12'" in text or "std::bad_alloc" in text
        is_of_system = isinstance(one, MemoryError) or getattr(one, "errno", None) == errno.ENOMEM
        if is_of_device or is_of_library or is_of_system:
            return " ".join(text.split())[:200] or "more than there is"
    return ""


def fail(message: str, status: int = EXIT_USER_ERROR) -> NoReturn:
    hint = " (--verbose for the traceback)" if status < EXIT_INTERRUPTED else ""
    print(f"error{hint}: {message}", file=sys.stderr, flush=True)
    sys.exit(status)


def strings(name: str, value: Any) -> Iterator[tuple[str, str]]:
    """Yield the strings in a flag's value with their names."""
    if isinstance(value, str):
        yield name, value
    elif isinstance(value, list | tuple):
        for one in value:
            yield from strings(name, one)
    elif isinstance(value, Mapping) or hasattr(value, "items"):
        for key, one in value.items():
            yield from strings(f"{name}.{key}", one)


def _of_config(error: Exception, given: Sequence[str]) -> str:
    """Describe an error of reading a config or of setting its keys by the flags `given`."""
    of_file = " ".join(one for one in given if "." not in one.partition("=")[0])
    text = str(error)
    if isinstance(error, OSError) and "Failed loading config" in text:
        return f"{of_file}: no such config file, or it cannot be read; correct the path"
    if isinstance(error, AttributeError) and "has no attribute 'get_config'" in text:
        return f"{of_file}: has no function get_config, which must return its ConfigDict; add it"
    if place := _place(error, of_file.partition("=")[2].partition(":")[0]):
        # Some errors come with the whole traceback as their message.
        fault = text.rstrip().splitlines()[-1].strip()
        kind = "" if _OF_FILE in text else f"{type(error).__name__}: "
        return f"{of_file}: {kind}{fault} ({place}); correct the config file"
    if isinstance(error, AttributeError | KeyError | TypeError):
        found = re.search(r"lookup: ([\w.]+)", text) or re.search(r"'(\w+)\\*'", text)
        key = found[1] if found else text
        names = (one for one in given if f".{key}" in one.partition("=")[0])
        return (
            f"{next(names, key)}: the config has no key {key!r}; {_nearest(text)}--help lists the "
            "sections, --help=SECTION the keys of one"
        )
    kind = "" if isinstance(error, ValueError) else f"{type(error).__name__}: "
    return f"{' '.join(given) or 'flags'}: {kind}{error}; correct the key or its value"


def _nearest(text: str) -> str:
    found = re.search(r"[Dd]id you mean\W+(\w+)", text)
    return f"did you mean {found[1]!r}? " if found else ""


def _place(error: BaseException, path: str) -> str:
    """File and line of a failure in the config file at `path`, or in one that it builds on."""
    for one in chain(error):
        frames = traceback.extract_tb(one.__traceback__)
        places = [(frame.filename, str(frame.lineno)) for frame in frames]
        if _OF_FILE in str(one):
            places = re.findall(r'File "([^"]+)", line (\d+)', str(one))
        if own := [(file, line) for file, line in places
                   if file == path or "configs" in file.split(os.sep)]:  # fmt: skip
            return ", line ".join(own[-1])
    return ""


def _check_local() -> None:
    """End the program if a path is a URL, or --workdir is a path that runs cannot use."""
    for name in flags.FLAGS:
        if name == "dask" or flags.FLAGS.find_module_defining_flag(name, "").startswith("absl"):
            continue
        for key, value in strings(f"--{name}", flags.FLAGS[name].value):
            is_url = places.is_url(value)
            if is_url and (value.startswith("http") or not _MAY_BE_URL.fullmatch(key)):
                fail(
                    f"{key} is {value}, but must be a path on a disk: mount the bucket (for "
                    "example with gcsfuse), or copy the file"
                )
            try:
                if is_url:
                    places.check(value)
                elif key == "--workdir":
                    artifacts.check_plain(pathlib.Path(value).absolute(), key)
            except ValueError as error:
                fail(f"{key} is {value}: {error}" if is_url else str(error))
