"""HBM traffic, products and launches of a compiled program, counted from its text.

Each operation of a schedule reads its operands and writes its result once, with exceptions:

- An operand that a fusion slices or gathers counts with the bytes of the slices or rows.
- An array updated in place counts with the bytes written, and with those read if values are added.
- Arrays in a TPU's vector memory, `S(1)`, do not count.
- A loop counts as often as it runs. A loop of unknown length counts as often as its finest slice
  fits into the array, an upper bound. Of several branches, the one with the most traffic counts.

Repeated reads of a kernel and the passes of a sort are unknown. `xlm.models.flash_attention` states
the products of attention kernels for GPUs: all pairs within a window, as if each sequence were one
document. We assume that their repeated reads, keys and values of a head, hit the cache.
"""

import functools
import math
import re
from collections.abc import Iterator
from typing import NamedTuple

from benchmarks import collectives

_LINE = re.compile(r"\s*(ROOT )?%(\S+) = (.+?) ([a-z][a-z0-9\-]*)\((.*)")
_ARRAY = re.compile(r"([a-z]\w*)\[([\d,]*)\](\{[^}]*\})?")
_FREE = {
    "parameter", "constant", "tuple", "get-tuple-element", "bitcast", "after-all", "partition-id",
    "replica-id", "opt-barrier", "add-dependency",
}  # fmt: skip
_VIEWS = {"bitcast", "convert", "copy", "reshape", "transpose", "get-tuple-element"}
_SLICES, _UPDATES = {"dynamic-slice", "slice", "gather"}, {"dynamic-update-slice", "scatter"}
_OURS = re.compile(r"(?:^|/)((?:xlm|knn_sampling)/\S+\.py)$")
# files that only forward calls
_HELPERS = {"xlm/training/sharding.py", "xlm/common/entry_point.py", "xlm/models/layout.py"}


class Instruction(NamedTuple):
    """Line of a program: shape of the result as text, opcode, and names of operands."""

    shape: str
    opcode: str
    operands: list[str]
    line: str
    is_root: bool


class Operation(NamedTuple):
    """Costs of an instruction of the schedule, per execution.

    Attributes:
      bytes, flops, sent: HBM traffic, FLOPs of products, and bytes sent to other devices.
      times: executions per step.
      path, where: jax's name, and the innermost line of this project that made it.
      in_open_loop: whether a loop of unknown length repeats it.
      between: names of operations that run during an asynchronous collective.
    """

    name: str
    opcode: str
    shape: str
    bytes: float
    flops: float
    sent: float
    times: int
    path: str
    where: str
    in_open_loop: bool
    between: list[str]


class Program:
    """Compiled program of `num_devices`.

    Attributes:
      bodies: instructions of each computation, by name.
      open_loops: assumed iterations of each loop of unknown length, after a call of `operations`.
    """

    def __init__(self, text: str, num_devices: int):
        self._lines = collectives.computations(text)
        self._entry, self._num_devices = collectives.entry(text), num_devices
        self._frames, self._is_tpu = _frames(text), "T(8,128)" in text
        self.bodies = {name: _instructions(lines) for name, lines in self._lines.items()}
        self.open_loops: dict[str, int] = {}

    def operations(self) -> list[Operation]:
        """Return all operations of the schedule."""
        return list(self._walk(self._entry, 1, False))

    def largest_array(self) -> tuple[int, str]:
        """Return bytes and shape of the largest array that an operation writes."""
        fused = {_called(x.line, "calls") for body in self.bodies.values() for x in body.values()}
        shapes = {
            match[0]: _bytes(match)
            for name, body in self.bodies.items() if name not in fused
            for one in body.values() for match in _ARRAY.finditer(one.shape)
        }  # fmt: skip
        return max((size, shape) for shape, size in shapes.items())

    def _walk(self, name: str, times: int, is_open: bool) -> Iterator[Operation]:
        body = self.bodies[name]
        running: dict[
            str, list[str]
        ] = {}  # collectives, with the operations since the start of each
        for own, one in body.items():
            found: list[Operation] = []
            if one.opcode == "while":
                called, trips = _called(one.line, "body"), collectives.trips(one.line, self._lines)
                if is_unknown := trips == 1 and "known_trip_count" not in one.line:
                    trips = self.open_loops[called] = self._most_trips(called)
                for part in (called, _called(one.line, "condition")):
                    found += self._walk(part, times * trips, is_open or is_unknown)
            elif one.opcode == "conditional":
                names = re.findall(r"%([\w.\-]+)", one.line.partition("_computation")[2])
                branches = [branch for branch in names if branch in self.bodies]
                choices = [list(self._walk(branch, times, is_open)) for branch in branches]
                found = max(choices, key=lambda some: sum(op.bytes * op.times for op in some))
            elif one.opcode == "call":
                found = list(self._walk(_called(one.line, "to_apply"), times, is_open))
            elif one.opcode.endswith("-done"):
                running.pop(one.operands[0], None)
                continue
            elif one.opcode not in _FREE and "AllocateBuffer" not in one.line:
                between: list[str] = []
                found = [self._operation(own, one, body, times, is_open, between)]
                if found[0].sent and "-start" in one.opcode and '"is_sync":true' not in one.line:
                    running[own] = between
            for since in running.values():
                since += [op.name for op in found if not op.sent]
            yield from found

    def _operation(
        self, name: str, one: Instruction, body: dict, times: int, is_open: bool, between: list[str]
    ) -> Operation:
        path = re.search(r'op_name="([^"]*)"', one.line)
        frame = re.search(r"stack_frame_id=(\d+)", one.line)
        sent = 0.0
        if one.opcode.removesuffix("-start") in collectives.KINDS.split("|"):
            collective = collectives.of_line(one.line, self._num_devices)
            sent = collective.sent_bytes() if collective else 0.0
        return Operation(
            name, one.opcode.removesuffix("-start"), one.shape, self._traffic(one, body),
            self._flops(one, body), sent, times, path[1] if path else "",
            self._frames.get(frame[1], "") if frame else "", is_open, between,
        )  # fmt: skip

    def _size(self, shape: str) -> int:
        is_near = self._is_tpu and "S(" in shape
        arrays = _ARRAY.finditer(shape)
        return sum(_bytes(x) for x in arrays if not (is_near and "S(" in (x[3] or "")))

    def _traffic(self, one: Instruction, body: dict[str, Instruction]) -> float:
        """Return the bytes that an instruction of the schedule reads and writes."""
        operands = [self._size(body[name].shape) for name in one.operands if name in body]
        if called := _called(one.line, "calls"):
            total = float(self._written(called, _root(self.bodies[called]), one.shape))
            for number, name in enumerate(one.operands):
                if size := self._size(body[name].shape) if name in body else 0:
                    total += size * self._share_read(called, self._parameter(called, number))
            return total
        if one.opcode in _SLICES:
            return 2 * self._size(one.shape) + sum(operands[1:])
        if one.opcode in _UPDATES:
            is_slice = one.opcode == "dynamic-update-slice"
            return 2 * operands[1] if is_slice else 3 * operands[-1] + operands[1]
        results = self._size(one.shape)
        # The start of an asynchronous copy or gather also has its operands in its result.
        both = one.opcode.endswith("-start") and results > sum(operands)
        return results if both else results + sum(operands)

    def _parameter(self, called: str, number: int) -> str:
        inner = self.bodies[called].items()
        return next(name for name, one in inner if f" parameter({number})" in one.line)

    @functools.cache  # noqa: B019 - programs are few
    def _users(self, called: str) -> dict[str, list[tuple[str, int]]]:
        found: dict[str, list[tuple[str, int]]] = {}
        for name, one in self.bodies[called].items():
            for position, operand in enumerate(one.operands):
                found.setdefault(operand, []).append((name, position))
        return found

    def _share_read(self, called: str, name: str) -> float:
        """Return the share of a value that a fused computation reads."""
        body, read = self.bodies[called], 0.0
        whole = max(_elements(body[name].shape), 1)
        for user, position in self._users(called).get(name, ()):
            one = body[user]
            if one.opcode in _VIEWS:
                read += whole * self._share_read(called, user)
            elif one.opcode in _SLICES and position == 0:
                read += _elements(one.shape)
            elif one.opcode in _UPDATES and position == 0:
                is_added = one.opcode == "scatter"
                read += _elements(body[one.operands[-1]].shape) if is_added else 0
            elif one.opcode == "fusion":
                inner = _called(one.line, "calls")
                read += whole * self._share_read(inner, self._parameter(inner, position))
            elif not (one.opcode == "tuple" and one.is_root):
                return 1.0
        return min(read / whole, 1.0)

    def _written(self, called: str, name: str, shape: str) -> int:
        """Return the bytes that a fused computation writes of a result of `shape`."""
        body, one = self.bodies[called], self.bodies[called][name]
        if one.opcode == "tuple":
            stored = [match[0] for match in _ARRAY.finditer(shape)]
            if len(stored) != len(one.operands):
                return self._size(shape)
            return sum(map(self._written, [called] * len(stored), one.operands, stored))
        if one.opcode == "parameter":
            return 0
        if one.opcode == "bitcast":
            return self._written(called, one.operands[0], shape)
        if one.opcode == "fusion":
            inner = _called(one.line, "calls")
            return self._written(inner, _root(self.bodies[inner]), shape)
        if one.opcode in _UPDATES and self._is_parameter(called, one.operands[0]):
            update = one.operands[1 if one.opcode == "dynamic-update-slice" else -1]
            return self._size(shape) and sum(map(_bytes, _ARRAY.finditer(body[update].shape)))
        return self._size(shape)

    def _is_parameter(self, called: str, name: str) -> bool:
        one = self.bodies[called][name]
        if one.opcode in ("bitcast", "copy", "convert"):
            return self._is_parameter(called, one.operands[0])
        return one.opcode == "parameter"

    def _flops(self, one: Instruction, body: dict[str, Instruction]) -> float:
        """Return the FLOPs of the products of an instruction and of those fused into it."""
        if one.opcode == "dot":
            left = _dims(body[one.operands[0]].shape)
            (axes,) = re.findall(r"lhs_contracting_dims=\{([\d,]*)\}", one.line)
            return (
                2.0 * _elements(one.shape) * math.prod(left[int(x)] for x in axes.split(",") if x)
            )
        if one.opcode == "convolution":  # on a TPU a product; axes in a window are batch axes
            ((of_left, of_out),) = re.findall(r"dim_labels=(\w+)_\w+->(\w+)", one.line)
            summed = _dims(body[one.operands[0]].shape)[of_left.index("f")]
            window = "".join(re.findall(r"window=\{size=([\dx]+)", one.line))
            for axis, size in enumerate(filter(None, window.split("x"))):
                summed *= int(size) if _dims(one.shape)[of_out.index(str(axis))] == 1 else 1
            return 2.0 * _elements(one.shape) * summed
        if counted := re.search(r"serialized_metadata.*?flops\\22: \\22(\d+)", one.line):
            return float(counted[1])  # a Pallas kernel that states its FLOPs
        inner = self.bodies.get(_called(one.line, "calls"), {})
        return sum(self._flops(fused, inner) for fused in inner.values())

    def _most_trips(self, name: str) -> int:
        most, todo = 1, [name]
        while todo:
            body = self.bodies[todo.pop()]
            todo += [called for one in body.values() if (called := _called(one.line, "calls"))]
            for one in body.values():
                if one.opcode in ("dynamic-slice", "dynamic-update-slice"):
                    is_slice = one.opcode == "dynamic-slice"
                    other = body[one.operands[0 if is_slice else 1]].shape
                    sizes = sorted((_elements(one.shape), _elements(other)))
                    most = max(most, sizes[1] // max(sizes[0], 1))
        return most


def _instructions(lines: list[str]) -> dict[str, Instruction]:
    found = {}
    for match in filter(None, map(_LINE.match, lines)):
        operands = re.findall(r"%([\w.\-]+)", match[5].split(")")[0])
        found[match[2]] = Instruction(match[3], match[4], operands, match[0], bool(match[1]))
    return found


def _root(body: dict[str, Instruction]) -> str:
    return next(name for name, one in body.items() if one.is_root)


def _called(line: str, key: str) -> str:
    match = re.search(rf"\b{key}=%([\w.\-]+)", line)
    return match[1] if match else ""


def _dims(shape: str) -> list[int]:
    """Return the sizes of the first array of a shape."""
    return next(([int(x) for x in one[2].split(",") if x] for one in _ARRAY.finditer(shape)), [])


def _bytes(match: re.Match) -> int:
    return math.prod(_dims(match[0])) * max(collectives.bits(match[1]), 8) // 8


def _elements(shape: str) -> int:
    return sum(math.prod(_dims(match[0])) for match in _ARRAY.finditer(shape))


def _frames(text: str) -> dict[str, str]:
    """Return this project's innermost line for each frame in the tables before a program."""
    files = dict(re.findall(r'^(\d+) "(.*\.py)"$', text, re.MULTILINE))
    places = re.findall(r"^(\d+) \{file_name_id=(\d+) .*?\bline=(\d+)", text, re.MULTILINE)
    line_of = {number: (files.get(file, ""), line) for number, file, line in places}
    frame = r"^(\d+) \{file_location_id=(\d+) parent_frame_id=(\d+)\}"
    found: dict[str, str] = {}
    # `parent_frame_id` is the parent's number plus one. Parents precede their children.
    for number, place, parent in re.findall(frame, text, re.MULTILINE):
        file, line = line_of.get(place, ("", ""))
        ours = _OURS.search(file)
        above = found.get(str(int(parent) - 1), "")
        found[number] = f"{ours[1]}:{line}" if ours and ours[1] not in _HELPERS else above
    return found
