"""Report on the sampling of language pairs: methods side by side, what is lost, what repeats."""

import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from input_pipeline.pair_sampling import PairSampling, PairSamplingSettings
from xlm.common import artifacts
from xlm.evaluation import pair_sampling_plots

_MAX_NAMED = 20  # pairs that are named in a line or a table; report.json has all


def write_report(
    folder: pathlib.Path,
    samplings: Sequence[PairSampling],
    examples: Mapping[str, float],
    settings: PairSamplingSettings,
) -> pathlib.Path:
    """Write report.md, report.json and the plots; return the path of report.md.

    Args:
      folder: where to; other files there stay.
      samplings: one a method, of the same pairs.
      examples: sentence pairs that a run draws, by method.
      settings: of the run; its method is marked.
    """
    epochs = {one.method: _epochs(one, examples[one.method]) for one in samplings}
    pair_sampling_plots.plot_density(samplings, folder / "density.png")
    pair_sampling_plots.plot_shares(samplings, epochs, folder / "shares.png")
    artifacts.write_json(
        folder / "report.json",
        {one.method: _record(one, examples[one.method]) for one in samplings},
    )
    path = folder / "report.md"
    artifacts.write_text(path, page(samplings, examples, settings))
    return path


def page(
    samplings: Sequence[PairSampling],
    examples: Mapping[str, float],
    settings: PairSamplingSettings,
) -> str:
    """Return the report as Markdown."""
    first = samplings[0]
    sections = [
        "# Sampling of language pairs",
        f"{len(first.shares())} pairs of {len(first.languages)} languages with "
        f"{first.counts.sum() / 2:,.0f} sentence pairs; data.pair_sampling is {settings.method}, "
        f"pair_temperature {settings.temperature:g}, pair_alpha {settings.alpha:g}, pair_pivot "
        f"{settings.pivot}. Q is proportional; P* of XY-LENT's Eq. 1 is m2m, of Eq. 2 sinkhorn.",
        _methods_table(samplings, examples, settings.method),
        _TABLE_NOTE,
        *(f"**{one.method}**: {one.certificate()}." for one in samplings if not one.is_met),
        "![P of each method](density.png)",
        "![shares and epochs](shares.png)",
        "## Pairs that get nothing",
        *(f"- {one.method}: {_named(_unsampled(one))}" for one in samplings if _unsampled(one)),
        *_missed_sections(samplings),
        "## Languages",
        _languages_table(samplings),
        "## Pairs that repeat most, of each method epochs",
        _repeats_table(samplings, examples, settings.method),
    ]
    return "\n\n".join(sections) + "\n"


_TABLE_NOTE = """\
Effective pairs: exponential of the entropy of the shares. Pairs under one example: those that the
run is expected to draw less than once, the ones with no share included. Epochs: passes of the run
over the sentence pairs of a language pair. The residual is that of the language whose share is
farthest from the one asked for; only m2m and sinkhorn ask for any."""


_MISSED_NOTE = """\
A language cannot have more than its partners leave it, and with a single partner no more than that
one has. A lower data.pair_temperature asks for shares nearer to those of the data."""


def _methods_table(
    samplings: Sequence[PairSampling], examples: Mapping[str, float], chosen: str
) -> str:
    rows = []
    for one in samplings:
        number, found = examples[one.method], one.sampling
        shares, epochs = np.array(list(one.shares().values())), _epochs(one, number)
        asks = one.method in ("m2m", "sinkhorn")
        residual = f"{found.residuals[found.worst]:+.1e} ({one.languages[found.worst]})"
        rows.append(
            [
                f"**{one.method}**" if one.method == chosen else one.method,
                f"{found.effective_pairs:.1f}",
                str(np.count_nonzero(shares == 0)),
                str(np.count_nonzero(shares * number < 1)),
                f"{number:,.0f}",
                f"{np.median(epochs):.2g}",
                f"{epochs.max():.3g} ({'-'.join(list(one.shares())[epochs.argmax()])})",
                residual if asks else "",
                f"{found.iterations}" if asks else "",
            ]
        )
    header = [
        "method", "effective pairs", "no share", "under one example", "examples of the run",
        "median epochs", "most epochs", "largest residual", "iterations",
    ]  # fmt: skip
    return _table(header, rows)


def _missed_sections(samplings: Sequence[PairSampling]) -> list[str]:
    """Table of the languages without the shares that m2m or sinkhorn was to give them, if any."""
    rows = [
        [one.method, language, f"{partners}", f"{100 * wanted:.4f}", f"{100 * found:.4f}"]
        for one in samplings
        for language, partners, wanted, found in one.missed_shares()
    ]
    if not rows:
        return []
    header = ["method", "language", "partners", "wanted, %", "has, %"]
    return ["## Languages that miss their share", _MISSED_NOTE, _table(header, rows)]


def _languages_table(samplings: Sequence[PairSampling]) -> str:
    """One row a language, most data first: partners, and its share in per cent by each method."""
    counts = samplings[0].counts
    rows = [
        [
            samplings[0].languages[i],
            f"{counts[i].sum():,.0f}",
            str(np.count_nonzero(counts[i])),
            *(f"{100 * one.sampling.probabilities[i].sum():.2f}" for one in samplings),
        ]
        for i in np.argsort(-counts.sum(axis=1), kind="stable")
    ]
    header = ["language", "sentence pairs", "partners", *(f"{s.method}, %" for s in samplings)]
    return _table(header, rows)


def _repeats_table(
    samplings: Sequence[PairSampling], examples: Mapping[str, float], chosen: str
) -> str:
    epochs = {one.method: _epochs(one, examples[one.method]) for one in samplings}
    pairs = list(samplings[0].shares())
    sizes = samplings[0].counts[np.nonzero(np.triu(samplings[0].counts))]
    rows = [
        ["-".join(pairs[i]), f"{sizes[i]:,.0f}", *(f"{found[i]:.3g}" for found in epochs.values())]
        for i in np.argsort(-epochs[chosen], kind="stable")[:_MAX_NAMED]
    ]
    return _table(["pair", "sentence pairs", *epochs], rows)


def _record(one: PairSampling, examples: float) -> dict[str, Any]:
    found = one.sampling
    return {
        "examples": examples,
        "effective_pairs": found.effective_pairs,
        "iterations": found.iterations,
        "converged": found.converged,
        "is_feasible": found.is_feasible,
        "marginals": dict(zip(one.languages, found.marginals.tolist(), strict=True)),
        "residuals": dict(zip(one.languages, found.residuals.tolist(), strict=True)),
        "pairs": {
            "-".join(pair): {"share": share, "epochs": epochs}
            for (pair, share), epochs in zip(
                one.shares().items(), _epochs(one, examples).tolist(), strict=True
            )
        },
    }


def _epochs(one: PairSampling, examples: float) -> np.ndarray:
    """Passes over the sentence pairs of each language pair, [pairs] in the order of `shares()`."""
    sizes = one.counts[np.nonzero(np.triu(one.counts))]
    return examples * np.array(list(one.shares().values())) / sizes


def _unsampled(one: PairSampling) -> list[str]:
    return ["-".join(pair) for pair, share in one.shares().items() if share == 0]


def _named(names: Sequence[str]) -> str:
    more = f" and {len(names) - _MAX_NAMED} more" if len(names) > _MAX_NAMED else ""
    return ", ".join(names[:_MAX_NAMED]) + more


def _table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [header, ["---", *["---:"] * (len(header) - 1)], *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
