"""Robust sampling of language pairs: phases solved from the moving averages of their losses."""

import dataclasses
import logging
import math
import pathlib
from collections.abc import Callable, Iterator, Mapping

import jax
import numpy as np
from jax.sharding import Mesh
from ml_collections import ConfigDict

from input_pipeline.bitext import language_pairs, pair_names
from input_pipeline.dataset import StreamedData
from input_pipeline.packed_dataset import PackedDataset
from input_pipeline.pair_phases import (
    PairRecord,
    Phase,
    load_pair_record,
    read_pair_record,
    write_pair_record,
)
from xlm.common.schema import settings
from xlm.experiment import streams
from xlm.experiment.data import pair_shares
from xlm.objectives.best_response import best_response, shrunk
from xlm.objectives.objective import AuxState
from xlm.objectives.pair_losses import PairSums, mean_pair_losses, standard_errors
from xlm.objectives.replaced_token import PAIR_LOSSES
from xlm.objectives.settings import RobustSettings

RECORD = "pair_weights.json"  # in the folder of training


def with_next_phase(
    record: PairRecord,
    step: int,
    losses: Mapping[str, float],
    settings: RobustSettings,
    baseline: Mapping[str, float] | None = None,
    errors: Mapping[str, float] | None = None,
    examples: Mapping[str, float] | None = None,
) -> PairRecord:
    """Solve for the worst distribution, and add it to the record as the phase from `step` on.

    Raises ValueError for losses of other pairs, an infinite loss, or a step before the last phase.

    Args:
      losses: mean loss of each pair, NaN for an unseen one.
      baseline: loss to subtract for each pair, see `baseline_losses`; None for none. A pair without
        one counts as unseen.
      errors: standard errors of the losses, for `settings.shrink`.
      examples: number of examples of each pair, for the record.
    """
    if set(losses) != set(record.base):
        differing = sorted(set(losses) ^ set(record.base))
        raise ValueError(
            f"losses and base distribution are of different pairs: {differing[:5]}; restore the "
            "rows that the run began with"
        )
    pairs = sorted(record.base)
    subtracted = [0.0 if baseline is None else baseline.get(pair, math.nan) for pair in pairs]
    values = np.array([losses[pair] for pair in pairs], np.float64) - subtracted
    if settings.shrink and errors is not None and not np.isinf(values).any():
        values = shrunk(values, [errors[pair] for pair in pairs])
    base = [record.base[pair] for pair in pairs]
    found = best_response(values, base, settings.rho, min_ratio=settings.min_ratio)
    phase = Phase(
        step=step,
        weights=dict(zip(pairs, found.weights.tolist(), strict=True)),
        losses={pair: None if math.isnan(loss) else float(loss) for pair, loss in losses.items()},
        errors={
            pair: float(one) if math.isfinite(one) else None for pair, one in (errors or {}).items()
        },
        examples=dict(examples or {}),
        divergence=found.divergence,
        eta=found.eta if math.isfinite(found.eta) else None,
    )
    return record.extended(phase)


def baseline_losses(path: pathlib.Path) -> dict[str, float]:
    """Read the losses of seen pairs in the last phase of a run's record.

    Raises ValueError if the file is missing or damaged, or has no phases.
    """
    record = load_pair_record(path)
    if not record.phases:
        raise ValueError(
            f"robust.baseline: {path} has no phases, and so no losses; finish that run first"
        )
    return {pair: loss for pair, loss in record.phases[-1].losses.items() if loss is not None}


@dataclasses.dataclass
class ReweightedData:
    """Training data with language pairs re-weighted in phases by their losses so far.

    It is an input of the training loop (`xlm.training.loop.LearnedData`). The stream is a pure
    function of the seed, the step and the recorded phases, so that a run resumes exactly. The first
    host writes the record to `path`. Raises ValueError if a baseline is of other pairs or damaged.
    """

    config: ConfigDict
    dataset: PackedDataset
    mesh: Mesh
    settings: RobustSettings
    path: pathlib.Path
    record: PairRecord

    def __post_init__(self):
        self._phase_steps = self.settings.phase_steps(self.config.train.num_steps)
        self._pairs = language_pairs(self.dataset)  # counts all bitext
        path = self.settings.baseline
        self._baseline = baseline_losses(pathlib.Path(path)) if path else None
        if self._baseline is not None:
            self._check_baseline(self._baseline)
        self._data = self._make_data()

    def _check_baseline(self, baseline: Mapping[str, float]) -> None:
        """Warn of pairs that keep their shares, since they have no baseline.

        Raises ValueError if fewer than two pairs have one, so that none would be re-weighted.
        """
        pairs = sorted(pair for pair, share in self.record.base.items() if share > 0)
        missing = [pair for pair in pairs if pair not in baseline]
        count, path = len(pairs) - len(missing), self.settings.baseline
        if count < 2:
            raise ValueError(
                f"robust.baseline: {path} has losses of {count} of the {len(pairs)} language pairs "
                f"of this run ({', '.join(pairs[:5])}), but of "
                f"{', '.join(sorted(baseline)[:5]) or 'none'}; "
                'at least 2 are needed: name the record of a run on the same pairs, or "" for none'
            )
        if missing:
            logging.warning(
                "robust.baseline: %s has no losses of %d of %d language pairs (%s), which keep "
                "their shares", path, len(missing), len(pairs), ", ".join(missing[:5]),
            )  # fmt: skip

    def _make_data(self) -> StreamedData:
        first = {0: self.record.base}
        weights = first | {phase.step: phase.weights for phase in self.record.phases}
        by_pair = {
            step: {pair: of_names["-".join(pair)] for pair in self._pairs}
            for step, of_names in weights.items()
        }
        return streams.training_data(self.config, self.dataset, self.mesh, by_pair)

    def batches(self, steps: range) -> Iterator[tuple[str, dict[str, np.ndarray]]]:
        return self._data.batches(steps)

    def describe_batch(self, step: int) -> list[tuple[str, int]]:
        return self._data.describe_batch(step)

    def step_values(self, step: int) -> Mapping[str, float]:
        return self._data.step_values(step)

    def known_until(self, step: int) -> int:
        later = (phase for phase in self._phase_steps if phase > step)
        return min(later, default=self.config.train.num_steps)

    def renew(self, step: int, learned: Callable[[], AuxState]) -> None:
        """Drop phases after `step`, which the run has lost, and solve the one that begins there.

        Raises ValueError if the record lacks an earlier phase, which the run has used.
        """
        record = self.record.as_of(step)
        used = {phase for phase in self._phase_steps if phase < step}
        if missing := sorted(used - {phase.step for phase in record.phases}):
            raise ValueError(
                f"{self.path} has no phases of steps {missing}, which the run of {step} steps has "
                "used; restore the file, or train in another --workdir"
            )
        if step in self._phase_steps and step not in {phase.step for phase in record.phases}:
            state, names = PairSums(*learned()[PAIR_LOSSES]), [*map("-".join, self._pairs)]
            losses, errors, examples = (
                dict(zip(names, np.asarray(one, np.float64).tolist(), strict=True))
                for one in (mean_pair_losses(state), standard_errors(state), state.examples)
            )
            record = with_next_phase(
                record, step, losses, self.settings, self._baseline, errors, examples
            )
            logging.info(
                "step %d: language pairs are re-weighted, divergence %.4g from the base",
                step, record.phases[-1].divergence,
            )  # fmt: skip
            if jax.process_index() == 0:
                write_pair_record(self.path, record)
        if record != self.record:
            self.record = record
            self._data = self._make_data()


def training_data(
    config: ConfigDict, dataset: PackedDataset, mesh: Mesh, folder: pathlib.Path
) -> ReweightedData:
    """Build this host's part of the re-weighted training batches.

    The record of the phases is in `folder`. Raises ValueError if settings do not fit each other or
    the data, or the record belongs to another run.
    """
    robust = robust_settings(config)
    streams.log_pair_sampling(config, dataset)
    names, base = pair_names(dataset), pair_shares(config, dataset)
    assert base is not None  # by `robust_settings`
    record = read_pair_record(
        folder / RECORD, {"-".join(pair): share for pair, share in base.items()}
    )
    assert sorted(record.base) == sorted(names)
    return ReweightedData(config, dataset, mesh, robust, folder / RECORD, record)


def robust_settings(config: ConfigDict) -> RobustSettings:
    """Read the settings of robust sampling.

    Raises ValueError if it is on, but the run has another objective, no pairs or no shares of them.
    """
    robust = settings(RobustSettings, config.robust)
    if not robust.num_phases:
        return robust
    if config.objective != "replaced_token" or not config.data.pair_share:
        raise ValueError(
            f"robust.num_phases is {robust.num_phases}, but robust sampling re-weights the pairs "
            'of objective "replaced_token", which needs data.pair_share above 0; set '
            "robust.num_phases to 0, or these keys"
        )
    if config.data.pair_sampling == "alpha":
        raise ValueError(
            'data.pair_sampling is "alpha", which weights pairs by set; robust sampling needs a '
            'distribution over language pairs, such as "sinkhorn" or "proportional"'
        )
    return robust
