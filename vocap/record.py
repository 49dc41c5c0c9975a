"""What a build decided and why, as JSON, as a table and as plots."""

import pathlib
from collections.abc import Mapping
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np

import artifacts
from vocap.build import Vocabulary


def allocation_record(vocabulary: Vocabulary) -> dict[str, Any]:
    """The curves, probabilities and steps of a build, JSON-able; pieces are in the model."""
    allocation = vocabulary.allocation
    return {
        "pieces": len(allocation.pieces),
        "languages": {
            language: {
                "bytes": vocabulary.num_bytes[language],
                "probability": vocabulary.probabilities[language],
                "sizes": curve.sizes,
                "alp": curve.alp,
                "allocated": allocation.sizes[language],
                "not_concave": allocation.not_concave.get(language, ()),
                "at_largest": language in allocation.at_largest,
            }
            for language, curve in vocabulary.curves.items()
        },
        "steps": [
            {"language": s.language, "size": s.size, "gain": s.gain, "union": s.union}
            for s in allocation.steps
            if np.isfinite(s.gain)
        ],
    }


def allocation_table(record: Mapping[str, Any]) -> str:
    """Markdown table of the allocation, the largest share of the text first."""
    lines = [
        "| language | text (KB) | q (Eq. 3) | sizes trained | allocated | ALP (nats/sentence) |",
        "|---|---:|---:|---:|---:|---:|",
    ]
    for language, one in _by_bytes(record):
        alp = one["alp"][one["sizes"].index(one["allocated"])]
        end = " (largest)" if one["at_largest"] else ""
        lines.append(
            f"| {language} | {one['bytes'] / 1000:.0f} | {one['probability']:.3f} "
            f"| {one['sizes'][0]} to {one['sizes'][-1]} | {one['allocated']}{end} | {alp:.1f} |"
        )
    return "\n".join(lines)


def plot_curves(record: Mapping[str, Any], path: pathlib.Path) -> None:
    """ALP against vocabulary size per language, the allocated size marked (paper Figure 1)."""
    figure, axes = plt.subplots(figsize=(8, 5), layout="constrained")
    for (language, one), style in zip(_by_bytes(record), _line_styles(), strict=False):
        (line,) = axes.plot(one["sizes"], one["alp"], label=language, linewidth=1.5, **style)
        at = one["sizes"].index(one["allocated"])
        axes.plot(one["sizes"][at], one["alp"][at], "o", color=line.get_color(), markersize=6)
    axes.set_xscale("log")
    axes.set_xlabel("vocabulary size (pieces)")
    axes.set_ylabel("ALP (nats a sentence)")
    axes.set_title("Average log probability; dots are the allocated sizes")
    axes.grid(alpha=0.3)
    figure.legend(loc="outside right center", ncols=1 + len(record["languages"]) // 25)
    _save(figure, path)


def plot_sizes(record: Mapping[str, Any], path: pathlib.Path) -> None:
    """Allocated size per language (paper Table 9), hatched where the curve ended first."""
    languages = _by_bytes(record)
    figure, axes = plt.subplots(figsize=(max(7.0, 0.3 * len(languages)), 4), layout="constrained")
    bars = axes.bar([lang for lang, _ in languages], [one["allocated"] for _, one in languages])
    for bar, (_, one) in zip(bars, languages, strict=True):
        if one["at_largest"]:
            bar.set_hatch("//")
    axes.set_xlabel("language, most text first (hatched: at its largest trained size)")
    axes.set_ylabel("allocated size (pieces)")
    axes.set_title(f"{record['pieces']} pieces, shared ones counted once")
    axes.tick_params(axis="x", rotation=90 if len(languages) > 20 else 0)
    axes.grid(axis="y", alpha=0.3)
    _save(figure, path)


def _by_bytes(record: Mapping[str, Any]) -> list[tuple[str, Mapping[str, Any]]]:
    return sorted(record["languages"].items(), key=lambda item: -item[1]["bytes"])


def _line_styles():
    """Twenty colours, then the same again with another dash."""
    for dash in ("-", "--", ":", "-."):
        for color in plt.get_cmap("tab20").colors:
            yield {"color": color, "linestyle": dash}


def _save(figure, path: pathlib.Path) -> None:
    with artifacts.replacing(path) as aside:
        figure.savefig(aside, dpi=120)
    plt.close(figure)
