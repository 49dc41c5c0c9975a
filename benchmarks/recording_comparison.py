"""Comparison of two recordings of runs, bit for bit; see `recording`."""

import dataclasses
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

_ABSENT = "(absent)"


@dataclasses.dataclass(frozen=True)
class Difference:
    """Difference of two recordings; for a metric, `step` is the first that differs."""

    run: str
    name: str
    step: int | None
    before: Any
    after: Any

    def row(self) -> str:
        """Format as a row of the table of `describe`."""
        before, after = (
            value if isinstance(value, str) else json.dumps(value)
            for value in (self.before, self.after)
        )
        step = "" if self.step is None else self.step
        return f"| {self.run} | {self.name} | {step} | {before} | {after} |"


def flat(tree: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Yield path and value of the leaves of nested objects and lists."""
    if isinstance(tree, list):
        tree = {str(number): value for number, value in enumerate(tree)}
    if not isinstance(tree, Mapping):
        yield path, tree
        return
    for name, value in tree.items():
        yield from flat(value, f"{path}/{name}" if path else name)


def compare(
    before: Mapping[str, Any], after: Mapping[str, Any], renamed: Mapping[str, str | None]
) -> list[Difference]:
    """Compare the runs of two recordings of `record`; return one difference per run and name.

    `renamed` has new names by old names, or None if a recording lacks the name on purpose. Raise
    ValueError if two names get the same new name.
    """
    found: list[Difference] = []
    runs = before["runs"], after["runs"]
    for run in dict.fromkeys([*runs[0], *runs[1]]):
        if run not in runs[0] or run not in runs[1]:
            there = ["recorded" if run in side else _ABSENT for side in runs]
            found.append(Difference(run, "(all)", None, *there))
            continue
        old, new = _with_new_names(_series(runs[0][run]), renamed), _series(runs[1][run])
        for name in dict.fromkeys([*old, *new]):
            if renamed.get(name, name) is None and (name not in old or name not in new):
                continue
            found += _differences(run, name, old.get(name), new.get(name))
    return found


# Step -> value; results and digests have the step None.
_Series = dict[int | None, Any]


def _series(run: Mapping[str, Any]) -> dict[str, _Series]:
    """Return the series of a recorded run by name of parameter, metric or result."""
    found: dict[str, _Series] = {}
    metrics = ((name, line["step"], line[name]) for line in run["metrics"] for name in line)
    others = (*flat(run["results"]), *run["parameters"].items())
    for name, step, value in (*metrics, *((name, None, value) for name, value in others)):
        if name == "step":
            continue
        values = found.setdefault(name, {})
        if step in values or None in values:
            raise ValueError(f"a run has {name!r} twice, at step {step}")
        values[step] = value
    return found


def _with_new_names(
    series: Mapping[str, _Series], renamed: Mapping[str, str | None]
) -> dict[str, _Series]:
    """Rename series; see `compare`."""
    found: dict[str, _Series] = {}
    for name, values in series.items():
        new = renamed.get(name) or name
        if new in found or (new != name and new in series and new not in renamed):
            raise ValueError(f"--renamed: {name!r} becomes {new!r}, as which there is another one")
        found[new] = values
    return found


def _differences(
    run: str, name: str, before: _Series | None, after: _Series | None
) -> Iterator[Difference]:
    """Yield the first difference of two series, if any; None is a missing series."""
    if before is None or after is None:
        there = [_ABSENT if side is None else "there" for side in (before, after)]
        yield Difference(run, name, None, *there)
        return
    for step in sorted({*before, *after}, key=lambda step: -1 if step is None else step):
        values = before.get(step, _ABSENT), after.get(step, _ABSENT)
        # As JSON, so every bit of a float counts and NaN equals itself.
        if json.dumps(values[0]) != json.dumps(values[1]):
            yield Difference(run, name, step, *values)
            return


def describe(
    before: Mapping[str, Any], after: Mapping[str, Any], differences: Sequence[Difference]
) -> str:
    """Format the result of `compare`: different versions, and a table of differences."""
    sides = before["versions"], after["versions"]
    lines = [
        f"{name} differs: {sides[0].get(name)} before, {sides[1].get(name)} after"
        for name in dict.fromkeys([*sides[0], *sides[1]])
        if sides[0].get(name) != sides[1].get(name)
    ]
    if not differences:
        counts = [len(_series(run)) for run in after["runs"].values()]
        return "\n".join([*lines, f"equal: {sum(counts):,} names in {len(counts)} runs"])
    lines += ["| run | name | first step | before | after |", "|---|---|---:|---|---|"]
    return "\n".join([*lines, *(one.row() for one in differences)])
