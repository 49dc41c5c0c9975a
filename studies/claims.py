"""The claims book: what the papers claim, what came of it here, and the commands that tell.

    python -m studies.claims list
    python -m studies.claims run C3 C12 --data=DATA --workdir=DIR
    python -m studies.claims run --hours=8 --data=DATA --workdir=DIR
    python -m studies.claims write

Claims are data, docs/claims.json: number, what the paper says and where, its value, ours, a verdict
that a person has written, the commands, their hours on two cores. `run` executes the commands of
the claims named, or of all that fit into --hours, cheapest first; each command once, whichever
claims it is of, and prints what each said last, for a study the path of its report.
DIR/claims.json keeps what is done, and with which DATA: the same command goes on after a stop, and
a study that was interrupted resumes. `write` makes docs/claims.md of the data, with the verdicts.
"""

import contextlib
import dataclasses
import pathlib
import re
import shlex
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from absl import flags
from tqdm import tqdm

from common import artifacts, entry_point
from studies import processes
from studies.runs import ROOT

BOOK = ROOT / "docs" / "claims.json"
PAGE = ROOT / "docs" / "claims.md"
VERDICTS = ("holds", "does not", "cannot tell")
_ACTIONS = ("list", "run", "write")


@dataclasses.dataclass(frozen=True)
class Claim:
    """Claim of a paper.

    Attributes:
      number: such as "C12".
      claim: what the paper says.
      place: section, table or figure.
      paper: its value.
      here: our value, with its spread; "" before it was measured.
      verdict: one of `VERDICTS`.
      remark: what follows the verdict, with the limits of the evidence.
      commands: of a shell, with DATA and DIR for the folders of the data and of all results.
      command_note: what follows the commands on the page.
      hours: of two cores, for all commands; None for what needs more than a small machine.
    """

    number: str
    claim: str
    place: str
    paper: str
    here: str
    verdict: str
    remark: str
    commands: tuple[str, ...]
    command_note: str
    hours: float | None

    def __post_init__(self):
        if self.verdict not in VERDICTS:
            raise ValueError(
                f"{self.number}: the verdict is {self.verdict!r}, must be one of {VERDICTS}"
            )
        if not self.commands or any("|" in one for one in (self.claim, *self.commands)):
            raise ValueError(f"{self.number}: needs commands, and no | in them or in the claim")


def read(path: pathlib.Path = BOOK) -> dict[str, Any]:
    """Read the book: its introduction, and papers with sections of claims.

    Raises:
      ValueError: a claim is malformed, or has the number of another.
    """
    book = artifacts.read_json(path)
    for section in (section for paper in book["papers"] for section in paper["sections"]):
        section["claims"] = [
            Claim(**{**one, "commands": tuple(one["commands"])}) for one in section["claims"]
        ]
    numbers = [one.number for one in claims(book)]
    if repeated := sorted({one for one in numbers if numbers.count(one) > 1}):
        raise ValueError(f"{path}: more than one claim {', '.join(repeated)}; number them anew")
    return book


def claims(book: Mapping[str, Any]) -> Iterator[Claim]:
    """Yield all claims of a book, in order."""
    for paper in book["papers"]:
        for section in paper["sections"]:
            yield from section["claims"]


# 1. The page.

_HEADER = "| | claim | paper | here | verdict | command |\n|---|---|---|---|---|---|"


def page(book: Mapping[str, Any]) -> str:
    """Return docs/claims.md: a table of claims for each section of a paper."""
    counts = {one: sum(claim.verdict == one for claim in claims(book)) for one in VERDICTS}
    parts = [
        "# Claims of the papers, tested in small",
        "<!-- Made of claims.json by python -m studies.claims write: change it there. -->",
        book["introduction"],
        f"Of {sum(counts.values())} claims: "
        + ", ".join(f"{count} **{verdict}**" for verdict, count in counts.items())
        + ".",
    ]
    for paper in book["papers"]:
        parts.append(f"## {paper['title']}")
        for section in paper["sections"]:
            parts.append(f"### {section['title']}")
            parts += filter(None, [section["note"]])
            parts.append("\n".join([_HEADER, *map(_line, section["claims"])]))
    return "\n\n".join(parts) + "\n"


def _line(claim: Claim) -> str:
    command = ", then ".join(f"`{one}`" for one in claim.commands) + claim.command_note
    hours = "" if claim.hours is None else f" ({claim.hours:g} h)"
    cells = [
        claim.number,
        f"{claim.claim} ({claim.place})",
        claim.paper,
        claim.here,
        f"**{claim.verdict}**{claim.remark}",
        f"{command}{hours}",
    ]
    return f"| {' | '.join(cells)} |"


def listing(book: Mapping[str, Any], done: Mapping[str, Any]) -> str:
    """Return a line for each claim: number, hours, whether its commands are done, verdict, text."""
    lines = []
    for claim in claims(book):
        hours = "  size" if claim.hours is None else f"{claim.hours:5g} h"
        state = "done" if set(claim.commands) <= set(done) else ""
        lines.append(f"{claim.number:<4}{hours}  {state:<5}{claim.verdict:<12}{claim.claim}")
    return "\n".join(lines)


# 2. Runs.


@dataclasses.dataclass(frozen=True)
class Plan:
    """Commands that several claims share.

    Attributes:
      numbers: of the claims.
      commands: one after the other.
      hours: estimated for all of them.
    """

    numbers: tuple[str, ...]
    commands: tuple[str, ...]
    hours: float


def plans(chosen: Sequence[Claim], done: Mapping[str, Any]) -> list[Plan]:
    """Return what is left to do for some claims, cheapest first.

    Raises:
      ValueError: a claim has no hours, since it needs a larger machine.
    """
    by_commands: dict[tuple[str, ...], list[Claim]] = {}
    for claim in chosen:
        if claim.hours is None:
            raise ValueError(
                f"{claim.number} needs a larger machine; at full size it is: "
                + "; ".join(claim.commands)
            )
        by_commands.setdefault(claim.commands, []).append(claim)
    made = [
        Plan(tuple(one.number for one in some), commands, max(one.hours or 0 for one in some))
        for commands, some in by_commands.items()
        if not set(commands) <= set(done)
    ]
    return sorted(made, key=lambda plan: plan.hours)


def fitting(some: Sequence[Plan], hours: float) -> list[Plan]:
    """Return the first plans that fit into a number of hours together."""
    chosen, total = [], 0.0
    for plan in some:
        if total + plan.hours <= hours:
            chosen.append(plan)
            total += plan.hours
    return chosen


def _place(name: str) -> str:
    """Pattern of DATA or DIR in a word of a command: a whole path, or the beginning of one."""
    return rf"(?<=[=,:]){name}(?=/|$)"


def resolved(command: str, data: str, workdir: pathlib.Path) -> list[str]:
    """Return the arguments of a command, with the folders in place of DATA and DIR."""
    words = shlex.split(command)
    for name, folder in (("DATA", pathlib.Path(data)), ("DIR", workdir)):
        words = [re.sub(_place(name), str(folder.absolute()), one) for one in words]
    return [sys.executable, *words[1:]] if words[0] == "python" else words


def _origin(command: str, data: str) -> dict[str, str]:
    """Return the folder of the data that a command reads, if it reads any."""
    reads = any(re.search(_place("DATA"), one) for one in shlex.split(command))
    return {"data": str(pathlib.Path(data).resolve())} if reads else {}


def run(todo: Sequence[Plan], data: str, workdir: pathlib.Path) -> None:
    """Execute plans in order, with a progress bar in estimated hours; keep what is done.

    Raises:
      ValueError: a command failed; it can be run again.
      SystemExit: a command, or this process, was asked to stop.
    """
    state = workdir / "claims.json"
    total = sum(plan.hours for plan in todo)
    # Estimates of commands that were done in an earlier sitting are not in the total.
    bar = tqdm(total=round(3600 * total), unit="s", bar_format=_BAR)
    # What ends well although it was asked to stop is kept as done, too.
    with bar, processes.stopped_together():
        for place, plan in enumerate(todo, start=1):
            begin = bar.n
            bar.set_description(f"{place} of {len(todo)}: {', '.join(plan.numbers)}")
            for command in plan.commands:
                if command not in read_done(state, data):
                    log = workdir / "log.txt"
                    took = _execute(resolved(command, data, workdir), log, bar)
                    one = {"seconds": round(took), "end": _last_line(log)}
                    one.update(_origin(command, data))
                    artifacts.write_json(state, {**read_done(state), command: one})
            bar.write(_ended(plan.numbers, plan.commands, read_done(state)))
            bar.n = round(begin + 3600 * plan.hours)
            bar.refresh()


_BAR = "{desc} |{bar}| {elapsed} passed, of an estimated {total_fmt} s"


def _last_line(log: pathlib.Path) -> str:
    """Return what a command said last: of a study, where its report is."""
    return log.read_text(encoding="utf-8").rstrip().rpartition("\n")[2]


def _ended(numbers: Sequence[str], commands: Sequence[str], done: Mapping[str, Any]) -> str:
    """Return how long the commands of claims took together, and what the last of them said."""
    seconds = sum(done[command]["seconds"] for command in commands)
    return f"{', '.join(numbers)}, done in {seconds:,} s: {done[commands[-1]]['end']}"


def read_done(state: pathlib.Path, data: str | None = None) -> dict[str, Any]:
    """Read what is done, by command.

    Args:
      state: file of it.
      data: folder of the data, where what was done with those of another one is left out.
    """
    done = artifacts.read_json(state) if state.exists() else {}
    if data is None:
        return done
    folder = str(pathlib.Path(data).resolve())
    # A command that reads no data has none, nor one of before they were recorded.
    return {command: one for command, one in done.items() if one.get("data", folder) == folder}


def _execute(arguments: Sequence[str], log: pathlib.Path, bar: tqdm) -> float:
    """Run a command with its output in a log; return the seconds it took."""
    begin = time.monotonic()
    log.parent.mkdir(parents=True, exist_ok=True)
    with open(log, "a", encoding="utf-8") as file:
        options = {"cwd": ROOT, "stdout": file, "stderr": file}
        with processes.started(arguments, **options) as process:
            while process.returncode is None:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(timeout=1)
                bar.update(min(1, bar.total - bar.n))
    if process.returncode:
        raise ValueError(
            f"failed: {shlex.join(arguments)}; {log} ends with what it said; the same command of "
            "this one goes on"
        )
    return time.monotonic() - begin


def _run(numbers: Sequence[str]) -> None:
    """Execute the action `run`."""
    given = flags.FLAGS
    by_number = {one.number: one for one in claims(read())}
    if not given.data or not given.workdir:
        raise ValueError("run needs --data, the folder of all data, and --workdir, of all results")
    if unknown := sorted(set(numbers) - set(by_number)):
        raise ValueError(
            f"there is no claim {', '.join(unknown)}; there are {min(by_number)} to "
            f"{list(by_number)[-1]}"
        )
    if bool(numbers) == bool(given.hours):
        raise ValueError("run needs the numbers of claims, or --hours, and not both")
    workdir = pathlib.Path(given.workdir)
    possible = [one for one in by_number.values() if one.hours is not None]
    chosen = [by_number[one] for one in numbers] or possible
    done = read_done(workdir / "claims.json", given.data)
    for one in chosen:
        if set(one.commands) <= set(done):
            print(_ended([one.number], one.commands, done))
    todo = plans(chosen, done)
    if given.hours:
        left = len(todo)
        todo = fitting(todo, given.hours)
        print(f"{len(todo)} of {left} groups of claims fit into {given.hours:g} hours")
    for plan in todo:
        print(f"{', '.join(plan.numbers)}, {plan.hours:g} h: {'; '.join(plan.commands)}")
    if not given.dry_run:
        run(todo, given.data, workdir)


def main(argv: Sequence[str]) -> None:
    action, *numbers = argv[1:] or [""]
    if action not in _ACTIONS:
        raise ValueError(f"{action or 'nothing'} is asked for, must be one of {_ACTIONS}")
    if action == "run":
        _run(numbers)
    elif action == "write":
        artifacts.write_text(PAGE, page(read()))
        print(f"{PAGE}: {len(list(claims(read())))} claims")
    else:
        workdir, data = flags.FLAGS.workdir, flags.FLAGS.data
        state = pathlib.Path(workdir or "") / "claims.json"
        print(listing(read(), read_done(state, data) if workdir else {}))


if __name__ == "__main__":
    flags.DEFINE_string("data", None, "Folder of all data, DATA in the commands.")
    flags.DEFINE_string("workdir", None, "Folder of all results, DIR in the commands.")
    flags.DEFINE_float("hours", 0.0, "Run what fits into so many hours.", lower_bound=0.0)
    flags.DEFINE_bool("dry_run", False, "Print what would be run, and run nothing.")
    entry_point.run(main, required=())
