"""Plots of a vocabulary, made from its record (`vocap.record`)."""

import itertools
import pathlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib import patches, ticker

from vocap import figures
from vocap.curves import concave_envelope
from vocap.record import RESOURCES, Record, allocated, by_amount, methods, score_groups

_MAX_LINES = 20  # per panel; more languages get a panel for each third
_GAIN = "weighted ALP gain (nats per 1,000 pieces)"
_SIDES: dict[str, dict[str, Any]] = {
    "less": {"marker": "o", "color": "tab:blue", "ls": "", "label": "last step, taken"},
    "more": {"marker": "o", "color": "tab:red", "ls": "", "mfc": "w", "label": "next step"},
}


def plot_curves(record: Record, path: pathlib.Path) -> None:
    """Plot ALP against vocabulary size per language, with the allocated size (paper Figure 1)."""

    def draw(axes, one: Mapping[str, Any], style: Mapping[str, Any]) -> float:
        axes.plot(one["sizes"], one["alp"], **style)
        if one["allocated"] is not None:
            alp = one["alp"][one["sizes"].index(one["allocated"])]
            axes.plot(one["allocated"], alp, "o", color=style["color"], ms=5)
        return one["alp"][-1]

    figure, panels = _lines(record, draw)
    for axes in panels:
        axes.set_ylabel("ALP (nats a sentence)")
    dots = "; dots: allocated sizes" if allocated(record) and not record["clusters"] else ""
    figure.suptitle(f"Average log probability{dots}")
    figures.save(figure, path)


def plot_gains(record: Record, path: pathlib.Path) -> None:
    """Plot the gain of each step of each language against its size, and the gain at the cut.

    Only languages with an allocated size are shown. A dot marks the last step that a language took;
    a hollow dot marks the start of its first step, if it took none.
    """

    def draw(axes, one: Mapping[str, Any], style: Mapping[str, Any]) -> float:
        sizes, gains = _envelope_gains(one, record["settings"]["beta"])
        axes.step(sizes, gains, where="post", **style)
        if step := one["less"] or one["more"]:
            fill = style["color"] if one["less"] else "white"
            gain = _per_thousand(step["gain"])
            axes.plot(one["allocated"], gain, "o", color=style["color"], mfc=fill, ms=5)
        return float(np.nan_to_num(gains[-1]))

    figure, panels = _lines(record, draw, sharey=True)
    for axes in panels:
        axes.set_yscale("log")
        axes.set_ylabel(_GAIN)
        _cut_line(axes.axhline, record)
        _number_ticks(axes.yaxis)
    figure.suptitle("What a step gains; dots: the last step taken (hollow: none); dashes: the cut")
    figures.save(figure, path)


def plot_sizes(record: Record, path: pathlib.Path) -> None:
    """Plot the allocated size per language (paper Table 9): its smallest size and its growth."""
    named = allocated(record)
    figure, axes = figures.rows([name for name, _ in named])
    rows = np.arange(len(named))
    sizes = np.array([one["allocated"] for _, one in named])
    first = np.array([one["sizes"][0] if "sizes" in one else 0 for _, one in named])
    axes.barh(rows, first, color="tab:gray", alpha=0.6, label="smallest trained size")
    axes.barh(rows, sizes - first, left=first, color="tab:blue", label="grown by steps")
    for row, (_, one) in enumerate(named):
        text = f"{one['allocated']:,}{' (largest)' if one['at_largest'] else ''}"
        style = {"textcoords": "offset points", "va": "center", "fontsize": 7}
        axes.annotate(text, (one["allocated"], row), (3, 0), **style)
    axes.set_xlim(right=1.15 * max(sizes))
    axes.xaxis.set_major_formatter("{x:,.0f}")
    axes.set_xlabel("allocated size (pieces)")
    axes.set_title(f"{record['pieces']:,} pieces, shared ones counted once", fontsize=10)
    figures.legend(figure)
    figures.save(figure, path)


def plot_margins(record: Record, path: pathlib.Path) -> None:
    """Plot the gains of the last step taken and of the next one, per language, around the cut."""
    named = allocated(record)
    figure, axes = figures.rows([name for name, _ in named])
    rows = np.arange(len(named))
    gains = {
        side: [_per_thousand(one[side]["gain"]) if one[side] else np.nan for _, one in named]
        for side in _SIDES
    }
    axes.hlines(rows, gains["more"], gains["less"], color="tab:gray", alpha=0.5, lw=3)
    for side, style in _SIDES.items():
        axes.plot(gains[side], rows, ms=5, **style)
    axes.set_xscale("log")
    _cut_line(axes.axvline, record)
    _number_ticks(axes.xaxis)
    axes.set_xlabel(_GAIN)
    axes.set_title("At the cut: what the last and the next step gain", fontsize=10)
    figures.legend(figure)
    figures.save(figure, path)


def plot_comparison(record: Record, path: pathlib.Path) -> None:
    """Plot ALP, tokens and unknowns of each method by resource group (paper Figure 4).

    Bars are means over the languages of a group, dots single languages. ALP and tokens are
    differences from the first method, per language.
    """
    names, groups, scores = methods(record), score_groups(record), record["scores"]
    first = names[0]

    def value(field: str, method: str, language: str) -> float:
        found, base = (scores[name][language][field] for name in (method, first))
        if field == "unknown_rate":
            return 100 * found
        return found - base if field == "alp" else 100 * (found / base - 1)

    fields = {
        "alp": f"ALP over {first}\n(nats a sentence)",
        "tokens_per_sentence": f"tokens a sentence\nover {first} (%)",
        "unknown_rate": "unknown tokens (%)",
    }
    figure, panels = figures.new((8, 9), nrows=len(fields), sharex=True)
    for axes, (field, label) in zip(panels, fields.items(), strict=True):
        compared = names if field == "unknown_rate" else names[1:]
        width = 0.8 / len(compared)
        for i, method in enumerate(compared):
            for x, languages in enumerate(groups.values()):
                values = [value(field, method, language) for language in languages]
                at = x + 0.8 * ((i + 0.5) / len(compared) - 0.5)
                color = f"C{names.index(method)}"
                axes.bar(at, np.mean(values), 0.9 * width, color=color, alpha=0.7)
                beside = np.linspace(-0.3, 0.3, len(values) + 2)[1:-1] * width
                axes.plot(at + beside, values, ".", color="black", ms=3, alpha=0.6)
        axes.axhline(0, color="black", linewidth=0.8)
        axes.set_ylabel(label)
        axes.grid(axis="y", alpha=0.3)
    axes.set_xticks(range(len(groups)), [f"{name} ({len(g)})" for name, g in groups.items()])
    axes.set_xlabel("languages by amount of text (how many)")
    handles = [patches.Patch(color=f"C{i}", alpha=0.7) for i in range(len(names))]
    figures.legend(figure, handles=handles, labels=names, columns=len(names))
    figure.suptitle("Held-out text: bars are means, dots languages")
    figures.save(figure, path)


def _per_thousand(gain: float) -> float:
    """Return a gain per 1,000 pieces; NaN for losses, which a logarithmic axis cannot show."""
    return 1000 * gain if gain > 0 else np.nan


def _envelope_gains(one: Mapping[str, Any], beta: float) -> tuple[np.ndarray, np.ndarray]:
    """Return envelope sizes [N] and the gain per 1,000 pieces after each [N]; the last repeats."""
    vertices = concave_envelope(one["sizes"], one["alp"])
    sizes, alp = np.array(one["sizes"])[vertices], np.array(one["alp"])[vertices]
    gains = 1000 * one["probability"] ** beta * np.diff(alp) / np.diff(sizes)
    gains = np.append(gains, gains[-1:] if len(gains) else np.nan)
    return sizes, np.where(gains > 0, gains, np.nan)


def _cut_line(draw, record: Record) -> None:
    if record["cut"] is not None:
        draw(_per_thousand(record["cut"]), color="black", ls="--", lw=1, label="the cut", zorder=0)


def _lines(
    record: Record, draw: Callable[..., float], *, sharey: bool = False
) -> tuple[Any, Sequence[Any]]:
    """Draw the languages over log sizes, in one panel or in one per third of them.

    `draw` takes a panel, a language's record and a style; it returns the value that sorts the
    legend.
    """
    languages = by_amount(record)
    parts = {"": languages}
    if len(languages) > _MAX_LINES:
        parts = {
            f"{third}-resource languages": [
                item for item in languages if item[1]["resource"] == third
            ]
            for third in RESOURCES
        }
    size = (8.5, 5 * len(parts))
    figure, grid = figures.new(size, nrows=len(parts), squeeze=False, sharex=True, sharey=sharey)
    for axes, (title, part) in zip(grid[:, 0], parts.items(), strict=True):
        axes.set_title(title, fontsize=10)
        axes.set_xscale("log")
        axes.grid(alpha=0.3, which="both", linewidth=0.5)
        # Ten colours, then the same ten with the next dash pattern.
        dashes = itertools.cycle(itertools.product(("-", "--", ":", "-."), range(10)))
        ends = {}
        for (language, one), (dash, i) in zip(part, dashes, strict=False):
            style = {"color": f"C{i}", "linestyle": dash, "linewidth": 1.3, "label": language}
            ends[language] = draw(axes, one, style)
        _number_ticks(axes.xaxis)
        handles, labels = axes.get_legend_handles_labels()
        ordered = sorted(zip(handles, labels, strict=True), key=lambda item: -ends[item[1]])
        axes.legend(
            *zip(*ordered, strict=True), loc="center left", bbox_to_anchor=(1.0, 0.5),
            ncols=1 + (len(ordered) - 1) // 24, fontsize=8, frameon=False,
        )  # fmt: skip
    axes.set_xlabel("vocabulary size (pieces)")
    return figure, grid[:, 0]


def _number_ticks(axis) -> None:
    """Set plain numbers as ticks of a logarithmic axis, more of them on a shorter range."""
    low, high = axis.get_view_interval()
    decades = np.log10(high / low)
    subs = range(1, 10) if decades < 1 else (1, 2, 5) if decades < 4 else (1,)
    axis.set_major_locator(ticker.LogLocator(subs=subs, numticks=12))
    axis.set_major_formatter(ticker.FuncFormatter(lambda value, _: f"{value:,.6g}"))
    axis.set_minor_formatter(ticker.NullFormatter())
