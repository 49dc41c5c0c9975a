"""Charts of a vocabulary, made from its record (`vocap.record`)."""

import numpy as np

from vocap.record import RESOURCES, Record, allocated, by_amount, methods, score_groups
from xlm.common import charts
from xlm.common.charts import Axis, Marks
from xlm.common.languages import label

_MAX_LINES = 20  # per panel; more languages get a panel for each third


def plot_curves(record: Record) -> str:
    """Draw ALP against vocabulary size per language, with the allocated size (paper Figure 1)."""
    languages = by_amount(record)
    parts = {"": languages}
    if len(languages) > _MAX_LINES:
        parts = {
            f"{third}-resource languages: ": [
                item for item in languages if item[1]["resource"] == third
            ]
            for third in RESOURCES
        }
    dots = "; dots: allocated sizes" if allocated(record) and not record["clusters"] else ""
    x, y = Axis("vocabulary size (pieces)", is_log=True), Axis("ALP (nats a sentence)")
    panels = []
    for begin, part in parts.items():
        marks = []
        for i, (name, one) in enumerate(sorted(part, key=lambda item: -item[1]["alp"][-1])):
            marks.append(charts.restyled(Marks(name, one["sizes"], one["alp"]), i))
            if (size := one["allocated"]) is not None:
                alp = one["alp"][one["sizes"].index(size)]
                dot = Marks("", [size], [alp], "dots", tips=[f"{name}: {size:,} allocated"])
                marks.append(charts.restyled(dot, i))
        title = f"{begin}Average log probability{dots}"
        panels.append(charts.chart(marks, x, y, title=title, height=380))
    return charts.stacked(panels)


def plot_sizes(record: Record) -> str:
    """Draw the smallest size and the growth of each language (paper Table 9)."""
    named, rows = allocated(record), range(len(allocated(record)))
    sizes = [one["allocated"] for _, one in named]
    first = [one["sizes"][0] if "sizes" in one else 0 for _, one in named]
    notes = [" (largest)" * one["at_largest"] for _, one in named]
    tips = [f"{name}: {one['allocated']:,}{note}"
            for (name, one), note in zip(named, notes, strict=True)]  # fmt: skip
    names = [f"{label(name)}{note}" for (name, _), note in zip(named, notes, strict=True)]
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
