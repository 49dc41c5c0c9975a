"""Report of a run that translates: scores, signatures, BLEU by step, and examples to read."""

import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

from xlm.common import charts, html_report, tables
from xlm.evaluation.metrics import translation as metrics
from xlm.evaluation.task_results import ceiling_notes, described_choice, read_lines, reported_split

NUM_EXAMPLES = 10
PLOT = "bleu.svg"
_PREFIX = "validation/bleu/"
_LINE = ("id", "source", "reference", "prediction")


def write(
    folder: pathlib.Path,
    metadata: Mapping[str, Any],
    results: Mapping[str, Any],
    records: Sequence[Mapping[str, float]],
) -> None:
    """Write the report of a run into its folder, which has `predictions`.

    `results` have scores by split and direction, their signatures, the choice of the parameters,
    and the search. `records` are metrics of the training, in order.
    """
    facts = {**metadata["hyperparameters"], "seed": metadata["seed"]}
    facts["parameters"] = described_choice(results["selected"])
    search = (f"{name} {_plain(value)}" for name, value in results["decoding"].items())
    parts = [
        f"# {metadata['task']}: {tables.escaped(metadata['model'])}",
        "\n".join(f"- {name}: {tables.escaped(str(value))}" for name, value in facts.items()),
        "## Scores",
        _scores(results),
        *(f"Ceiling of {note}." for note in ceiling_notes(results)),
        *_unknown(results),
    ]
    for direction, signatures in results["signatures"].items():
        lines = [f"- {name}: `{signature}`" for name, signature in signatures.items()]
        parts += [f"Signatures, {direction}:", "\n".join(lines)]
    parts.append(f"Search: {', '.join(search)}.")
    if curves := learning_curves(records):
        charts.save(plot_curves(curves), folder / PLOT)
        parts += ["## BLEU by step", f"![BLEU by step]({PLOT})", _steps(curves)]
    split = reported_split(results)
    for direction in results[split]:
        parts.append(f"## Examples: {direction}")
        for one in some_translations(folder, direction, split):
            texts = {"reference": one["reference"], "output": one["prediction"]}
            items = [f"   - {name}: {tables.text_cell(text)}" for name, text in texts.items()]
            source = f"{one['id']}. {tables.text_cell(one['source'])}".rstrip()
            parts += [source, "\n".join(items)]
    html_report.write(folder, tables.page(*parts))


def comparison(folders: Mapping[str, pathlib.Path]) -> list[str]:
    """Compare runs with the first one on each test set that all of them translate; [] if none."""
    parts, each = list[str](), [folder / "predictions" for folder in folders.values()]
    for name in sorted(path.name for path in each[0].glob("test.*-*.jsonl")):
        paths = [one / name for one in each if (one / name).exists()]
        found = [read_lines(path, dict[str, Any]) for path in paths]
        given = [[(line.get("source"), line.get("reference")) for line in of] for of in found]
        if given.count(given[0]) < max(len(each), 2) or None in given[0][0]:
            continue
        direction = name.removeprefix("test.").removesuffix(".jsonl")
        texts = [[line["prediction"] for line in of] for of in found]
        references, language = [two for _, two in given[0]], direction.partition("-")[2]
        scores = metrics.compared(references, dict(zip(folders, texts, strict=True)), language)
        rows: list[dict[str, Any]] = [{"": tables.escaped(run)} for run in scores.pop("System")]
        for metric, values in scores.items():
            for row, one, of in zip(rows, values, texts, strict=True):
                row[metric] = f"{one.score:.1f}"
                # For equal texts sacreBLEU reports the least possible p.
                row[f"p, {metric}"] = "" if of == texts[0] else f"{one.p_value:.3f}"
        parts += [f"## Translation of {direction}, test", tables.markdown(rows)]
    note = "p of the difference from the first run, by paired bootstrap of the sentences."
    return [*parts, note] if parts else []


def learning_curves(records: Sequence[Mapping[str, float]]) -> dict[str, list[tuple[int, float]]]:
    """Return steps and BLEU of each direction on the development data, during training."""
    curves: dict[str, list[tuple[int, float]]] = {}
    for record in records:
        for name, value in record.items():
            if name.startswith(_PREFIX):
                point = int(record["step"]), value
                curves.setdefault(name.removeprefix(_PREFIX), []).append(point)
    return curves


def plot_curves(curves: Mapping[str, Sequence[tuple[int, float]]]) -> str:
    """Draw BLEU by step, a line for each direction (VECO, Table 4, right)."""
    marks = [
        charts.Marks(name, [step for step, _ in points], [100 * one for _, one in points], "dotted")
        for name, points in curves.items()
    ]
    title = "BLEU on development data during training"
    return charts.chart(marks, charts.Axis("steps"), charts.Axis("BLEU"), title=title)


def _unknown(results: Mapping[str, Any]) -> list[str]:
    """Count sources with characters that the vocabulary lacks."""
    return [
        f"Unknown characters of {direction}, {split}: {found['sources']:,} sources have some, and "
        f"{found['lost']:,} lost them: {tables.escaped(' '.join(found['examples']))}"
        for split, directions in results.get("unknown", {}).items()
        for direction, found in directions.items()
    ]


def some_translations(
    folder: pathlib.Path, direction: str, split: str = "test"
) -> list[dict[str, str]]:
    """Read `NUM_EXAMPLES` of the predictions of a run on a split, evenly spaced."""
    path = folder / "predictions" / f"{split}.{direction}.jsonl"
    found = read_lines(path, dict[str, str])
    if lacking := [key for one in found for key in _LINE if key not in one]:
        raise ValueError(f"{path}: a line lacks {lacking[0]}; rerun the evaluation")
    count = min(NUM_EXAMPLES, len(found))
    return [found[number * len(found) // count] for number in range(count)]


def _scores(results: Mapping[str, Any]) -> str:
    rows = [
        {
            "": f"{direction}, {split}{', zero-shot' * (direction in results['zero_shot'])}",
            "sentences": f"{results['examples'][split][direction]:,}",
            **{name: 100 * value for name, value in values.items()},
            "BLEU of a perfect model": 100 * results["ceilings"][split][direction],
        }
        for split in ("validation", "test")
        for direction, values in results[split].items()
    ]
    return tables.markdown(rows, ".1f")


def _steps(curves: Mapping[str, Sequence[tuple[int, float]]]) -> str:
    values = {name: dict(points) for name, points in curves.items()}
    rows = [
        {"step": f"{step:,}"}
        | {name: 100 * found[step] if step in found else None for name, found in values.items()}
        for step in sorted({step for found in values.values() for step in found})
    ]
    return tables.markdown(rows, ".1f", left=0)


def _plain(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
