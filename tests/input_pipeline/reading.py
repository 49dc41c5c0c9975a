"""Text files read whole, by documents, and documents packed whole."""

import itertools
import pathlib
from collections.abc import Iterable

import numpy as np

from input_pipeline import text_files
from input_pipeline.packed_dataset import RowPacker, SpecialIds


def read_documents(path: pathlib.Path) -> list[list[str]]:
    """Sentences of each document of a `.txt` or `.jsonl` file."""
    marked = itertools.groupby(text_files.read_marked(path), bool)
    return [list(found) for is_text, found in marked if is_text]


def read_parallel(path: pathlib.Path) -> tuple[tuple[str, ...], list[list[tuple[str, ...]]]]:
    """Languages of a TSV file, and rows of each document."""
    languages, rows = text_files.open_parallel(path)
    return languages, [list(found) for is_row, found in itertools.groupby(rows, bool) if is_row]


def pack_rows(
    documents: Iterable[np.ndarray], length: int, special: SpecialIds, dtype: np.dtype
) -> np.ndarray:
    """Packs documents of token ids, [n] each, into [sequences, length]."""
    packer = RowPacker(length, special, dtype)
    for document in documents:
        packer.add(document)
    return packer.take(is_last=True)
