"""Gains and losses of continued training, by language (XY-LENT Section 8, Table 6, Figure 5)."""

import math
import pathlib
from collections.abc import Mapping

from vocap import figures
from xlm.common import artifacts, tables

REPORT, RESULTS, PLOT = "report.md", "results.json", "forgetting.png"
LOSS, AUC = "exact loss", "AUC, unigram"

# Scores before and after by language.
Change = Mapping[str, tuple[float, float]]
# Changes by data and measure, such as ("rows", LOSS).
Changes = Mapping[tuple[str, str], Change]

NOTE = """\
- *relative*: (before - after) / before, as in Table 6. The sign of the loss is turned, so that what
  is positive is forgetting. A score that was 0 has none.
- *exact loss*: nats a token, of the masked LM or the generator on held-out text.
- Scores are in per cent. An AUC of 50 is chance. Means are of the columns."""


def relative(measure: str, before: float, after: float) -> float:
    """Return the relative loss of quality in per cent: negative for a gain, NaN if it was 0."""
    worse = after - before if measure == LOSS else before - after
    return 100 * worse / abs(before) if before else math.nan


def form_of(measure: str) -> tuple[str, float]:
    """Return a measure's number format and factor in tables; scores are in per cent."""
    return ("{:.3f}", 1.0) if measure == LOSS else ("{:.1f}", 100.0)


def write_report(changes: Changes, title: str, folder: pathlib.Path) -> str:
    """Write report, plot and results; return the report. ValueError if no score is in both runs."""
    changes = {of: change for of, change in changes.items() if change}
    if not changes:
        raise ValueError(
            "no language has a score both before and after; compare runs on rows, or tasks, of "
            "the same languages"
        )
    plot_changes(changes, folder / PLOT)
    parts = ["# Forgetting", tables.escaped(title), NOTE]
    results = []
    for (data, measure), change in changes.items():
        parts += [f"## {tables.escaped(data)}: {measure}", change_table(measure, change)]
        before, after = ({name: both[i] for name, both in change.items()} for i in (0, 1))
        results.append({"data": data, "measure": measure, "before": before, "after": after})
    text = tables.page(*parts, f"![Relative loss of quality by language]({PLOT})")
    artifacts.write_text(folder / REPORT, text)
    artifacts.write_json(folder / RESULTS, {"changes": results})
    return text


def change_table(measure: str, change: Change) -> str:
    """Return a table: before, after and the relative loss, a row per language."""
    form, scale = form_of(measure)
    form = form.strip("{:}")
    rows = [
        {
            "language": language,
            "before": scale * before,
            "after": scale * after,
            "relative %": relative(measure, before, after),
        }
        for language, (before, after) in sorted(change.items())
    ]
    formats = {"before": form, "after": form, "relative %": "+.1f"}
    return tables.markdown(rows, formats, mean=formats)


def plot_changes(changes: Changes, path: pathlib.Path) -> None:
    """Plot the relative losses of quality by language as bars, a panel per data and measure."""
    size = (8, 0.8 + 2.2 * len(changes))
    figure, panels = figures.new(size, nrows=len(changes), squeeze=False)
    for axes, ((data, measure), change) in zip(panels[:, 0], changes.items(), strict=True):
        values = {name: relative(measure, *both) for name, both in sorted(change.items())}
        colours = ["tab:red" if value > 0 else "tab:blue" for value in values.values()]
        axes.bar(list(values), list(values.values()), color=colours, alpha=0.7)
        axes.axhline(0, color="black", lw=0.8)
        axes.set_title(f"{data}: {measure}", fontsize=10)
        axes.set_ylabel("worse by, %")
        axes.grid(axis="y", alpha=0.3)
    figures.save(figure, path)
