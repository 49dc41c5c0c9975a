"""The folder of a run of finetune.py: names of its files."""

import contextlib
import pathlib
from collections.abc import Callable

BEST, DATA, RESULTS = "best.safetensors", "data.json", "results.json"
BAD_ROWS, TOKENIZER, TEACHER = "bad_rows.jsonl", "spm.model", "teacher.npy"
MODEL = "model.json"  # of a run that translates, to read its checkpoints
_BY_LANGUAGE = "best_by_language"

# steps taken -> whether to stop
ShouldStop = Callable[[int], bool]
StopContext = Callable[[], contextlib.AbstractContextManager[ShouldStop]]


def best_of(folder: pathlib.Path, language: str) -> pathlib.Path:
    """Return the file of the parameters selected for a language; "" for the mean over all."""
    return folder / _BY_LANGUAGE / f"{language}.safetensors" if language else folder / BEST
