"""Charts of a vocabulary, made from its record (`vocap.record`)."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from vocap.curves import concave_envelope
from vocap.record import RESOURCES, Record, allocated, by_amount, methods, score_groups
from xlm.common import charts
from xlm.common.charts import Axis, Marks

_MAX_LINES = 20  # per panel; more languages get a panel for each third
_GAIN = "weighted ALP gain (nats per 1,000 pieces)"


def plot_curves(record: Record) -> str:
    """Draw ALP against vocabulary size per language, with the allocated size (paper Figure 1)."""

    def curve(name: str, one: Mapping[str, Any]) -> tuple[float, list[Marks]]:
        marks = [Marks(name, one["sizes"], one["alp"])]
        if one["allocated"] is not None:
            alp = one["alp"][one["sizes"].index(one["allocated"])]
            marks.append(Marks("", [one["allocated"]], [alp], "dots", tips=[f"{name}: allocated"]))
        return one["alp"][-1], marks

    dots = "; dots: allocated sizes" if allocated(record) and not record["clusters"] else ""
    return _lines(record, curve, f"Average log probability{dots}", Axis("ALP (nats a sentence)"))


def plot_gains(record: Record) -> str:
    """Draw the gain of each step of each language against its size, and the gain at the cut.

    Only languages with an allocated size are shown. A dot marks the last step that a language took;
    a hollow dot marks the start of its first step, if it took none.
    """

    def curve(name: str, one: Mapping[str, Any]) -> tuple[float, list[Marks]]:
        sizes, gains = _envelope_gains(one, record["settings"]["beta"])
        marks = [Marks(name, sizes, gains, "steps")]
        if step := one["less"] or one["more"]:
            at = [one["allocated"]], [_per_thousand(step["gain"])]
            style = "" if one["less"] else "hollow"
            marks.append(Marks("", *at, "dots", style=style, tips=[f"{name}: {at[1][0]:.4g}"]))
        return float(np.nan_to_num(gains[-1])), marks

    title = "What a step gains; dots: the last step taken (hollow: none)"
    return _lines(record, curve, title, Axis(_GAIN, is_log=True), _cut(record))


def plot_sizes(record: Record) -> str:
    """Draw the allocated size per language (paper Table 9): its smallest size and its growth."""
    named, rows = allocated(record), range(len(allocated(record)))
    sizes = [one["allocated"] for _, one in named]
    first = [one["sizes"][0] if "sizes" in one else 0 for _, one in named]
    notes = [" (largest)" * one["at_largest"] for _, one in named]
    tips = [f"{name}: {one['allocated']:,}{note}"
            for (name, one), note in zip(named, notes, strict=True)]  # fmt: skip
    names = [f"{name}{note}" for (name, _), note in zip(named, notes, strict=True)]
    return charts.chart(
        [
            Marks("smallest trained size", first, rows, "bars", style="c7"),
            Marks("grown by steps", sizes, rows, "bars", first, "c0", tips),
        ],
        Axis("allocated size (pieces)", ends=(0,)), Axis(names=names),
        title=f"{record['pieces']:,} pieces, shared ones counted once",
    )  # fmt: skip


def plot_comparison(record: Record) -> str:
    """Draw ALP, tokens and unknowns of each method, means of resource groups (paper Figure 4).

    ALP and tokens are differences from the first method, language by language.
    """
    names, groups, scores = methods(record), score_groups(record), record["scores"]
    first, panels = names[0], []

    def value(field: str, method: str, language: str) -> float:
        found, base = (scores[name][language][field] for name in (method, first))
        if field == "unknown_rate":
            return 100 * found
        return found - base if field == "alp" else 100 * (found / base - 1)

    fields = {
        "alp": f"ALP over {first} (nats a sentence)",
        "tokens_per_sentence": f"tokens a sentence over {first} (%)",
        "unknown_rate": "unknown tokens (%)",
    }
    rows = Axis(names=[f"{name} ({len(of)})" for name, of in groups.items()])
    for field, title in fields.items():
        marks = [
            Marks(one, [float(np.mean([value(field, one, name) for name in of]))
                        for of in groups.values()], range(len(groups)), "dots")
            for one in names
        ]  # fmt: skip
        panels.append(charts.chart(marks, Axis(title, ends=(0,)), rows, title=title))
    return charts.stacked(panels)


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


def _cut(record: Record) -> list[Marks]:
    gain = _per_thousand(record["cut"] or 0)
    return [Marks("the cut", [], [gain], "rule", style="rule")] if gain == gain else []


def _lines(
    record: Record, curve: Callable[[str, Mapping[str, Any]], tuple[float, list[Marks]]],
    title: str, y: Axis, more: Sequence[Marks] = (),
) -> str:  # fmt: skip
    """Draw the languages over log sizes, in one panel or in one per third of them.

    `curve` returns the value that sorts the legend, and the marks of a language.
    """
    languages: Sequence[tuple[str, Any]] = by_amount(record)
    parts = {"": languages}
    if len(languages) > _MAX_LINES:
        parts = {
            f"{third}-resource languages: ": [
                item for item in languages if item[1]["resource"] == third
            ]
            for third in RESOURCES
        }
    panels = []
    for begin, part in parts.items():
        found = sorted((curve(*item) for item in part), key=lambda one: -one[0])
        marks = [charts.restyled(one, i) for i, (_, of) in enumerate(found) for one in of]
        x = Axis("vocabulary size (pieces)", is_log=True)
        panels.append(charts.chart([*marks, *more], x, y, title=f"{begin}{title}", height=380))
    return panels[0] if len(panels) == 1 else charts.stacked(panels)
