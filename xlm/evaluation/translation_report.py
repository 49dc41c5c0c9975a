"""Report of a run that translates: scores, signatures, BLEU by step, and examples to read."""

import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib.pyplot as plt
import numpy as np

from xlm.common import artifacts
from xlm.evaluation import figures
from xlm.evaluation.markdown import cell, escaped
from xlm.evaluation.task_results import ceiling_notes, described_choice, read_lines

NUM_EXAMPLES = 10
REPORT, PLOT = "report.md", "bleu.png"
_PREFIX = "validation/bleu/"
_LINE = ("id", "source", "reference", "prediction")


def write(
    folder: pathlib.Path,
    metadata: Mapping[str, Any],
    results: Mapping[str, Any],
    records: Sequence[Mapping[str, float]],
) -> None:
    """Write the report of a run into its folder.

    Args:
      folder: with `predictions`.
      results: scores by split and direction, their signatures, the choice of the parameters, and
        the search.
      records: metrics of the training, in order.
    """
    curves = learning_curves(records)
    lines = [f"# {metadata['task']}: {escaped(metadata['model'])}", ""]
    lines += [f"- {name}: {escaped(str(v))}" for name, v in metadata["hyperparameters"].items()]
    lines += [
        f"- seed: {metadata['seed']}",
        f"- parameters: {described_choice(results['selected'])}",
    ]
    lines += ["", "## Scores", *_scores(results)]
    lines += ["", "Search: " + ", ".join(map(_named, results["decoding"].items())) + "."]
    if curves:
        plot_curves(curves, folder / PLOT)
        lines += ["", "## BLEU by step", "", f"![BLEU by step]({PLOT})", "", *_table(curves)]
    for direction in results["test"]:
        lines += ["", f"## Examples: {direction}"]
        for one in some_translations(folder, direction):
            lines += ["", *example_lines(one, {"output": one["prediction"]})]
    artifacts.write_text(folder / REPORT, "\n".join(lines) + "\n")


def learning_curves(
    records: Sequence[Mapping[str, float]],
) -> dict[str, list[tuple[int, float]]]:
    """Steps and BLEU of each direction on the development data, during training."""
    curves: dict[str, list[tuple[int, float]]] = {}
    for record in records:
        for name, value in record.items():
            if name.startswith(_PREFIX):
                point = int(record["step"]), value
                curves.setdefault(name.removeprefix(_PREFIX), []).append(point)
    return curves


def plot_curves(curves: Mapping[str, Sequence[tuple[int, float]]], path: pathlib.Path) -> None:
    """Plot BLEU by step, a line for each direction or run (VECO, Table 4, right)."""
    figure, axes = plt.subplots(figsize=(6, 4), layout="constrained")
    for name, points in curves.items():
        steps, values = zip(*points, strict=True)
        axes.plot(steps, 100 * np.array(values), "o-", ms=3, label=name)
    axes.set_xlabel("steps")
    axes.set_ylabel("BLEU")
    axes.set_title("BLEU on development data during training", fontsize=10)
    axes.grid(alpha=0.3)
    axes.legend(fontsize=9)
    figures.save(figure, path)


def some_translations(folder: pathlib.Path, direction: str) -> list[dict[str, str]]:
    """Read `NUM_EXAMPLES` of the predictions of a run on test data, evenly spaced."""
    path = folder / "predictions" / f"test.{direction}.jsonl"
    found = read_lines(path, dict[str, str])
    if lacking := [key for one in found for key in _LINE if key not in one]:
        raise ValueError(f"{path}: a line lacks {lacking[0]}; run the evaluation again")
    count = min(NUM_EXAMPLES, len(found))
    return [found[number] for number in np.arange(count) * len(found) // count]


def example_lines(one: Mapping[str, str], outputs: Mapping[str, str]) -> list[str]:
    """Format a source, its reference, and outputs by the name of what they are from.

    Without source and reference, as in the records of a study, the number of the sentence stands.
    """
    texts = {"reference": one["reference"], **outputs} if "reference" in one else outputs
    items = [f"   - {name}: {cell(text)}" for name, text in texts.items()]
    return [f"{one['id']}. {cell(one.get('source', ''))}".rstrip(), "", *items]


def _scores(results: Mapping[str, Any]) -> list[str]:
    """Table of the scores of each split, and the signatures of the metrics."""
    names = list(next(iter(results["test"].values())))
    lines = ["", f"| | sentences | {' | '.join(names)} |", "|---|---:|" + "---:|" * len(names)]
    for split in ("validation", "test"):
        for direction, values in results[split].items():
            cells = " | ".join(f"{100 * values[name]:.1f}" for name in names)
            count = results["examples"][split][direction]
            lines.append(f"| {direction}, {split} | {count:,} | {cells} |")
    lines += [line for note in ceiling_notes(results) for line in ("", f"Ceiling of {note}.")]
    for direction, signatures in results["signatures"].items():
        lines += ["", f"Signatures, {direction}:", ""]
        lines += [f"- {name}: `{signature}`" for name, signature in signatures.items()]
    return lines


def _table(curves: Mapping[str, Sequence[tuple[int, float]]]) -> list[str]:
    """Table of BLEU by step."""
    steps = sorted({step for points in curves.values() for step, _ in points})
    lines = [f"| step | {' | '.join(curves)} |", "|---:|" + "---:|" * len(curves)]
    by_name = {name: dict(points) for name, points in curves.items()}
    for step in steps:
        values = [by_name[name].get(step) for name in curves]
        cells = ("" if value is None else f"{100 * value:.1f}" for value in values)
        lines.append(f"| {step:,} | {' | '.join(cells)} |")
    return lines


def _named(item: tuple[str, Any]) -> str:
    name, value = item
    return f"{name} {value:.4g}" if isinstance(value, float) else f"{name} {value}"
