"""Results of `benchmarks.train_step`: a file, tables, and a comparison with goals.

The module does not import jax, so a file is enough for tables.
"""

import dataclasses
import json
import pathlib
from collections.abc import Sequence
from typing import Any, NamedTuple

from xlm.common import artifacts

NONE, FULL, KNN = "none", "full", "k-NN + row AdamW"


class Cell(NamedTuple):
    """Measurement of an output layer at V table rows and width E."""

    mode: str
    vocab_size: int
    width: int


@dataclasses.dataclass
class Row:
    """Medians of an output layer at one size.

    Attributes:
      mode, vocab_size, width: see `Cell`.
      step: seconds of a step.
      refresh: seconds of a refresh of the neighbour index; None if not measured, 0 if it has none.
      refresh_every: steps from one refresh to the next.
      candidates: classes of the softmax.
      overflow: classes beyond its capacity.
      flops: FLOPs of the model's matrix products in a step, forward and backward.
    """

    mode: str
    vocab_size: int
    width: int
    step: float
    refresh: float | None
    refresh_every: int
    candidates: float
    overflow: float
    flops: float

    @property
    def cell(self) -> Cell:
        return Cell(self.mode, self.vocab_size, self.width)

    @property
    def total(self) -> float:
        """Seconds per step, including its share of a refresh if measured."""
        return self.step + (self.refresh or 0.0) / self.refresh_every


class Results:
    """Rows measured so far and failed cells; each change rewrites their file."""

    def __init__(self, path: str | None, made_by: dict[str, Any]):
        """Start a JSON file, or continue that of an earlier call.

        Raise ValueError if the file is of another machine or other settings.
        """
        self._path = None if path is None else pathlib.Path(path)
        self._made_by = json.loads(json.dumps(made_by))
        self.rows: list[Row] = []
        self.failed: dict[Cell, str] = {}
        if self._path is not None and self._path.exists():
            found = artifacts.read_object(self._path)
            if found.get("made_by") != self._made_by:
                raise ValueError(
                    f"--out: {path} has results of another machine or other settings; choose "
                    "another file, or remove it"
                )
            self.rows = [Row(**row) for row in found["rows"]]

    def has(self, cell: Cell) -> bool:
        """Return whether a cell was measured, with its refresh."""
        return any(row.cell == cell and row.refresh is not None for row in self.rows)

    def add(self, row: Row) -> None:
        """Keep a row; it replaces an earlier row of its cell."""
        self.rows = [one for one in self.rows if one.cell != row.cell] + [row]
        self.failed.pop(row.cell, None)
        self._write()

    def fail(self, cell: Cell, reason: str) -> None:
        """Keep the reason for a failed measurement."""
        self.failed[cell] = reason
        self._write()

    def _write(self) -> None:
        if self._path is not None:
            failed = [{**cell._asdict(), "reason": reason} for cell, reason in self.failed.items()]
            rows = [dataclasses.asdict(row) for row in self.rows]
            content = {"made_by": self._made_by, "rows": rows, "failed": failed}
            artifacts.write_json(self._path, content)

    def row(self, mode: str, vocab_size: int, width: int) -> Row | None:
        cell = Cell(mode, vocab_size, width)
        return next((row for row in self.rows if row.cell == cell), None)


def saved(found: Results, mode: str, vocab_size: int, width: int) -> float | None:
    """Return R, the share of the vocabulary's cost that an output layer saves.

    None if a term was not measured, or the vocabulary's cost is below the noise.
    """
    row, full = found.row(mode, vocab_size, width), found.row(FULL, vocab_size, width)
    none = _tiny(found, width)
    if row is None or full is None or none is None or full.total <= none.total:
        return None
    return (full.total - row.total) / (full.total - none.total)


def _tiny(found: Results, width: int) -> Row | None:
    return next((row for row in found.rows if row.mode == NONE and row.width == width), None)


def line(found: Results, row: Row, tokens: int, peak_tflops: float) -> str:
    """Format a row of the results for the table of its size.

    `tokens` is per step. `peak_tflops` is that of the device; 0 leaves out the utilisation.
    """
    full = found.row(FULL, row.vocab_size, row.width)
    share = saved(found, row.mode, row.vocab_size, row.width)
    over = f"{full.total / row.total:.2f}x" if full else ""
    used = f"{row.flops / row.total / peak_tflops / 1e12:.1%}" if peak_tflops else ""
    refresh = "?" if row.refresh is None else f"{1e3 * row.refresh / row.refresh_every:.2f}"
    overflow = f" (+{row.overflow:,.0f} left out)" if row.overflow else ""
    return (
        f"| {row.mode} | {1e3 * row.total:.2f} | {refresh} | {tokens / row.total:,.0f} | {used} | "
        f"{over} | {'' if share is None else f'{share:.3f}'} | {row.candidates:,.0f}{overflow} |"
    )


def tables(found: Results, tokens: int, peak_tflops: float) -> str:
    """Format all results as Markdown: a table per size, growth, and failed measurements."""
    lines: list[str] = []
    for vocab_size, width in dict.fromkeys(
        (row.vocab_size, row.width) for row in found.rows if row.mode != NONE
    ):
        lines += [
            f"\nV = {vocab_size:,}, E = {width}\n",
            "| output layer | ms/step | refresh | tokens/s | utilisation | over full | R | V' |",
            "|---|---|---|---|---|---|---|---|",
        ]
        here = [row for row in found.rows if (row.vocab_size, row.width) == (vocab_size, width)]
        tiny = _tiny(found, width)
        lines += [
            line(found, row, tokens, peak_tflops) for row in [*here, *([tiny] if tiny else [])]
        ]
    lines += _growth(found)
    lines += [
        f"\n{cell.mode} at V = {cell.vocab_size:,}, E = {cell.width} was not measured: {reason}"
        for cell, reason in found.failed.items()
    ]
    return "\n".join(lines)


def _growth(found: Results) -> list[str]:
    """Return table rows of each mode's cost at the largest vocabulary over that at the smallest."""
    lines = []
    for mode, width in dict.fromkeys((row.mode, row.width) for row in found.rows):
        same = sorted(
            (row for row in found.rows if (row.mode, row.width) == (mode, width)),
            key=lambda row: row.vocab_size,
        )
        if mode != NONE and len(same) > 1:
            span = f"{same[0].vocab_size:,} to {same[-1].vocab_size:,}"
            lines.append(f"| {mode} | {width} | {span} | {same[-1].total / same[0].total:.2f} |")
    head = ["\n| output layer | E | V | T(largest V) / T(smallest V) |", "|---|---|---|---|"]
    return head + lines if lines else []


def goals(found: Results, sizes: Sequence[int], width: int, peak_tflops: float) -> str:
    """Format goals and measurements as Markdown.

    `sizes` are V, ascending, for the goals of 250K, 500K and 1M. `width` is E. `peak_tflops` of the
    device is 0 if unknown.
    """
    small, middle, large = sizes[0], sizes[len(sizes) // 2], sizes[-1]
    knn = {size: found.row(KNN, size, width) for size in sizes}
    full = found.row(FULL, middle, width)

    def ratio(above: Row | None, below: Row | None) -> float | None:
        return above.total / below.total if above and below else None

    def used(row: Row | None) -> float | None:
        return row.flops / row.total / peak_tflops / 1e12 if row and peak_tflops else None

    aims = [
        *(
            (f"R at {size:,}", ">=", 0.9, saved(found, KNN, size, width))
            for size in {middle: 0, large: 0}
        ),
        (f"over the full softmax at {middle:,}", ">=", 1.7, ratio(full, knn[middle])),
        (f"T({large:,}) / T({small:,})", "<=", 1.15, ratio(knn[large], knn[small])),
        (f"utilisation, full softmax at {middle:,}", ">=", 0.5, used(full)),
        (f"utilisation, {KNN} at {middle:,}", ">=", 0.5, used(knn[middle])),
    ]
    lines = ["\n| goal, of Base in bf16 on an accelerator | | measured | |", "|---|---|---|---|"]
    for what, bound, limit, value in aims:
        if value is None:
            lines.append(f"| {what} | {bound} {limit} | not measured | |")
            continue
        is_met = value >= limit if bound == ">=" else value <= limit
        lines.append(
            f"| {what} | {bound} {limit} | {value:.3f} | {'met' if is_met else 'missed'} |"
        )
    return "\n".join(lines)
