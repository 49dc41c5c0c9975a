"""Output of a command at work: its log lines, and bars of progress."""

import io
import logging
from collections.abc import Iterable
from typing import Any

import tqdm
from absl import logging as absl_logging

_OWN = ("xlm", "vocap", "knn_sampling", "input_pipeline", "configs")
# Libraries whose tens of thousands of debug lines are noise.
_LIBRARIES = ("asyncio", "fontTools", "jax", "matplotlib", "numba", "PIL")
_INDENT = " " * len("00:00:00  ")
_SECONDS = 10.0  # between lines of progress where the output is no terminal
_DELAY = 0.5  # before a bar is drawn, and drawn again
_told: set[str] = set()


def set_up() -> None:
    """Show log lines in our form, each warning once, other lines of libraries with --verbose."""
    handler = absl_logging.get_absl_handler()
    handler.setFormatter(_Formatter())
    handler.addFilter(_is_shown)
    for name in _LIBRARIES:
        logging.getLogger(name).setLevel(logging.INFO)


def bar(
    items: Iterable | None, name: str, total: int | None, unit: str, initial: int = 0,
    ending: str = ", {remaining} left",
) -> Any:  # fmt: skip
    """Return a tqdm bar: drawn on a terminal (`is_drawn`), elsewhere a log line now and then.

    A quiet command shows none, and `bar.n` does not count.
    """
    is_off = total == 0 or not logging.getLogger().isEnabledFor(logging.INFO)
    common: dict[str, Any] = {"initial": initial, "miniters": 1, "disable": is_off}
    if is_drawn():
        shape = "{percentage:3.0f}% |{bar:10}| {n_fmt}/{total_fmt} {unit}" + ending
        common |= {"file": _stream(), "dynamic_ncols": True, "mininterval": _DELAY, "delay": _DELAY}
    else:
        shape = "{n_fmt} of {total_fmt} {unit} ({percentage:.0f}%)" + ending
        common |= {"file": io.StringIO(), "mininterval": _SECONDS, "delay": 1e-9, "leave": False}
    form = f"{_INDENT * is_drawn()}{{desc:<15}}{shape if total else '{n_fmt} {unit}'}"
    return (_Bar if is_drawn() else _Lines)(
        items, name, total, unit=unit, bar_format=form, **common
    )  # fmt: skip


def is_drawn() -> bool:
    """Return whether standard error is a terminal, which redraws bars in place."""
    return bool(_stream() and not _stream().closed and _stream().isatty())


def _stream() -> Any:
    """Return the interpreter's standard error, amid whose writing no handler of a signal logs."""
    return absl_logging.get_absl_handler().python_handler.stream


class _Bar(tqdm.tqdm):
    monitor_interval = 0  # no thread that draws bars when nothing has come

    def display(self, msg: str | None = None, pos: int | None = None) -> bool:
        self.nrows = 20  # containers have terminals without a size, on which tqdm hides all bars
        return super().display(msg, pos)


class _Lines(_Bar):
    def display(self, msg: str | None = None, pos: int | None = None) -> bool:
        if msg is None:
            logging.info("%s", self)
        return True


class _Formatter(logging.Formatter):
    """`HH:MM:SS  message`, with a mark for warnings and indented further lines."""

    def formatMessage(self, record: logging.LogRecord) -> str:
        mark = f"{record.levelname.lower()}: " if record.levelno >= logging.WARNING else ""
        text = record.message.replace("\n", f"\n{_INDENT}")
        return f"{self.formatTime(record, '%H:%M:%S')}  {mark}{text}"


def _is_shown(record: logging.LogRecord) -> bool:
    _, installed, rest = record.pathname.rpartition("-packages/")
    is_own = rest.split("/")[0] in _OWN if installed else "/lib/python3" not in record.pathname
    is_shown = bool(is_own or absl_logging.level_debug())
    if record.levelno >= logging.WARNING:
        number = len(_told)
        _told.add(record.getMessage())
        is_shown = len(_told) > number
    if is_shown and is_drawn():
        for one in list(_Bar._instances):
            one.clear()  # and drawn again below the line
    return is_shown
