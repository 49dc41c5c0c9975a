"""Report of a complete run: tables and plots from vocabulary to evaluation."""

import dataclasses
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib.pyplot as plt
import numpy as np

from input_pipeline.packed_dataset import PackedDataset
from knn_sampling.settings import OutputLayerSettings
from vocap import plots
from vocap.record import allocated
from vocap.report import allocation_table
from xlm.common import artifacts
from xlm.evaluation import figures
from xlm.evaluation.examples import LONGEST, MIN_COUNT, SHORTEST, Example, examples_table
from xlm.evaluation.masked_lm import LanguageLoss
from xlm.evaluation.replaced_token import Detection
from xlm.evaluation.retrieval import RetrievalResult


@dataclasses.dataclass(frozen=True)
class Results:
    """Evaluation results after `step` steps.

    See `masked_lm`, `retrieval`, `examples` and `replaced_token`; there is a `detection` for
    discriminators only.
    """

    step: int
    losses: Mapping[str, LanguageLoss]
    retrieval: Mapping[str, Mapping[str, RetrievalResult]]
    examples: Sequence[Example]
    detection: Mapping[str, Mapping[str, Detection]] = dataclasses.field(default_factory=dict)


def write_report(
    folder: pathlib.Path,
    results: Results,
    *,
    store: PackedDataset,
    output_layer: OutputLayerSettings,
    allocation: Mapping[str, Any] | None,
    metrics: Sequence[Mapping[str, float]],
    full_softmax_from: int | None,
) -> pathlib.Path:
    """Write report.md, its plots and results.json into `folder`; return the report's path.

    Args:
      allocation: record of the vocabulary's build; None of one that was not built here.
      full_softmax_from: step from which on training is exact, see `MaskedLM`; None for no such
        phase.
    """
    artifacts.write_json(folder / "results.json", artifacts.with_nulls(dataclasses.asdict(results)))
    exact_from = results.step if full_softmax_from is None else full_softmax_from
    plot_loss(metrics, _mean_losses(results)[1], exact_from, folder / "loss.png")
    sections = [
        "# Report",
        _summary(results, store),
        "![Training loss, held-out loss and the unigram level](loss.png)",
    ]
    if output_layer.is_sampled:
        sections.append(_SAMPLED_LOSS_NOTE)
    if results.examples:
        sections += ["## Examples", _EXAMPLES_NOTE, examples_table(results.examples)]
    sections += [
        "## Evaluation",
        evaluation_table(results, store),
        _EVALUATION_NOTE,
        *_detection_sections(folder, results, metrics),
        *_vocabulary_sections(folder, allocation),
    ]
    if output_layer.kind == "knn":
        plot_candidates(metrics, output_layer.capacity, exact_from, folder / "candidates.png")
        sections += ["## Candidates", _CANDIDATES_NOTE, "![Candidates](candidates.png)"]
    path = folder / "report.md"
    artifacts.write_text(path, "\n\n".join(sections) + "\n")
    return path


_EVALUATION_NOTE = """\
- *loss*: exact masked-LM loss, nats a token: every held-out token masked once, softmax over the
  whole vocabulary. *unigram*: the same for a model that knows token frequencies only. *bits/char*:
  the loss in bits, times tokens per character; it compares vocabularies.
- *retrieval*: share of held-out sentences whose nearest neighbour, by cosine of mean hidden
  states, is their translation in the pivot language, and back; averaged over parallel sets."""

_DETECTION_NOTE = """\
The discriminator on held-out text in which tokens were replaced: by samples of its own generator
(*own*), which is harder the better the generator is, by samples of the language's unigram
distribution (*unigram*), or by those of another run's generator (*frozen*, if
`evaluation.frozen_generator` names one). *AUC*: probability that a replaced token has a higher
logit than an original one, 50 % by chance. *precision*, *recall*: of the tokens called replaced."""

_SAMPLED_LOSS_NOTE = """\
The training loss runs over sampled classes only and is no measure of the exact loss, except in the
exact steps at the end: compare exact losses."""

_CANDIDATES_NOTE = """\
V' is large until the first refresh, while neighbours are those of random embeddings; what exceeds
the capacity is left out, farthest neighbours first."""

_EXAMPLES_NOTE = f"""\
A held-out sentence of each language with one piece masked, the five likeliest pieces, the truth and
its rank, in the softmax over the whole vocabulary; \u2423 is the space before a word. The sentence
is all that the model saw. `evaluation.seed` draws it, no model being asked, from the whole ones of
{SHORTEST} to {LONGEST} pieces, or from parts of text where no marks end sentences, and draws the
piece from those with a letter and {MIN_COUNT} occurrences or more in the language's training text.
A sentence illustrates; the measure is the loss."""


def _detection_sections(
    folder: pathlib.Path, results: Results, metrics: Sequence[Mapping[str, float]]
) -> list[str]:
    """Write the plot of the discriminator's AUC; return its sections, [] without one."""
    if not results.detection:
        return []
    plot_detection(metrics, folder / "detection.png")
    return [
        "## Replaced tokens",
        detection_table(results.detection),
        _DETECTION_NOTE,
        "![AUC of the discriminator](detection.png)",
    ]


def _vocabulary_sections(folder: pathlib.Path, allocation: Mapping[str, Any] | None) -> list[str]:
    """Write the plots of a vocabulary's build; return its sections, [] without a build."""
    if allocation is None:
        return []
    plots.plot_curves(allocation, folder / "alp.png")
    sections = ["## Vocabulary", allocation_table(allocation), "![ALP against size](alp.png)"]
    if allocated(allocation):
        plots.plot_sizes(allocation, folder / "sizes.png")
        sections.append("![Allocated sizes](sizes.png)")
    return sections


def detection_table(detection: Mapping[str, Mapping[str, Detection]]) -> str:
    """Format scores of a discriminator as a Markdown table, a row per language and the mean."""
    names = ("auc", "precision", "recall", "replaced")
    lines = [
        "| language | " + " | ".join(f"{kind}: {' | '.join(names)}" for kind in detection) + " |",
        "|---|" + "---:|" * (len(names) * len(detection)),
    ]
    languages = next(iter(detection.values()))
    rows = {
        language: [getattr(found[language], name) for found in detection.values() for name in names]
        for language in languages
    }
    for language, row in rows.items():
        lines.append(f"| {language} | " + " | ".join(_percent(value) for value in row) + " |")
    with np.errstate(all="ignore"):
        means = [np.nanmean(list(column)) for column in zip(*rows.values(), strict=True)]
    lines.append("| **mean** | " + " | ".join(map(_percent, means)) + " |")
    return "\n".join(lines)


def _percent(value: float) -> str:
    return "" if np.isnan(value) else f"{100 * value:.1f} %"


def _summary(results: Results, store: PackedDataset) -> str:
    """Summarise the loss against the unigram level, and retrieval against chance."""
    losses = results.losses.values()
    loss, unigram = _mean_losses(results)
    comparison, side = ("better", "below") if loss < unigram else ("no better", "above")
    bits = np.mean([r.bits_per_character for r in losses])
    return (
        f"The model predicts masked pieces {comparison} than their frequencies do: its exact "
        f"held-out loss is {loss:.3f} nats a token, {abs(unigram - loss):.3f} {side} the unigram "
        f"level of {unigram:.3f}, and {sum(r.loss < r.unigram for r in losses)} of {len(losses)} "
        f"languages are below theirs.{_retrieval_summary(results)}\n\nMeans over {len(losses)} "
        f"languages, {store.vocab_size} pieces, {results.step} steps. {bits:.3f} bits a character."
        f"{_not_evaluated(results, store)}"
    )


def _not_evaluated(results: Results, store: PackedDataset) -> str:
    """Name the languages that no mean includes; "" if there are none."""
    names = [language for language in store.languages if language not in results.losses]
    return f" Without held-out rows, and in no mean: {', '.join(names)}." if names else ""


def _retrieval_summary(results: Results) -> str:
    found = [mean for lang in results.losses if (mean := _mean_retrieval(results, lang))]
    if not found:
        return ""
    forward, backward, chance = np.mean(found, axis=0)
    share = (forward + backward) / 2
    return (
        f" {100 * share:.1f} % of held-out sentences find their translation, {share / chance:.1f} "
        f"times the {100 * chance:.1f} % of chance."
    )


def _mean_retrieval(results: Results, language: str) -> list[float]:
    """Return forward, backward and chance, means over a language's sets; [] if it has none."""
    found = [r[language] for r in results.retrieval.values() if language in r]
    return [
        float(np.mean([getattr(r, name) for r in found]))
        for name in ("forward", "backward", "chance")
        if found
    ]


def _mean_losses(results: Results) -> tuple[float, float]:
    """Return exact and unigram loss, means over languages."""
    losses = results.losses.values()
    return float(np.mean([r.loss for r in losses])), float(np.mean([r.unigram for r in losses]))


def evaluation_table(results: Results, store: PackedDataset) -> str:
    """Format the results as a Markdown table, with one row per language and the mean."""
    lines = [
        "| language | training tokens | held-out tokens | unknown % | loss | unigram | bits/char "
        "| retrieval | back | chance |",
        "|---|" + "---:|" * 9,
    ]
    columns: list[list[float]] = []
    for language, loss in sorted(results.losses.items()):
        statistics = store.statistics[language]
        held_out = statistics["heldout"]
        retrieval = [100 * x for x in _mean_retrieval(results, language)] or [float("nan")] * 3
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
    percent = [_percent(value / 100) for value in retrieval]
    return " | ".join([f"{loss:.3f}", f"{unigram:.3f}", f"{bits:.3f}", *percent]) + " |"


def _series(metrics: Sequence[Mapping[str, float]], name: str) -> tuple[list, list]:
    """Return the steps and values of one metric."""
    found = [(record["step"], record[name]) for record in metrics if name in record]
    return [step for step, _ in found], [value for _, value in found]


def _shade_exact_steps(axes, metrics: Sequence[Mapping[str, float]], exact_from: int) -> None:
    last = max((record["step"] for record in metrics), default=exact_from)
    if exact_from < last:
        label = "steps with the exact softmax"
        axes.axvspan(exact_from, last, color="tab:green", alpha=0.12, linewidth=0, label=label)


def plot_loss(
    metrics: Sequence[Mapping[str, float]], unigram: float, exact_from: int, path: pathlib.Path
) -> None:
    """Plot training loss, exact held-out loss with its range over languages, and unigram level.

    From step `exact_from` on training used the exact softmax. For a mixture of objectives, and for
    replaced-token detection, the training loss is that of masked LM on packed sequences, since the
    other losses are not comparable.
    """
    figure, axes = plt.subplots(figsize=(8, 4.5), layout="constrained")
    _shade_exact_steps(axes, metrics, exact_from)
    recorded = {name for record in metrics for name in record}
    names = ("train/mlm_loss", "train/mrtd/generator_loss", "train/loss")
    training = next((name for name in names if name in recorded), "train/loss")
    axes.plot(*_series(metrics, training), color="tab:blue", alpha=0.6, label="training")
    label = f"unigram, mean of languages ({unigram:.3f})"
    axes.axhline(unigram, color="black", linestyle="--", label=label)
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
    figure.legend(loc="outside upper center", ncols=2)
    figures.save(figure, path)


def plot_detection(metrics: Sequence[Mapping[str, float]], path: pathlib.Path) -> None:
    """Plot the AUC of a discriminator by step, on each corruption of held-out text."""
    figure, axes = plt.subplots(figsize=(8, 4), layout="constrained")
    for kind, label in (
        ("unigram", "unigram samples"),
        ("frozen", "samples of a frozen generator"),
        ("own", "samples of its own generator"),
    ):
        steps, values = _series(metrics, f"rtd/{kind}/auc")
        if steps:
            axes.plot(steps, values, "o-", label=label)
    axes.axhline(0.5, color="black", linestyle="--", label="chance")
    axes.set_xlabel("step")
    axes.set_ylabel("AUC, mean of languages")
    axes.grid(alpha=0.3)
    figure.legend(loc="outside upper center", ncols=4)
    figures.save(figure, path)


def plot_candidates(
    metrics: Sequence[Mapping[str, float]], capacity: int, exact_from: int, path: pathlib.Path
) -> None:
    """Plot |V'| of the recorded steps against its capacity, and the overflow.

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
    figures.save(figure, path)
