"""Report of robust sampling: the most up- and down-weighted pairs (XY-LENT Section 6.6, Figure 4).

Pairs at either end are those whose text is worth a look: noisy translations have high losses and
are up-weighted, near copies and text that the model predicts without understanding are
down-weighted. So are pairs of languages that are hard or easy for the model, whatever their text;
the pairs of highest and lowest loss beyond their languages (`xlm.evaluation.pair_excess`), which
the paper does not have, are listed with them.
"""

import dataclasses
import math
import pathlib
import statistics
from collections.abc import Callable, Mapping, Sequence

import matplotlib.pyplot as plt

from input_pipeline.pair_phases import PairRecord
from input_pipeline.pair_sampling import Pair
from xlm.common import artifacts
from xlm.evaluation import figures, markdown
from xlm.evaluation.pair_excess import excess_losses, mean_losses, ranked_by_excess

PLOT, REPORT, RESULTS = "pair_weights.png", "report.md", "pair_weights.json"
NUM_EXAMPLES = 3  # of a pair
_LONGEST = 160  # characters of a sentence in the report
_ROW = 0.24  # inches per pair in the plot
# Ratios that should be equal, such as 1 of unseen pairs, differ in the last bits of float64.
_DIGITS = 9

# (name of a pair, number) -> that many or fewer of its sentence pairs.
Examples = Callable[[str, int], Sequence[tuple[str, str]]]


@dataclasses.dataclass(frozen=True)
class PairWeight:
    """Weight of a pair in a run.

    Attributes:
      pair: name of the pair.
      base: its probability q before the first phase, above 0.
      ratio: p / q in the last phase.
      mean_ratio: p / q, averaged over the phases.
      loss: its mean loss at the last phase; None if it was not seen.
    """

    pair: str
    base: float
    ratio: float
    mean_ratio: float
    loss: float | None


def ranked_pairs(record: PairRecord) -> list[PairWeight]:
    """Rank the pairs that can be drawn, the most up-weighted one first.

    Pairs of the same ratio, such as those of weight 0, are ranked by their mean ratio, then by
    their loss, then by name.

    Raises:
      ValueError: there are no phases.
    """
    if not record.phases:
        raise ValueError(
            "no phase was recorded, so no pair was re-weighted; train past the first step of "
            "robust.num_phases"
        )
    last = record.phases[-1]
    found = [
        PairWeight(
            pair=pair,
            base=base,
            ratio=round(last.weights[pair] / base, _DIGITS),
            mean_ratio=round(
                statistics.fmean(phase.weights[pair] / base for phase in record.phases), _DIGITS
            ),
            loss=last.losses[pair],
        )
        for pair, base in record.base.items()
        if base > 0
    ]

    def rank(one: PairWeight) -> tuple:
        loss = -math.inf if one.loss is None else one.loss
        return -one.ratio, -one.mean_ratio, -loss, one.pair

    return sorted(found, key=rank)


def extremes(
    ranked: Sequence[PairWeight], number: int = 10
) -> tuple[list[PairWeight], list[PairWeight]]:
    """Select up to `number` up-weighted and down-weighted pairs, the most extreme first."""
    up = [one for one in ranked if one.ratio > 1]
    down = [one for one in reversed(ranked) if one.ratio < 1]
    return up[:number], down[:number]


def ends_by_loss(
    ranked: Sequence[PairWeight], number: int = 10
) -> tuple[list[PairWeight], list[PairWeight]]:
    """Select the pairs of highest and of lowest loss, the most extreme first, none in both.

    Args:
      ranked: pairs that have not been re-weighted, so that their loss is their rank.
      number: most pairs at each end.
    """
    seen = [one for one in ranked if one.loss is not None]
    middle = (len(seen) + 1) // 2
    return seen[:middle][:number], seen[middle:][::-1][:number]


def write_pair_report(
    record: PairRecord,
    languages: Mapping[str, Pair],
    examples: Examples,
    folder: pathlib.Path,
    number: int = 10,
) -> str:
    """Write plot, report and results to `folder`; return the text of the report.

    Without re-weighting, as with `robust.rho` 0, the pairs are reported by loss, without a plot.

    Args:
      languages: the two languages of each pair, by its name.
      examples: sentence pairs of a pair, as strings.

    Raises:
      ValueError: there are no phases.
    """
    ranked = ranked_pairs(record)
    up, down = extremes(ranked, number)
    is_reweighted = bool(up or down)
    first, last = (up, down) if is_reweighted else ends_by_loss(ranked, number)
    excess = excess_losses(mean_losses(record), languages)
    known = ranked_by_excess(excess)
    high, low = list(known)[:number], list(known)[::-1][:number]
    shown = dict.fromkeys([*(one.pair for one in (*first, *last)), *high, *low])
    text_of = {pair: list(examples(pair, NUM_EXAMPLES)) for pair in shown}
    if is_reweighted:
        plot_weights(up, down, folder / PLOT)
    of_record = _weight_sections if is_reweighted else _loss_sections
    parts = [
        *of_record(record, first, last),
        *_excess_sections(known, high, low),
        *_example_sections(
            {
                one.pair: f"ratio {one.ratio:.3f}" if is_reweighted else f"loss {_loss(one)}"
                for one in ranked
            },
            text_of,
        ),
    ]
    text = "\n\n".join(parts) + "\n"
    artifacts.write_text(folder / REPORT, text)
    results = {
        "up": [one.pair for one in up],
        "down": [one.pair for one in down],
        "pairs": [dataclasses.asdict(one) for one in ranked],
        "excess": excess,
        "divergences": {phase.step: phase.divergence for phase in record.phases},
        "examples": text_of,
    }
    artifacts.write_json(folder / RESULTS, results)
    return text


def _weight_sections(
    record: PairRecord, up: Sequence[PairWeight], down: Sequence[PairWeight]
) -> list[str]:
    last = record.phases[-1]
    return [
        "# Pairs by their weight in the worst distribution",
        f"Ratios p / q of the weight of a pair to its base weight, of {len(record.base)} pairs. "
        f"The last of {len(record.phases)} phases began with step {last.step}, at a divergence of "
        f"{last.divergence:.4g}. Look at the text of both ends: the most up-weighted pairs have "
        "the highest losses, the most down-weighted ones the lowest.",
        f"![Weights of the pairs]({PLOT})",
        *_end("Up-weighted", up),
        *_end("Down-weighted", down),
    ]


def _loss_sections(
    record: PairRecord, high: Sequence[PairWeight], low: Sequence[PairWeight]
) -> list[str]:
    return [
        "# Pairs by their loss",
        f"None of the {len(record.base)} pairs has been re-weighted. Their losses are those of "
        f"step {record.phases[-1].step}, of phase {len(record.phases)}.",
        *_end("Highest loss", high),
        *_end("Lowest loss", low),
    ]


def _end(title: str, pairs: Sequence[PairWeight]) -> list[str]:
    return [f"## {title}", _table(pairs) if pairs else "None."]


def _excess_sections(
    known: Mapping[str, float], high: Sequence[str], low: Sequence[str]
) -> list[str]:
    parts = [
        "## Beyond their languages",
        "Loss of a pair in the second half of the phases, less the one that the other pairs of its "
        "two languages predict. A high one may be of bad translations or of another language, a "
        "low one of repeated or copied sentences.",
    ]
    if not known:
        return [*parts, "No pair has other pairs of both languages."]
    lines = ["| highest | excess | lowest | excess |", "|---|---:|---|---:|"]
    lines += [
        f"| {markdown.cell(a)} | {known[a]:+.3f} | {markdown.cell(b)} | {known[b]:+.3f} |"
        for a, b in zip(high, low, strict=True)
    ]
    return [*parts, "\n".join(lines)]


def _example_sections(
    notes: Mapping[str, str], text_of: Mapping[str, Sequence[tuple[str, str]]]
) -> list[str]:
    parts = ["## Examples"]
    for pair, text in text_of.items():
        parts.append(f"### {markdown.escaped(pair)}, {notes[pair]}")
        parts.append(_examples_table(text) if text else "No text.")
    return parts


def _table(pairs: Sequence[PairWeight]) -> str:
    lines = [
        "| pair | last p / q | mean p / q | base weight | loss |",
        "|---|---:|---:|---:|---:|",
    ]
    for one in pairs:
        lines.append(
            f"| {markdown.cell(one.pair)} | {one.ratio:.3f} | {one.mean_ratio:.3f} | "
            f"{one.base:.3g} | {_loss(one)} |"
        )
    return "\n".join(lines)


def _loss(one: PairWeight) -> str:
    return "not seen" if one.loss is None else f"{one.loss:.3f}"


def _examples_table(examples: Sequence[tuple[str, str]]) -> str:
    lines = ["| one side | other side |", "|---|---|"]
    lines += [
        f"| {' | '.join(markdown.cell(_short(text)) for text in pair)} |" for pair in examples
    ]
    return "\n".join(lines)


def _short(text: str) -> str:
    """Join lines, and cut long text."""
    text = " ".join(text.split())
    return text if len(text) <= _LONGEST else text[: _LONGEST - 1] + "…"


def plot_weights(up: Sequence[PairWeight], down: Sequence[PairWeight], path: pathlib.Path) -> None:
    """Plot the ratios of the pairs at both ends as bars from 1, with their means as dots.

    The panels share their axis, and the most extreme pair is on top of each.
    """
    height = 1.4 + _ROW * max(len(up), len(down), 4)
    figure, panels = plt.subplots(1, 2, figsize=(9, height), layout="constrained", sharex=True)
    titles = ("Up-weighted", "Down-weighted")
    for axes, title, pairs, colour in zip(
        panels, titles, (up, down), ("tab:red", "tab:blue"), strict=True
    ):
        rows = range(len(pairs))
        axes.barh(rows, [one.ratio - 1 for one in pairs], left=1, color=colour, alpha=0.6)
        axes.plot([one.mean_ratio for one in pairs], rows, "o", color="black", mfc="white", ms=5)
        axes.set_yticks(rows, [one.pair for one in pairs])
        axes.set_ylim(max(len(pairs), 1) - 0.4, -0.6)
        axes.axvline(1, color="black", lw=0.8)
        axes.grid(axis="x", alpha=0.3)
        axes.set_title(title, fontsize=10)
        axes.set_xlabel("weight over base weight")
    figure.suptitle("Pairs in the worst distribution (bars: last phase; dots: mean of all phases)")
    figures.save(figure, path)
