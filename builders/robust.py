"""Phases of robust sampling, solved from the moving averages of the losses of pairs."""

import math
import pathlib
from collections.abc import Mapping

import numpy as np

from input_pipeline.pair_phases import PairRecord, Phase, load_pair_record
from objectives.best_response import RobustSettings, best_response


def with_next_phase(
    record: PairRecord,
    step: int,
    losses: Mapping[str, float],
    settings: RobustSettings,
    baseline: Mapping[str, float] | None = None,
) -> PairRecord:
    """Solve for the worst distribution, and add it to the record as the phase from `step` on.

    Args:
      record: base distribution and earlier phases.
      step: steps taken.
      losses: mean loss of each pair, NaN if it was not seen.
      settings: radius and bound.
      baseline: loss of each pair that is subtracted, see `baseline_losses`; None for none. A pair
        without one counts as not seen.

    Raises:
      ValueError: losses of other pairs, an infinite loss, or a step that is not after the last.
    """
    if set(losses) != set(record.base):
        differing = sorted(set(losses) ^ set(record.base))
        raise ValueError(
            f"losses and base distribution are of different pairs: {differing[:5]}; restore the "
            "rows that the run began with"
        )
    pairs = sorted(record.base)
    subtracted = [0.0 if baseline is None else baseline.get(pair, math.nan) for pair in pairs]
    found = best_response(
        [losses[pair] for pair in pairs],
        [record.base[pair] for pair in pairs],
        settings.rho,
        baseline=np.array(subtracted),
        min_ratio=settings.min_ratio,
    )
    phase = Phase(
        step=step,
        weights=dict(zip(pairs, found.weights.tolist(), strict=True)),
        losses={pair: None if math.isnan(loss) else float(loss) for pair, loss in losses.items()},
        divergence=found.divergence,
        eta=found.eta if math.isfinite(found.eta) else None,
    )
    return record.extended(phase)


def baseline_losses(path: pathlib.Path) -> dict[str, float]:
    """Read the losses of the last phase of a run's record, of the pairs that it has seen.

    Raises:
      ValueError: the file is missing or damaged, or has no phases.
    """
    record = load_pair_record(path)
    if not record.phases:
        raise ValueError(
            f"robust.baseline: {path} has no phases, and so no losses; finish that run first"
        )
    return {pair: loss for pair, loss in record.phases[-1].losses.items() if loss is not None}
