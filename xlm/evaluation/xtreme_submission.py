"""Predictions of runs as the folder that XTREME's evaluate.py reads.

    predictions/TASK/test-LANGUAGE.tsv   json for questions

Its README and readers define the formats. Lines are a label; a tag, with an empty line after each
sentence; the 0-based number of the found sentence (Tatoeba); or two ids with a tab between them
(BUCC). Questions have one object of answers by question id.

XTREME's own tests have no labels: predict.py writes a run's predictions for them to
`RUN/predictions/unlabelled.LANGUAGE.jsonl`. If a task has such files, we take only them: the run's
scores are on other text, such as development data.
"""

import json
import pathlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import msgspec

from input_pipeline.tasks.tasks import TASKS
from xlm.common import artifacts
from xlm.evaluation import task_results
from xlm.evaluation.xtreme_runs import XTREME, Run, Variant

UNLABELLED = "unlabelled"


def write_submission(folder: pathlib.Path, best: Sequence[Variant]) -> dict[str, list[str]]:
    """Write the predictions of one model in one setting to `folder`/predictions.

    `best` has at most one variant of each task, also of tasks that XTREME lacks. The seed with the
    best score on development data counts. Returns the languages without predictions by XTREME's
    name of a task. Raises ValueError for predictions that do not belong to the run's results.
    """
    runs: dict[str, Run] = {}
    for one in (variant for variant in best if variant.task in XTREME):
        if one.task in runs:
            raise ValueError(
                f"{runs[one.task].folder} and {one.runs[0].folder} are runs of {one.task}, and no "
                "score on development data chooses between them: they have none, or differ in more "
                "than tuned hyperparameters; leave all but one out of --runs"
            )
        seeds = [run for run in one.runs if _has_unlabelled(run)] or one.runs
        runs[one.task] = max(seeds, key=lambda run: -1 if run.selected is None else run.selected)
    missing = {}
    for task in XTREME:
        name = TASKS[task].xtreme_name
        run = runs.get(task)
        written = set(_write_task(folder / "predictions" / name, run)) if run else set()
        if absent := [one for one in TASKS[task].languages if one not in written]:
            missing[name] = absent
    return missing


def _has_unlabelled(run: Run) -> bool:
    return any((run.folder / "predictions").glob(f"{UNLABELLED}.*.jsonl"))


def _write_task(folder: pathlib.Path, run: Run) -> Iterator[str]:
    """Write the languages of a run that XTREME has; yield each."""
    is_scored = not _has_unlabelled(run)
    for language in TASKS[run.task].languages:
        path = run.folder / "predictions" / f"{UNLABELLED}.{language}.jsonl"
        if is_scored:
            path = path.with_name(f"{run.split}.{language}.jsonl")
            if run.split != "test" or language not in run.scores:
                continue
        elif not path.is_file():
            continue
        form = _FORMATS[TASKS[run.task].kind]
        lines = _read(path, run, language, form, is_scored=is_scored)
        text = "\n".join(form.rows(lines, path))
        artifacts.write_text(folder / f"test-{language}.{form.suffix}", text + "\n")
        yield language


# Lines of predictions, with the fields that we read.
class _Labelled(msgspec.Struct):
    id: str
    prediction: str


class _Tagged(msgspec.Struct):
    id: str
    prediction: list[str]


class _Pair(msgspec.Struct):
    source: str
    target: str


class _Format(NamedTuple):
    """Format of the predictions of a kind: maps our lines and their file to XTREME's lines."""

    rows: Callable[[Sequence[Any], pathlib.Path], Iterable[str]]
    suffix: str = "tsv"
    line: type = _Labelled  # ours
    is_per_example: bool = True


def _read(
    path: pathlib.Path, run: Run, language: str, form: _Format, *, is_scored: bool
) -> list[Any]:
    if not path.is_file():
        raise ValueError(
            f"{path}: no such file, but {run.folder} has scores of {language}; rerun its evaluation"
        )
    lines: list[Any] = task_results.read_lines(path, form.line)
    wanted = run.examples.get(language, len(lines))
    if is_scored and form.is_per_example and len(lines) != wanted:
        raise ValueError(
            f"{path}: {len(lines)} predictions for {wanted} examples; rerun the evaluation"
        )
    return lines


def _tags(lines: Sequence[_Tagged], path: pathlib.Path) -> Iterator[str]:
    for number, line in enumerate(lines):
        yield from line.prediction
        if number + 1 < len(lines):
            yield ""


def _positions(lines: Sequence[_Labelled], path: pathlib.Path) -> Iterator[str]:
    """Yield the place of each found id among the file's ids; both sides have the same order."""
    places = {line.id: place for place, line in enumerate(lines)}
    for number, line in enumerate(lines, 1):
        if line.prediction not in places:
            raise ValueError(
                f"{path}:{number}: prediction {line.prediction!r} is not one of the file's ids"
            )
        yield str(places[line.prediction])


def _answers(lines: Iterable[_Labelled], path: pathlib.Path) -> Iterator[str]:
    found = {line.id: line.prediction for line in lines}
    yield json.dumps(found, ensure_ascii=False, indent=1)


# By kind; a submission has no other kinds.
_FORMATS = {
    "classification": _Format(lambda lines, _: [line.prediction for line in lines]),
    "tagging": _Format(_tags, line=_Tagged),
    "extractive_qa": _Format(_answers, suffix="json"),
    "retrieval": _Format(_positions),
    "mining": _Format(
        lambda lines, _: [f"{line.source}\t{line.target}" for line in lines],
        line=_Pair, is_per_example=False,
    ),
}  # fmt: skip
