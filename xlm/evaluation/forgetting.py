"""Gains and losses of continued training, by language (XY-LENT Section 8, Table 6, Figure 5)."""

import math
import pathlib
import statistics
from collections.abc import Mapping

import matplotlib.pyplot as plt

from xlm.common import artifacts, declarations
from xlm.common.declarations import Artefact, Name
from xlm.evaluation import figures, markdown

REPORT, RESULTS, PLOT = "report.md", "results.json", "forgetting.png"
LOSS, AUC = "exact loss", "AUC, unigram"

# Scores before and after by language.
Change = Mapping[str, tuple[float, float]]
# Changes by data and measure, such as ("rows", LOSS).
Changes = Mapping[tuple[str, str], Change]

NOTE = """\
*relative*: (before - after) / before, as in Table 6, turned for the loss, so that what is positive
is a loss of quality: forgetting. *exact loss* is in nats a token, of the masked LM or the generator
on held-out text; scores are in per cent, and an AUC of 50 is chance. Means are of the columns; of a
score that was 0 there is no relative change."""


def relative(measure: str, before: float, after: float) -> float:
    """Return the relative loss of quality in per cent: negative for a gain, NaN if it was 0."""
    worse = after - before if measure == LOSS else before - after
    return 100 * worse / abs(before) if before else math.nan


def form_of(measure: str) -> tuple[str, float]:
    """Return the format of a measure in tables and the factor of its values; scores in per cent."""
    return ("{:.3f}", 1.0) if measure == LOSS else ("{:.1f}", 100.0)


def write_report(changes: Changes, title: str, folder: pathlib.Path) -> str:
    """Write report, plot and results to `folder`; return the text of the report.

    Args:
      changes: scores by data and measure, each with languages.

    Raises:
      ValueError: nothing has a score in a language both before and after.
    """
    changes = {of: change for of, change in changes.items() if change}
    if not changes:
        raise ValueError(
            "no language has a score both before and after; compare runs on rows, or tasks, of "
            "the same languages"
        )
    plot_changes(changes, folder / PLOT)
    parts = [f"# Forgetting\n\n{markdown.escaped(title)}", NOTE]
    for (data, measure), change in changes.items():
        parts += [f"## {markdown.escaped(data)}: {measure}", change_table(measure, change)]
    parts.append(f"![Relative loss of quality by language]({PLOT})")
    text = "\n\n".join(parts) + "\n"
    artifacts.write_text(folder / REPORT, text)
    results = [
        {
            "data": data,
            "measure": measure,
            "before": {language: one for language, (one, _) in change.items()},
            "after": {language: one for language, (_, one) in change.items()},
        }
        for (data, measure), change in changes.items()
    ]
    artifacts.write_json(folder / RESULTS, {"changes": results})
    return text


class _Change(Artefact, frozen=True):
    data: str
    measure: str
    before: dict[Name, float]
    after: dict[Name, float]


class _Results(Artefact, frozen=True):
    changes: list[_Change]


def read_changes(folder: pathlib.Path) -> dict[tuple[str, str], dict[str, tuple[float, float]]]:
    """Read the changes of a report.

    Raises:
      ValueError: they are not as they were written.
    """
    path, remedy = folder / RESULTS, "run xlm forgetting again"
    found = declarations.read(path, _Results, remedy=remedy).changes
    if any(one.before.keys() != one.after.keys() for one in found):
        raise ValueError(f"{path}: languages before and after are not the same; {remedy}")
    return {
        (one.data, one.measure): {name: (one.before[name], one.after[name]) for name in one.before}
        for one in found
    }


def change_table(measure: str, change: Change) -> str:
    """Return a Markdown table: before, after and the relative loss, a row per language."""
    form, scale = form_of(measure)
    rows = {
        language: (*both, relative(measure, *both)) for language, both in sorted(change.items())
    }
    columns = (
        [one for one in column if not math.isnan(one)]
        for column in zip(*rows.values(), strict=True)
    )
    means = [statistics.fmean(column) if column else math.nan for column in columns]
    lines = ["| language | before | after | relative % |", "|---|---:|---:|---:|"]
    for name, (before, after, change_of_language) in [*rows.items(), ("**mean**", means)]:
        cells = [form.format(scale * before), form.format(scale * after)]
        cells.append("" if math.isnan(change_of_language) else f"{change_of_language:+.1f}")
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines)


def plot_changes(changes: Changes, path: pathlib.Path) -> None:
    """Plot the relative losses of quality by language as bars, a panel per data and measure."""
    figure, panels = plt.subplots(
        len(changes), 1, figsize=(8, 0.8 + 2.2 * len(changes)), layout="constrained", squeeze=False
    )
    for axes, ((data, measure), change) in zip(panels[:, 0], changes.items(), strict=True):
        values = {name: relative(measure, *both) for name, both in sorted(change.items())}
        colours = ["tab:red" if value > 0 else "tab:blue" for value in values.values()]
        axes.bar(list(values), list(values.values()), color=colours, alpha=0.7)
        axes.axhline(0, color="black", lw=0.8)
        axes.set_title(f"{data}: {measure}", fontsize=10)
        axes.set_ylabel("worse by, %")
        axes.grid(axis="y", alpha=0.3)
    figures.save(figure, path)
