"""Collectives of a compiled program, read off its text."""

import math
import re
from typing import NamedTuple

import numpy as np

KINDS = "all-reduce|all-gather|reduce-scatter|all-to-all|collective-permute"
_CALLS = re.compile(
    r"(?:body|condition|calls|to_apply|true_computation|false_computation)=%([\w.\-]+)"
    r"|branch_computations=\{([^}]*)\}"
)


class Collective(NamedTuple):
    """One instruction.

    Attributes:
      kind: "all-reduce" and so on.
      sizes: elements of each array that it makes.
      groups: device numbers that exchange something.
      in_loop: whether a loop repeats it.
    """

    kind: str
    sizes: list[int]
    groups: list[list[int]]
    in_loop: bool

    def is_over(self, stride: int, size: int) -> bool:
        """Whether devices exchange whose places along a mesh axis differ.

        Args:
          stride: devices of the axes after that one.
          size: of the axis.
        """
        return any(len({d // stride % size for d in group}) > 1 for group in self.groups)


def collectives_of(text: str, num_devices: int) -> list[Collective]:
    """All collectives of a compiled program of `num_devices`."""
    lines = _computations(text)
    called = {name: _called("\n".join(body)) for name, body in lines.items()}
    repeated = set(re.findall(r"body=%([\w.\-]+)", text))
    todo = list(repeated)
    while todo:
        new = called[todo.pop()] - repeated
        repeated |= new
        todo.extend(new)
    found = []
    for name, body in lines.items():
        for line in body:
            if match := re.search(rf"= (.*?) ({KINDS})(?:-start)?\(", line):
                shapes = re.findall(r"\w+\[([\d,]*)\]", match[1])
                sizes = [math.prod(_ints(shape)) for shape in shapes]
                groups = _groups(line, num_devices)
                found.append(Collective(match[2], sizes, groups, name in repeated))
    return found


def _computations(text: str) -> dict[str, list[str]]:
    """The lines of each computation."""
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
    """The groups of a collective, in any of the ways to write them.

    Raises:
      ValueError: in yet another way.
    """
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
    raise ValueError(f"cannot tell the groups of {line.strip()[:300]}")


def _numbers(order: str) -> np.ndarray:
    """Devices in the order "[4,2]T(1,0)", or "[8]"."""
    shape, *transposed = re.findall(r"[\d,]+", order)
    numbers = np.arange(math.prod(_ints(shape))).reshape(_ints(shape))
    return numbers.transpose(_ints(transposed[0])) if transposed else numbers


def _ints(text: str) -> list[int]:
    return [int(one) for one in text.split(",") if one]
