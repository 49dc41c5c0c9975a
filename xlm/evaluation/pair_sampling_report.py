"""Report on the sampling of language pairs: methods side by side, lost pairs, repetition."""

import math
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from input_pipeline.order import drawn_shares
from input_pipeline.pair_sampling import Pair, PairSampling, PairSamplingSettings
from xlm.common import artifacts, charts, html_report, tables
from xlm.common.charts import Axis, Marks

_TITLES = {
    "alpha": "alpha: n^alpha, by set",
    "proportional": "proportional: Q",
    "uniform": "uniform",
    "pivot": "pivot: pairs of one language",
    "m2m": "m2m: Eq. 1, linear programme",
    "sinkhorn": "sinkhorn: Eq. 2, with entropy",
    "soft": "soft: Eq. 2, marginals at a price",
}
_MAX_NAMES = 60  # languages whose names are legible beside a panel
_DECADES = 8  # of a logarithmic scale; tiny shares would leave the others no room
_MAX_NAMED = 20  # pairs in a line or a table; report.json has all


def write_report(
    folder: pathlib.Path,
    samplings: Sequence[PairSampling],
    examples: Mapping[str, float],
    settings: PairSamplingSettings,
) -> pathlib.Path:
    """Write report.md, report.json and the plots; return the path of report.md.

    `examples` are the sentence pairs that a run draws, by method. The page marks the method of
    `settings`.
    """
    epochs = {one.method: _epochs(one, examples[one.method]) for one in samplings}
    charts.save(_plot_density(samplings), folder / "density.svg")
    charts.save(_plot_shares(samplings, epochs), folder / "shares.svg")
    artifacts.write_json(
        folder / "report.json",
        {one.method: _record(one, examples[one.method], epochs[one.method]) for one in samplings},
    )
    first = samplings[0]
    page = tables.page(
        "# Sampling of language pairs",
        f"{len(first.shares())} pairs of {len(first.languages)} languages with "
        f"{first.counts.sum() / 2:,.0f} sentence pairs; data.pair_sampling is "
        f"{settings.pair_sampling}, pair_temperature {settings.pair_temperature:g}, pair_alpha "
        f"{settings.pair_alpha:g}, pair_pivot {settings.pair_pivot}, pair_strength "
        f"{settings.pair_strength:g}. Q is proportional; P* of "
        "XY-LENT's Eq. 1 is m2m, of Eq. 2 sinkhorn.",
        _methods_table(samplings, examples, epochs, settings.pair_sampling),
        _TABLE_NOTE,
        *(f"**{one.method}**: {one.certificate()}." for one in samplings if not one.is_met),
        "![P of each method](density.svg)",
        _DENSITY_NOTE,
        "![shares and epochs](shares.svg)",
        "## Pairs that get nothing",
        *(
            f"- {one.method}: {tables.named(names, _MAX_NAMED)}"
            for one in samplings
            if (names := ["-".join(pair) for pair, share in _shares(one).items() if share == 0])
        ),
        *_missed_sections(samplings),
        "## Languages",
        _languages_table(samplings),
        "## Pairs that repeat most, in epochs by method",
        _repeats_table(first, epochs, settings.pair_sampling),
    )
    return html_report.write(folder, page)


_DENSITY_NOTE = """\
Darker squares are larger P, half the share of a pair, on a logarithmic scale. Orange squares have
sentence pairs but no share. Missing squares have no sentence pairs."""

_TABLE_NOTE = """\
- *effective pairs*: exponential of the entropy of the shares.
- *under one example*: pairs with less than one expected draw in the run, including those without a
  share.
- *epochs*: passes of the run over the sentence pairs of a language pair.
- *largest residual*: that of the language with the share farthest from its target. Only m2m,
  sinkhorn and soft have targets.
- *other languages*: share of the draws from other languages than the targets want."""


_MISSED_NOTE = """\
A language cannot have more than its partners leave it, and with a single partner no more than that
one has. A lower data.pair_temperature brings the targets nearer to the shares of the data."""


def _methods_table(
    samplings: Sequence[PairSampling],
    examples: Mapping[str, float],
    epochs: Mapping[str, np.ndarray],
    chosen: str,
) -> str:
    rows = []
    for one in samplings:
        number, found, passes = examples[one.method], one.sampling, epochs[one.method]
        shares = np.array(list(_shares(one).values()))
        row = {
            "method": f"**{one.method}**" if one.method == chosen else one.method,
            "effective pairs": f"{found.effective_pairs:.1f}",
            "no share": np.count_nonzero(shares == 0),
            "under one example": np.count_nonzero(shares * number < 1),
            "examples of the run": f"{number:,.0f}",
            "median epochs": f"{np.median(passes):.2g}",
            "most epochs": f"{passes.max():.3g} ({'-'.join(list(_shares(one))[passes.argmax()])})",
        }
        if one.method in ("m2m", "sinkhorn", "soft"):
            worst = one.languages[found.worst]
            row["other languages"] = f"{found.distance:.1%}"
            row["largest residual"] = f"{found.residuals[found.worst]:+.1e} ({worst})"
            row["iterations"] = found.iterations
        rows.append(row)
    return tables.markdown(rows)


def _missed_sections(samplings: Sequence[PairSampling]) -> list[str]:
    """Return a table of languages that miss their target share under m2m or sinkhorn, if any."""
    rows = [
        {"method": one.method, "language": language, "partners": f"{partners}",
         "wanted, %": 100 * wanted, "has, %": 100 * found}
        for one in samplings
        if one.sampling.are_owed
        for language, partners, wanted, found in one.missed_shares()
    ]  # fmt: skip
    if not rows:
        return []
    return ["## Languages that miss their share", _MISSED_NOTE, tables.markdown(rows, ".4f")]


def _languages_table(samplings: Sequence[PairSampling]) -> str:
    """Return a row per language, most data first: partners, and its share in per cent by method."""
    counts = samplings[0].counts
    rows = [
        {
            "language": samplings[0].languages[i],
            "sentence pairs": f"{counts[i].sum():,.0f}",
            "partners": f"{np.count_nonzero(counts[i])}",
            **{f"{s.method}, %": 100 * s.sampling.probabilities[i].sum() for s in samplings},
        }
        for i in np.argsort(-counts.sum(axis=1), kind="stable")
    ]
    return tables.markdown(rows, ".2f")


def _repeats_table(first: PairSampling, epochs: Mapping[str, np.ndarray], chosen: str) -> str:
    pairs, sizes = list(first.shares()), _sizes(first)
    rows = [
        {
            "pair": "-".join(pairs[i]),
            "sentence pairs": f"{sizes[i]:,.0f}",
            **{method: found[i] for method, found in epochs.items()},
        }
        for i in np.argsort(-epochs[chosen], kind="stable")[:_MAX_NAMED]
    ]
    return tables.markdown(rows, ".3g")


def _record(one: PairSampling, examples: float, epochs: np.ndarray) -> dict[str, Any]:
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
            "-".join(pair): {"share": share, "epochs": passes}
            for (pair, share), passes in zip(_shares(one).items(), epochs.tolist(), strict=True)
        },
    }


def _shares(one: PairSampling) -> dict[Pair, float]:
    """Return the share of each language pair, 0 if a stream never draws it."""
    wanted = one.shares()
    is_drawn = drawn_shares(np.array([*wanted.values()])) > 0
    return {pair: share * bool(is_drawn[i]) for i, (pair, share) in enumerate(wanted.items())}


def _epochs(one: PairSampling, examples: float) -> np.ndarray:
    """Passes over the sentence pairs of each language pair, [pairs] in the order of `shares()`."""
    return examples * np.array(list(_shares(one).values())) / _sizes(one)


def _sizes(one: PairSampling) -> np.ndarray:
    """Sentence pairs of each language pair, [pairs] in the order of `shares()`."""
    return one.counts[np.nonzero(np.triu(one.counts))]


def _plot_density(samplings: Sequence[PairSampling]) -> str:
    """Draw a panel per method: P over languages, most data first (XY-LENT, Figures 2 and 6)."""
    counts, languages = samplings[0].counts, samplings[0].languages
    order = np.argsort(-counts.sum(axis=1), kind="stable")
    ordered = np.ix_(order, order)
    is_pair = counts[ordered] > 0
    names = [languages[i] if len(order) <= _MAX_NAMES else "" for i in order]
    lowest, highest = _range([one.sampling.probabilities for one in samplings])
    panels = []
    for one in samplings:
        found = one.sampling.probabilities[ordered]
        absent = is_pair & (found == 0)
        marks = []
        for name, of, style in (("", is_pair & ~absent, "c0"), ("no share", absent, "c1")):
            rows, columns = np.nonzero(of)
            shades = np.log(found[of].clip(lowest) / lowest) / (math.log(highest / lowest) or 1)
            shades = np.where(absent[of], 1.0, 0.12 + 0.88 * shades.clip(0, 1)).tolist()
            tips = [f"{languages[order[i]]}-{languages[order[j]]}: P {found[i, j]:.3g}"
                    for i, j in zip(rows, columns, strict=True)]  # fmt: skip
            marks.append(Marks(name, columns, rows, "cells", shades, style, tips))
        lacking = np.count_nonzero(np.triu(absent))
        title = f"{_TITLES[one.method]}; {lacking} of {is_pair.sum() // 2} pairs get nothing"
        panels.append(charts.chart(marks, Axis(names=names), Axis(names=names), title=title))
    return charts.stacked(panels)


def _plot_shares(samplings: Sequence[PairSampling], epochs: Mapping[str, np.ndarray]) -> str:
    """Draw shares of the pairs, largest first, and `epochs` [pairs] of each against its size."""
    left, right = [], []
    for one in samplings:
        shares = np.sort(list(_shares(one).values()))[::-1]
        shares, title = shares[shares > 0], _TITLES[one.method]
        left.append(Marks(title, np.arange(1, len(shares) + 1), shares))
        sizes, passes = _sizes(one), epochs[one.method]
        right.append(Marks(title, sizes[passes > 0], passes[passes > 0], "dots"))
    lowest, highest = _range([np.array(list(_shares(one).values())) for one in samplings])
    right.append(Marks("one epoch", [], [1.0], "rule"))
    low, high = _range(list(epochs.values()))
    first = charts.chart(
        left, Axis("pairs, largest share first", is_log=True),
        Axis("share", is_log=True, ends=(lowest / 2, 2 * highest)), title="Shares of the pairs",
    )  # fmt: skip
    second = charts.chart(
        right, Axis("sentence pairs", is_log=True),
        Axis("epochs in the run", is_log=True, ends=(low / 2, 2 * max(high, 1))),
        title="Repetition; a dot per language pair with a share",
    )  # fmt: skip
    return charts.stacked([first, second])


def _range(values: Sequence[np.ndarray]) -> tuple[float, float]:
    """Return the smallest positive value that is not negligible, and the largest."""
    together = np.concatenate([one.ravel() for one in values])
    highest = float(together.max())
    is_shown = together >= highest / 10**_DECADES
    return float(together[is_shown].min()), highest
