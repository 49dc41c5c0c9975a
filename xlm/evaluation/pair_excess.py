"""Losses of language pairs beyond what their languages explain.

A pair has a high loss because its text is damaged, or because its languages are hard for the model.
The second shows in all pairs of a language. So loss(a, b) = u_a + u_b is fitted by least squares,
and the residual is due to the pair's own text.
"""

import statistics
from collections.abc import Mapping

import numpy as np

from input_pipeline.pair_phases import PairRecord
from input_pipeline.pair_sampling import Pair

# Least share of a pair's loss that the fit leaves to its own text; rounding is below it.
_LEAST_SHARE = 1e-6


def mean_losses(record: PairRecord) -> dict[str, float]:
    """Average the loss of each pair seen, less the mean of its phase, over the last half of phases.

    The mean is subtracted since losses fall in training. Raises ValueError if there are no phases.
    """
    if not record.phases:
        raise ValueError("no phase was recorded; train past the first step of robust.num_phases")
    found: dict[str, list[float]] = {}
    for phase in record.phases[len(record.phases) // 2 :]:
        seen = {pair: loss for pair, loss in phase.losses.items() if loss is not None}
        mean = statistics.fmean(seen.values()) if seen else 0.0
        for pair, loss in seen.items():
            found.setdefault(pair, []).append(loss - mean)
    return {pair: statistics.fmean(values) for pair, values in found.items()}


def excess_losses(
    losses: Mapping[str, float], languages: Mapping[str, Pair]
) -> dict[str, float | None]:
    """Return the loss of each pair less the one that all other pairs predict for its languages.

    None for a pair whose languages no other pairs determine, such as the only pair of a language.
    """
    if not losses:
        return {}
    names = sorted(losses)
    ordered = sorted({language for name in names for language in languages[name]})
    design = np.array([[one in languages[name] for one in ordered] for name in names], float)
    values = np.array([losses[name] for name in names])
    fit = design @ np.linalg.pinv(design)
    # The residual of a least-squares fit to the others is 1 / (1 - h) times that of the fit to all.
    own_share = 1 - np.diag(fit)
    left = values - fit @ values
    return {
        name: float(one / share) if share > _LEAST_SHARE else None
        for name, one, share in zip(names, left, own_share, strict=True)
    }


def ranked_by_excess(excess: Mapping[str, float | None]) -> dict[str, float]:
    """Return the known excesses by pair, the highest first."""
    known = {pair: value for pair, value in excess.items() if value is not None}
    return dict(sorted(known.items(), key=lambda item: -item[1]))
