"""Predictions of a task on disk, and a table of its scores for the console."""

import json
import pathlib
from collections.abc import Iterable, Mapping
from typing import Annotated, Any, TypeVar

import msgspec

from input_pipeline.tasks.tasks import TASKS, Task
from xlm.common import artifacts, declarations, tables
from xlm.common.declarations import Artefact, Count, Name
from xlm.evaluation.tasks import Line

T = TypeVar("T")
_ON_TEST = "†"
_CEILING = 0.9995  # least BLEU that a table shows as 100.0
_AGAIN = "rerun the evaluation"
Scores = dict[str, dict[str, float]]
# Tolerance of the range of a score: runs have recorded a BLEU of 1.0000000000000004.
_ROUNDING = 1e-9
_CORRELATIONS = ("matthews", "pearson", "spearman")  # may be negative
_Score = Annotated[float, msgspec.Meta(ge=-1 - _ROUNDING, le=1 + _ROUNDING)]
_Scores = dict[Name, dict[str, _Score]]
_Plain = str | int | float | bool | None


class Selected(Artefact, frozen=True, kw_only=True):
    step: Count
    on: list[Name]
    metric: str
    value: float | None
    rule: str = ""
    steps: dict[Name, Count] = {}
    averaged_steps: list[Count] | None = None
    stopped_early: Count | None = None


class Results(Artefact, frozen=True, kw_only=True):
    """Content of a run's results.json; tasks omit what they lack."""

    task: str
    model: str
    setting: str
    seed: Count
    hyperparameters: dict[str, _Plain]
    test: _Scores
    validation: _Scores = {}
    examples: dict[str, dict[Name, Count]] = {}
    selected: Selected | None = None
    selected_on_test: list[Name] = []
    held_out: float = 0.0
    seen_in_training: dict[Name, Count] = {}
    class_weights: dict[str, float] = {}
    padding_ratio: float = 1.0
    null_threshold: float = 0.0
    thresholds: dict[Name, float] = {}
    signatures: dict[Name, dict[str, str]] = {}
    decoding: dict[str, _Plain] = {}
    dataset: str = ""
    bad_rows: Count = 0
    scored: dict[Name, str] = {}
    ceilings: dict[str, dict[Name, _Score]] = {}
    baselines: dict[str, _Scores] = {}
    classes: dict[Name, dict[str, dict[str, float]]] = {}
    confusion: dict[Name, dict[str, dict[str, Count]]] = {}
    calibration: dict[str, float | dict[Name, float]] = {}
    training_loss: float = 0.0
    label_entropy: float = 0.0
    collapse: list[str] = []
    unknown: dict[str, dict[Name, dict[str, Count | list[str]]]] = {}
    tuning: list[dict[str, _Plain | dict[str, _Plain]]] = []
    zero_shot: list[Name] = []


def averaged_metrics(task: str) -> tuple[str, ...]:
    """Return the metrics with the mean that is a task's score: F1 and exact match, or the first."""
    metrics = TASKS[task].metrics
    return metrics if "exact_match" in metrics else metrics[:1]


def read_results(path: pathlib.Path) -> dict[str, Any]:
    """Read a finished run's results; ValueError if malformed, incomplete, or of an unknown task."""
    remedy = "name the --workdir of a finished run of finetune.py, or copy it again"
    found: dict[str, Any] = declarations.read_plain(path, Results, remedy=remedy)
    if problem := _problem(found):
        raise ValueError(f"{path}: {problem}; {remedy}")
    return found


def _problem(found: Mapping[str, Any]) -> str:
    """Return the fault of results that have the declared form, "" for none."""
    if found["task"] not in TASKS:
        return f"task is {found['task']!r}, must be one of {', '.join(TASKS)}"
    splits = [split for split in ("validation", "test") if found.get(split)]
    for split in splits:
        counts = found.get("examples", {}).get(split)
        metrics = {*averaged_metrics(found["task"]), *next(iter(found[split].values()))}
        for language, scores in found[split].items():
            if lacking := metrics - set(scores):
                return f"{split}.{language} lacks {min(lacking)}"
            if counts is not None and language not in counts:
                return f"examples.{split} lacks {language}"
            for name, value in scores.items():
                if value < -_ROUNDING and name not in _CORRELATIONS:
                    return f"{split}.{language}.{name} is {value}, must be at least 0"
    return "" if splits else "there are no scores of test or validation data"


def write_lines(path: pathlib.Path, found: Iterable[Line]) -> None:
    text = "".join(map(dumped, found))
    artifacts.write_text(path, text.encode(errors="backslashreplace").decode())


def dumped(line: Line) -> str:
    return json.dumps(line, ensure_ascii=False, default=str) + "\n"


def read_lines(path: pathlib.Path, kind: type[T]) -> list[T]:
    """Read predictions of a `kind`; ValueError for another form or a truncated line."""
    content = artifacts.read_bytes(path)
    if content and not content.endswith(b"\n"):
        raise ValueError(f"{path}: its last line is truncated; {_AGAIN}")
    return list(declarations.parse_lines(content, kind, place=str(path), remedy=_AGAIN))


def reported_split(results: Mapping[str, Any]) -> str:
    """Return the split that a run reports: "test", or "validation" without scores of test."""
    return "test" if results.get("test") else "validation"


def reported_scores(results: Mapping[str, Any]) -> dict[str, float]:
    """Return the task's reported metric by language, of the `reported_split` of results."""
    # Not the first of the file, which sorts keys.
    metric = TASKS[results["task"]].metrics[0]
    scores: Scores = results.get(reported_split(results)) or {}
    return {language: metrics[metric] for language, metrics in scores.items()}


def table(task: Task, results: Mapping[str, Any]) -> str:
    parts, name = [], results.get("dataset") or task.name
    on_test = set(results.get("selected_on_test", ()))
    for split in ("validation", "test"):
        scores: Scores = {  # in one order, also of a file, whose keys are sorted
            language: {m: of[m] for m in dict.fromkeys((*task.metrics, *sorted(of))) if m in of}
            for language, of in sorted((results.get(split) or {}).items())
        }
        counts = results.get("examples", {}).get(split, {})
        is_reported = split == reported_split(results)
        baselines = results.get("baselines", {}) if is_reported else {}
        marked = on_test if is_reported else set()
        zero_shot = results.get("zero_shot", ())
        rows: list[tables.Row] = [
            {
                f"{name}, {split}": f"{language}{', zero-shot' * (language in zero_shot)}",
                "examples": tables.shown(counts.get(language), ","),
                **{
                    metric: f"{100 * value:.1f}{_ON_TEST * (language in marked)}"
                    for metric, value in values.items()
                },
                **{
                    f"{name} {task.metrics[0]}": 100 * of[language][task.metrics[0]]
                    for name, of in baselines.items()
                },
            }
            for language, values in scores.items()
        ]
        if rows:
            metrics = next(iter(scores.values()))
            averaged = [of for one, of in scores.items() if one not in zero_shot]
            means = {m: 100 * tables.mean_of(of.get(m) for of in averaged) for m in metrics}
            for baseline, of in baselines.items():
                found = [values[task.metrics[0]] for values in of.values()]
                means[f"{baseline} {task.metrics[0]}"] = 100 * tables.mean_of(found)
            rows.append({f"{name}, {split}": "mean", **means})
        parts.append(tables.markdown(rows, ".1f"))
    return tables.page(*parts, "\n".join(_notes(results, on_test))).rstrip("\n")


def seeds_table(found: Mapping[str, Any]) -> str:
    """Return the table of a seeds.json's content, in per cent with standard deviations."""
    title, rows = f"{found['split']}, {len(found['seeds'])} seeds", []
    for language, scores in sorted(found["scores"].items(), key=lambda one: one[0] == "mean"):
        shown = {
            name: " ± ".join(f"{100 * value:.1f}" for value in pair if value is not None)
            for name, pair in scores.items()
        }
        rows.append({title: language, **shown})
    return tables.markdown(rows)


def described_choice(selected: Mapping[str, Any]) -> str:
    """Describe the checkpoints behind the parameters, from `selected` of results."""
    if averaged := selected.get("averaged_steps"):
        first, last = averaged[0], averaged[-1]
        if first == last:
            return f"checkpoint of step {last:,}, the last"
        return f"mean of {len(averaged)} checkpoints, of steps {first:,} to {last:,}"
    metric = selected["metric"]
    if steps := selected.get("steps"):
        each = ", ".join(f"{language} {step:,}" for language, step in steps.items())
        return (
            f"a checkpoint for each language, the best by its {metric} of the development data; "
            f"steps: {each}"
        )
    on = ", ".join(selected["on"])
    return (
        f"checkpoint of step {selected['step']:,}, the best by {metric} of the development data "
        f"in {on}"
    )


def ceiling_notes(results: Mapping[str, Any]) -> list[str]:
    """Note directions in which outputs cannot reach 100 BLEU."""
    return [
        f"{direction}, {split}: a perfect model reaches {100 * bleu:.1f} BLEU, since the tokenizer "
        "loses characters of the references; vocab.byte_fallback keeps them"
        for split, ceilings in results.get("ceilings", {}).items()
        for direction, bleu in ceilings.items()
        if bleu < _CEILING
    ]


def _notes(results: Mapping[str, Any], on_test: set[str]) -> list[str]:
    notes = [f"COLLAPSED: {line}" for line in results.get("collapse", ())]
    if "selected" in results:
        notes.append(described_choice(results["selected"]))
        if step := results["selected"].get("stopped_early"):
            notes.append(f"training ended early, after step {step:,} (train.patience)")
    if tried := results.get("tuning"):
        chosen = next(one["name"] for one in tried if one["chosen"])
        notes.append(f"--tune chose {chosen}, of {len(tried)} trials, on the development data")
    if "held_out" in results:
        share = f"{100 * results['held_out']:g} % of the training examples"
        notes.append(f"no development files: held out {share}, of each label and language")
    if count := results.get("bad_rows"):
        notes.append(f"left out {count:,} bad rows: bad_rows.jsonl")
    if seen := results.get("seen_in_training"):
        named = ", ".join(f"{language} {count:,}" for language, count in seen.items())
        notes.append(f"test examples with a text of the training data, by language: {named}")
    if on_test:
        notes.append(f"{_ON_TEST} scores of the data that chose the checkpoint or a threshold")
    notes += ceiling_notes(results)
    for language, signatures in results.get("signatures", {}).items():
        notes += [f"{language}, {name}: {signature}" for name, signature in signatures.items()]
    return notes
