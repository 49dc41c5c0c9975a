"""Predictions of a task on disk, and a table of its scores for the console."""

import json
import pathlib
from collections.abc import Iterable, Mapping
from typing import Any

from common import artifacts
from evaluation.tasks import Line
from input_pipeline.tasks.tasks import Task

Scores = dict[str, dict[str, float]]


def write_lines(path: pathlib.Path, found: Iterable[Line]) -> None:
    """Write predictions, one JSON object per line."""
    text = "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in found)
    artifacts.write_text(path, text)


def table(task: Task, results: Mapping[str, Any]) -> str:
    """Format the scores of a run as a Markdown table, in percent, by language."""
    rows = []
    for split in ("validation", "test"):
        scores: Scores = results.get(split) or {}
        if not scores:
            continue
        metrics = list(next(iter(scores.values())))
        rows += ["", f"| {task.name}, {split} | examples | {' | '.join(metrics)} |"]
        rows += ["|---|---:|" + "---:|" * len(metrics)]
        for language, values in scores.items():
            cells = [f"{100 * values[metric]:.1f}" for metric in metrics]
            count = results["examples"][split][language]
            rows.append(f"| {language} | {count:,} | {' | '.join(cells)} |")
        means = [sum(v[metric] for v in scores.values()) / len(scores) for metric in metrics]
        rows.append(f"| mean | | {' | '.join(f'{100 * mean:.1f}' for mean in means)} |")
    return "\n".join(rows[1:])
