"""Tables and plots of `studies.monolingual`, from its results alone.

Scores are F1 between 0 and 1, shown in per cent.
"""

import collections
import csv
import dataclasses
import io
import math
import pathlib
from collections.abc import Callable, Mapping, Sequence

import matplotlib.pyplot as plt
import numpy as np
import scipy.stats
from matplotlib import ticker

from common import artifacts
from evaluation import figures
from studies import downstream

TASKS = {"udpos": "POS", "wikiann": "NER"}

# VoCap (arXiv 2109.07306), Table 5: correlation of F1 with ALP, and with vocabulary size.
PUBLISHED = {
    "hi": {"udpos": (0.922, 0.787), "wikiann": (0.879, 0.890)},
    "fa": {"udpos": (0.905, 0.700), "wikiann": (0.912, 0.872)},
    "it": {"udpos": (0.665, 0.422), "wikiann": (0.899, 0.900)},
    "ru": {"udpos": (0.423, 0.327), "wikiann": (0.872, 0.833)},
}


@dataclasses.dataclass(frozen=True)
class Cell:
    """Results of one language with one vocabulary size.

    Attributes:
      language: language code.
      size: number of pieces, without special tokens.
      alp: average log probability of the training text, nats per sentence.
      loss, unigram: cross-entropy of held-out text, nats per token, of the encoder, its mean over
        seeds, and of the unigram distribution.
      scores: F1 of each task and seed.
    """

    language: str
    size: int
    alp: float
    loss: float
    unigram: float
    scores: Mapping[str, Mapping[int, float]]

    def mean(self, task: str) -> float:
        return float(np.mean(list(self.scores[task].values())))

    def spread(self, task: str) -> float:
        """Standard deviation over seeds; NaN for a single seed."""
        values = list(self.scores[task].values())
        return float(np.std(values, ddof=1)) if len(values) > 1 else math.nan


# Measures that scores are correlated with.
MEASURES: dict[str, Callable[[Cell], float]] = {
    "alp": lambda cell: cell.alp,
    "size": lambda cell: cell.size,
    "log_size": lambda cell: math.log(cell.size),
}


@dataclasses.dataclass(frozen=True)
class Correlation:
    """Correlation of a task's score with a measure of the vocabulary, over a language's sizes.

    Attributes:
      rho: Pearson's correlation of the means over seeds.
      by_seed: the same for each seed's scores.
    """

    rho: float
    by_seed: Mapping[int, float]


def of_language(cells: Sequence[Cell], language: str, task: str) -> list[Cell]:
    """Cells of a language with scores of the task, by size."""
    found = [one for one in cells if one.language == language and one.scores[task]]
    return sorted(found, key=lambda one: one.size)


def correlate(cells: Sequence[Cell], task: str, measure: str) -> Correlation | None:
    """Compute Pearson's correlation of F1 and a measure (Table 5); None for under three sizes.

    Args:
      cells: of one language, all with scores of the task. Seeds missing from some cells are used
        for the means only.
      task: a key of TASKS.
      measure: a key of MEASURES.
    """
    if len(cells) < 3:
        return None
    x = [MEASURES[measure](cell) for cell in cells]

    def rho(scores: Sequence[float]) -> float:
        if len(set(scores)) == 1:  # e.g. a tagger without predictions
            return math.nan
        return float(scipy.stats.pearsonr(x, scores).statistic)

    seeds = sorted(set.intersection(*(set(cell.scores[task]) for cell in cells)))
    return Correlation(
        rho([cell.mean(task) for cell in cells]),
        {seed: rho([cell.scores[task][seed] for cell in cells]) for seed in seeds},
    )


def score_table(cells: Sequence[Cell]) -> str:
    """Markdown table: a line per language and size, means and standard deviations over seeds."""
    names = " | ".join(f"{name} F1 ± SD (seeds)" for name in TASKS.values())
    lines = [f"| | pieces | ALP | loss - unigram | {names} |\n|---|" + "---:|" * (3 + len(TASKS))]
    for cell in cells:
        learned = f"{cell.loss - cell.unigram:+z.2f}"
        scores = " | ".join(_score(cell, task) for task in TASKS)
        lines.append(f"| {cell.language} | {cell.size:,} | {cell.alp:.1f} | {learned} | {scores} |")
    return "\n".join(lines)


def _score(cell: Cell, task: str) -> str:
    count = len(cell.scores[task])
    if not count:
        return ""
    spread = f" ± {100 * cell.spread(task):.1f}" if count > 1 else ""
    return f"{100 * cell.mean(task):.1f}{spread} ({count})"


def correlation_table(cells: Sequence[Cell]) -> str:
    """Markdown table: Table 5 for each language and task, with the range over seeds."""
    lines = [
        "| | | sizes | F1 and ALP | F1 and size | F1 and log size | best - worst F1 "
        "| SD of seeds | detectable |\n|---|---|" + "---:|" * 7
    ]
    for language in dict.fromkeys(cell.language for cell in cells):
        for task, name in TASKS.items():
            own = of_language(cells, language, task)
            if not own:
                continue
            rhos = [_shown(correlate(own, task, measure)) for measure in MEASURES]
            means = [100 * cell.mean(task) for cell in own]
            scores = ([100 * one for one in cell.scores[task].values()] for cell in own)
            lines.append(
                f"| {language} | {name} | {len(own)} | {' | '.join(rhos)} "
                f"| {max(means) - min(means):.1f} | {100 * pooled_spread(own, task):.1f} "
                f"| {downstream.detectable(scores, '{:.1f}')} |"
            )
    return "\n".join(lines)


def _significance(cells: Sequence[Cell]) -> str:
    """Sentence on the correlations of the languages with most sizes; "" where none has three."""
    count = max(collections.Counter(cell.language for cell in cells).values())
    if count < 3:
        return ""
    least = downstream.significant_correlation(count)
    return f" Of {count} sizes a correlation is significant at 5 % from {least:.2f} on."


def pooled_spread(cells: Sequence[Cell], task: str) -> float:
    """Pooled standard deviation over seeds of all sizes: the root of their mean variance."""
    variances = [cell.spread(task) ** 2 for cell in cells if len(cell.scores[task]) > 1]
    return math.sqrt(np.mean(variances)) if variances else math.nan


def _shown(found: Correlation | None) -> str:
    if found is None:
        return ""
    if len(found.by_seed) < 2:
        return f"{found.rho:.3f}"
    values = found.by_seed.values()
    return f"{found.rho:.3f} ({min(values):.2f} to {max(values):.2f})"


def published_table() -> str:
    """Markdown table: Table 5 as published."""
    lines = ["| VoCap, Table 5 | | F1 and ALP | F1 and size |\n|---|---|---:|---:|"]
    for language, by_task in PUBLISHED.items():
        for task, (alp, size) in by_task.items():
            lines.append(f"| {language} | {TASKS[task]} | {alp:.3f} | {size:.3f} |")
    return "\n".join(lines)


def csv_table(cells: Sequence[Cell]) -> str:
    """CSV table: a line per language, size, task and seed."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(("language", "size", "alp", "loss", "unigram", "task", "seed", "f1"))
    for cell in cells:
        for task, by_seed in cell.scores.items():
            for seed, score in sorted(by_seed.items()):
                numbers = (cell.alp, cell.loss, cell.unigram)
                writer.writerow((cell.language, cell.size, *numbers, task, seed, score))
    return text.getvalue()


def plot_alp(cells: Sequence[Cell], path: pathlib.Path) -> None:
    """Plot ALP against vocabulary size, a line per language (Figure 1)."""
    figure, axes = plt.subplots(figsize=(6, 4), layout="constrained")
    for language in dict.fromkeys(cell.language for cell in cells):
        own = [cell for cell in cells if cell.language == language]
        axes.plot([cell.size for cell in own], [cell.alp for cell in own], "o-", label=language)
    axes.set_xscale("log")
    sizes = sorted({cell.size for cell in cells})
    axes.set_xticks(sizes, [f"{size:,}" for size in sizes])
    axes.minorticks_off()
    axes.set_xlabel("vocabulary size (pieces)")
    axes.set_ylabel("ALP (nats a sentence)")
    axes.grid(alpha=0.3)
    axes.legend()
    figures.save(figure, path, dpi=110)


def plot_scores(cells: Sequence[Cell], measure: str, label: str, path: pathlib.Path) -> None:
    """Plot F1 against a measure, a panel for each task and language (Figures 2 and 3).

    Dots are means over seeds, bars their standard deviations, lines least-squares fits.
    """
    languages = list(dict.fromkeys(cell.language for cell in cells))
    figure, panels = plt.subplots(
        len(TASKS), len(languages), figsize=(2.6 * len(languages), 2.5 * len(TASKS)),
        sharex="col", squeeze=False, layout="constrained",
    )  # fmt: skip
    for row, (task, name) in zip(panels, TASKS.items(), strict=True):
        for axes, language in zip(row, languages, strict=True):
            own = of_language(cells, language, task)
            x = np.array([MEASURES[measure](cell) for cell in own])
            y = 100 * np.array([cell.mean(task) for cell in own])
            spreads = 100 * np.nan_to_num([cell.spread(task) for cell in own])
            axes.errorbar(x, y, yerr=spreads, fmt="o", ms=4, lw=1)
            found = correlate(own, task, measure)
            title = f"{language}, {name}"
            if found is not None:
                slope, start = np.polyfit(x, y, 1)
                axes.plot(x, start + slope * x, "--", lw=1, color="tab:gray")
                title += f": ρ = {found.rho:.2f}"
            axes.set_title(title, fontsize=9)
            axes.xaxis.set_major_locator(ticker.MaxNLocator(4))
            axes.xaxis.set_major_formatter("{x:,.0f}")
            axes.tick_params(labelsize=8)
            axes.grid(alpha=0.3)
        row[0].set_ylabel(f"{name} F1 (%)")
    figure.supxlabel(label, fontsize=10)
    figures.save(figure, path, dpi=110)


def write_report(cells: Sequence[Cell], folder: pathlib.Path) -> str:
    """Write the report with its plots, and the data as CSV and JSON; return the text.

    Raises:
      ValueError: there are no cells.
    """
    if not cells:
        raise ValueError(f"there are no encoders to report in {folder.parent}; run some first")
    cells = sorted(cells, key=lambda cell: (cell.language, cell.size))
    plot_alp(cells, folder / "alp.png")
    plot_scores(cells, "alp", "ALP (nats a sentence)", folder / "scores_alp.png")
    plot_scores(cells, "size", "vocabulary size (pieces)", folder / "scores_size.png")
    artifacts.write_text(folder / "scores.csv", csv_table(cells))
    artifacts.write_json(folder / "cells.json", [dataclasses.asdict(cell) for cell in cells])
    parts = (
        "# Monolingual encoders with vocabularies of several sizes",
        "F1 in per cent. ALP in nats a sentence of the training text; loss - unigram in nats a "
        "token of held-out text, below zero where the encoder has learned from context.",
        score_table(cells),
        "## Pearson's correlation",
        "Of means over seeds; in brackets the least and the largest of single seeds. *detectable*: "
        "the least difference of two sizes that the spread of seeds, pooled over the sizes, tells "
        f"at 5 %; it knows nothing of the choice of test examples.{_significance(cells)}",
        correlation_table(cells),
        published_table(),
        "![ALP against size](alp.png)",
        "![F1 against ALP](scores_alp.png)",
        "![F1 against size](scores_size.png)",
    )
    text = "\n\n".join(parts) + "\n"
    artifacts.write_text(folder / "report.md", text)
    return text
