"""Tables and plots of `benchmarks.sampling_quality`, from its records alone.

Losses of a run are means over languages, in nats a token.
"""

import dataclasses
import pathlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np

import artifacts

FULL = "full"
_NEAR = 0.5  # nats, see `plot_methods`


@dataclasses.dataclass(frozen=True)
class Row:
    """A setting over its seeds.

    Attributes:
      name: of the setting.
      label: in tables and plots.
      loss: exact held-out loss of each seed.
      difference: the same less that of the full softmax, of each seed that both have.
      languages: loss of each language, means over seeds.
      candidates, overflow, steps_per_second: means over seeds.
      staleness: share of the index that a refresh changes, mean over seeds; None without an index.
      vocab_size: V.
    """

    name: str
    label: str
    loss: Mapping[int, float]
    difference: Mapping[int, float]
    languages: Mapping[str, float]
    candidates: float
    overflow: float
    steps_per_second: float
    staleness: float | None
    vocab_size: int


def summarise(labels: Mapping[str, str], records: Iterable[Mapping[str, Any]]) -> dict[str, Row]:
    """Rows of the settings that have records, in the order of the labels.

    Args:
      labels: of each setting.
      records: of finished runs, see `sampling_quality.record`.
    """
    by_setting: dict[str, dict[int, Mapping[str, Any]]] = {}
    for one in records:
        by_setting.setdefault(one["setting"], {})[one["seed"]] = one
    losses = {
        name: {seed: float(np.mean(list(one["loss"].values()))) for seed, one in own.items()}
        for name, own in by_setting.items()
    }
    full = losses.get(FULL, {})
    rows = {}
    for name, label in labels.items():
        if name not in by_setting:
            continue
        own, loss = list(by_setting[name].values()), losses[name]
        languages = {lang: _mean(one["loss"][lang] for one in own) for lang in own[0]["loss"]}
        stale = [one["staleness"] for one in own if one["staleness"] is not None]
        rows[name] = Row(
            name,
            label,
            loss=loss,
            difference={seed: loss[seed] - full[seed] for seed in loss if seed in full},
            languages=languages,
            candidates=_mean(one["candidates"] for one in own),
            overflow=_mean(one["overflow"] for one in own),
            steps_per_second=_mean(one["steps_per_second"] for one in own),
            staleness=_mean(stale) if stale else None,
            vocab_size=own[0]["vocab_size"],
        )
    return rows


_HEADER = (
    "| | seeds | exact loss | min to max | against full | min to max | V' | of V | overflow "
    "| stale % | steps/s | speed of a step | of a run |\n|---|" + "---:|" * 12
)


def table(rows: Sequence[Row], speed: Mapping[str, Mapping[str, float]]) -> str:
    """Markdown: one line per setting.

    Args:
      rows: what to show.
      speed: `step` and `run` of each setting, times as fast as full; of some or none.
    """
    lines = [_HEADER]
    for row in rows:
        fast = speed.get(row.name, {})
        cells = [
            str(len(row.loss)),
            *_spread(row.loss.values(), "{:.3f}"),
            *_spread([] if row.name == FULL else row.difference.values(), "{:+.3f}"),
            f"{row.candidates:.0f}",
            f"{row.candidates / row.vocab_size:.3f}",
            f"{row.overflow:.0f}",
            "" if row.staleness is None else f"{100 * row.staleness:.0f}",
            f"{row.steps_per_second:.2f}",
            *(f"{fast[what]:.2f}" if what in fast else "" for what in ("step", "run")),
        ]
        lines.append(f"| {row.label} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def language_table(rows: Sequence[Row], unigram: Mapping[str, float]) -> str:
    """Markdown: the loss of each language, and the unigram distribution's."""
    lines = ["| | " + " | ".join(unigram) + " | mean |\n|---|" + "---:|" * (len(unigram) + 1)]
    shown = [("unigram of the language", unigram), *((row.label, row.languages) for row in rows)]
    for label, losses in shown:
        values = [losses[language] for language in unigram]
        cells = [f"{value:.3f}" for value in (*values, _mean(values))]
        lines.append(f"| {label} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def plot_methods(rows: Sequence[Row], path: pathlib.Path) -> None:
    """Loss by method, seeds and mean; a second panel where some are near the full softmax."""
    full = [_mean(row.loss.values()) for row in rows if row.name == FULL]
    near = [loss for row in rows for loss in row.loss.values() if full and loss < full[0] + _NEAR]
    count = 2 if near else 1
    figure, panels = plt.subplots(
        1, count, figsize=(5.5 * count, 1 + 0.35 * len(rows)), sharey=True, layout="constrained"
    )
    panels = np.atleast_1d(panels)
    for axes in panels:
        for place, row in enumerate(rows):
            losses = list(row.loss.values())
            axes.plot(losses, [place] * len(losses), "o", color="tab:blue", alpha=0.5)
            axes.plot(_mean(losses), place, "|", color="black", ms=16, mew=2)
        for mean in full:
            axes.axvline(mean, color="tab:red", lw=1, label="full softmax")
            axes.axvspan(mean - 0.02, mean + 0.02, color="tab:red", alpha=0.12, label="± 0.02")
        axes.set_yticks(range(len(rows)), [row.label for row in rows])
        axes.set_xlabel("exact held-out loss (nats a token)")
        axes.grid(alpha=0.3)
    panels[0].invert_yaxis()
    if near:
        margin = 0.1 * (max(near) - min(near)) + 0.03
        panels[1].set_xlim(min(near) - margin, max(near) + margin)
        panels[1].set_title(f"less than {_NEAR} nats behind the full softmax")
        panels[1].legend()
    _save(figure, path)


def plot_k(by_k: Mapping[int, Row], full: Row | None, path: pathlib.Path) -> None:
    """Loss against k, seeds and mean, beside the full softmax with the range of its seeds."""
    figure, axes = plt.subplots(figsize=(6.5, 4), layout="constrained")
    ks = sorted(by_k)
    for k in ks:
        losses = list(by_k[k].loss.values())
        axes.plot([k] * len(losses), losses, "o", color="tab:blue", alpha=0.4)
        share = f"{100 * by_k[k].candidates / by_k[k].vocab_size:.0f} %"
        axes.annotate(share, (k, max(losses)), (0, 7), textcoords="offset points", ha="center")
    means = [_mean(by_k[k].loss.values()) for k in ks]
    axes.plot(ks, means, "-", color="tab:blue", label="k-NN; its |V'| in % of V")
    if full:
        losses = list(full.loss.values())
        axes.axhline(_mean(losses), color="tab:red", lw=1, label="full softmax")
        axes.axhspan(min(losses), max(losses), color="tab:red", alpha=0.12)
    axes.set_xscale("log")
    axes.set_xticks(ks, [str(k) for k in ks])
    axes.minorticks_off()
    axes.margins(y=0.2)
    axes.set_xlabel("neighbours k")
    axes.set_ylabel("exact held-out loss (nats a token)")
    axes.grid(alpha=0.3)
    axes.legend()
    _save(figure, path)


def _mean(values: Iterable[float]) -> float:
    return float(np.mean(list(values)))


def _spread(values: Iterable[float], form: str) -> list[str]:
    """Mean, and least to largest; empty cells for no values."""
    found = list(values)
    if not found:
        return ["", ""]
    return [form.format(_mean(found)), f"{form.format(min(found))} to {form.format(max(found))}"]


def _save(figure, path: pathlib.Path) -> None:
    with artifacts.replacing(path) as aside:
        figure.savefig(aside, dpi=120)
    plt.close(figure)
