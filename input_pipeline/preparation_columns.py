"""Writer of the tokens of parallel text, a column at a time."""

import contextlib
from collections.abc import Sequence
from typing import Any

import numpy as np

from input_pipeline import array_files
from input_pipeline.manifest import id_dtype
from input_pipeline.packed_dataset import pad_sentences
from input_pipeline.preparation_job import Job
from input_pipeline.preparation_plan import SourceTask
from input_pipeline.tokenization import encode, special_ids

_ROWS_AT_ONCE = 4096
PARALLEL, BITEXT = ("parallel",), ("bitext", "ends")  # kinds of files


class Column:
    """Writer of the tokens of a column, as padded rows or as bitext; "" for no translation."""

    def __init__(
        self, job: Job, task: SourceTask, language: str, stack: contextlib.ExitStack,
        kinds: Sequence[str],
    ):  # fmt: skip
        self._processor, self._special = job.processor, special_ids(job.processor)
        self._dtype = id_dtype(job.processor.get_piece_size())
        self._length = job.settings.parallel_length
        forms: dict[str, tuple[tuple[int, ...], Any]] = {
            "parallel": ((self._length,), self._dtype),
            "bitext": ((), self._dtype),
            "ends": ((), np.int64),
        }
        self._names = [task.file(kind, language) for kind in kinds]
        self._files = [
            stack.enter_context(array_files.array_file(job.work / name, *forms[kind]))
            for name, kind in zip(self._names, kinds, strict=True)
        ]
        self._waiting: list[str] = []
        self._end = 0

    def add(self, cells: Sequence[str]) -> None:
        self._waiting += cells
        if len(self._waiting) >= _ROWS_AT_ONCE:
            self._write()

    def finish(self) -> list[str]:
        """Write the waiting cells; return the names of the files."""
        if self._waiting:
            self._write()
        return self._names

    def _write(self) -> None:
        ids, ends = encode(self._processor, self._waiting)
        self._waiting = []
        if len(self._files) == len(BITEXT):
            self._files[0].append(ids)
            self._files[1].append(self._end + ends)
            self._end += len(ids)
        else:
            tokens = np.split(ids, ends[:-1])
            rows = pad_sentences(tokens, self._length, self._special, self._dtype)
            self._files[0].append(rows)
