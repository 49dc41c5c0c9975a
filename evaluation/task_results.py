"""Predictions of a task on disk, and a table of its scores for the console."""

import json
import pathlib
from collections.abc import Iterable, Mapping
from typing import Any

from common import artifacts
from evaluation.tasks import Line
from input_pipeline.tasks.tasks import TASKS, Task

_ON_TEST = "†"
Scores = dict[str, dict[str, float]]


def write_lines(path: pathlib.Path, found: Iterable[Line]) -> None:
    """Write predictions, one JSON object per line."""
    text = "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in found)
    artifacts.write_text(path, text)


def read_lines(path: pathlib.Path) -> list[Any]:
    """Read predictions.

    Raises:
      ValueError: a line is not JSON.
    """
    # Texts keep what else Python takes for the end of a line, such as U+2028.
    text = path.read_text(encoding="utf-8")
    found = []
    for number, line in enumerate(text.removesuffix("\n").split("\n") if text else (), 1):
        try:
            found.append(json.loads(line))
        except json.JSONDecodeError as error:
            raise ValueError(
                f"{path}:{number}: not JSON ({error.msg}); run the evaluation again"
            ) from None
    return found


def reported_split(results: Mapping[str, Any]) -> str:
    """Return the split whose scores a run reports: "test", or "validation" where none is scored."""
    return "test" if results.get("test") else "validation"


def reported_scores(results: Mapping[str, Any]) -> dict[str, float]:
    """Return the task's reported metric by language, of the results of a run.

    These are of the test data or, where a task has none with labels, of the development data; see
    `reported_split`.
    """
    # Not the first of the file, whose keys are sorted.
    metric = TASKS[results["task"]].metrics[0]
    scores: Scores = results.get(reported_split(results)) or {}
    return {language: metrics[metric] for language, metrics in scores.items()}


def table(task: Task, results: Mapping[str, Any]) -> str:
    """Format the scores of a run as a Markdown table, in percent, by language."""
    rows: list[str] = []
    on_test = set(results.get("selected_on_test", ()))
    reported = reported_split(results)
    for split in ("validation", "test"):
        scores: Scores = results.get(split) or {}
        if not scores:
            continue
        metrics = list(next(iter(scores.values())))
        rows += ["", f"| {task.name}, {split} | examples | {' | '.join(metrics)} |"]
        rows += ["|---|---:|" + "---:|" * len(metrics)]
        for language, values in scores.items():
            mark = _ON_TEST if split == reported and language in on_test else ""
            cells = [f"{100 * values[metric]:.1f}{mark}" for metric in metrics]
            count = results["examples"][split][language]
            rows.append(f"| {language} | {count:,} | {' | '.join(cells)} |")
        means = [sum(v[metric] for v in scores.values()) / len(scores) for metric in metrics]
        rows.append(f"| mean | | {' | '.join(f'{100 * mean:.1f}' for mean in means)} |")
    return "\n".join([*rows[1:], *_notes(results, on_test)])


def described_choice(selected: Mapping[str, Any]) -> str:
    """Describe the checkpoints that the parameters are of, from `selected` of results."""
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


def _notes(results: Mapping[str, Any], on_test: set[str]) -> list[str]:
    """Notes on what the scores are of, and on the data that they were chosen on."""
    notes = []
    if "selected" in results:
        notes += ["", described_choice(results["selected"])]
    if "held_out" in results:
        share = f"{100 * results['held_out']:g} % of the training examples"
        notes.append(f"no development files: {share} were held out by a hash of their text")
    if seen := results.get("seen_in_training"):
        named = ", ".join(f"{language} {count:,}" for language, count in seen.items())
        notes.append(f"test examples with a text of the training data, by language: {named}")
    if on_test:
        notes.append(f"{_ON_TEST} scores of the data that chose the checkpoint or a threshold")
    for language, signatures in results.get("signatures", {}).items():
        notes += [f"{language}, {name}: {signature}" for name, signature in signatures.items()]
    return notes
