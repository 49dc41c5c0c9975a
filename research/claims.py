"""The claims book: claims of the papers, our results, and the commands that test them.

research/claims.json has the number of each claim, its text, its place and value in the paper, our
value, a person's verdict, the commands, and their hours on two cores. Rerun a claim to resume its
commands. `python -m research claims` writes the page.
"""

import dataclasses
import functools
import pathlib
import re
import shlex
import sys
from collections.abc import Sequence
from typing import Any

from research import runner, study
from research.results import ROOT
from xlm.common import artifacts

BOOK = ROOT / "research" / "claims.json"
PAGE = ROOT / "research" / "reports" / "claims.md"
VERDICTS = ("holds", "does not", "cannot tell")


@dataclasses.dataclass(frozen=True)
class Claim:
    """Claim of a paper.

    Attributes:
      number: such as "C12".
      place: section, table or figure.
      paper: the paper's value.
      here: our value, with its spread; "" before the measurement.
      remark: limits of the evidence, after the verdict on the page.
      commands: shell commands; DATA and DIR stand for the folders of the data and of all results.
      command_note: text after the commands on the page.
      hours: hours of all commands on two cores; None if they need a larger machine.
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


@functools.cache
def _book() -> dict[str, Any]:
    """Read the introduction, and the papers with their sections of claims."""
    return artifacts.read_json(BOOK)


def _claims(section: dict[str, Any]) -> list[Claim]:
    return [Claim(**{**one, "commands": tuple(one["commands"])}) for one in section["claims"]]


def read() -> dict[str, Claim]:
    """Return all claims by number, in order; ValueError for a malformed or repeated one."""
    sections = [section for paper in _book()["papers"] for section in paper["sections"]]
    found = [one for section in sections for one in _claims(section)]
    numbers = [one.number for one in found]
    if repeated := sorted({one for one in numbers if numbers.count(one) > 1}):
        raise ValueError(f"{BOOK}: more than one claim {', '.join(repeated)}; give each a number")
    return {one.number: one for one in found}


def page() -> str:
    """Return the page, with a table of claims for each section of a paper."""
    every = read().values()
    counts = {verdict: sum(one.verdict == verdict for one in every) for verdict in VERDICTS}
    parts = [
        "# Claims of the papers, tested in small",
        "<!-- Made of claims.json by python -m research claims: change it there. -->",
        _book()["introduction"],
        f"Of {len(every)} claims: "
        + ", ".join(f"{count} **{verdict}**" for verdict, count in counts.items())
        + ".",
    ]
    for paper in _book()["papers"]:
        parts.append(f"## {paper['title']}")
        for section in paper["sections"]:
            lines = ["| | claim | paper | here | verdict | command |", "|---|---|---|---|---|---|"]
            lines += map(_line, _claims(section))
            parts += [f"### {section['title']}", *filter(None, [section["note"]]), "\n".join(lines)]
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


def listing() -> str:
    """List all claims, with number, hours, verdict and text, and all studies."""
    lines = []
    for one in read().values():
        hours = "  size" if one.hours is None else f"{one.hours:5g} h"
        lines.append(f"{one.number:<4}{hours}  {one.verdict:<12}{one.claim}")
    lines += ["", *(f"{name:<18}{study.find(name).title}" for name in study.names())]
    return "\n".join(lines)


def resolved(command: str, data: pathlib.Path, workdir: pathlib.Path) -> list[str]:
    """Return the arguments of a command, with folders for DATA and DIR."""
    words = shlex.split(command)
    for name, folder in (("DATA", data), ("DIR", workdir)):
        # a whole path, or its beginning
        words = [re.sub(rf"(?<=[=,:]){name}(?=/|$)", str(folder.absolute()), one) for one in words]
    programs = {"python": [sys.executable], "xlm": [sys.executable, "-m", "xlm"]}
    return [*programs.get(words[0], words[:1]), *words[1:]]


def run(numbers: Sequence[str], data: pathlib.Path, workdir: pathlib.Path) -> None:
    """Run the commands of some claims, each command once, and print the last output of each.

    Raises:
      ValueError: a claim does not exist or needs a larger machine, or a command failed.
      SystemExit: a command, or this process, got a signal to stop.
    """
    known = read()
    if unknown := sorted(set(numbers) - set(known)):
        raise ValueError(
            f"there is no claim or study {', '.join(unknown)}; claims are {next(iter(known))} to "
            f"{list(known)[-1]}, studies {', '.join(study.names())}"
        )
    for one in (known[number] for number in numbers):
        if one.hours is None:
            raise ValueError(
                f"{one.number} needs a larger machine; at full size it is: "
                + "; ".join(one.commands)
            )
    log = workdir / "log.txt"
    with runner.stopped_together():
        for command in dict.fromkeys(one for number in numbers for one in known[number].commands):
            print(f"{command}; output in {log}", flush=True)
            runner.execute(resolved(command, data, workdir), log)
            print(log.read_text(encoding="utf-8").rstrip().rpartition("\n")[2], flush=True)
