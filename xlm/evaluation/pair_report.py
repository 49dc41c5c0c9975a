"""Report of robust sampling: the most up- and down-weighted pairs (XY-LENT Section 6.6, Figure 4).

Look at the text of both ends. Robust sampling up-weights noisy translations, which have high
losses. It down-weights near copies, and text that the model predicts without understanding. Hard or
easy languages have the same effect, but on all their pairs. So we fit loss(a, b) = u_a + u_b by
least squares, and attribute the residual to the pair's own text. The report also lists pairs by
this excess, which the paper does not have.
"""

import math
import pathlib
import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from input_pipeline.pair_phases import PairRecord
from input_pipeline.pair_sampling import Pair
from xlm.common import artifacts, html_report, tables
from xlm.objectives.best_response import shrunk

RESULTS = "pair_weights.json"
NUM_EXAMPLES = 3  # of a pair
_LONGEST = 160  # characters of a sentence in the report
# Equal ratios and excesses, as those of unseen pairs, may differ in the last bits of float64.
_DIGITS = 9
# Least share of a pair's loss that the fit leaves to its own text; rounding is below it.
_LEAST_SHARE = 1e-6

# (name of a pair, number) -> at most so many of its sentence pairs.
Examples = Callable[[str, int], Sequence[tuple[str, str]]]
# A pair's name; base, its probability q before the first phase; ratio, its p / q in the last phase;
# mean_ratio, the mean over the phases; loss in the last phase, None if unseen. New records add its
# standard error, and the number of examples.
PairWeight = dict[str, Any]


def ranked_pairs(record: PairRecord) -> list[PairWeight]:
    """Rank the pairs with a base weight, the most up-weighted first; ValueError without phases.

    Ties, such as pairs of weight 0, go by mean ratio, then loss, then name.
    """
    if not record.phases:
        raise ValueError(
            "there is no record of a phase, so pairs still have their base weights; train past the "
            "first step of robust.num_phases"
        )
    found, last = [], record.phases[-1]
    for pair, base in record.base.items():
        if base > 0:
            ratios = [phase.weights[pair] / base for phase in record.phases]
            found.append(
                {
                    "pair": pair,
                    "base": base,
                    "ratio": round(ratios[-1], _DIGITS),
                    "mean_ratio": round(tables.mean_of(ratios), _DIGITS),
                    "loss": last.losses[pair],
                }
                | (
                    {"error": last.errors[pair], "examples": last.examples[pair]}
                    if last.errors
                    else {}
                )
            )

    def rank(one: PairWeight) -> tuple:
        loss = -math.inf if one["loss"] is None else one["loss"]
        return -one["ratio"], -one["mean_ratio"], -loss, one["pair"]

    return sorted(found, key=rank)


def extremes(
    ranked: Sequence[PairWeight], number: int = 10
) -> tuple[list[PairWeight], list[PairWeight]]:
    """Select up to `number` up-weighted and down-weighted pairs, the most extreme first."""
    up = [one for one in ranked if one["ratio"] > 1]
    down = [one for one in reversed(ranked) if one["ratio"] < 1]
    return up[:number], down[:number]


def mean_losses(record: PairRecord) -> dict[str, float]:
    """Average the loss of each seen pair, less the mean of its phase, over the last half of phases.

    The mean removes the fall of losses in training. Raises ValueError if there are no phases.
    """
    if not record.phases:
        raise ValueError(
            "there is no record of a phase; train past the first step of robust.num_phases"
        )
    found: dict[str, list[float]] = {}
    for phase in record.phases[len(record.phases) // 2 :]:
        seen = {pair: loss for pair, loss in phase.losses.items() if loss is not None}
        mean = statistics.fmean(seen.values()) if seen else 0.0
        for pair, loss in seen.items():
            found.setdefault(pair, []).append(loss - mean)
    return {pair: statistics.fmean(values) for pair, values in found.items()}


def excess_losses(
    losses: Mapping[str, float],
    languages: Mapping[str, Pair],
    errors: Mapping[str, float | None] | None = None,
) -> dict[str, float | None]:
    """Return the loss of each pair less the one that all other pairs predict for its languages.

    None for a pair whose languages no other pairs determine, such as the only pair of a language.
    With standard `errors` of the losses, it shrinks excesses towards their mean by their own.
    """
    if not losses:
        return {}
    names = sorted(losses)
    ordered = sorted({language for name in names for language in languages[name]})
    design = np.array([[one in languages[name] for one in ordered] for name in names], float)
    values = np.array([losses[name] for name in names])
    fit = design @ np.linalg.pinv(design)
    # A least-squares fit to the others has 1 / (1 - h) times the residual of the fit to all.
    own_share = 1 - np.diag(fit)
    is_known = own_share > _LEAST_SHARE
    to_others = (np.eye(len(names)) - fit) / np.where(is_known, own_share, 1.0)[:, None]
    found = np.where(is_known, to_others @ values, np.nan)
    if errors:
        noise = np.array([errors.get(name) or np.inf for name in names])
        of_sums = np.where(to_others**2 > _LEAST_SHARE**2, to_others**2, 0.0)
        found = shrunk(found, np.sqrt(np.where(of_sums > 0, of_sums * noise**2, 0.0).sum(1)))
    return {
        name: None if math.isnan(one) else one
        for name, one in zip(names, found.tolist(), strict=True)
    }


def ranked_by_excess(excess: Mapping[str, float | None]) -> dict[str, float]:
    """Return the known excesses by pair, the highest first."""
    known = {pair: value for pair, value in excess.items() if value is not None}
    return dict(sorted(known.items(), key=lambda item: (-round(item[1], _DIGITS), item[0])))


def write_pair_report(
    record: PairRecord, languages: Mapping[str, Pair], examples: Examples, folder: pathlib.Path,
    number: int = 10,
) -> str:  # fmt: skip
    """Write report and results to `folder`; return the text of the report.

    Without re-weighting, as with `robust.rho` 0, it lists pairs by loss.
    """
    ranked = ranked_pairs(record)
    up, down = extremes(ranked, number)
    excess = excess_losses(mean_losses(record), languages, record.phases[-1].errors)
    known = ranked_by_excess(excess)
    high, low = list(known)[:number], list(known)[::-1][:number]
    ends = [up, down]
    if not (up or down):  # those of highest and lowest loss
        seen = [one for one in ranked if one["loss"] is not None]
        middle = (len(seen) + 1) // 2
        ends = [seen[:middle][:number], seen[middle:][::-1][:number]]
    shown = [one["pair"] for pairs in ends for one in pairs]
    text_of = {one: [*examples(one, NUM_EXAMPLES)] for one in dict.fromkeys([*shown, *high, *low])}
    notes = {
        one["pair"]: f"ratio {one['ratio']:.3f}" if up or down else f"loss {_loss(one)}"
        for one in ranked
    }
    text = tables.page(
        *(_by_weight if up or down else _by_loss)(record, *map(_table, ends)),
        "## Beyond their languages",
        "*Excess*: loss of a pair in the second half of the phases, less the one that the other "
        "pairs of its two languages predict. Bad translations or another language may raise it, "
        "repeated or copied sentences may lower it.",
        _excess_table(known, high, low) or "No pair has other pairs of both languages.",
        "## Examples",
        *(
            f"### {tables.escaped(pair)}, {notes[pair]}\n\n{_examples_table(found) or 'No text.'}"
            for pair, found in text_of.items()
        ),
    )
    html_report.write(folder, text)
    results = {
        "up": [one["pair"] for one in up], "down": [one["pair"] for one in down],
        "pairs": ranked, "excess": excess, "examples": text_of,
        "divergences": {phase.step: phase.divergence for phase in record.phases},
    }  # fmt: skip
    artifacts.write_json(folder / RESULTS, results)
    return text


def _by_weight(record: PairRecord, up: str, down: str) -> list[str]:
    last = record.phases[-1]
    return [
        "# Pairs by their weight in the worst distribution",
        f"The ratio p / q is the weight of a pair over its base weight. There are "
        f"{len(record.base)} pairs. The last of {len(record.phases)} phases began with step "
        f"{last.step}, at a divergence of {last.divergence:.4g}. Look at the text of both ends: "
        "the most up-weighted pairs have the highest losses, the most down-weighted ones the "
        "lowest.",
        *("## Up-weighted", up, "## Down-weighted", down),
    ]


def _by_loss(record: PairRecord, high: str, low: str) -> list[str]:
    return [
        "# Pairs by their loss",
        f"None of the {len(record.base)} pairs has been re-weighted. Their losses are those of "
        f"step {record.phases[-1].step}, of phase {len(record.phases)}.",
        *("## Highest loss", high, "## Lowest loss", low),
    ]


def _table(pairs: Sequence[PairWeight]) -> str:
    rows = [
        {
            "pair": tables.text_cell(one["pair"]),
            "last p / q": one["ratio"],
            "mean p / q": one["mean_ratio"],
            "base weight": f"{one['base']:.3g}",
            "loss": _loss(one),
            **({"examples": f"{one['examples']:.0f}"} if "examples" in one else {}),
        }
        for one in pairs
    ]
    return tables.markdown(rows, ".3f") or "None."


def _loss(one: PairWeight) -> str:
    error = "" if one.get("error") is None else f" ± {one['error']:.3f}"
    return (tables.shown(one["loss"], ".3f") or "not seen") + error


def _excess_table(known: Mapping[str, float], high: Sequence[str], low: Sequence[str]) -> str:
    rows = [
        {
            "highest": tables.text_cell(one),
            "excess": known[one],
            "lowest": tables.text_cell(other),
            "its excess": known[other],
        }
        for one, other in zip(high, low, strict=True)
    ]
    return tables.markdown(rows, "+.3f")


def _examples_table(examples: Sequence[tuple[str, str]]) -> str:
    def cell(text: str) -> str:
        text = " ".join(text.split())
        return tables.text_cell(text if len(text) <= _LONGEST else text[: _LONGEST - 1] + "…")

    rows = [{"one side": cell(one), "other side": cell(other)} for one, other in examples]
    return tables.markdown(rows, left=2)
