"""Reports as text: tables of rows in Markdown and CSV, and text of any language in them."""

import csv
import io
import math
import re
import unicodedata
from collections.abc import Collection, Iterable, Mapping
from typing import Any

Row = Mapping[str, Any]  # values by the headings of their columns


def markdown(
    rows: Iterable[Row], formats: Mapping[str, str] | str = "", *, left: int = 1,
    mean: Collection[str] = (),
) -> str:  # fmt: skip
    """Format rows as a Markdown table with the columns of all rows; "" for no rows.

    None, NaN and missing values are empty cells. Markdown in cells stays; HTML and "|" are escaped.
    `formats` are number formats by column, or one for all, such as ".3f" or "+.1%". The first
    `left` columns are aligned to the left. A last row has the means of the columns `mean`.
    """
    rows = list(rows)
    columns = list(dict.fromkeys(column for row in rows for column in row))
    if mean:
        means = {column: mean_of(row.get(column) for row in rows) for column in mean}
        rows.append({columns[0]: "**mean**", **means})

    def line(cells: Iterable[str]) -> str:
        return f"| {' | '.join(map(without_html, cells))} |"

    def cell(row: Row, column: str) -> str:
        form = formats if isinstance(formats, str) else formats.get(column, "")
        return shown(row.get(column), form)

    if not rows:
        return ""
    aligned = ["---"] * left + ["---:"] * (len(columns) - left)
    found = [[cell(row, column) for column in columns] for row in rows]
    return "\n".join([line(columns), f"|{'|'.join(aligned)}|", *map(line, found)])


def shown(value: Any, form: str = "") -> str:
    """Format a number; return text unchanged, and "" for None and NaN."""
    if value is None or value != value:
        return ""
    return value if isinstance(value, str) else format(value, form)


def mean_of(values: Iterable[float | None]) -> float:
    """Return the mean of values, without None and NaN; NaN for no values."""
    found = [value for value in values if value is not None and not math.isnan(value)]
    return math.fsum(found) / len(found) if found else math.nan


def signed(value: float, form: str) -> str:
    """Format a number with its sign, unless it rounds to zero."""
    text = format(value, f"+{form}")
    return text if any(digit in text for digit in "123456789") else text[1:]


def named(names: Collection[str], most: int) -> str:
    """List the first `most` names, and the number of others."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(list(names)[:most]) + more


def comma_separated(rows: Iterable[Row]) -> str:
    """Format rows that have the same columns as CSV, with a header."""
    rows, text = list(rows), io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]) if rows else [], lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def page(*parts: str) -> str:
    """Join the parts of a report, without the empty ones."""
    return "\n\n".join(filter(None, parts)) + "\n"


def escaped(text: str) -> str:
    return re.sub(r"([\\`*_|<>\[\]~$&])", r"\\\1", text)


def without_html(text: str) -> str:
    """Escape characters that begin HTML or end a cell, unless they are escaped already."""
    return re.sub(r"(?<!\\)([<>&|])", r"\\\1", text)


def text_cell(text: str) -> str:
    """Escape text for a cell; isolate right-to-left text from its surroundings."""
    is_right_to_left = any(unicodedata.bidirectional(c) in ("R", "AL") for c in text)
    return f"\u2068{escaped(text)}\u2069" if is_right_to_left else escaped(text)
