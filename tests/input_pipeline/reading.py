"""Files of text and of sequences: written, read whole by documents, and packed whole."""

import bz2
import gzip
import itertools
import lzma
import pathlib
from collections.abc import Callable, Iterable

import numpy as np
import zstandard

from input_pipeline import text_files
from input_pipeline.packed_dataset import PackedDataset, RowPacker, SpecialIds
from tests.factories import SPECIAL_IDS
from tests.folders import FolderTest

PACKERS: dict[str, Callable[[bytes], bytes]] = {
    "": bytes, ".gz": gzip.compress, ".xz": lzma.compress, ".bz2": bz2.compress,
    ".zst": zstandard.compress,
}  # fmt: skip


class PackedFolderTest(FolderTest):
    """Each test has a folder, whose files are compressed by their suffixes."""

    def write(self, name: str, text: str | bytes) -> pathlib.Path:
        data = text.encode() if isinstance(text, str) else text
        return super().write(name, PACKERS.get(pathlib.Path(name).suffix, bytes)(data))


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


def training_dataset(folder: pathlib.Path, num_rows: dict[str, int]) -> PackedDataset:
    """A dataset whose rows say which they are: token 0 the language's place, token 1 the row."""
    for place, (language, count) in enumerate(sorted(num_rows.items())):
        rows = np.zeros((count, 16), np.uint16)
        rows[:, 0], rows[:, 1] = place, np.arange(count)
        np.save(folder / f"{language}.train.npy", rows)
    return PackedDataset(folder, 1000, 16, "", SPECIAL_IDS, {name: {} for name in num_rows}, {})


def killed_after(
    count: int, function: Callable, error: type[BaseException] = KeyboardInterrupt
) -> Callable:
    """A function that works `count` times, and then raises."""
    calls = []

    def call(*arguments):
        calls.append(arguments)
        if len(calls) > count:
            raise error
        return function(*arguments)

    call.__name__ = function.__name__
    return call
