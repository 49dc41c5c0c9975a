"""Tables and plot of `studies.continued`."""

import pathlib
import statistics
from collections.abc import Iterable, Mapping, Sequence

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.patches import Patch

from common import artifacts
from evaluation import figures, forgetting
from studies.downstream import detectable, spread
from studies.xy_lent_settings import LABELS

# Label and factor of the learning rate of the pre-training, by name.
RATES = {"peak": ("peak rate", 1.0), "tenth": ("a tenth of it", 0.1)}

# The changes of a run by data and measure, see `evaluation.forgetting`.
Run = Mapping[tuple[str, str], Mapping[str, tuple[float, float]]]

_NOTE = """\
Trained on text of one domain in {languages}. *relative* is the loss of quality in per cent of the
score before, as in Table 6: above 0 the model has got worse, be the measure a loss or a score; on
the domain's own held-out rows (*domain*) it should fall. *trained*, *others*: means over languages
with and without text of the domain. *change*: after less before, a loss in nats, a score in per
cent. Means over seeds, and least to largest; *detectable*: the least difference of two rows that so
many seeds could tell at 5 %; {steps}"""


def run_folder(workdir: pathlib.Path, arm: str, name: str, seed: int) -> pathlib.Path:
    """Return the working directory of a continued training."""
    return workdir / "runs" / arm / name / f"seed{seed}"


def write_report(
    workdir: pathlib.Path, arms: Sequence[str], seeds: Sequence[int], languages: Sequence[str]
) -> str:
    """Write tables and plot of the runs that have ended; return the text.

    Args:
      workdir: of the study.
      arms, seeds: of the pre-trainings.
      languages: those of the domain.

    Raises:
      ValueError: there are none.
    """
    found: dict[tuple[str, str], list[Run]] = {}
    missing = []
    for arm in arms:
        for name in RATES:
            for seed in seeds:
                folder = run_folder(workdir, arm, name, seed) / "forgetting"
                if (folder / forgetting.RESULTS).exists():
                    found.setdefault((arm, name), []).append(forgetting.read_changes(folder))
                else:
                    missing.append(f"{label((arm, name))}, seed {seed}")
    if not found:
        raise ValueError(f"{workdir} has no finished runs to report")
    plot_relative(found, workdir / "report" / "forgetting.png")
    note = f"not there: {'; '.join(missing)}." if missing else "all runs are there."
    parts = [
        "# Continued training",
        _NOTE.format(languages=", ".join(languages), steps=note),
    ]
    for key in dict.fromkeys(key for some in found.values() for run in some for key in run):
        lines = {cell: [run[key] for run in some if key in run] for cell, some in found.items()}
        there = {cell: some for cell, some in lines.items() if some}
        parts.append(f"## {key[0]}: {key[1]}")
        parts.append(summary_table(key[1], there, languages))
        parts.append(change_table(key[1], there, languages))
        parts.append(language_table(key[1], there))
    parts.append("![Relative loss of quality by language](forgetting.png)")
    text = "\n\n".join(parts) + "\n"
    artifacts.write_text(workdir / "report" / "report.md", text)
    return text


def label(cell: tuple[str, str]) -> str:
    arm, name = cell
    return f"{LABELS[arm]}, {RATES[name][0]}"


def relative_of(measure: str, change: Mapping[str, tuple[float, float]]) -> dict[str, float]:
    """Return the relative loss of quality of each language, in per cent."""
    return {name: forgetting.relative(measure, *both) for name, both in change.items()}


def summary_table(
    measure: str,
    lines: Mapping[tuple[str, str], Sequence[Mapping[str, tuple[float, float]]]],
    languages: Sequence[str],
) -> str:
    """Return a Markdown table: before, after and relative loss, means over languages."""
    columns = [
        "", "seeds", "before", "after", "relative %", "least to largest", "en", "trained", "others",
    ]  # fmt: skip
    text = [f"| {' | '.join(columns)} |", "|---|" + "---:|" * (len(columns) - 1)]
    form, scale = forgetting.form_of(measure)
    by_seed = {cell: [relative_of(measure, one) for one in some] for cell, some in lines.items()}
    means = {
        cell: [statistics.fmean(one.values()) for one in seeds] for cell, seeds in by_seed.items()
    }
    for cell, some in lines.items():
        sides = [
            [scale * statistics.fmean(both[side] for both in change.values()) for change in some]
            for side in (0, 1)
        ]
        seeds = by_seed[cell]
        cells = [
            str(len(some)),
            *(form.format(statistics.fmean(side)) for side in sides),
            *spread(means[cell], "{:+.1f}"),
            *(
                spread([one[name] for one in seeds for name in names], "{:+.1f}")[0]
                for names in groups_of(seeds[0], languages).values()
            ),
        ]
        text.append(f"| {label(cell)} | {' | '.join(cells)} |")
    if least := detectable(means.values(), "{:.1f}"):
        text.append(f"| *detectable* | | | | {least} | | | | |")
    return "\n".join(text)


def change_table(
    measure: str,
    lines: Mapping[tuple[str, str], Sequence[Mapping[str, tuple[float, float]]]],
    languages: Sequence[str],
) -> str:
    """Return a Markdown table: after less before, means over each of the groups of languages."""
    form, scale = forgetting.form_of(measure)
    signed = form.replace(":", ":+")
    # By group and row, the means of the seeds.
    found: dict[str, list[list[float]]] = {}
    for some in lines.values():
        for group, names in groups_of(some[0], languages).items():
            means = [
                scale * statistics.fmean(one[name][1] - one[name][0] for name in names)
                for one in some
                if names
            ]
            found.setdefault(group, []).append(means)
    columns = ["change", *(cell for group in found for cell in (group, "least to largest"))]
    text = [f"| {' | '.join(columns)} |", "|---|" + "---:|" * (len(columns) - 1)]
    for place, cell in enumerate(lines):
        cells = [one for rows in found.values() for one in spread(rows[place], signed)]
        text.append(f"| {label(cell)} | {' | '.join(cells)} |")
    least = [one for rows in found.values() for one in (detectable(rows, form), "")]
    if any(least):
        text.append(f"| *detectable* | {' | '.join(least)} |")
    return "\n".join(text)


def groups_of(found: Iterable[str], languages: Sequence[str]) -> dict[str, list[str]]:
    """Return English, the languages of the domain and the others, of those in `found`."""
    names = list(found)
    return {
        "en": [one for one in names if one == "en"],
        "trained": [one for one in names if one in languages],
        "others": [one for one in names if one not in languages],
    }


def language_table(
    measure: str, lines: Mapping[tuple[str, str], Sequence[Mapping[str, tuple[float, float]]]]
) -> str:
    """Return a Markdown table as Table 6: the relative loss of each language, in per cent."""
    names = sorted({name for some in lines.values() for change in some for name in change})
    text = [f"| relative % | {' | '.join(names)} |", "|---|" + "---:|" * len(names)]
    for cell, some in lines.items():
        seeds = [relative_of(measure, change) for change in some]
        cells = [
            f"{statistics.fmean(one[name] for one in seeds):+.1f}" if name in seeds[0] else ""
            for name in names
        ]
        text.append(f"| {label(cell)} | {' | '.join(cells)} |")
    return "\n".join(text)


def plot_relative(found: Mapping[tuple[str, str], Sequence[Run]], path: pathlib.Path) -> None:
    """Plot the relative loss by language as grouped bars, a panel per data and measure."""
    keys = list(dict.fromkeys(key for some in found.values() for run in some for key in run))
    figure, panels = plt.subplots(
        len(keys), 1, figsize=(11, 1 + 2.4 * len(keys)), layout="constrained", squeeze=False
    )
    for axes, key in zip(panels[:, 0], keys, strict=True):
        lines = {
            cell: [relative_of(key[1], run[key]) for run in some if key in run]
            for cell, some in found.items()
        }
        lines = {cell: seeds for cell, seeds in lines.items() if seeds}
        names = sorted({name for seeds in lines.values() for name in seeds[0]})
        width = 0.8 / len(lines)
        for place, (cell, seeds) in enumerate(lines.items()):
            means = [
                statistics.fmean(one[name] for one in seeds) if name in seeds[0] else np.nan
                for name in names
            ]
            offset = (place - (len(lines) - 1) / 2) * width
            colour = f"C{list(found).index(cell)}"
            axes.bar(np.arange(len(names)) + offset, means, width, color=colour)
        axes.set_xticks(range(len(names)), names)
        axes.axhline(0, color="black", lw=0.8)
        axes.set_title(f"{key[0]}: {key[1]}", fontsize=10)
        axes.set_ylabel("worse by, %")
        axes.grid(axis="y", alpha=0.3)
    handles = {label(cell): f"C{place}" for place, cell in enumerate(found)}
    patches = [Patch(color=colour, label=name) for name, colour in handles.items()]
    figure.legend(handles=patches, loc="outside upper center", ncols=len(patches), fontsize=8)
    figures.save(figure, path)
