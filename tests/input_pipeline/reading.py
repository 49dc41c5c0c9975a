"""Text files read whole, by documents."""

import itertools
import pathlib

from input_pipeline import text_files


def read_documents(path: pathlib.Path) -> list[list[str]]:
    """Sentences of each document of a `.txt` or `.jsonl` file."""
    marked = itertools.groupby(text_files.read_marked(path), bool)
    return [list(found) for is_text, found in marked if is_text]


def read_parallel(path: pathlib.Path) -> tuple[tuple[str, ...], list[list[tuple[str, ...]]]]:
    """Languages of a TSV file, and rows of each document."""
    languages, rows = text_files.open_parallel(path)
    return languages, [list(found) for is_row, found in itertools.groupby(rows, bool) if is_row]
