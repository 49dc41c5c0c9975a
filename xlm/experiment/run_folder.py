"""The folder of a run of finetune.py: names of its files, and its predictions."""

import contextlib
import itertools
import pathlib
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from xlm.evaluation.tasks import Line, TaskData

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


def evaluated(
    data: Mapping[str, Sequence["TaskData"]],
    folder: pathlib.Path,
    score: Callable[["TaskData"], tuple[dict[str, float], Sequence["Line"]]],
    should_stop: ShouldStop,
    step: int,
) -> dict[str, Any]:
    """Score development and test data, and write the predictions of each language or direction.

    `score` maps data of one language to its scores and the lines of its predictions. The run has
    taken `step` steps. Returns part of the results: the scores of each split, and its numbers of
    examples. Raises Stopped if `should_stop` asked for it.
    """
    from xlm.common import console
    from xlm.evaluation.task_results import write_lines
    from xlm.training import hosts
    from xlm.training.signals import Stopped

    polls = itertools.count(step)
    results: dict[str, Any] = {"examples": {}}
    for split in ("validation", "test"):
        results[split] = {}
        for one in console.bar(data[split], split, len(data[split]), "sets"):
            # Several hosts agree on where to stop by a number that grows.
            if should_stop(next(polls)):
                raise Stopped(step)
            results[split][one.language], lines = score(one)
            if hosts.is_first():
                write_lines(folder / "predictions" / f"{split}.{one.language}.jsonl", lines)
        results["examples"][split] = {one.language: len(one.examples) for one in data[split]}
    return results
