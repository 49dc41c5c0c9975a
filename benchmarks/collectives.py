"""Collectives of a compiled program, parsed from its text."""

import math
import re
from collections.abc import Iterator, Mapping
from typing import NamedTuple

import numpy as np

KINDS = "all-reduce|all-gather|reduce-scatter|all-to-all|collective-permute"
_CALLS = re.compile(
    r"(?:body|condition|calls|to_apply|true_computation|false_computation)=%([\w.\-]+)"
    r"|branch_computations=\{([^}]*)\}"
)
_TRIPS = re.compile(r'"?known_trip_count"?:\{"?n"?:"?(\d+)')
_BITS = re.compile(r"[a-z]+(\d+)")


class Collective(NamedTuple):
    """Collective instruction.

    Attributes:
      kind: one of `KINDS`, such as "all-reduce".
      sizes: elements of each result array.
      groups: device numbers of each group that exchanges data.
      in_loop: whether a loop repeats it.
      bytes: size of all result arrays.
      times: executions in one run of the program. A loop of unknown length counts once. In a
        conditional, only the branch that sends most counts.
    """

    kind: str
    sizes: list[int]
    groups: list[list[int]]
    in_loop: bool
    bytes: int = 0
    times: int = 1

    def is_over(self, stride: int, size: int) -> bool:
        """Return whether devices exchange data along a mesh axis with `stride` devices after it."""
        return any(len({d // stride % size for d in group}) > 1 for group in self.groups)

    def sent_bytes(self) -> float:
        """Return the bytes that a device sends in one run of the program, by ring algorithms.

        For n devices and S bytes of result, each sends 2 S (n - 1) / n for an all-reduce (a
        reduce-scatter and an all-gather), S (n - 1) / n for an all-gather or all-to-all, S (n - 1)
        for a reduce-scatter (its operand has n S), and S for a permutation.
        """
        n = max(map(len, self.groups), default=1)
        factor = {
            "all-reduce": 2 * (n - 1) / n,
            "reduce-scatter": n - 1,
            "collective-permute": 1,
        }.get(self.kind, (n - 1) / n)
        return self.times * self.bytes * factor


def collectives_of(text: str, num_devices: int) -> list[Collective]:
    """Return all collectives of a compiled program of `num_devices`."""
    lines = computations(text)
    called = {name: _called("\n".join(body)) for name, body in lines.items()}
    repeated = set(re.findall(r"body=%([\w.\-]+)", text))
    todo = list(repeated)
    while todo:
        new = called[todo.pop()] - repeated
        repeated |= new
        todo.extend(new)
    found: dict[str, list[Collective]] = {}
    for name, body in lines.items():
        of_lines = (of_line(line, num_devices, in_loop=name in repeated) for line in body)
        found[name] = [one for one in of_lines if one]
    times = _executions(lines, found, entry(text))
    return [one._replace(times=times.get(name, 0)) for name, some in found.items() for one in some]


def of_line(line: str, num_devices: int, *, in_loop: bool = False) -> Collective | None:
    """Parse a line, or the start of an asynchronous collective; None for other instructions."""
    match = re.search(rf"= (.*?) ({KINDS})(-start)?\(", line)
    if match is None:
        return None
    shapes = re.findall(r"(\w+)\[([\d,]*)\]", match[1])
    if match[3] and match[2] != "all-reduce":
        # The result also has the operands, and scalars of the runtime.
        shapes = [one for one in shapes if one[0] not in ("u32", "s32") or one[1]]
        shapes = shapes[len(shapes) // 2 :]
    sizes = [math.prod(_ints(shape)) for _, shape in shapes]
    num_bytes = sum(size * bits(dtype) // 8 for size, (dtype, _) in zip(sizes, shapes, strict=True))
    return Collective(match[2], sizes, _groups(line, num_devices), in_loop, num_bytes)


def bits(dtype: str) -> int:
    match = _BITS.match(dtype)
    return int(match[1]) if match else 8  # pred


def entry(text: str) -> str:
    match = re.search(r"^ENTRY %([\w.\-]+)", text, re.MULTILINE)
    if match is None:
        raise ValueError(f"no program, it has no entry: {text[:100]!r}")
    return match[1]


def _executions(
    lines: Mapping[str, list[str]], found: Mapping[str, list[Collective]], entry: str
) -> dict[str, int]:
    """Count the executions of each computation in one run of the program."""
    times: dict[str, int] = {}

    def visit(name: str, factor: int) -> None:
        times[name] = times.get(name, 0) + factor
        for count, callees in _calls(lines, name):
            if len(callees) > 1:  # branches, of which one runs
                callees = [max(callees, key=lambda one: sum(_reached(lines, found, one)))]
            for callee in callees:
                visit(callee, factor * count)

    visit(entry, 1)
    return times


def trips(line: str, lines: Mapping[str, list[str]]) -> int:
    """Return the iterations of a loop's line; 1 for other lines and loops of unknown length."""
    if match := _TRIPS.search(line):
        return int(match[1])
    if " while(" not in line or not (match := re.search(r"condition=%([\w.\-]+)", line)):
        return 1
    # TPU programs do not state them. The condition of a scan compares with the number.
    condition = "\n".join(lines.get(match[1], []))
    compared = re.search(r"compare\(%[\w.\-]+, %([\w.\-]+)\), direction=LT", condition)
    if not compared:
        return 1
    limit = re.search(rf"%{re.escape(compared[1])} = s32\[\]\S* constant\((\d+)\)", condition)
    return int(limit[1]) if limit else 1


def _calls(lines: Mapping[str, list[str]], name: str) -> Iterator[tuple[int, list[str]]]:
    """Yield (times, callees) for the instructions of a computation that call others."""
    for line in lines[name]:
        times = trips(line, lines)
        branches: list[str] = []
        for one, many in _CALLS.findall(line):
            if many:
                branches += re.findall(r"%([\w.\-]+)", many)
            elif f"_computation=%{one}" in line:
                branches.append(one)
            else:
                yield times, [one]
        if branches:
            yield 1, branches


def _reached(
    lines: Mapping[str, list[str]], found: Mapping[str, list[Collective]], name: str
) -> Iterator[float]:
    """Yield the bytes sent by each collective of a computation and its callees."""
    yield from (one.sent_bytes() for one in found[name])
    for count, callees in _calls(lines, name):
        for callee in callees:
            yield from (count * size for size in _reached(lines, found, callee))


def computations(text: str) -> dict[str, list[str]]:
    """Split a program into the lines of each computation."""
    found: dict[str, list[str]] = {}
    name = ""
    for line in text.splitlines():
        if match := re.match(r"(?:ENTRY )?%([\w.\-]+) \(.*\{$", line):
            name = match[1]
            found[name] = []
        elif name:
            found[name].append(line)
    return found


def _called(body: str) -> set[str]:
    one_or_more = ((one, *re.findall(r"%([\w.\-]+)", many)) for one, many in _CALLS.findall(body))
    return {name for names in one_or_more for name in names if name}


def _groups(line: str, num_devices: int) -> list[list[int]]:
    """Parse the groups of a collective in one of four notations; ValueError for another."""
    if match := re.search(r"(?:replica_groups|source_target_pairs)=\{(\{[\d,{}]*\})\}", line):
        return [_ints(group) for group in re.findall(r"\{([\d,]+)\}", match[1])]
    if "replica_groups={}" in line:
        return [list(range(num_devices))]
    if match := re.search(r"replica_groups=\[([\d,]+)\]<=(\[.*?\](?:T\(.*?\))?)", line):
        return _numbers(match[2]).reshape(_ints(match[1])).tolist()
    if match := re.search(
        r"replica_groups=mesh\[([^\]]*)\](?:, device_ids=\((.*?\)?)\))? \{((?:'\w+',? ?)*)\}", line
    ):
        sizes = {name: int(size) for name, size in re.findall(r"'(\w+)'=(\d+)", match[1])}
        devices = _numbers(match[2] or f"[{num_devices}]").reshape(list(sizes.values()))
        axes = [list(sizes).index(name) for name in re.findall(r"'(\w+)'", match[3])]
        devices = np.moveaxis(devices, axes, range(-len(axes), 0))
        return devices.reshape(-1, math.prod(devices.shape[-len(axes) :])).tolist()
    raise ValueError(
        f"the groups of this collective have an unknown notation: {line.strip()[:300]}"
    )


def _numbers(order: str) -> np.ndarray:
    """Parse an order of devices, "[4,2]T(1,0)" or "[8]"."""
    shape, *transposed = re.findall(r"[\d,]+", order)
    numbers = np.arange(math.prod(_ints(shape))).reshape(_ints(shape))
    return numbers.transpose(_ints(transposed[0])) if transposed else numbers


def _ints(text: str) -> list[int]:
    return [int(one) for one in text.split(",") if one]
