"""The report of a whole job: tables and plots from vocabulary to evaluation."""

import dataclasses
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np

import artifacts
from evaluation.masked_lm import LanguageLoss
from evaluation.retrieval import RetrievalResult
from input_pipeline.row_store import RowStore
from knn_sampling.output_layer import OutputLayerSettings
from vocap import plots
from vocap.record import allocated
from vocap.report import allocation_table


@dataclasses.dataclass(frozen=True)
class Results:
    """What evaluation found after `step` steps; see `masked_lm` and `retrieval`."""

    step: int
    losses: Mapping[str, LanguageLoss]
    retrieval: Mapping[str, Mapping[str, RetrievalResult]]


def write_report(
    folder: pathlib.Path,
    results: Results,
    *,
    store: RowStore,
    output_layer: OutputLayerSettings,
    allocation: Mapping[str, Any],
    metrics: Sequence[Mapping[str, float]],
) -> pathlib.Path:
    """Writes report.md, its plots and results.json into `folder`; returns the report's path."""
    artifacts.write_json(folder / "results.json", dataclasses.asdict(results))
    plots.plot_curves(allocation, folder / "alp.png")
    exact_from = results.step
    if output_layer.kind == "knn":
        exact_from -= round(output_layer.exact_fraction * results.step)
    plot_loss(metrics, exact_from, folder / "loss.png")
    sections = [
        "# Report",
        _summary(results, store),
        "## Evaluation",
        evaluation_table(results, store),
        _EVALUATION_NOTE,
        "## Vocabulary",
        allocation_table(allocation),
        "![ALP against size](alp.png)",
    ]
    if allocated(allocation):
        plots.plot_sizes(allocation, folder / "sizes.png")
        sections.append("![Allocated sizes](sizes.png)")
    sections += ["## Training", "![Training and evaluation loss](loss.png)"]
    if output_layer.kind == "knn":
        plot_candidates(metrics, output_layer.capacity, exact_from, folder / "candidates.png")
        sections += [_TRAINING_NOTE, "![Candidates](candidates.png)"]
    path = folder / "report.md"
    artifacts.write_text(path, "\n\n".join(sections) + "\n")
    return path


_EVALUATION_NOTE = """\
- *loss*: exact masked-LM loss, nats a token: every held-out token masked once, softmax over the
  whole vocabulary. *unigram*: the same for a model that knows token frequencies only. *bits/char*:
  the loss in bits, times tokens per character; it compares vocabularies.
- *retrieval*: share of held-out sentences whose nearest neighbour, by cosine of mean hidden
  states, is their translation in the pivot language, and back; averaged over parallel sets."""

_TRAINING_NOTE = """\
The training loss runs over the candidate set V' only and understates the exact loss, except in the
exact steps at the end: compare exact losses. V' is large until the first refresh, while neighbours
are those of random embeddings; what exceeds the capacity is left out, farthest neighbours first."""


def _summary(results: Results, store: RowStore) -> str:
    losses = list(results.losses.values())
    return (
        f"{len(store.languages)} languages, {store.vocab_size} pieces, {results.step} steps. "
        f"Exact held-out loss {np.mean([r.loss for r in losses]):.3f} nats a token "
        f"(unigram {np.mean([r.unigram for r in losses]):.3f}), "
        f"{np.mean([r.bits_per_character for r in losses]):.3f} bits a character, "
        "means over languages."
    )


def evaluation_table(results: Results, store: RowStore) -> str:
    """Markdown: one row per language, and the mean."""
    lines = [
        "| language | training tokens | held-out tokens | unknown % | loss | unigram | bits/char "
        "| retrieval | back | chance |",
        "|---|" + "---:|" * 9,
    ]
    columns: list[list[float]] = []
    for language, loss in sorted(results.losses.items()):
        statistics = store.statistics[language]
        held_out = statistics["heldout"]
        found = [r[language] for r in results.retrieval.values() if language in r]
        retrieval = [
            100 * float(np.mean([getattr(r, name) for r in found])) if found else float("nan")
            for name in ("forward", "backward", "chance")
        ]
        columns.append([loss.loss, loss.unigram, loss.bits_per_character, *retrieval])
        unknown = 100 * held_out["unknown"] / max(held_out["tokens"], 1)
        lines.append(
            f"| {language} | {statistics['train']['tokens']} | {loss.tokens} | {unknown:.2f} | "
            + _cells(columns[-1])
        )
    has_value = ~np.isnan(np.array(columns)).all(axis=0)
    means = np.full(len(has_value), np.nan)
    means[has_value] = np.nanmean(np.array(columns)[:, has_value], axis=0)
    lines.append("| **mean** | | | | " + _cells(means.tolist()))
    return "\n".join(lines)


def _cells(values: Sequence[float]) -> str:
    loss, unigram, bits, *retrieval = values
    percent = ["" if np.isnan(value) else f"{value:.1f} %" for value in retrieval]
    return " | ".join([f"{loss:.3f}", f"{unigram:.3f}", f"{bits:.3f}", *percent]) + " |"


def _series(metrics: Sequence[Mapping[str, float]], name: str) -> tuple[list, list]:
    """Steps and values of one metric."""
    found = [(record["step"], record[name]) for record in metrics if name in record]
    return [step for step, _ in found], [value for _, value in found]


def _shade_exact_steps(axes, metrics: Sequence[Mapping[str, float]], exact_from: int) -> None:
    last = max((record["step"] for record in metrics), default=exact_from)
    if exact_from < last:
        label = "steps with the exact softmax"
        axes.axvspan(exact_from, last, color="tab:green", alpha=0.12, linewidth=0, label=label)


def _save(figure, path: pathlib.Path) -> None:
    with artifacts.replacing(path) as aside:
        figure.savefig(aside, dpi=120)
    plt.close(figure)


def plot_loss(metrics: Sequence[Mapping[str, float]], exact_from: int, path: pathlib.Path) -> None:
    """Training loss, and the exact evaluation loss with the spread of its languages.

    From step `exact_from` on training used the exact softmax.
    """
    figure, axes = plt.subplots(figsize=(8, 4.5), layout="constrained")
    _shade_exact_steps(axes, metrics, exact_from)
    axes.plot(*_series(metrics, "train/loss"), color="tab:blue", alpha=0.6, label="training")
    steps, mean = _series(metrics, "eval/loss")
    per_language = [
        [value for name, value in record.items() if name.startswith("eval/loss/")]
        for record in metrics
        if "eval/loss" in record
    ]
    axes.plot(steps, mean, "o-", color="tab:red", label="exact, held-out rows, mean of languages")
    axes.fill_between(
        steps,
        [min(values) for values in per_language],
        [max(values) for values in per_language],
        color="tab:red",
        alpha=0.12,
        label="languages, lowest to highest",
    )
    axes.set_xlabel("step")
    axes.set_ylabel("loss (nats a masked token)")
    axes.grid(alpha=0.3)
    axes.legend()
    _save(figure, path)


def plot_candidates(
    metrics: Sequence[Mapping[str, float]], capacity: int, exact_from: int, path: pathlib.Path
) -> None:
    """|V'| of the recorded steps against its capacity, and what overflowed.

    Steps after `exact_from` have no V'.
    """
    figure, axes = plt.subplots(figsize=(8, 3.5), layout="constrained")
    sampled = [record for record in metrics if record["step"] <= exact_from]
    axes.plot(*_series(sampled, "train/candidates"), label="|V'|, before the cut")
    axes.plot(*_series(sampled, "train/overflow"), label="overflow")
    _shade_exact_steps(axes, metrics, exact_from)
    axes.axhline(capacity, color="black", linestyle="--", label=f"capacity {capacity}")
    axes.set_xlabel("step")
    axes.set_ylabel("pieces")
    axes.set_ylim(bottom=0)
    axes.grid(alpha=0.3)
    axes.legend()
    _save(figure, path)
